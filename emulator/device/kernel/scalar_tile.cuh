// Products without tensor cores: tiles of f32, exactly, and of integers.
#pragma once
#include "matrix.cuh"

DEV void multiply_add(f32& sum, u32 a, u32 b) { sum = fmaf(__uint_as_float(a), __uint_as_float(b), sum); }
DEV void multiply_add(i32& sum, u32 a, u32 b) { sum = static_cast<i32>(static_cast<u32>(sum) + a * b); }

// ROWS x COLUMNS by multiply-add, 8 x 4 per thread; where that takes fewer threads than there are, PARTS share the depth.
// The sums are left in scratch: Sum [PARTS][ROWS][PITCH].
template <class Sum, class E, u32 ROWS_, u32 COLUMNS_, u32 DEPTH, u32 STAGES> struct ScalarTile {
    using Element = E;
    static constexpr u32 ROWS = ROWS_, COLUMNS = COLUMNS_, STEP = DEPTH, PITCH = COLUMNS + 8;
    static constexpr u32 ACROSS = COLUMNS / 4, THREADS = ACROSS * (ROWS / 8), PARTS = WORKER_THREADS / THREADS;
    static_assert(PARTS * THREADS == WORKER_THREADS, "every thread has a share");
    static_assert(PARTS * ROWS * PITCH * 4 <= SCRATCH_BYTES, "the sums fit");

    // The 4 in depth from `depth` on, of the 4 rows from `row` on: to[row][depth]. Both are multiples of 4; with `deep` a
    // constant, so are the steps between the four accesses, and places in `to`.
    template <u32 LINES> static DEV void fetch(u32 (&to)[4][4], const char* tile, bool deep, u32 row, u32 depth) {
        const u32 line = deep ? row : depth, chunk = (deep ? depth : row) / 4, per_line = (deep ? DEPTH : LINES) / 4;
        const char* from = tile + (line * per_line + E::permute(line, chunk, per_line, deep)) * CHUNK_BYTES;  // as of the next 3
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const uint4 v = *reinterpret_cast<const uint4*>(from + i * per_line * CHUNK_BYTES);
            const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (u32 k = 0; k < 4; ++k) (deep ? to[i][k] : to[k][i]) = words[k];
        }
    }

    template <class P> static DEV void accumulate(Sum (&sums)[8][4], const P& pipeline, u32 depth, bool a_deep, bool b_deep, u32 row,
                                                  u32 column, u32 part) {
        pipeline.fill(a_deep, b_deep);
#pragma unroll 1
        for (u32 step = 0; step < pipeline.steps; ++step) {
            pipeline.wait();
            pipeline.load(step + STAGES - 1, a_deep, b_deep);
            const char* a_tile = pipeline.stage(step);
            const char* b_tile = a_tile + ROWS * DEPTH * 4;
            const u32 end = min(DEPTH, depth - step * DEPTH);
#pragma unroll 1
            for (u32 d = 4 * part; d < end; d += 4 * PARTS) {
                u32 bv[4][4];
                fetch<COLUMNS>(bv, b_tile, b_deep, column, d);
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    u32 av[4][4];
                    fetch<ROWS>(av, a_tile, a_deep, row + half * (ROWS / 2), d);
#pragma unroll
                    for (u32 k = 0; k < 4; ++k)
#pragma unroll
                        for (u32 i = 0; i < 4; ++i)
#pragma unroll
                            for (u32 j = 0; j < 4; ++j) multiply_add(sums[4 * half + i][j], av[i][k], bv[j][k]);
                }
            }
        }
    }

    template <class A, class B> static DEV void multiply(const A& a, const B& b, u32 depth, const Block& block) {
        const u32 part = block.thread() / THREADS, row = block.thread() % THREADS / ACROSS * 4, column = block.thread() % ACROSS * 4;
        Sum sums[8][4];
#pragma unroll
        for (u32 i = 0; i < 8; ++i)
#pragma unroll
            for (u32 j = 0; j < 4; ++j) sums[i][j] = 0;
        const Pipeline<STAGES, ROWS * DEPTH * 4, COLUMNS * DEPTH * 4, DEPTH, A, B> pipeline(a, b, depth, block);
        for_layouts(a.deep, b.deep, [&](bool a_deep, bool b_deep) { accumulate(sums, pipeline, depth, a_deep, b_deep, row, column, part); });
        pipeline.drain();
        Sum* corner = reinterpret_cast<Sum*>(block.scratch()) + (part * ROWS + row) * PITCH + column;
#pragma unroll
        for (u32 i = 0; i < 8; ++i)
#pragma unroll
            for (u32 j = 0; j < 4; ++j) corner[(i / 4 * (ROWS / 2) + i % 4) * PITCH + j] = sums[i][j];
        block.sync();
    }
};
