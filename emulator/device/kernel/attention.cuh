// ATTENTION: softmax(q k^T) v in one pass over the keys, with a running maximum and denominator per query
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018). 16-bit floats use tensor cores.
#pragma once
#include "attention_held.cuh"
#include "attention_rows.cuh"
#include "attention_staged.cuh"
#ifdef HOPPER
#include "attention_streamed.cuh"
#endif

// ---- tensor cores ----

// Many queries: four warps down them, 16 each; the other four take different keys of each block, and are combined at the end.
template <class T> struct TensorCoreAttention {
    static constexpr u32 COLUMNS = 128;  // of v, at most
    static constexpr u32 ROW_WARPS = 4, QUERIES = 16 * ROW_WARPS, PARTS = WORKER_WARPS / ROW_WARPS;
    static constexpr u32 PART_KEYS = 32, KEYS = PARTS * PART_KEYS;
    using Warp = WarpAttention<T, PART_KEYS, COLUMNS>;
    using Running = typename Warp::Running;
    static constexpr u32 PITCH = COLUMNS + 8;
    static_assert(PARTS * QUERIES * (PITCH + 2) * 4 <= SCRATCH_BYTES, "the partial results fit");

    // Combines the parts in order, divides, and stores.
    static DEV void store(const AttentionArgs& args, const AttentionTile& tile, const Running& r, u32 part, u32 row, const Block& block) {
        f32* partial = reinterpret_cast<f32*>(block.scratch());  // [PARTS][QUERIES][PITCH]
        f32* tops = partial + PARTS * QUERIES * PITCH;         // [PARTS][QUERIES]
        f32* totals = tops + PARTS * QUERIES;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 line = part * QUERIES + row + block.lane() / 4 + 8 * half;
            f32 total = r.total[half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            if (block.lane() % 4 == 0) {
                tops[line] = r.top[half];
                totals[line] = total;
            }
#pragma unroll
            for (u32 j = 0; j < COLUMNS / 8; ++j) {
                *reinterpret_cast<float2*>(partial + line * PITCH + 8 * j + block.lane() % 4 * 2) =
                    make_float2(r.sums[j][2 * half], r.sums[j][2 * half + 1]);
            }
        }
        block.sync();
        const Tensor& out = args.out();
#pragma unroll 1
        for (u32 id = block.thread(); id < tile.queries * (COLUMNS / 4); id += WORKER_THREADS) {
            const u32 line = id / (COLUMNS / 4), column = id % (COLUMNS / 4) * 4;
            f32 top = -infinity(), total = 0.0f;
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            for (u32 p = 0; p < PARTS; ++p) top = fmaxf(top, tops[p * QUERIES + line]);
            for (u32 p = 0; p < PARTS; ++p) {
                const f32 weight = exp_below(tops[p * QUERIES + line], top);
                const float4 sum = *reinterpret_cast<const float4*>(partial + (p * QUERIES + line) * PITCH + column);
                total += totals[p * QUERIES + line] * weight;
                v = make_float4(v.x + sum.x * weight, v.y + sum.y * weight, v.z + sum.z * weight, v.w + sum.w * weight);
            }
            const u32 query = tile.query + line;
            if (column == 0 && tile.column == 0 && args.has_lse()) {
                store_f32(args.lse(), tile.lse + query * args.lse().strides[2], total == 0.0f ? -infinity() : logf(total) + top);
            }
            if (column >= tile.columns) continue;
            store_four(out, tile.out + query * out.strides[2] + static_cast<i64>(tile.column + column) * out.strides[3],
                       quotient(v, total), min(4u, tile.columns - column));
        }
    }

    static DEV_CALL void run(const AttentionArgs& args, u32 index, const Block& block) {
        const AttentionShape s(args);
        const AttentionTile tile(args, s, index);
        const u32 row = block.warp() % ROW_WARPS * 16, part = block.warp() / ROW_WARPS, per_line = s.padded_depth() / 8;
        const bool two = s.stages() == 2, busy = row < tile.queries;
        char* stages = block.scratch() + s.query_bytes();
        const Tensor& q = args.q();
        const Tensor& k = args.k();
        const Tensor& v = args.v();
        const auto load_keys = [&](u32 key, u32 stage) {
            const u32 have = key < tile.end ? tile.end - key : 0;
            char* to = stages + stage * s.stage_bytes();
            if (have != 0) {
                load_lines(k, tile.k, key, have, KEYS, 0, s.depth, to, per_line, block.thread());
                load_lines(v, tile.v, key, have, KEYS, tile.column, tile.columns, to + KEYS * per_line * CHUNK_BYTES, COLUMNS / 8, block.thread());
            }
            copy_async_commit();
        };
        Running r;
        r.clear();
        u32 query[2], first[2], end[2];  // this lane's two queries, and the keys that they see
        const i64 mask[2] = {tile.mask, tile.mask};
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 line = row + block.lane() / 4 + 8 * half;
            query[half] = tile.query + line;
            first[half] = s.first_key(tile.query + line);
            end[half] = line < tile.queries ? s.end_key(tile.query + line) : 0;
        }
        const u32 all_first = s.first_key(tile.query + tile.queries - 1), all_end = s.end_key(tile.query);
        load_lines(q, tile.q, tile.query, tile.queries, QUERIES, 0, s.depth, block.scratch(), per_line, block.thread());
        load_keys(tile.begin, 0);
        u32 stage = 0;
#pragma unroll 1
        for (u32 key = tile.begin; key < tile.end; key += KEYS) {
            if (two) {
                load_keys(key + KEYS, stage ^ 1);
                copy_async_wait<1>();
            } else {
                copy_async_wait<0>();
            }
            block.sync();
            if (busy) {
                const u32 mine = key + part * PART_KEYS;
                const u32 k_tile = shared_address(stages + stage * s.stage_bytes()), v_tile = k_tile + KEYS * per_line * CHUNK_BYTES;
                f32 scores[Warp::BLOCKS][4];
                Warp::multiply_keys(scores, shared_address(block.scratch()), k_tile, row, part * PART_KEYS, s.depth, per_line, block.lane());
                const bool all = mine >= all_first && mine + PART_KEYS <= all_end;  // every query of the tile sees them
                Warp::mask_scores(scores, args, s, query, mask, first, end, mine, all, block.lane());
                Warp::soften(scores, r);
                Warp::multiply_values(r, scores, v_tile, part * PART_KEYS, 0, tile.columns, COLUMNS / 8, block.lane());
            }
            block.sync();
            if (two) stage ^= 1;
            else load_keys(key + KEYS, 0);
        }
        copy_async_wait<0>();
        block.sync();
        store(args, tile, r, part, row, block);
    }
};

// ---- FMA ----

// f32, and 16-bit floats whose depth does not fit: 32 queries, 8 threads each; blocks of 32 keys; depth in pieces of 64.
struct ScalarAttention {
    static constexpr u32 QUERIES = 32, KEYS = 32, PIECE = 64, COLUMNS = 128;
    static constexpr u32 PIECE_PITCH = PIECE + 4, COLUMN_PITCH = COLUMNS + 4, KEY_PITCH = KEYS + 1;
    static constexpr u32 LANES = WORKER_THREADS / QUERIES;
    static_assert((QUERIES * PIECE_PITCH + KEYS * PIECE_PITCH + KEYS * COLUMN_PITCH + QUERIES * KEY_PITCH) * 4 <= SCRATCH_BYTES, "all fits");

    // `LINES` lines of WIDTH elements from axis 2 of `t` on; what does not exist is 0.
    template <u32 LINES, u32 WIDTH> static DEV_CALL void load(const Tensor& t, i64 base, u32 first, u32 have, u32 column, u32 width, f32* to,
                                                              u32 pitch, const Block& block) {
#pragma unroll 2
        for (u32 id = block.thread(); id < LINES * WIDTH; id += WORKER_THREADS) {
            const u32 line = id / WIDTH, at = id % WIDTH;
            const i64 from = base + static_cast<i64>(first + line) * t.strides[2] + static_cast<i64>(column + at) * t.strides[3];
            to[line * pitch + at] = line < have && at < width ? load_f32(t, from) : 0.0f;
        }
    }

    static DEV_CALL void run(const AttentionArgs& args, u32 index, const Block& block) {
        const AttentionShape s(args);
        const AttentionTile tile(args, s, index);
        f32* q = reinterpret_cast<f32*>(block.scratch());
        f32* k = q + QUERIES * PIECE_PITCH;
        f32* v = k + KEYS * PIECE_PITCH;
        f32* p = v + KEYS * COLUMN_PITCH;
        const u32 line = block.thread() / LANES, lane = block.thread() % LANES, query = tile.query + line;
        const u32 first = s.first_key(query), end = line < tile.queries ? s.end_key(query) : 0;
        f32 top = -infinity(), total = 0.0f, sums[COLUMNS / LANES] = {};
#pragma unroll 1
        for (u32 key = tile.begin; key < tile.end; key += KEYS) {
            const u32 have = tile.end - key;
            f32 scores[KEYS / LANES] = {};
            load<KEYS, COLUMNS>(args.v(), tile.v, key, have, tile.column, tile.columns, v, COLUMN_PITCH, block);
#pragma unroll 1
            for (u32 piece = 0; piece < s.depth; piece += PIECE) {
                load<QUERIES, PIECE>(args.q(), tile.q, tile.query, tile.queries, piece, s.depth - piece, q, PIECE_PITCH, block);
                load<KEYS, PIECE>(args.k(), tile.k, key, have, piece, s.depth - piece, k, PIECE_PITCH, block);
                block.sync();
#pragma unroll 4
                for (u32 d = 0; d < PIECE; d += 4) {
                    const float4 a = *reinterpret_cast<const float4*>(q + line * PIECE_PITCH + d);
#pragma unroll
                    for (u32 j = 0; j < KEYS / LANES; ++j) {
                        const float4 b = *reinterpret_cast<const float4*>(k + (lane + j * LANES) * PIECE_PITCH + d);
                        scores[j] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, scores[j]))));
                    }
                }
                block.sync();
            }
            f32 highest = top;
#pragma unroll
            for (u32 j = 0; j < KEYS / LANES; ++j) {
                const u32 at = key + lane + j * LANES;
                scores[j] = at >= first && at < end ? attention_score(args, s, tile.mask, query, at, scores[j]) : -infinity();
                highest = fmaxf(highest, scores[j]);
            }
#pragma unroll
            for (u32 step = 1; step < LANES; step *= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, step));
            const f32 shrink = exp_below(top, highest);
            top = highest;
            total *= shrink;
#pragma unroll
            for (u32 j = 0; j < COLUMNS / LANES; ++j) sums[j] *= shrink;
#pragma unroll
            for (u32 j = 0; j < KEYS / LANES; ++j) {
                const f32 probability = exp_below(scores[j], top);
                total += probability;
                p[line * KEY_PITCH + lane + j * LANES] = probability;
            }
            block.sync();
#pragma unroll 4
            for (u32 i = 0; i < KEYS; ++i) {
                const f32 probability = p[line * KEY_PITCH + i];
#pragma unroll
                for (u32 j = 0; j < COLUMNS / LANES / 4; ++j) {
                    const float4 value = *reinterpret_cast<const float4*>(v + i * COLUMN_PITCH + lane * 4 + j * 4 * LANES);
                    sums[4 * j] = fmaf(probability, value.x, sums[4 * j]);
                    sums[4 * j + 1] = fmaf(probability, value.y, sums[4 * j + 1]);
                    sums[4 * j + 2] = fmaf(probability, value.z, sums[4 * j + 2]);
                    sums[4 * j + 3] = fmaf(probability, value.w, sums[4 * j + 3]);
                }
            }
            block.sync();
        }
#pragma unroll
        for (u32 step = 1; step < LANES; step *= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
        if (line >= tile.queries) return;
        if (lane == 0 && tile.column == 0 && args.has_lse()) {
            store_f32(args.lse(), tile.lse + query * args.lse().strides[2], total == 0.0f ? -infinity() : logf(total) + top);
        }
        const Tensor& out = args.out();
#pragma unroll
        for (u32 j = 0; j < COLUMNS / LANES; j += 4) {
            const u32 column = lane * 4 + j * LANES;
            if (column >= tile.columns) break;
            store_four(out, tile.out + query * out.strides[2] + static_cast<i64>(tile.column + column) * out.strides[3],
                       quotient(make_float4(sums[j], sums[j + 1], sums[j + 2], sums[j + 3]), total), min(4u, tile.columns - column));
        }
    }
};

struct AttentionHandler {
    static constexpr u32 SCRATCH = SCRATCH_BYTES;
    static constexpr bool BEGINS = true;
    using Kept = FewQueries;

    static DEV void prepare(const AttentionArgs& args, FewQueries& few) { few.measure(args); }
    static DEV u32 scratch(const AttentionArgs& args) {
        const FewQueries& few = FewQueries::of(args.work);
        const u32 rows = few.heads_per_key * args.q().dims[2];
        const bool narrow = args.v().dims[3] == 64;
        if (few.way == FEW_HELD) return narrow ? HeldAttention<Bf16, 64>::scratch(few, rows) : HeldAttention<Bf16, 128>::scratch(few, rows);
        if (few.way == ROWS_HELD) {
            if (args.v().dims[3] == 32) return RowsAttention<Bf16, 32>::SCRATCH;
            return narrow ? RowsAttention<Bf16, 64>::SCRATCH : RowsAttention<Bf16, 128>::SCRATCH;
        }
#ifdef HOPPER
        if (few.way == FEW_STREAMED) return narrow ? StreamedAttention<Bf16, 64>::SCRATCH : StreamedAttention<Bf16, 128>::SCRATCH;
#endif
        return SCRATCH;
    }
    static DEV u32 tiles(const AttentionArgs& args) {
        const FewQueries& few = FewQueries::of(args.work);
        return few.way == FEW_NOT ? AttentionShape(args).tiles : few.groups * few.splits;
    }

    // Called by a warp: brings what the block's first tile reads to the cache, ahead of what the work waits for.
    static DEV_CALL void expect(const AttentionArgs& args, u32 lane) {
        const FewQueries& few = FewQueries::of(args.work);
        if (few.way != FEW_HELD) return;
        if (args.v().dims[3] == 64) HeldAttention<Bf16, 64>::expect(args, few, lane);
        else HeldAttention<Bf16, 128>::expect(args, few, lane);
    }

    template <class T> static DEV void run_few(const AttentionArgs& args, u32 index, const Block& block) {
        const u32 way = FewQueries::of(args.work).way;
        if (way == FEW_HELD) {
            if (args.v().dims[3] == 64) HeldAttention<T, 64>::run();
            else HeldAttention<T, 128>::run();
        } else if (way == ROWS_HELD) {
            if (args.v().dims[3] == 32) RowsAttention<T, 32>::run();
            else if (args.v().dims[3] == 64) RowsAttention<T, 64>::run();
            else RowsAttention<T, 128>::run();
#ifdef HOPPER
        } else if (way == FEW_STREAMED) {
            if (args.v().dims[3] == 64) StreamedAttention<T, 64>::run();
            else StreamedAttention<T, 128>::run();
#endif
        } else if (block.begin()) {
            StagedAttention<T>::run(args, index, block);
        }
    }
    static DEV void run(const AttentionArgs& args, u32 index, const Block& block) {
        const bool bf16 = args.q().dtype == DTYPE_BF16;
        if (FewQueries::of(args.work).way != FEW_NOT) return bf16 ? run_few<Bf16>(args, index, block) : run_few<F16>(args, index, block);
        if (!block.begin()) return;
        if (!AttentionShape(args).tensor_cores) ScalarAttention::run(args, index, block);
        else bf16 ? TensorCoreAttention<Bf16>::run(args, index, block) : TensorCoreAttention<F16>::run(args, index, block);
    }
};
