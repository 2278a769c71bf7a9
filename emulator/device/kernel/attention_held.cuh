// ATTENTION with few queries whose keys and values pass through registers: lines of 64 or 128 elements in aligned memory.
//
// Tensor cores sum over the depth in any order, so that the 16 bytes of a key that a lane loads are its part of two products:
// lane 4 g + t has chunks t, t + 4, ... of row g of q and of key g. Of values it has chunk g of keys 2 t, 2 t + 1 and those 8
// behind them; what it has of one column of two keys, put together, is its part of the product of the columns 8 g + j. (Of lines of
// 32 elements, which attention_rows.cuh takes, half a chunk, and the columns 4 g + j.)
#pragma once
#include "attention_few.cuh"
#include "path_workers.cuh"
#include "rotary.cuh"

// Lines of one head of a tensor, by addresses of their own: its strides are read once.
struct HeldLines {
    const Tensor& t;
    const char* base;
    i64 pitch;

    DEV HeldLines(const Tensor& tensor, i64 from, u32 chunk)
        : t(tensor), base(in_global(tensor.data) + (from + chunk * 8) * 2), pitch(tensor.strides[2] * 2) {}
    DEV const char* at(u32 line) const { return base + line * pitch; }
    DEV uint4 load(const char* line, u32 chunk) const {
        const char* p = line + chunk * CHUNK_BYTES;
        return range_in_bounds(t, p, CHUNK_BYTES) ? *reinterpret_cast<const uint4*>(p) : make_uint4(0, 0, 0, 0);
    }
    DEV uint4 load_half(const char* p) const {
        const uint2 half = range_in_bounds(t, p, CHUNK_BYTES / 2) ? *reinterpret_cast<const uint2*>(p) : make_uint2(0, 0);
        return make_uint4(half.x, half.y, 0, 0);
    }
    DEV void expect(u32 line, u32 chunk) const {
        const char* p = at(line) + chunk * CHUNK_BYTES;
        if (range_in_bounds(t, p, CHUNK_BYTES)) prefetch(p);
    }
};

// The two rows of q that a lane has.
struct HeldRows {
    i64 query[2];             // where they lie, from the tile's first one on, in bytes
    i32 first[2], behind[2];  // keys that they see

    DEV HeldRows(const AttentionArgs& args, const FewQueries& few, const FewQueriesTile& tile, u32 g) {
        const Tensor& q = args.q();
        const i64 to_head = q.strides[1] * 2, to_query = q.strides[2] * 2;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 line = g + 8 * half;
            const FewQueriesRow row(few, tile.row + min(line, tile.rows - 1), q.dims[2]);
            query[half] = row.head * to_head + row.query * to_query;
            first[half] = few.begin + static_cast<i32>(row.query);
            behind[half] = line < tile.rows ? min(static_cast<i32>(tile.end), few.end + static_cast<i32>(row.query)) : 0;
        }
    }
    // Products with 16 keys, of which the lane has `key`, the next one and those 8 behind them, become logits.
    DEV void hide(f32 (&scores)[2][4], u32 key, f32 scale) const {
#pragma unroll
        for (u32 j = 0; j < 2; ++j)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const i32 at = static_cast<i32>(key + 8 * j + e % 2);
                scores[j][e] = at >= first[e / 2] && at < behind[e / 2] ? scores[j][e] * scale : -infinity();
            }
    }
};

// What a lane does with its part of 16 keys and their values.
template <class T, u32 WIDTH> struct HeldProducts {
    using Deep = uint4[2][WIDTH / 32];  // lines g, g + 8: chunks t + 4 i
    static constexpr u32 COLUMNS = WIDTH < 64 ? WIDTH : 64, PART = COLUMNS / 8;  // of values that a warp has, and a lane
    using Values = uint4[4];            // keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9: columns PART g + j
    using Sums = f32[PART][4];          // sums[j] is of columns PART (2 t) + j and PART (2 t + 1) + j

    static DEV void multiply_keys(f32 (&scores)[2][4], const Deep& q, const Deep& k) {
#pragma unroll
        for (u32 i = 0; i < WIDTH / 32; ++i) {
            const u32 a[4] = {q[0][i].x, q[1][i].x, q[0][i].y, q[1][i].y}, b[4] = {q[0][i].z, q[1][i].z, q[0][i].w, q[1][i].w};
#pragma unroll
            for (u32 j = 0; j < 2; ++j) {
                T::multiply(scores[j], a, k[j][i].x, k[j][i].y);
                T::multiply(scores[j], b, k[j][i].z, k[j][i].w);
            }
        }
    }
    static DEV void multiply_values(Sums& sums, const f32 (&scores)[2][4], const Values& v) {
        const u32 p[4] = {T::pack(scores[0][0], scores[0][1]), T::pack(scores[0][2], scores[0][3]), T::pack(scores[1][0], scores[1][1]),
                          T::pack(scores[1][2], scores[1][3])};
        multiply_pairs(sums[0], sums[1], p, v[0].x, v[1].x, v[2].x, v[3].x);
        multiply_pairs(sums[2], sums[3], p, v[0].y, v[1].y, v[2].y, v[3].y);
        if constexpr (PART == 8) {
            multiply_pairs(sums[4], sums[5], p, v[0].z, v[1].z, v[2].z, v[3].z);
            multiply_pairs(sums[6], sums[7], p, v[0].w, v[1].w, v[2].w, v[3].w);
        }
    }
    // The sums of one row: `half` of those that the lane has.
    static DEV void keep(f32* to, const Sums& sums, u32 half, u32 t) {
#pragma unroll
        for (u32 e = 0; e < 2; ++e)
#pragma unroll
            for (u32 j = 0; j < 8; j += 4) {
                const u32 n = 2 * half + e;
                *reinterpret_cast<float4*>(to + 16 * t + e * 8 + j) = make_float4(sums[j][n], sums[j + 1][n], sums[j + 2][n], sums[j + 3][n]);
            }
    }

  private:
    // Columns 8 g + j and 8 g + j + 1 of four keys.
    static DEV void multiply_pairs(f32 (&low)[4], f32 (&high)[4], const u32 (&p)[4], u32 v0, u32 v1, u32 v8, u32 v9) {
        T::multiply(low, p, __byte_perm(v0, v1, 0x5410), __byte_perm(v8, v9, 0x5410));
        T::multiply(high, p, __byte_perm(v0, v1, 0x7632), __byte_perm(v8, v9, 0x7632));
    }
};

// Where one query comes through the exchange, ahead of the ROPE that rotates it in memory, so does what the giver left for the last
// key and value, which lie in memory as they lie in the exchange. Lanes rotate query and key for themselves, and put them in
// the place of what they loaded from memory; values past the last one are that one, too. A warp has all its keys in one step then.
template <u32 WIDTH> struct FreshLine {
    u32 line;  // the last key; ~0 if it is not among those of the tile, or was there before
    i64 moved;                      // bytes from memory to the exchange
    const char *key_at, *value_at;  // in memory
    uint4 key[WIDTH / 32], value;

    // What need not be asked for is the query once more.
    DEV void find(const AttentionArgs& args, const FewQueries& few, const FewQueriesTile& tile, const char* query, const HeldLines& keys,
                  const HeldLines& values) {
        const u32 last = args.k().dims[2] - 1;
        const bool more = last - tile.begin < tile.end - tile.begin;
        line = more ? last : ~0u;
        moved = exchange_at(args.work, few.takes) - in_global(args.q().data);
        key_at = more ? keys.at(last) : query;
        value_at = more ? values.at(last) : query;
    }
};

// A warp has 16 keys at a time, and 64 columns: SIDES warps share the same keys.
template <class T, u32 WIDTH> struct HeldAttention {
    static constexpr u32 COLUMNS = 64, SIDES = WIDTH / COLUMNS, PARTS = WORKER_WARPS / SIDES, KEYS = PARTS * STEP_KEYS;
    using Warp = WarpAttention<T, STEP_KEYS, COLUMNS>;
    using Running = typename Warp::Running;
    using Results = FewResults<WIDTH, PARTS>;
    using Products = HeldProducts<T, WIDTH>;
    using Deep = typename Products::Deep;
    using Values = typename Products::Values;

    DEV static u32 parts(u32 keys) { return min(PARTS, (keys + STEP_KEYS - 1) / STEP_KEYS); }  // that have some
    DEV static u32 scratch(const FewQueries& few, u32 rows) { return Results::bytes(parts(few.share), min(FEW_ROWS, rows)); }

    // Called by a warp of the loader's.
    static DEV void expect(const AttentionArgs& args, const FewQueries& few, u32 lane) {
        const FewQueriesTile tile(few, args.work.first_tile, args.q().dims[2], WIDTH, WIDTH);
        const HeldLines keys(args.k(), tile.base(args.k(), tile.key_head), 0), values(args.v(), tile.base(args.v(), tile.key_head), 0);
#pragma unroll 1
        for (u32 key = tile.begin + lane; key < min(tile.end, tile.begin + FewQueries::EXPECTED_KEYS); key += WARP) {
#pragma unroll
            for (u32 line = 0; line < WIDTH / 64; ++line) {
                keys.expect(key, line * 8);
                values.expect(key, line * 8);
            }
        }
    }

    // Of the present work and tile, which are read anew: passed on, they would be in local memory while keys take all registers.
    static DEV_CALL void run() {
        const Block block;
        const FewQueries& few = FewQueries::of(args().work);
        const FewQueriesTile tile(few, Kept::place().tile, args().q().dims[2], WIDTH, WIDTH);
        char* const workspace = block.launch()->workspace;  // asked for here, and waited for behind the barrier
        const bool has_keys = tile.begin + block.warp() / SIDES * STEP_KEYS < tile.end;
        const bool takes = EXCHANGES && few.takes != 0;
        if (!(!has_keys ? block.begin() : takes ? attend<true>(args(), few, tile, block) : attend<false>(args(), few, tile, block))) return;
        block.sync();
        const AttentionArgs& again = args();
        const FewQueries& same = FewQueries::of(again.work);
        Results::finish(again, same, tile, Results::place(same, Kept::place().tile, workspace), reinterpret_cast<f32*>(block.scratch()),
                        parts(tile.end - tile.begin), block);
    }

  private:
    static DEV const AttentionArgs& args() { return AttentionArgs::of(Kept::shared().works[Kept::taken() % WORKS]); }

    // False if the run is over. TAKES: the query comes through the exchange, and maybe the last key and value.
    template <bool TAKES> static DEV bool attend(const AttentionArgs& args, const FewQueries& few, const FewQueriesTile& tile, const Block& block) {
        const u32 g = block.lane() / 4, t = block.lane() % 4, end = tile.end;
        u32 key = tile.begin + block.warp() / SIDES * STEP_KEYS;
        const HeldLines keys(args.k(), tile.base(args.k(), tile.key_head), t);
        const HeldLines values(args.v(), tile.base(args.v(), tile.key_head), block.warp() % SIDES * (COLUMNS / 8) + g);
        const HeldLines queries(args.q(), tile.base(args.q(), tile.head), t);
        const HeldRows rows(args, few, tile, g);
        const char* query_at[2] = {queries.base + rows.query[0], queries.base + rows.query[1]};
        const char *key_at[2], *value_at[4];
        find_keys(key_at, keys, key + g, end);
        find_values(value_at, values, key + 2 * t, end);
        FreshLine<WIDTH> fresh;
        if (TAKES) fresh.find(args, few, tile, query_at[0], keys, values);
        hold(query_at);
        hold(key_at);
        hold(value_at);
        if (!block.begin()) return false;
        Deep k, q;
        Values v;
        if (!TAKES) {  // first: products wait for these and for keys
#pragma unroll
            for (u32 half = 0; half < 2; ++half)
#pragma unroll
                for (u32 i = 0; i < WIDTH / 32; ++i) q[half][i] = queries.load(query_at[half], 4 * i);
        }
        load_keys(k, keys, key_at);
        load_values(v, values, value_at);
        if (TAKES) {
            take_queries(q, fresh, args, tile.rows, query_at, t);
            if (fresh.line - key < STEP_KEYS) put_fresh(k, v, fresh, key, end, g, t);
        }
        const u32 halves = tile.rows > 8 ? 2 : 1;
        Running r;
        r.clear();
#pragma unroll 1
        for (;;) {
            const u32 next = key + KEYS;
            f32 scores[2][4] = {};
            Products::multiply_keys(scores, q, k);
            if (next < end) {
                find_keys(key_at, keys, next + g, end);
                load_keys(k, keys, key_at);
            }
            rows.hide(scores, key + 2 * t, few.scale);
            Warp::soften(scores, r, halves);
            Products::multiply_values(r.sums, scores, v);
            if (next >= end) break;
            key = next;
            find_values(value_at, values, key + 2 * t, end);
            load_values(v, values, value_at);
        }
        keep(r, reinterpret_cast<f32*>(block.scratch()), tile.rows, block);
        return true;
    }

    // The query, and the last key and value where they come with it, or the query once more: there is no branch, because a 16-byte load
    // whose result comes from one of two places goes to local memory.
    static DEV void take_queries(Deep& q, FreshLine<WIDTH>& fresh, const AttentionArgs& args, u32 rows, const char* const (&query)[2], u32 t) {
        const HeldTables<T, WIDTH> tables(args.work.operands + TABLES_SLOT, t, true, query[0]);
        const auto load = [&](const char* p) { return load_relaxed_16(reinterpret_cast<const f32*>(p + fresh.moved)); };
        const auto look = [&] {
            u32 most = 0;
#pragma unroll
            for (u32 i = 0; i < WIDTH / 32; ++i) {
                q[0][i] = load(query[0] + 4 * i * CHUNK_BYTES);
                q[1][i] = load(query[1] + 4 * i * CHUNK_BYTES);
                fresh.key[i] = load(fresh.key_at + 4 * i * CHUNK_BYTES);
                most = max(most, max(most_of(q[0][i]), max(most_of(q[1][i]), most_of(fresh.key[i]))));
            }
            fresh.value = load(fresh.value_at);
            most = max(most, most_of(fresh.value));
            return __all_sync(0xffffffffu, most != NOT_THERE);
        };
        const Launch* const launch = shared_state().launch;
        // After a trap, whatever is there: the other warps count on this one.
        if (!spin(launch, look, [&] { raise(launch, TRAP_TIMEOUT, present_instruction(), WAITED_FOR_RESULTS); })) stop(shared_state());
        tables.rotate_line(q[0]);
        if (rows > 8) tables.rotate_line(q[1]);  // else nobody asks for what becomes of it
        tables.rotate_line(fresh.key);
    }
    static DEV void put_fresh(Deep& k, Values& v, const FreshLine<WIDTH>& fresh, u32 key, u32 end, u32 g, u32 t) {
#pragma unroll
        for (u32 j = 0; j < 2; ++j)
#pragma unroll
            for (u32 i = 0; i < WIDTH / 32; ++i) replace(k[j][i], fresh.key[i], min(key + g + 8 * j, end - 1) == fresh.line);
#pragma unroll
        for (u32 j = 0; j < 4; ++j) replace(v[j], fresh.value, min(key + 2 * t + j % 2 + j / 2 * 8, end - 1) == fresh.line);
    }
    static DEV void replace(uint4& to, const uint4& by, bool it) {
        to = make_uint4(it ? by.x : to.x, it ? by.y : to.y, it ? by.z : to.z, it ? by.w : to.w);
    }

    // Lines past the last key are that key once more: their scores are hidden.
    static DEV void find_keys(const char* (&at)[2], const HeldLines& lines, u32 key, u32 end) {
#pragma unroll
        for (u32 j = 0; j < 2; ++j) at[j] = lines.at(min(key + 8 * j, end - 1));
    }
    static DEV void find_values(const char* (&at)[4], const HeldLines& lines, u32 key, u32 end) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) at[j] = lines.at(min(key + j % 2 + j / 2 * 8, end - 1));
    }
    static DEV void load_keys(Deep& k, const HeldLines& lines, const char* const (&at)[2]) {
#pragma unroll
        for (u32 j = 0; j < 2; ++j)
#pragma unroll
            for (u32 i = 0; i < WIDTH / 32; ++i) k[j][i] = lines.load(at[j], 4 * i);
    }
    static DEV void load_values(Values& v, const HeldLines& lines, const char* const (&at)[4]) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) v[j] = lines.load(at[j], 0);
    }
    // A warp's results, of the rows that exist.
    static DEV void keep(const Running& r, f32* parts, u32 rows, const Block& block) {
        const u32 g = block.lane() / 4, t = block.lane() % 4, part = block.warp() / SIDES, side = block.warp() % SIDES;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            f32 total = r.total[half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            if (g + 8 * half >= rows) continue;
            f32* const to = Results::line(parts, part, rows, g + 8 * half);
            if (t == 0 && side == 0) *reinterpret_cast<float2*>(to + WIDTH) = make_float2(r.top[half], total);
            Products::keep(to + side * COLUMNS, r.sums, half, t);
        }
    }
};
