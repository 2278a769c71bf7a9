// ATTENTION with few queries whose keys and values pass through shared memory: any strides, depth, mask and soft cap.
#pragma once
#include "attention_few.cuh"

// A warp has 16 keys of each block of them, and 64 columns: SIDES warps share the same keys.
template <class T> struct StagedAttention {
    static constexpr u32 SIDES = 2, PARTS = WORKER_WARPS / SIDES, KEYS = PARTS * STEP_KEYS, COLUMNS = 64, MOST_STAGES = 3;
    static constexpr u32 VALUE_CHUNKS = SIDES * COLUMNS / 8;
    using Warp = WarpAttention<T, STEP_KEYS, COLUMNS>;
    using Results = FewResults<SIDES * COLUMNS, PARTS>;
    static_assert(PARTS * FEW_ROWS * Results::PITCH * 4 <= SCRATCH_BYTES, "the partial results fit");

    static DEV_CALL void run(const AttentionArgs& args, u32 index, const Block& block) {
        const AttentionShape s(args);
        const FewQueries& few = FewQueries::of(args.work);
        const FewQueriesTile tile(few, index, s.queries, s.columns, s.tile_columns);
        typename Warp::Running r;
        r.clear();
        attend(args, s, tile, r, block);
        f32* const parts = reinterpret_cast<f32*>(block.scratch());
        keep(parts, r, tile, block);
        block.sync();
        Results::finish(args, few, tile, Results::place(few, index, block.launch()->workspace), parts, PARTS, block);
    }

  private:
    // This warp's share of the tile's keys.
    static DEV void attend(const AttentionArgs& args, const AttentionShape& s, const FewQueriesTile& tile, typename Warp::Running& r,
                           const Block& block) {
        const u32 part = block.warp() / SIDES, side = block.warp() % SIDES, per_line = s.padded_depth() / 8;
        const u32 key_bytes = KEYS * per_line * CHUNK_BYTES, stage_bytes = key_bytes + KEYS * VALUE_CHUNKS * CHUNK_BYTES;
        const u32 query_bytes = FEW_ROWS * per_line * CHUNK_BYTES;
        const u32 stages = min(MOST_STAGES, (SCRATCH_BYTES - query_bytes) / stage_bytes);
        char* first_stage = block.scratch() + query_bytes;
        u32 loaded = 0;  // stages
        const auto load_keys = [&] {
            const u32 key = tile.begin + loaded * KEYS;
            if (key < tile.end) {
                char* to = first_stage + loaded % stages * stage_bytes;
                load_lines(args.k(), tile.base(args.k(), tile.key_head), key, tile.end - key, KEYS, 0, s.depth, to, per_line, block.thread());
                load_lines(args.v(), tile.base(args.v(), tile.key_head), key, tile.end - key, KEYS, tile.column, tile.columns, to + key_bytes,
                           VALUE_CHUNKS, block.thread());
            }
            copy_async_commit();
            loaded += 1;
        };
        load_queries(args, s, tile, block.scratch(), per_line, block.thread());
        for (u32 i = 1; i < stages; ++i) load_keys();
        u32 query[2], first[2], end[2];  // this lane's two rows, and the keys that they see
        i64 mask[2];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 line = block.lane() / 4 + 8 * half, row = tile.row + line;
            query[half] = row % s.queries;
            mask[half] = args.has_mask() ? tile.base(args.mask(), tile.head + row / s.queries) : 0;
            first[half] = s.first_key(query[half]);
            end[half] = line < tile.rows ? min(tile.end, s.end_key(query[half])) : 0;
        }
        const u32 all_first = s.first_key(s.queries - 1), all_end = min(tile.end, s.end_key(0));
#pragma unroll 1
        for (u32 i = 0; tile.begin + i * KEYS < tile.end; ++i) {
            load_keys();
            if (stages == 3) copy_async_wait<2>();
            else if (stages == 2) copy_async_wait<1>();
            else copy_async_wait<0>();
            block.sync();
            const u32 mine = tile.begin + i * KEYS + part * STEP_KEYS;
            if (mine < tile.end) {
                const u32 k_tile = shared_address(first_stage + i % stages * stage_bytes);
                f32 scores[Warp::BLOCKS][4];
                Warp::multiply_keys(scores, shared_address(block.scratch()), k_tile, 0, part * STEP_KEYS, s.depth, per_line, block.lane());
                Warp::mask_scores(scores, args, s, query, mask, first, end, mine, mine >= all_first && mine + STEP_KEYS <= all_end, block.lane());
                Warp::soften(scores, r);
                Warp::multiply_values(r, scores, k_tile + key_bytes, part * STEP_KEYS, side * COLUMNS, tile.columns, VALUE_CHUNKS, block.lane());
            }
            block.sync();
        }
        copy_async_wait<0>();
        block.sync();
    }

    static DEV void load_queries(const AttentionArgs& args, const AttentionShape& s, const FewQueriesTile& tile, char* to, u32 per_line,
                                 u32 thread) {
        const Tensor& q = args.q();
        const u32 chunks = (s.depth + 15) / 16 * 2;  // products go by 16
        const bool whole = copies_whole<Bits16>(q, 3);
#pragma unroll 1
        for (u32 id = thread; id < FEW_ROWS * chunks; id += WORKER_THREADS) {
            const u32 line = id / chunks, chunk = id % chunks, row = tile.row + line;
            const u32 left = line < tile.rows && chunk * 8 < s.depth ? min(8u, s.depth - chunk * 8) : 0;
            const i64 from = tile.base(q, tile.head + row / s.queries) + row % s.queries * q.strides[2] + chunk * 8 * q.strides[3];
            load_chunk(q, to + chunk_place(line, chunk, per_line), from, left, whole);
        }
    }

    // A warp's results, of the rows that exist.
    static DEV void keep(f32* parts, const typename Warp::Running& r, const FewQueriesTile& tile, const Block& block) {
        const u32 part = block.warp() / SIDES, side = block.warp() % SIDES;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 line = block.lane() / 4 + 8 * half;
            f32 total = r.total[half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            if (line >= tile.rows) continue;
            f32* const to = Results::line(parts, part, tile.rows, line);
            if (block.lane() % 4 == 0 && side == 0) *reinterpret_cast<float2*>(to + SIDES * COLUMNS) = make_float2(r.top[half], total);
#pragma unroll
            for (u32 j = 0; j < COLUMNS / 8; ++j) {
                *reinterpret_cast<float2*>(to + side * COLUMNS + 8 * j + block.lane() % 4 * 2) =
                    make_float2(r.sums[j][2 * half], r.sums[j][2 * half + 1]);
            }
        }
    }
};
