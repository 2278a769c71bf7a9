// Tiles of f32 in shared memory, turned: neighbours in depth become neighbours in rows, or the other way round.
//
// A stage holds an operand in squares: 32 rows (M or N) by 32 of the depth, one behind the other. A deep square has a line
// for each row, its chunks of 16 bytes swizzled over 128 bytes, as wgmma and tensor maps have them; one that lies across has
// a line for each depth, not swizzled.
#pragma once
#ifdef HOPPER
#include "path_workers.cuh"

constexpr u32 LINE_BYTES = 128;  // a row of a granule
constexpr u32 SQUARE = 32;       // rows, and depth
constexpr u32 SQUARE_BYTES = SQUARE * LINE_BYTES;

constexpr u32 TURN_GROUP = FIRST_FREE_BARRIER + 2;  // and one more: within a warpgroup
constexpr u32 WARPGROUP = 128;                       // threads

// Neighbouring squares of a stage.
struct Squares {
    u32 offset;  // bytes from the stage's start
    u32 count;
};

// Half of a square that is turned in its place: a block of 4 x 4 in each lane. The eight lanes that the hardware serves at once
// have eight different columns of blocks, and, in a deep square, blocks whose swizzled chunks lie in different banks.
template <bool TO_DEPTH> struct HalfSquare {
    u32 square, row, depth;  // where the square lies; the lane's block there: M or N, and depth
    uint4 v[4];

    DEV u32 across(u32 i) const { return square + (depth + i) * LINE_BYTES + row * 4; }
    DEV u32 deep(u32 i) const { return square + (row + i) * LINE_BYTES + ((depth * 4) ^ (row * 16 + i * 16 & 0x70)); }

    DEV void read(u32 address, u32 half, u32 lane) {
        square = address;
        row = lane % 8 * 4;
        depth = (lane / 8 ^ lane / 2 % 4) * 4 + half * (SQUARE / 2);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) v[i] = load_shared_16(TO_DEPTH ? across(i) : deep(i));
    }
    // Once both halves have been read.
    DEV void write() const {
        const auto to = [&](u32 i) { return TO_DEPTH ? deep(i) : across(i); };
        store_shared(to(0), make_uint4(v[0].x, v[1].x, v[2].x, v[3].x));
        store_shared(to(1), make_uint4(v[0].y, v[1].y, v[2].y, v[3].y));
        store_shared(to(2), make_uint4(v[0].z, v[1].z, v[2].z, v[3].z));
        store_shared(to(3), make_uint4(v[0].w, v[1].w, v[2].w, v[3].w));
    }
};

// Turns the squares of a stage for wgmma; warps share them out.
DEV void turn_to_depth(const Squares& squares, u32 stage, u32 warp, u32 lane) {
#pragma unroll 1
    for (u32 i = warp; i < squares.count; i += WORKER_WARPS) {
        HalfSquare<true> halves[2];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) halves[half].read(stage + squares.offset + i * SQUARE_BYTES, half, lane);
        __syncwarp();
#pragma unroll
        for (u32 half = 0; half < 2; ++half) halves[half].write();
    }
}

// The same for multiply-add, which leaves fewer registers: warps share them out by halves, squares go to the two warpgroups in turns, and
// a warpgroup meets between reading and writing. A warp that is too many reads a half of its warpgroup's with the others: registers that
// are filled on one way only would go to local memory.
DEV void turn_across(const Squares& squares, u32 stage, const Workers& me) {
    const u32 halves = 2 * squares.count;  // a multiple of 4: tiles have 64 rows and columns at least
#pragma unroll 1
    for (u32 first = 0; first < halves; first += WORKER_WARPS) {
        const u32 square = me.warp() / 4 + me.warp() % 4 / 2 * 2, i = first + 2 * square + me.warp() % 2, at = i < halves ? i : i - 4;
        HalfSquare<false> half;
        half.read(stage + squares.offset + at / 2 * SQUARE_BYTES, at % 2, me.lane());
        named_barrier(TURN_GROUP + me.warp() / 4, WARPGROUP);  // both halves of a square are one's
        if (i < halves) half.write();
    }
}
#endif
