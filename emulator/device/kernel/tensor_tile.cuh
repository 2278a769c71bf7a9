// Products on tensor cores: tiles of 16-bit floats, and of f32 in the tf32 mode.
#pragma once
#include "matrix.cuh"

// 16 rows of a tile, by two chunks of 16 bytes in depth, as mma fragments. For `a` the second 8 x 8 (or, of 32-bit elements,
// 8 x 4) matrix holds the next rows; for `b`, which makes two column blocks, it holds the next depth.
template <class E, u32 ROWS, u32 DEPTH> DEV void load_fragment(u32 (&r)[4], u32 tile, bool deep, bool is_a, u32 row, u32 depth, u32 lane) {
    constexpr u32 PER_CHUNK = CHUNK_BYTES / E::BYTES;
    if (!deep && E::BYTES == 4) {
        // No instruction turns 32-bit elements around: each lane reads its own, four lines of two chunks at a time. Their
        // place is E::permute's, written so that few addresses differ by more than a constant.
        const u32 corner = tile + (depth + lane % 4) * (ROWS * 4) + lane / 4 * 4 + (row * 4 & ~127u);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 next_line = 4 * (is_a ? i >> 1 : i & 1), next_row = 8 * (is_a ? i & 1 : i >> 1);
            r[i] = load_shared_1(corner + ((row + next_row) * 4 & 127 ^ lane % 4 * 32) + next_line * (ROWS * 4));
        }
        return;
    }
    const u32 row_octet = is_a ? lane >> 3 & 1 : lane >> 4;
    const u32 depth_chunk = is_a ? lane >> 4 : lane >> 3 & 1;
    if (deep) {
        const u32 line = row + (lane & 7) + 8 * row_octet, chunk = depth / PER_CHUNK + depth_chunk;
        load_matrix_x4(r, tile + (line * (DEPTH / PER_CHUNK) + E::permute(line, chunk, DEPTH / PER_CHUNK, true)) * CHUNK_BYTES);
    } else {
        const u32 line = depth + (lane & 7) + 8 * depth_chunk, chunk = row / 8 + row_octet;
        load_matrix_x4_transposed(r, tile + (line * (ROWS / 8) + E::permute(line, chunk, ROWS / 8, false)) * CHUNK_BYTES);
    }
}

// ROWS x COLUMNS on tensor cores by WARP_ROWS x WARP_COLUMNS x PARTS warps; PARTS of them share out the depth.
// The sums are left in scratch: f32 [PARTS][ROWS][PITCH].
template <class T, u32 ROWS_, u32 COLUMNS_, u32 DEPTH, u32 WARP_ROWS, u32 WARP_COLUMNS, u32 PARTS_, u32 STAGES> struct TensorCoreTile {
    using Element = typename T::Element;
    static constexpr u32 ROWS = ROWS_, COLUMNS = COLUMNS_, STEP = DEPTH, PARTS = PARTS_, PITCH = COLUMNS + 8;
    static constexpr u32 HIGH = ROWS / WARP_ROWS / 16, WIDE = COLUMNS / WARP_COLUMNS / 16;  // 16x16 blocks of a warp
    static constexpr u32 A_BYTES = ROWS * DEPTH * Element::BYTES, B_BYTES = COLUMNS * DEPTH * Element::BYTES;  // of a stage
    static_assert(WARP_ROWS * WARP_COLUMNS * PARTS == WORKER_WARPS, "every warp has a share");
    static_assert(PARTS * ROWS * PITCH * 4 <= SCRATCH_BYTES, "the sums fit");

    template <class P> static DEV void accumulate(f32 (&sums)[HIGH][2 * WIDE][4], const P& pipeline, u32 depth, bool a_deep, bool b_deep,
                                                  u32 row, u32 column, u32 part, u32 lane) {
        pipeline.fill(a_deep, b_deep);
#pragma unroll 1
        for (u32 step = 0; step < pipeline.steps; ++step) {
            pipeline.wait();
            pipeline.load(step + STAGES - 1, a_deep, b_deep);
            const u32 a_tile = shared_address(pipeline.stage(step)), b_tile = a_tile + A_BYTES, left = depth - step * DEPTH;
#pragma unroll
            for (u32 at = 0; at < DEPTH; at += T::DEPTH * PARTS) {
                const u32 d = at + T::DEPTH * part;
                if (d >= left) break;
                u32 af[HIGH][4], bf[WIDE][4];
#pragma unroll
                for (u32 i = 0; i < HIGH; ++i) load_fragment<Element, ROWS, DEPTH>(af[i], a_tile, a_deep, true, row + 16 * i, d, lane);
#pragma unroll
                for (u32 j = 0; j < WIDE; ++j) load_fragment<Element, COLUMNS, DEPTH>(bf[j], b_tile, b_deep, false, column + 16 * j, d, lane);
#pragma unroll
                for (u32 i = 0; i < HIGH; ++i)
#pragma unroll
                    for (u32 j = 0; j < 2 * WIDE; ++j) T::multiply(sums[i][j], af[i], bf[j / 2][j % 2 * 2], bf[j / 2][j % 2 * 2 + 1]);
            }
        }
        pipeline.drain();
    }

    template <class A, class B> static DEV void multiply(const A& a, const B& b, u32 depth, const Block& block) {
        const u32 part = block.warp() % PARTS;
        const u32 row = block.warp() / PARTS % WARP_ROWS * (HIGH * 16), column = block.warp() / PARTS / WARP_ROWS * (WIDE * 16);
        f32 sums[HIGH][2 * WIDE][4];
#pragma unroll
        for (u32 i = 0; i < HIGH; ++i)
#pragma unroll
            for (u32 j = 0; j < 2 * WIDE; ++j)
#pragma unroll
                for (u32 k = 0; k < 4; ++k) sums[i][j][k] = 0.0f;
        const Pipeline<STAGES, A_BYTES, B_BYTES, DEPTH, A, B> pipeline(a, b, depth, block);
        const auto run = [&](bool a_deep, bool b_deep) { accumulate(sums, pipeline, depth, a_deep, b_deep, row, column, part, block.lane()); };
        if (ROWS >= 128) for_layouts(a.deep, b.deep, run);  // a loop for each takes long to compile
        else run(a.deep, b.deep);
        f32* corner = reinterpret_cast<f32*>(block.scratch()) + (part * ROWS + row + block.lane() / 4) * PITCH + column + block.lane() % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < HIGH; ++i)
#pragma unroll
            for (u32 j = 0; j < 2 * WIDE; ++j)
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    f32* to = corner + (16 * i + 8 * half) * PITCH + 8 * j;
                    *reinterpret_cast<float2*>(to) = make_float2(sums[i][j][2 * half], sums[i][j][2 * half + 1]);
                }
        block.sync();
    }
};
