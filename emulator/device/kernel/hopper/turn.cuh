// Tiles of f32 in shared memory, turned: neighbours in depth become neighbours in rows, or the other way round.
//
// A stage holds an operand in squares: 32 rows (M or N) by 32 of the depth, one behind the other. A deep square has a line
// for each row, its chunks of 16 bytes swizzled over 128 bytes, as wgmma and tensor maps have them; one that lies across has
// a line for each depth, not swizzled.
#pragma once
#ifdef HOPPER
#include "ptx.cuh"

constexpr u32 LINE_BYTES = 128;  // a row of a granule
constexpr u32 SQUARE = 32;       // rows, and depth
constexpr u32 SQUARE_BYTES = SQUARE * LINE_BYTES;

// Neighbouring squares of a stage.
struct Squares {
    u32 offset;  // bytes from the stage's start
    u32 count;
};

// Turns one square in its place, by a warp: blocks of 4 x 4, two per lane. The eight lanes that the hardware serves at once
// have eight different columns of blocks, and, in a deep square, blocks whose swizzled chunks lie in different banks.
template <bool TO_DEPTH> DEV void turn_square(u32 square, u32 lane) {
    const u32 row = lane % 8 * 4;                     // of the lane's blocks: M or N
    const u32 depth = (lane / 8 ^ lane / 2 % 4) * 4;  // of the first; the second's is 16 further
    const auto across = [&](u32 block, u32 i) { return square + (depth + 16 * block + i) * LINE_BYTES + row * 4; };
    const auto deep = [&](u32 block, u32 i) {
        return square + (row + i) * LINE_BYTES + ((depth * 4 + 64 * block) ^ (row * 16 + i * 16 & 0x70));
    };
    uint4 v[2][4];
#pragma unroll
    for (u32 block = 0; block < 2; ++block)
#pragma unroll
        for (u32 i = 0; i < 4; ++i) v[block][i] = load_shared_16(TO_DEPTH ? across(block, i) : deep(block, i));
    __syncwarp();
#pragma unroll
    for (u32 block = 0; block < 2; ++block) {
        const uint4(&r)[4] = v[block];
        const auto to = [&](u32 i) { return TO_DEPTH ? deep(block, i) : across(block, i); };
        store_shared(to(0), make_uint4(r[0].x, r[1].x, r[2].x, r[3].x));
        store_shared(to(1), make_uint4(r[0].y, r[1].y, r[2].y, r[3].y));
        store_shared(to(2), make_uint4(r[0].z, r[1].z, r[2].z, r[3].z));
        store_shared(to(3), make_uint4(r[0].w, r[1].w, r[2].w, r[3].w));
    }
}

// Turns the squares of a stage; warps share them out.
template <bool TO_DEPTH> DEV void turn_squares(const Squares& squares, u32 stage, u32 warp, u32 lane) {
#pragma unroll 1
    for (u32 i = warp; i < squares.count; i += WORKER_WARPS) turn_square<TO_DEPTH>(stage + squares.offset + i * SQUARE_BYTES, lane);
}
#endif
