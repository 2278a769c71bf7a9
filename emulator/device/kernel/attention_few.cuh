// ATTENTION with few queries (decoding): the query heads that share a key head are rows of one tile, and the keys are split
// over blocks. What the warps of a block found meets in shared memory; what the blocks found, in the workspace, where the
// block with the last keys takes it up. All is combined in the order of the keys.
#pragma once
#include "attention_mma.cuh"
#include "merged.cuh"

constexpr u32 FEW_QUERIES = 16, FEW_DEPTH = 512, FEW_ROWS = 16;  // rows: of a tile
constexpr u32 STEP_KEYS = 16;                                    // that a warp takes at a time
enum FewWay : u32 { FEW_NOT = 0, FEW_STAGED, FEW_HELD };        // many queries; keys in shared memory; in registers

// How one instruction is shared out. A tile is 16 rows of one key head, up to 128 columns of v, and one split of the keys.
// Measured before the tiles are counted, and kept in the detail of the work.
struct __align__(16) FewQueries {
    static constexpr u32 LEAST_KEYS = 64, ENOUGH_KEYS = 128;  // of a split: so many, where there are more than
    static constexpr u32 FEW_SPLITS = 8;                      // so many splits, which are taken up at once

    u32 partials, workspace;  // partial results that the workspace holds, by the plan; and where, in 1024 bytes
    u32 row_tiles, splits, tiles;
    u32 heads_per_key, key_heads;
    u32 per_split, per_query;  // reciprocals of splits and queries
    u32 first, last;  // keys that any query sees
    u32 share;        // of a split: keys, a multiple of STEP_KEYS
    i32 begin, end;   // keys that query 0 sees; query i sees those that are i further on
    f32 scale;
    u32 way;

    DEV static const FewQueries& of(const Work& w) { return kept<FewQueries>(w); }

    DEV void measure(const AttentionArgs& args) {
        const AttentionShape s(args);
        const Tensor& q = args.q();
        way = s.queries > FEW_QUERIES || q.dtype == DTYPE_F32 || s.depth > FEW_DEPTH ? FEW_NOT : FEW_STAGED;
        if (way == FEW_NOT) return;
        row_tiles = (s.heads_per_key * s.queries + FEW_ROWS - 1) / FEW_ROWS;
        heads_per_key = s.heads_per_key;
        key_heads = s.heads / s.heads_per_key;
        const u32 groups = static_cast<u32>(q.dims[0]) * key_heads * row_tiles * s.column_tiles;  // of tiles that are combined
        first = s.first_key(0);
        last = max(first, s.end_key(s.queries - 1));
        const u32 keys = last - first, most = groups == 0 ? 1 : max(1u, min(partials, gridDim.x) / groups);  // splits
        share = max(max(LEAST_KEYS, (keys + most - 1) / most), min(ENOUGH_KEYS, (keys + FEW_SPLITS - 1) / FEW_SPLITS));
        share = (share + STEP_KEYS - 1) / STEP_KEYS * STEP_KEYS;
        splits = max(1u, (keys + share - 1) / share);
        tiles = groups * splits;
        per_split = reciprocal(splits);
        per_query = reciprocal(s.queries);
        begin = s.window == 0 ? -FAR : near(s.last_key(0) - s.window + 1);
        end = s.causal ? near(s.last_key(0) + 1) : FAR;
        scale = s.scale;
        const bool plain = !args.has_mask() && s.softcap == 0.0f && s.keys < static_cast<u32>(FAR);
        const bool whole = copies_whole<Bits16>(q, 3) && copies_whole<Bits16>(args.k(), 3) && copies_whole<Bits16>(args.v(), 3);
        if (plain && whole && (s.depth == 64 || s.depth == 128) && s.columns == s.depth) way = FEW_HELD;
    }
    // n / divisor, where their product is below 2**32: a split's tiles are as few as blocks, a row has at most 16 queries.
    DEV static u32 quotient(u32 n, u32 divisor, u32 reciprocal) { return divisor == 1 ? n : __umulhi(n, reciprocal); }

  private:
    static constexpr i32 FAR = 1 << 30;  // beyond all keys
    DEV static u32 reciprocal(u32 n) { return n == 0 ? 0 : 0xffffffffu / n + 1; }
    DEV static i32 near(i64 key) { return static_cast<i32>(key < -FAR ? -FAR : key > FAR ? FAR : key); }
};

struct FewQueriesTile {
    u32 split;
    u32 row, rows, column, columns;
    u32 head, key_head, sample;
    u32 begin, end;  // keys

    // `all_columns` of v; a tile has up to `most`.
    DEV FewQueriesTile(const FewQueries& few, u32 index, u32 queries, u32 all_columns, u32 most) {
        u32 rest = FewQueries::quotient(index, few.splits, few.per_split);
        split = index - rest * few.splits;
        column = row = sample = 0;
        if (all_columns > most) {
            const u32 column_tiles = (all_columns + most - 1) / most;
            column = rest % column_tiles * most;
            rest /= column_tiles;
        }
        columns = min(most, all_columns - column);
        if (few.row_tiles > 1) {
            row = rest % few.row_tiles * FEW_ROWS;
            rest /= few.row_tiles;
        }
        rows = min(FEW_ROWS, few.heads_per_key * queries - row);
        if (rest >= few.key_heads) {
            sample = rest / few.key_heads;
            rest -= sample * few.key_heads;
        }
        key_head = rest;
        head = key_head * few.heads_per_key;
        begin = min(few.last, few.first + split * few.share);
        end = min(few.last, begin + few.share);
    }
    DEV i64 base(const Tensor& t, u32 h) const { return sample * t.strides[0] + h * t.strides[1]; }
};

// Row h * queries + i of the tiles is query i of head h, counted from the tile's head.
struct FewQueriesRow {
    u32 head, query;

    DEV FewQueriesRow(const FewQueries& few, u32 row, u32 queries)
        : head(FewQueries::quotient(row, queries, few.per_query)), query(row - head * queries) {}
};

// Partial results, each of `rows` lines: COLUMNS sums before their denominator, relative to the row's maximum; behind them
// that maximum, and the denominator.
template <u32 COLUMNS> struct FewResults {
    static constexpr u32 PITCH = COLUMNS + 4, QUADS = COLUMNS / 4;
    static constexpr u32 MOST = FEW_ROWS * (128 + 4);  // words of one in the workspace
    static_assert(WARP % QUADS == 0, "what a thread takes up, its warp alone reads");

    DEV static u32 bytes(u32 parts, u32 rows) { return parts * rows * PITCH * sizeof(f32); }
    DEV static f32* line(f32* parts, u32 part, u32 rows, u32 line) { return parts + (part * rows + line) * PITCH; }

    // Four neighbouring columns of a row.
    struct Quad {
        f32 top = -infinity(), total = 0.0f;
        float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

        // Adds the first `count` of N more, in order.
        template <u32 N> DEV void add(const float4 (&more)[N], const float2 (&tails)[N], u32 count) {
            f32 highest = top;
#pragma unroll
            for (u32 j = 0; j < N; ++j)
                if (j < count) highest = fmaxf(highest, tails[j].x);
            const f32 shrink = exp_below(top, highest);
            top = highest;
            total *= shrink;
            sums = make_float4(sums.x * shrink, sums.y * shrink, sums.z * shrink, sums.w * shrink);
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if (j >= count) continue;
                const f32 weight = exp_below(tails[j].x, top);
                total = fmaf(tails[j].y, weight, total);
                sums = make_float4(fmaf(more[j].x, weight, sums.x), fmaf(more[j].y, weight, sums.y), fmaf(more[j].z, weight, sums.z),
                                   fmaf(more[j].w, weight, sums.w));
            }
        }
    };

    // In the workspace a number's bits are inverted, so that a word that is still 0 is none yet: it needs no flag, and whoever
    // takes it up sets it back. The one number that this would hide is a NaN, and made another one.
    DEV static u32 shown(f32 v) { return isnan(v) ? 0x80000000u : ~__float_as_uint(v); }
    DEV static f32 seen(u32 bits) { return __uint_as_float(~bits); }
    // Where the partial result of tile `index` goes.
    DEV static f32* place(const FewQueries& few, u32 index, char* workspace) {
        return reinterpret_cast<f32*>(in_global(workspace) + static_cast<u64>(few.workspace) * 1024) + index * MOST;
    }

    // Combines the warps' results in `parts`, once all are there, with those of the other splits, and stores the tile's. `own`:
    // its place in the workspace.
    static DEV void finish(const AttentionArgs& args, const FewQueries& few, const FewQueriesTile& tile, f32* own, f32* parts, u32 count,
                           const Block& block) {
        const u32 ids = (tile.rows * QUADS + WARP - 1) / WARP * WARP;  // warps stay whole: what is too much is done twice
#pragma unroll 1
        for (u32 id = block.thread(); id < ids; id += WORKER_THREADS) {
            const u32 row = min(id / QUADS, tile.rows - 1), column = id % QUADS * 4;
            const Quad quad = add_parts(parts, count, tile.rows, row, column);
            if (few.splits == 1) {
                store(args, few, tile, row, column, quad);
                continue;
            }
            f32* const to = own + row * PITCH;
            store_relaxed_16(to + column, make_uint4(shown(quad.sums.x), shown(quad.sums.y), shown(quad.sums.z), shown(quad.sums.w)));
            if (column == 0) store_relaxed_16(to + COLUMNS, make_uint4(shown(quad.top), shown(quad.total), 0, 0));
        }
        if (few.splits == 1 || tile.split != few.splits - 1) return;
        f32* const splits = own - tile.split * MOST;
#pragma unroll 1
        for (u32 id = block.thread(); id < ids; id += WORKER_THREADS) {
            const u32 row = min(id / QUADS, tile.rows - 1), column = id % QUADS * 4;
            store(args, few, tile, row, column, gather(splits + row * PITCH, few.splits, column, block));
        }
    }

  private:
    static DEV Quad add_parts(f32* parts, u32 count, u32 rows, u32 row, u32 column) {
        constexpr u32 AT_ONCE = 4;
        Quad quad;
#pragma unroll 1
        for (u32 part = 0; part < count; part += AT_ONCE) {
            float4 sums[AT_ONCE];
            float2 tails[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) {
                const f32* const from = line(parts, min(part + j, count - 1), rows, row);
                sums[j] = *reinterpret_cast<const float4*>(from + column);
                tails[j] = *reinterpret_cast<const float2*>(from + COLUMNS);
            }
            quad.add(sums, tails, count - part);
        }
        return quad;
    }
    // Waits for the results of all splits, and sets them back. Each is a tile of this instruction, of a block of its own, so all
    // are under way.
    static DEV Quad gather(f32* splits, u32 count, u32 column, const Block& block) {
        constexpr u32 AT_ONCE = FewQueries::FEW_SPLITS;
        const Launch* const launch = block.launch();
        Quad quad;
#pragma unroll 1
        for (u32 split = 0; split < count; split += AT_ONCE) {
            f32* from[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) from[j] = splits + min(split + j, count - 1) * MOST;
            uint4 sums[AT_ONCE], tails[AT_ONCE];
            const bool ok = spin(
                launch,
                [&] {
#pragma unroll
                    for (u32 j = 0; j < AT_ONCE; ++j) {
                        sums[j] = load_relaxed_16(from[j] + column);
                        tails[j] = load_relaxed_16(from[j] + COLUMNS);
                    }
                    u32 least = ~0u;
#pragma unroll
                    for (u32 j = 0; j < AT_ONCE; ++j)
                        least = min(least, min(min(min(sums[j].x, sums[j].y), min(sums[j].z, sums[j].w)), min(tails[j].x, tails[j].y)));
                    return least != 0;
                },
                [&] { raise(launch, TRAP_TIMEOUT, present_instruction(), WAITED_FOR_COUNTER, split); });
            if (!ok) stop(shared_state());
            __syncwarp();  // all have read what is now set back
            float4 more[AT_ONCE];
            float2 ends[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) {
                store_relaxed_16(from[j] + column, make_uint4(0, 0, 0, 0));
                store_relaxed_16(from[j] + COLUMNS, make_uint4(0, 0, 0, 0));
                more[j] = make_float4(seen(sums[j].x), seen(sums[j].y), seen(sums[j].z), seen(sums[j].w));
                ends[j] = make_float2(seen(tails[j].x), seen(tails[j].y));
            }
            quad.add(more, ends, count - split);
        }
        return quad;
    }
    static DEV void store(const AttentionArgs& args, const FewQueries& few, const FewQueriesTile& tile, u32 line, u32 column, const Quad& quad) {
        const Tensor& out = args.out();
        const FewQueriesRow row(few, tile.row + line, out.dims[2]);
        const u32 head = tile.head + row.head;
        if (column == 0 && tile.column == 0 && args.has_lse()) {
            const Tensor& lse = args.lse();
            store_lse(lse, tile.base(lse, head) + row.query * lse.strides[2], quad.top, quad.total);
        }
        if (column >= tile.columns) return;
        const f32 inverse = quad.total == 0.0f ? 0.0f : fast_reciprocal(quad.total);
        const float4 v = make_float4(quad.sums.x * inverse, quad.sums.y * inverse, quad.sums.z * inverse, quad.sums.w * inverse);
        store_four(out, tile.base(out, head) + row.query * out.strides[2] + static_cast<i64>(tile.column + column) * out.strides[3], v,
                   min(4u, tile.columns - column));
    }
};
