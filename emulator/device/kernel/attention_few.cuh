// ATTENTION with few queries (decoding): the query heads that share a key head are rows of one tile, and the keys are split
// over blocks. Each split leaves its partial result in the workspace, and the last block to do so combines them, in order.
#pragma once
#include "attention_mma.cuh"

constexpr i32 FEW_QUERIES = 16, FEW_DEPTH = 512;
DEV bool has_few_queries(const AttentionArgs& args) {
    const Tensor& q = args.q();
    return q.dtype != DTYPE_F32 && q.dims[2] <= FEW_QUERIES && q.dims[3] <= FEW_DEPTH;
}

// Results of some keys, before their denominator: COLUMNS sums of each row, relative to the row's maximum.
struct PartialRows {
    static constexpr u32 ROWS = 16, COLUMNS = 128, PITCH = COLUMNS + 4;
    f32 sums[ROWS][PITCH];
    f32 tops[ROWS], totals[ROWS];
};
constexpr u32 FEW_PARTIALS = WORKER_WARPS;  // of the warps of a block
static_assert(FEW_PARTIALS * sizeof(PartialRows) + 4 <= SCRATCH_BYTES, "the partial results fit");

// How one instruction is shared out. A tile is 16 rows of one key head, up to 128 columns of v, and one split of the keys.
struct FewQueries {
    static constexpr u32 LEAST_KEYS = 64;  // of a split
    u32 rows, row_tiles, groups, splits;   // groups: of tiles that are combined

    DEV FewQueries(const AttentionArgs& args, const AttentionShape& s) {
        rows = s.heads_per_key * s.queries;
        row_tiles = (rows + PartialRows::ROWS - 1) / PartialRows::ROWS;
        groups = static_cast<u32>(args.q().dims[0]) * (s.heads / s.heads_per_key) * row_tiles * s.column_tiles;
        const u32 room = min(args.work.detail[0], gridDim.x);  // partial results that the workspace holds
        splits = groups == 0 ? 1 : min(room / groups, (s.keys + LEAST_KEYS - 1) / LEAST_KEYS);
        if (splits == 0) splits = 1;
    }
    DEV u32 tiles() const { return groups * splits; }
};

struct FewQueriesTile {
    u32 group, split;
    u32 row, rows, column, columns;
    u32 head, key_head, sample;
    u32 begin, end;  // keys

    DEV FewQueriesTile(const AttentionArgs& args, const AttentionShape& s, const FewQueries& few, u32 index) {
        group = index / few.splits;
        split = index - group * few.splits;
        const u32 key_heads = s.heads / s.heads_per_key;
        u32 rest = group / s.column_tiles;
        column = (group - rest * s.column_tiles) * s.tile_columns;
        columns = min(s.tile_columns, s.columns - column);
        row = rest % few.row_tiles * PartialRows::ROWS;
        rows = min(PartialRows::ROWS, few.rows - row);
        rest /= few.row_tiles;
        key_head = rest % key_heads;
        sample = rest / key_heads;
        head = key_head * s.heads_per_key;
        const u32 first = s.first_key(0), last = s.end_key(s.queries - 1);  // what any query sees
        const u32 keys = last > first ? last - first : 0;
        const u32 share = ((keys + few.splits - 1) / few.splits + 15) / 16 * 16;
        begin = first + min(keys, split * share);
        end = first + min(keys, (split + 1) * share);
    }
    DEV i64 base(const Tensor& t, u32 h) const { return sample * t.strides[0] + h * t.strides[1]; }
};

// A warp has 16 keys of each block, and 64 columns: SIDES warps share the same keys.
template <class T, u32 SIDES> struct FewQueriesAttention {
    static constexpr u32 PART_KEYS = 16, PARTS = WORKER_WARPS / SIDES, KEYS = PARTS * PART_KEYS, COLUMNS = 64, MOST_STAGES = 3;
    static constexpr u32 VALUE_CHUNKS = SIDES * COLUMNS / 8;
    using Warp = WarpAttention<T, PART_KEYS, COLUMNS>;

    static DEV_CALL void run(const AttentionArgs& args, u32 index, const Block& block) {
        const AttentionShape s(args);
        const FewQueries few(args, s);
        const FewQueriesTile tile(args, s, few, index);
        typename Warp::Running r;
        r.clear();
        attend(args, s, tile, r, block);
        PartialRows* parts = reinterpret_cast<PartialRows*>(block.scratch());
        keep(parts[block.warp() / SIDES], r, tile, block);
        block.sync();
        if (few.splits == 1) {
            finish(args, s, tile, parts, PARTS, block);
            return;
        }
        u32* counters = reinterpret_cast<u32*>(block.launch()->workspace + (static_cast<u64>(args.work.detail[2]) << 32 | args.work.detail[1]));
        PartialRows* splits = reinterpret_cast<PartialRows*>(counters + (args.work.detail[0] + 31) / 32 * 32) + tile.group * few.splits;
        publish(splits[tile.split], parts, tile, block);
        u32& last = *reinterpret_cast<u32*>(parts + FEW_PARTIALS);
        block.sync();
        if (block.thread() == 0) last = fetch_add_acq_rel(counters + tile.group, 1) == few.splits - 1;
        block.sync();
        if (!last) return;
        finish(args, s, tile, splits, few.splits, block);
        if (block.thread() == 0) store_relaxed(counters + tile.group, 0);  // for the next use
    }

  private:
    // This warp's share of the tile's keys.
    static DEV void attend(const AttentionArgs& args, const AttentionShape& s, const FewQueriesTile& tile, typename Warp::Running& r,
                           const Block& block) {
        const u32 part = block.warp() / SIDES, side = block.warp() % SIDES, per_line = s.padded_depth() / 8;
        const u32 key_bytes = KEYS * per_line * CHUNK_BYTES, stage_bytes = key_bytes + KEYS * VALUE_CHUNKS * CHUNK_BYTES;
        const u32 query_bytes = PartialRows::ROWS * per_line * CHUNK_BYTES;
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
            const u32 mine = tile.begin + i * KEYS + part * PART_KEYS;
            if (mine < tile.end) {
                const u32 k_tile = shared_address(first_stage + i % stages * stage_bytes);
                f32 scores[Warp::BLOCKS][4];
                Warp::multiply_keys(scores, shared_address(block.scratch()), k_tile, 0, part * PART_KEYS, s.depth, per_line, block.lane());
                Warp::mask_scores(scores, args, s, query, mask, first, end, mine, mine >= all_first && mine + PART_KEYS <= all_end, block.lane());
                Warp::soften(scores, r);
                Warp::multiply_values(r, scores, k_tile + key_bytes, part * PART_KEYS, side * COLUMNS, tile.columns, VALUE_CHUNKS, block.lane());
            }
            block.sync();
        }
        copy_async_wait<0>();
        block.sync();
    }

    // Row h * queries + i of the tiles is query i of head h.
    static DEV void load_queries(const AttentionArgs& args, const AttentionShape& s, const FewQueriesTile& tile, char* to, u32 per_line,
                                 u32 thread) {
        const Tensor& q = args.q();
        const u32 chunks = (s.depth + 15) / 16 * 2;  // products go by 16
        const bool whole = copies_whole<Bits16>(q, 3);
#pragma unroll 1
        for (u32 id = thread; id < PartialRows::ROWS * chunks; id += WORKER_THREADS) {
            const u32 line = id / chunks, chunk = id % chunks, row = tile.row + line;
            const u32 left = line < tile.rows && chunk * 8 < s.depth ? min(8u, s.depth - chunk * 8) : 0;
            const i64 from = tile.base(q, tile.head + row / s.queries) + row % s.queries * q.strides[2] + chunk * 8 * q.strides[3];
            load_chunk(q, to + chunk_place(line, chunk, per_line), from, left, whole);
        }
    }

    // A warp's results, of the rows that exist.
    static DEV void keep(PartialRows& to, const typename Warp::Running& r, const FewQueriesTile& tile, const Block& block) {
        const u32 side = block.warp() % SIDES;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 line = block.lane() / 4 + 8 * half;
            f32 total = r.total[half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            if (line >= tile.rows) continue;
            if (block.lane() % 4 == 0 && side == 0) {
                to.tops[line] = r.top[half];
                to.totals[line] = total;
            }
#pragma unroll
            for (u32 j = 0; j < COLUMNS / 8; ++j) {
                *reinterpret_cast<float2*>(&to.sums[line][side * COLUMNS + 8 * j + block.lane() % 4 * 2]) =
                    make_float2(r.sums[j][2 * half], r.sums[j][2 * half + 1]);
            }
        }
    }

    // Four neighbouring columns of one row of all of `parts`, added up in order, with their maximum and denominator.
    struct Combined {
        f32 top = -infinity(), total = 0.0f;
        float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

        DEV Combined(const PartialRows* parts, u32 count, u32 line, u32 column) {
            for (u32 p = 0; p < count; ++p) top = fmaxf(top, parts[p].tops[line]);
#pragma unroll 4
            for (u32 p = 0; p < count; ++p) {
                const f32 weight = exp_below(parts[p].tops[line], top);
                const float4 sum = *reinterpret_cast<const float4*>(&parts[p].sums[line][column]);
                total += parts[p].totals[line] * weight;
                sums = make_float4(sums.x + sum.x * weight, sums.y + sum.y * weight, sums.z + sum.z * weight, sums.w + sum.w * weight);
            }
        }
    };

    static DEV void publish(PartialRows& to, const PartialRows* parts, const FewQueriesTile& tile, const Block& block) {
        constexpr u32 QUADS = SIDES * COLUMNS / 4;
#pragma unroll 1
        for (u32 id = block.thread(); id < tile.rows * QUADS; id += WORKER_THREADS) {
            const u32 line = id / QUADS, column = id % QUADS * 4;
            const Combined c(parts, PARTS, line, column);
            *reinterpret_cast<float4*>(&to.sums[line][column]) = c.sums;
            if (column == 0) {
                to.tops[line] = c.top;
                to.totals[line] = c.total;
            }
        }
    }

    static DEV void finish(const AttentionArgs& args, const AttentionShape& s, const FewQueriesTile& tile, const PartialRows* parts, u32 count,
                           const Block& block) {
        constexpr u32 QUADS = SIDES * COLUMNS / 4;
        const Tensor& out = args.out();
#pragma unroll 1
        for (u32 id = block.thread(); id < tile.rows * QUADS; id += WORKER_THREADS) {
            const u32 line = id / QUADS, column = id % QUADS * 4, row = tile.row + line;
            const u32 head = tile.head + row / s.queries, query = row % s.queries;
            const Combined c(parts, count, line, column);
            if (column == 0 && tile.column == 0 && args.has_lse()) {
                store_f32(args.lse(), tile.base(args.lse(), head) + query * args.lse().strides[2], c.total == 0.0f ? -infinity() : logf(c.total) + c.top);
            }
            if (column >= tile.columns) continue;
            store_four(out, tile.base(out, head) + query * out.strides[2] + static_cast<i64>(tile.column + column) * out.strides[3],
                       quotient(c.sums, c.total), min(4u, tile.columns - column));
        }
    }
};
