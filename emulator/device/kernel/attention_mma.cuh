// ATTENTION on mma.sync: what a warp does with 16 rows of queries and some keys.
#pragma once
#include "attention_shape.cuh"

// Where chunk `chunk` of a line lies, in lines of `per_line` chunks.
DEV u32 chunk_place(u32 line, u32 chunk, u32 per_line) { return (line * per_line + (chunk ^ (line & 7))) * CHUNK_BYTES; }

// Loads one chunk of shared memory: `left` elements from `from` on along the last axis, then zeros.
DEV void load_chunk(const Tensor& t, char* to, i64 from, u32 left, bool whole) {
    if (whole) copy_chunk<Bits16>(t, to, from, left);
    else gather_chunk<Bits16>(t, to, from, left, 3);
}

// Loads `lines` lines, of which `have` exist, from axis 2 of `t` at `first` on; `width` elements each from `column` on.
DEV_CALL void load_lines(const Tensor& t, i64 base, u32 first, u32 have, u32 lines, u32 column, u32 width, char* to, u32 per_line,
                         u32 thread) {
    const u32 chunks = (width + 15) / 16 * 2;  // products go by 16
    const bool whole = copies_whole<Bits16>(t, 3);
#pragma unroll 2
    for (u32 id = thread; id < lines * chunks; id += WORKER_THREADS) {
        const u32 line = id / chunks, chunk = id % chunks;
        const u32 left = line < have && chunk * 8 < width ? min(8u, width - chunk * 8) : 0;
        const i64 from = base + static_cast<i64>(first + line) * t.strides[2] + static_cast<i64>(column + chunk * 8) * t.strides[3];
        load_chunk(t, to + chunk_place(line, chunk, per_line), from, left, whole);
    }
}

// 16 queries, KEYS keys of a block at a time, COLUMNS columns of v.
template <class T, u32 KEYS, u32 COLUMNS> struct WarpAttention {
    static constexpr u32 BLOCKS = KEYS / 8;  // mma columns of the scores

    // What is carried from one block of keys to the next: of rows lane / 4 and lane / 4 + 8.
    struct Running {
        f32 top[2], total[2];
        f32 sums[COLUMNS / 8][4];

        DEV void clear() {
            top[0] = top[1] = -infinity();
            total[0] = total[1] = 0.0f;
#pragma unroll
            for (u32 j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) sums[j][e] = 0.0f;
        }
    };

    // Products of this warp's 16 queries with its keys of a block.
    static DEV void multiply_keys(f32 (&scores)[BLOCKS][4], u32 q_tile, u32 k_tile, u32 row, u32 key, u32 depth, u32 per_line, u32 lane) {
#pragma unroll
        for (u32 j = 0; j < BLOCKS; ++j)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) scores[j][e] = 0.0f;
#pragma unroll 2
        for (u32 d = 0; d < depth; d += 16) {
            u32 a[4], b[4];
            load_matrix_x4(a, q_tile + chunk_place(row + lane % 16, d / 8 + lane / 16, per_line));
#pragma unroll
            for (u32 j = 0; j < BLOCKS; j += 2) {
                load_matrix_x4(b, k_tile + chunk_place(key + 8 * j + (lane & 7) + 8 * (lane >> 4), d / 8 + (lane >> 3 & 1), per_line));
                T::multiply(scores[j], a, b[0], b[1]);
                T::multiply(scores[j + 1], a, b[2], b[3]);
            }
        }
    }

    // The logits of a lane's rows of `tile` (and 8 below) for keys `key`.. from their products; -infinity where `first` .. `end` hide
    // a key. `all`: every query sees every key.
    static DEV void mask_scores(f32 (&scores)[BLOCKS][4], const AttentionArgs& args, const AttentionShape& s, const u32 (&query)[2],
                                const i64 (&mask)[2], const u32 (&first)[2], const u32 (&end)[2], u32 key, bool all, u32 lane) {
        const bool plain = !args.has_mask() && s.softcap == 0.0f;
#pragma unroll
        for (u32 j = 0; j < BLOCKS; ++j)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 at = key + 8 * j + lane % 4 * 2 + e % 2;
                const bool visible = at >= first[e / 2] && at < end[e / 2];
                if (plain) scores[j][e] = all || visible ? scores[j][e] * s.scale : -infinity();
                else if (!visible) scores[j][e] = -infinity();
                else scores[j][e] = attention_score(args, s, mask[e / 2], query[e / 2], at, scores[j][e]);
            }
    }

    // Turns scores into probabilities relative to the running maximum, which rises as needed. With one of the two `halves`, those
    // of rows from 8 on stay as they are.
    static DEV void soften(f32 (&scores)[BLOCKS][4], Running& r, u32 halves = 2) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            if (half == halves) break;
            f32 top = r.top[half];
#pragma unroll
            for (u32 j = 0; j < BLOCKS; ++j) top = fmaxf(top, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const f32 shrink = exp_below(r.top[half], top);
            r.top[half] = top;
            r.total[half] *= shrink;
            if (__any_sync(0xffffffffu, shrink != 1.0f)) {
#pragma unroll
                for (u32 j = 0; j < COLUMNS / 8; ++j) {
                    r.sums[j][2 * half] *= shrink;
                    r.sums[j][2 * half + 1] *= shrink;
                }
            }
#pragma unroll
            for (u32 j = 0; j < BLOCKS; ++j)
#pragma unroll
                for (u32 e = 2 * half; e < 2 * half + 2; ++e) {
                    scores[j][e] = exp_below(scores[j][e], top);
                    r.total[half] += scores[j][e];
                }
        }
    }

    // Adds probabilities times values of `columns` columns from `column` on; a pair of score blocks is an `a` fragment as it lies in the registers.
    static DEV void multiply_values(Running& r, const f32 (&p)[BLOCKS][4], u32 v_tile, u32 key, u32 column, u32 columns,
                                    u32 per_line, u32 lane) {
#pragma unroll
        for (u32 j = 0; j < BLOCKS; j += 2) {
            const u32 a[4] = {T::pack(p[j][0], p[j][1]), T::pack(p[j][2], p[j][3]), T::pack(p[j + 1][0], p[j + 1][1]),
                              T::pack(p[j + 1][2], p[j + 1][3])};
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c += 16) {
                if (column + c >= columns) break;
                u32 b[4];
                load_matrix_x4_transposed(b, v_tile + chunk_place(key + 8 * j + lane % 16, (column + c) / 8 + lane / 16, per_line));
                T::multiply(r.sums[c / 8], a, b[0], b[1]);
                T::multiply(r.sums[c / 8 + 1], a, b[2], b[3]);
            }
        }
    }
};
