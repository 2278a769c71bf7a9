// ATTENTION in tiles of few rows: the queries of all heads that share a key head. Where queries are few (decoding), the keys are split
// over blocks. What the warps of a block found meets in shared memory; what the blocks found, in the workspace, where the
// block with the first keys takes it up. All is combined in the order of the keys.
#pragma once
#include "attention_mma.cuh"
#include "exchange.cuh"
#include "merged.cuh"

constexpr u32 FEW_QUERIES = 16, FEW_DEPTH = 512, FEW_ROWS = 16;  // rows: of a tile
constexpr u32 STEP_KEYS = 16;                                    // that a warp takes at a time
// Not for this: many queries. Few, with keys in shared memory; in registers; or there by way of shared memory, which the copy engine
// fills. Many, of which a block has few rows, with all keys in registers at once (attention_rows.cuh).
enum FewWay : u32 { FEW_NOT = 0, FEW_STAGED, FEW_HELD, FEW_STREAMED, ROWS_HELD };

// How one instruction is shared out. A tile is 16 rows of one key head, up to 128 columns of v, and one split of the keys.
// Measured before the tiles are counted, and kept in the detail of the work.
struct __align__(16) FewQueries {
    static constexpr u32 LEAST_KEYS = 64, ENOUGH_KEYS = 128;  // of a split: so many, where there are more than
    static constexpr u32 FEW_SPLITS = 8;                      // so many splits, which are taken up at once
    static constexpr u32 MOST_ROW_TILES = 0xffff;
    static constexpr u32 EXPECTED_KEYS = 256;           // brought to the L2 cache ahead of what a tile waits for
    static constexpr u32 STREAMED_NUMBERS = 256 * 128;  // of more keys of a split, the copy engine fetches each step's ahead

    // By the plan: partial results that there may be, at most, and where in the workspace, in 1024 bytes; where in the exchange the result is left
    // for others, in 1024 bytes, plus 1; and where q comes to be there, together with the last key and value (FreshLine).
    u16 partials, gives;
    u32 workspace, takes;
    u16 row_tiles, splits;
    u32 groups;  // tiles of a split; those of the first one come first
    u32 heads_per_key, key_heads;
    u32 per_group, per_query;  // reciprocals of groups and queries
    u32 first, last;  // keys that any query sees
    u32 share;        // of a split: keys, a multiple of STEP_KEYS, or all
    i32 begin, end;   // keys that query 0 sees; query i sees those that are i further on
    f32 scale;
    u32 way;

    DEV static const FewQueries& of(const Work& w) { return kept<FewQueries>(w); }

    DEV void measure(const AttentionArgs& args) {
        const AttentionShape s(args);
        const Tensor& q = args.q();
        const u32 rows = (s.heads_per_key * s.queries + FEW_ROWS - 1) / FEW_ROWS;  // tiles of them
        const bool few = s.queries <= FEW_QUERIES;
        way = q.dtype == DTYPE_F32 || s.depth > FEW_DEPTH || rows > MOST_ROW_TILES ? FEW_NOT : FEW_STAGED;
        if (way == FEW_NOT) return;
        row_tiles = static_cast<u16>(rows);
        heads_per_key = s.heads_per_key;
        key_heads = s.heads / s.heads_per_key;
        groups = static_cast<u32>(q.dims[0]) * key_heads * rows * s.column_tiles;  // of tiles that are combined
        first = s.first_key(0);
        last = max(first, s.end_key(s.queries - 1));
        const u32 keys = last - first, most = groups == 0 ? 1 : max(1u, min(static_cast<u32>(partials), gridDim.x) / groups);  // splits
        share = max(max(LEAST_KEYS, (keys + most - 1) / most), min(ENOUGH_KEYS, (keys + FEW_SPLITS - 1) / FEW_SPLITS));
        share = (share + STEP_KEYS - 1) / STEP_KEYS * STEP_KEYS;
        splits = static_cast<u16>(max(1u, (keys + share - 1) / share));
        per_group = reciprocal(groups);
        per_query = reciprocal(s.queries);
        begin = s.window == 0 ? -FAR : near(s.last_key(0) - s.window + 1);
        end = s.causal ? near(s.last_key(0) + 1) : FAR;
        scale = s.scale;
        const bool plain = !args.has_mask() && s.softcap == 0.0f && s.keys < static_cast<u32>(FAR);
        const bool whole = copies_whole<Bits16>(q, 3) && copies_whole<Bits16>(args.k(), 3) && copies_whole<Bits16>(args.v(), 3);
        const bool held = plain && whole && s.columns == s.depth;
        if (few && held && (s.depth == 64 || s.depth == 128))
            way = EXCHANGES && takes == 0 && share * s.depth > STREAMED_NUMBERS ? FEW_STREAMED : FEW_HELD;
        if (!few) way = held && fits_rows(args, s) && groups <= gridDim.x ? ROWS_HELD : FEW_NOT;
        if (way == ROWS_HELD) {
            share = keys;
            splits = 1;
        }
    }
    // n / divisor, where their product is below 2**32: a split's tiles are as few as blocks, and so are the tiles of all queries, or
    // these are at most 16.
    DEV static u32 quotient(u32 n, u32 divisor, u32 reciprocal) { return divisor == 1 ? n : __umulhi(n, reciprocal); }

  private:
    static constexpr i32 FAR = 1 << 30;  // beyond all keys
    // Whether a block's warps have all keys at once, each STEP_KEYS of up to 64 columns.
    DEV static bool fits_rows(const AttentionArgs& args, const AttentionShape& s) {
        const Tensor& out = args.out();
        if (s.depth != 32 && s.depth != 64 && s.depth != 128) return false;
        const u32 most = STEP_KEYS * WORKER_WARPS * 64 / max(64u, s.depth);
        return s.keys != 0 && s.keys <= most && out.dtype == args.q().dtype && copies_whole<Bits16>(out, 3);
    }
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
        split = few.splits == 1 ? 0 : FewQueries::quotient(index, few.groups, few.per_group);
        u32 rest = index - split * few.groups;
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

// Four neighbouring columns of a row: sums before their denominator, relative to the row's maximum.
struct FewQuad {
    f32 top = -infinity(), total = 0.0f;
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    // Of several parts of the keys, in their order.
    template <u32 N> DEV static FewQuad joined(const FewQuad (&parts)[N]) {
        FewQuad all;
#pragma unroll
        for (u32 j = 0; j < N; ++j) all.top = fmaxf(all.top, parts[j].top);
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            const f32 weight = exp_below(parts[j].top, all.top);
            const float4& v = parts[j].sums;
            all.total = fmaf(parts[j].total, weight, all.total);
            all.sums = make_float4(fmaf(v.x, weight, all.sums.x), fmaf(v.y, weight, all.sums.y), fmaf(v.z, weight, all.sums.z),
                                   fmaf(v.w, weight, all.sums.w));
        }
        return all;
    }
    // With those of the LANES - 1 lanes behind this one, where it is the first of them.
    template <u32 LANES> DEV FewQuad joined_lanes() const {
        FewQuad both[2] = {*this};
#pragma unroll
        for (u32 step = 1; step < LANES; step *= 2) {
            const FewQuad& own = both[0];
            both[1].top = __shfl_xor_sync(0xffffffffu, own.top, step);
            both[1].total = __shfl_xor_sync(0xffffffffu, own.total, step);
            both[1].sums = make_float4(__shfl_xor_sync(0xffffffffu, own.sums.x, step), __shfl_xor_sync(0xffffffffu, own.sums.y, step),
                                       __shfl_xor_sync(0xffffffffu, own.sums.z, step), __shfl_xor_sync(0xffffffffu, own.sums.w, step));
            both[0] = joined(both);
        }
        return both[0];
    }
};

// Where four columns of a row of a tile go. It is known before they are.
struct FewTarget {
    const AttentionArgs& args;
    u32 head, query, count;  // columns that exist
    bool whole, first;       // stored at once; the row's first
    i64 offset;
    char* p;
    f32* others;  // where they are left for others

    DEV FewTarget(const AttentionArgs& a, const FewQueries& few, const FewQueriesTile& tile, u32 line, u32 column) : args(a) {
        const Tensor& out = args.out();
        const FewQueriesRow row(few, tile.row + line, out.dims[2]);
        head = tile.head + row.head;
        query = row.query;
        count = column < tile.columns ? min(4u, tile.columns - column) : 0;
        first = column == 0 && tile.column == 0;
        offset = tile.base(out, head) + query * out.strides[2] + static_cast<i64>(tile.column + column) * out.strides[3];
        p = element(out, offset);
        others = EXCHANGES && few.gives ? reinterpret_cast<f32*>(exchange_at(a.work, (few.gives - 1) * (1024 / CHUNK_BYTES) + 1) + offset * 2) : nullptr;
        whole = count == 4 && out.strides[3] == 1 && out.item_bytes == 2 && reinterpret_cast<u64>(p) % sizeof(uint2) == 0 &&
                range_in_bounds(out, p, sizeof(uint2));
    }
    DEV void store(const FewQuad& quad, const FewQueriesTile& tile) const {
        const f32 inverse = quad.total == 0.0f ? 0.0f : fast_reciprocal(quad.total);
        const float4 v = make_float4(quad.sums.x * inverse, quad.sums.y * inverse, quad.sums.z * inverse, quad.sums.w * inverse);
        const bool bf16 = args.out().dtype == DTYPE_BF16;
        const uint2 words = bf16 ? make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)) : make_uint2(pack_f16(v.x, v.y), pack_f16(v.z, v.w));
        if (others) store_relaxed_8(others, words);
        if (whole) {
            *reinterpret_cast<uint2*>(p) = words;
        } else if (count != 0) {
            store_four(args.out(), offset, v, count);
        }
        if (first && args.has_lse()) {
            const Tensor& lse = args.lse();
            store_lse(lse, tile.base(lse, head) + query * lse.strides[2], quad.top, quad.total);
        }
    }
};

// Partial results, of PARTS warps at most, each of `rows` lines: COLUMNS sums, and behind them the row's maximum and denominator; in the workspace once
// for each four sums, so that whoever takes these up needs nobody else's.
template <u32 COLUMNS, u32 PARTS> struct FewResults {
    static constexpr u32 PITCH = COLUMNS + 4, QUADS = COLUMNS / 4;
    static constexpr u32 SHOWN_PITCH = COLUMNS + 2 * QUADS, MOST = FEW_ROWS * (128 + 2 * 128 / 4);  // words in the workspace
    // Of few rows, as many lanes as there are share four columns: each has some of the parts.
    static constexpr u32 LEAST_ROWS = 4, MOST_LANES = WORKER_THREADS / (LEAST_ROWS * QUADS);
    static_assert(WARP % QUADS == 0 && MOST_LANES > 1 && PARTS % MOST_LANES == 0, "a row that is done twice is one warp's");

    DEV static u32 bytes(u32 parts, u32 rows) { return parts * rows * PITCH * sizeof(f32); }
    DEV static f32* line(f32* parts, u32 part, u32 rows, u32 line) { return parts + (part * rows + line) * PITCH; }

    // In the workspace a number's bits are inverted, so that a word that is still 0 is none yet: it needs no flag, and whoever
    // takes it up sets it back. The one number that this would hide is a NaN, and made another one.
    DEV static u32 shown(f32 v) { return max(~__float_as_uint(v), 1u); }
    DEV static f32 seen(u32 bits) { return __uint_as_float(~bits); }
    // Where the partial result of tile `index` goes.
    DEV static f32* place(const FewQueries& few, u32 index, char* workspace) {
        return reinterpret_cast<f32*>(in_global(workspace) + static_cast<u64>(few.workspace) * 1024) + index * MOST;
    }

    // Combines the warps' results in `parts`, once all are there, with those of the other splits, and stores the tile's. `own`:
    // its place in the workspace.
    static DEV void finish(const AttentionArgs& args, const FewQueries& few, const FewQueriesTile& tile, f32* own, f32* parts, u32 count,
                           const Block& block) {
        if (tile.rows <= LEAST_ROWS) finish_by<MOST_LANES>(args, few, tile, own, parts, count, block);
        else finish_by<1>(args, few, tile, own, parts, count, block);
    }

  private:
    template <u32 LANES>
    static DEV void finish_by(const AttentionArgs& args, const FewQueries& few, const FewQueriesTile& tile, f32* own, f32* parts, u32 count,
                              const Block& block) {
        const u32 lane = block.thread() % LANES, rows = tile.rows;
        const u32 ids = (rows * QUADS * LANES + WARP - 1) / WARP * WARP;  // warps stay whole: what is too much is done twice
#pragma unroll 1
        for (u32 id = block.thread(); id < ids; id += WORKER_THREADS) {
            const u32 row = min(id / LANES / QUADS, rows - 1), quad = id / LANES % QUADS;
            const FewQuad sum = add_parts<LANES>(parts, count, rows, row, quad * 4, lane);
            if (lane != 0) continue;
            if (few.splits == 1) FewTarget(args, few, tile, row, quad * 4).store(sum, tile);
            else show(own + row * SHOWN_PITCH, quad, sum);
        }
        if (few.splits != 1 && tile.split == 0) {
#pragma unroll 1
            for (u32 id = block.thread(); id < ids; id += WORKER_THREADS) {
                const u32 row = min(id / LANES / QUADS, rows - 1), quad = id / LANES % QUADS;
                const FewTarget to(args, few, tile, row, quad * 4);
                const FewQuad sum = gather<LANES>(own + row * SHOWN_PITCH, quad, few.splits, few.groups * MOST, lane, block);
                if (lane == 0) to.store(sum, tile);
            }
        }
        block.end();
    }

    // Of the parts, a lane adds those LANES apart. There is no branch: lanes would shuffle one by one behind it.
    template <u32 LANES> static DEV FewQuad add_parts(f32* parts, u32 count, u32 rows, u32 row, u32 column, u32 lane) {
        FewQuad quads[PARTS / LANES];
        const u32 last = max(count, 1u) - 1;
#pragma unroll
        for (u32 j = 0; j < PARTS / LANES; ++j) {
            const u32 part = lane + j * LANES;
            const f32* const from = line(parts, min(part, last), rows, row);
            const float2 tail = *reinterpret_cast<const float2*>(from + COLUMNS);
            const float4 sums = *reinterpret_cast<const float4*>(from + column);
            const bool exists = part < count;
            quads[j].top = exists ? tail.x : -infinity();
            quads[j].total = exists ? tail.y : 0.0f;
            quads[j].sums = make_float4(exists ? sums.x : 0.0f, exists ? sums.y : 0.0f, exists ? sums.z : 0.0f, exists ? sums.w : 0.0f);
        }
        return FewQuad::joined(quads).template joined_lanes<LANES>();
    }
    // Of row `to`, four columns.
    static DEV void show(f32* to, u32 quad, const FewQuad& v) {
        store_relaxed_16(to + quad * 4, make_uint4(shown(v.sums.x), shown(v.sums.y), shown(v.sums.z), shown(v.sums.w)));
        store_relaxed_8(to + COLUMNS + quad * 2, make_uint2(shown(v.top), shown(v.total)));
    }
    // Waits for the results of all splits, of which a lane takes up those LANES apart, and sets them back. Each is a tile of this
    // instruction, of a block of its own, so all are under way.
    template <u32 LANES> static DEV FewQuad gather(f32* splits, u32 quad, u32 count, u32 apart, u32 lane, const Block& block) {
        constexpr u32 AT_ONCE = FewQueries::FEW_SPLITS / LANES;
        const Launch* const launch = block.launch();
        FewQuad quads[AT_ONCE + 1];
#pragma unroll 1
        for (u32 split = lane; split < count + lane; split += AT_ONCE * LANES) {
            f32* from[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) from[j] = splits + min(split + j * LANES, count - 1) * apart;
            uint4 sums[AT_ONCE];
            uint2 tails[AT_ONCE];
            const bool ok = spin(
                launch,
                [&] {
#pragma unroll
                    for (u32 j = 0; j < AT_ONCE; ++j) {
                        sums[j] = load_relaxed_16(from[j] + quad * 4);
                        tails[j] = load_relaxed_8(from[j] + COLUMNS + quad * 2);
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
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) {
                store_relaxed_16(from[j] + quad * 4, make_uint4(0, 0, 0, 0));
                store_relaxed_8(from[j] + COLUMNS + quad * 2, make_uint2(0, 0));
                const bool exists = split + j * LANES < count;
                FewQuad& v = quads[j + 1];
                v.top = exists ? seen(tails[j].x) : -infinity();
                v.total = exists ? seen(tails[j].y) : 0.0f;
                v.sums = make_float4(exists ? seen(sums[j].x) : 0.0f, exists ? seen(sums[j].y) : 0.0f, exists ? seen(sums[j].z) : 0.0f,
                                     exists ? seen(sums[j].w) : 0.0f);
            }
            quads[0] = FewQuad::joined(quads);
        }
        return quads[0].template joined_lanes<LANES>();
    }
};
