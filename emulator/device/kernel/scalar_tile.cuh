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

    // The 4 in depth from `depth` on, of the 4 rows from `row` on: to[row][depth].
    template <u32 LINES> static DEV void fetch(u32 (&to)[4][4], const char* tile, bool deep, u32 row, u32 depth) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 line = (deep ? row : depth) + i, chunk = (deep ? depth : row) / 4, per_line = (deep ? DEPTH : LINES) / 4;
            const uint4 v = *reinterpret_cast<const uint4*>(tile + (line * per_line + E::permute(line, chunk, per_line, deep)) * CHUNK_BYTES);
            const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                if (deep) to[i][k] = words[k];
                else to[k][i] = words[k];
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
        pipeline.fill(a.deep, b.deep);
#pragma unroll 1
        for (u32 step = 0; step < pipeline.steps; ++step) {
            pipeline.wait();
            pipeline.load(step + STAGES - 1, a.deep, b.deep);
            const char* stage = pipeline.stage(step);
            const char* b_tile = stage + ROWS * DEPTH * 4;
            const u32 left = depth - step * DEPTH;
#pragma unroll 1
            for (u32 d = 4 * part; d < DEPTH && d < left; d += 4 * PARTS) {
                u32 bv[4][4];
                fetch<COLUMNS>(bv, b_tile, b.deep, column, d);
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    u32 av[4][4];
                    fetch<ROWS>(av, stage, a.deep, row + half * (ROWS / 2), d);
#pragma unroll
                    for (u32 k = 0; k < 4; ++k)
#pragma unroll
                        for (u32 i = 0; i < 4; ++i)
#pragma unroll
                            for (u32 j = 0; j < 4; ++j) multiply_add(sums[4 * half + i][j], av[i][k], bv[j][k]);
                }
            }
        }
        pipeline.drain();
        Sum* corner = reinterpret_cast<Sum*>(block.scratch()) + (part * ROWS + row) * PITCH + column;
#pragma unroll
        for (u32 i = 0; i < 8; ++i)
#pragma unroll
            for (u32 j = 0; j < 4; ++j) corner[(i / 4 * (ROWS / 2) + i % 4) * PITCH + j] = sums[i][j];
        block.sync();
    }
};

// ROWS x COLUMNS of f32 by multiply-add, 8 x 8 per thread; where that takes fewer threads than there are, PARTS share the
// depth. The sums are left in scratch: f32 [PARTS][ROWS][PITCH].
//
// A thread's 8 rows are two fours, and so are its columns. What it multiplies at a time is four by four, two deep: the
// fours that it needs next are loaded while it works on the others, in the place of those that are used up.
template <u32 ROWS_, u32 COLUMNS_, u32 STAGES> struct FloatTile {
    using Element = Bits32;
    static constexpr u32 ROWS = ROWS_, COLUMNS = COLUMNS_, STEP = 32, PITCH = COLUMNS + 8;
    static constexpr u32 LINE_BYTES = STEP * 4, A_BYTES = ROWS * LINE_BYTES, B_BYTES = COLUMNS * LINE_BYTES;
    static constexpr u32 WARP_ROWS = 32, WARP_COLUMNS = 64;  // of a warp's share: lanes are 4 down, 8 across
    static constexpr u32 NEXT_ROWS = 16, NEXT_COLUMNS = 32;  // from a thread's first four to its second
    static constexpr u32 ACROSS = COLUMNS / WARP_COLUMNS, WARPS = ROWS / WARP_ROWS * ACROSS, PARTS = WORKER_WARPS / WARPS;
    static_assert(PARTS * WARPS == WORKER_WARPS && STEP % (4 * PARTS) == 0, "every warp has a share");
    static_assert(PARTS * ROWS * PITCH * 4 <= SCRATCH_BYTES, "the sums fit");
    using Four = f32[4][2];  // [row][depth]

    // The 2 in depth from `depth` on, of the 4 rows from `row` on. Lanes that differ in `row` read different banks.
    template <u32 LINES> static DEV void fetch(Four& to, const char* tile, bool deep, u32 row, u32 depth) {
        if (deep) {
            // The place of a chunk is Bits32::permute's, which depends on the line's multiple of 4 alone. Two at a time,
            // although four are there: those would take twice the registers.
            const u32 swizzle = row * 4 & LINE_BYTES - CHUNK_BYTES;
            const u32 from = shared_address(tile) + row * LINE_BYTES + (depth * 4 & ~(CHUNK_BYTES - 1) ^ swizzle) + depth * 4 % CHUNK_BYTES;
#pragma unroll
            for (u32 i = 0; i < 4; ++i) load_shared_2(to[i], from + i * LINE_BYTES);
        } else {
#pragma unroll
            for (u32 k = 0; k < 2; ++k) {
                const float4 v = *reinterpret_cast<const float4*>(tile + ((depth + k) * LINES + row) * 4);
                to[0][k] = v.x;
                to[1][k] = v.y;
                to[2][k] = v.z;
                to[3][k] = v.w;
            }
        }
    }

    // Adds a * b to the sums from [row][column] on, to and fro, so that one factor stays for the next multiplication.
    static DEV void multiply_fours(f32 (&sums)[8][8], const Four& a, const Four& b, u32 row, u32 column) {
#pragma unroll
        for (u32 k = 0; k < 2; ++k)
#pragma unroll
            for (u32 i = 0; i < 4; ++i)
#pragma unroll
                for (u32 n = 0; n < 4; ++n) {
                    const u32 j = i % 2 ? 3 - n : n;
                    sums[row + i][column + j] = fmaf(a[i][k], b[j][k], sums[row + i][column + j]);
                }
    }

    template <class P> static DEV void accumulate(f32 (&sums)[8][8], const P& pipeline, bool a_deep, bool b_deep, u32 row, u32 column, u32 part) {
        Four a0, a1, b0, b1;
        pipeline.fill(a_deep, b_deep);
        pipeline.wait();
        const char* stage = pipeline.stage(0);
        const auto left = [&](Four& to, u32 half, u32 depth) { fetch<ROWS>(to, stage, a_deep, row + half * NEXT_ROWS, depth); };
        const auto right = [&](Four& to, u32 half, u32 depth) { fetch<COLUMNS>(to, stage + A_BYTES, b_deep, column + half * NEXT_COLUMNS, depth); };
        left(a0, 0, 4 * part);
        right(b0, 0, 4 * part);
#pragma unroll 1
        for (u32 step = 0; step < pipeline.steps; ++step) {
            pipeline.load(step + STAGES - 1, a_deep, b_deep);
#pragma unroll 1  // registers: whoever calls this has some, too
            for (u32 at = 0; at < STEP; at += 4 * PARTS) {
                const u32 d = at + 4 * part;
                right(b1, 1, d);
                left(a1, 1, d);
                multiply_fours(sums, a0, b0, 0, 0);
                multiply_fours(sums, a0, b1, 0, 4);
                left(a0, 0, d + 2);
                multiply_fours(sums, a1, b1, 4, 4);
                right(b1, 1, d + 2);
                multiply_fours(sums, a1, b0, 4, 0);
                right(b0, 0, d + 2);
                left(a1, 1, d + 2);
                multiply_fours(sums, a0, b1, 0, 4);
                multiply_fours(sums, a0, b0, 0, 0);
                const bool last = at + 4 * PARTS == STEP;
                if (last) {
                    pipeline.wait();
                    stage = pipeline.stage(step + 1);  // behind the last step nobody uses what is loaded
                }
                const u32 next = last ? 4 * part : d + 4 * PARTS;
                left(a0, 0, next);
                multiply_fours(sums, a1, b0, 4, 0);
                right(b0, 0, next);
                multiply_fours(sums, a1, b1, 4, 4);
            }
        }
        pipeline.drain();
    }

    template <class A, class B> static DEV void multiply(const A& a, const B& b, u32 depth, const Block& block) {
        const u32 part = PARTS == 1 ? 0 : block.warp() / WARPS, warp = block.warp() % WARPS;
        const u32 row = warp / ACROSS * WARP_ROWS + block.lane() / 8 * 4, column = warp % ACROSS * WARP_COLUMNS + block.lane() % 8 * 4;
        f32 sums[8][8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i)
#pragma unroll
            for (u32 j = 0; j < 8; ++j) sums[i][j] = 0.0f;
        const Pipeline<STAGES, A_BYTES, B_BYTES, STEP, A, B> pipeline(a, b, depth, block);
        for_layouts(a.deep, b.deep, [&](bool a_deep, bool b_deep) { accumulate(sums, pipeline, a_deep, b_deep, row, column, part); });
        f32* corner = reinterpret_cast<f32*>(block.scratch()) + (part * ROWS + row) * PITCH + column;
#pragma unroll
        for (u32 i = 0; i < 8; ++i)
#pragma unroll
            for (u32 j = 0; j < 8; j += 4) {
                float4* to = reinterpret_cast<float4*>(corner + (i / 4 * NEXT_ROWS + i % 4) * PITCH + j / 4 * NEXT_COLUMNS);
                *to = make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
            }
        block.sync();
    }
};
