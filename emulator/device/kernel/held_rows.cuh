// Rows that stay in registers while they are worked on. A team's first row comes there straight from memory, and may be its
// only one; the next ones are on their way to shared memory meanwhile.
#pragma once
#include "rows.cuh"

// Where a thread's vectors are in a row: WARP apart, so that the code knows how far it is from one to the next, and a warp's
// lie together. Memory is read and written in pieces of 32 bytes: so of f32, eight threads take the
// lower halves of their vectors from one line, and the higher ones from the next, if there are eight for all.
template <bool WIDE> struct HeldPlace {
    static constexpr u32 BYTES = WIDE ? 2 * VECTOR_BYTES : VECTOR_BYTES, TOGETHER = 8;
    u32 first;  // offset of the first one's lower half,
    u32 high;   // and from a lower half to the higher one
    static constexpr u32 APART = WARP * BYTES;  // from a vector to the next

    // `own`: the index of the first one, of so many in the row.
    DEV HeldPlace(u32 own, u32 vectors) {
        const bool apart = WIDE && vectors % TOGETHER == 0;
        first = apart ? own / TOGETHER * TOGETHER * BYTES + own % TOGETHER * VECTOR_BYTES : own * BYTES;
        high = !WIDE ? 0 : apart ? TOGETHER * VECTOR_BYTES : VECTOR_BYTES;
    }
    // Whether the vector at `p` is inside of `t`.
    DEV bool holds(const Tensor& t, const char* p) const {
        return in_bounds(t, p) && in_bounds(t, p + high + VECTOR_BYTES - t.item_bytes);
    }
};

// Vectors of a thread, as they lie in a row. WIDE: of f32; else of 16 bits.
template <bool WIDE, u32 N> struct HeldVectors {
    RawVector raw[N];

    // Those at `place` of the row at `begin`, `count` in all. What a thread does not have, it reads from the row's beginning:
    // no branch is in the way. Where there are none, that may be outside of `t`.
    DEV void load(const Tensor& t, const char* begin, const HeldPlace<WIDE>& place, u32 count) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            const char* p = begin + (n < count ? n * place.APART + place.first : 0);
            const char* high = p + place.high;
            raw[n] = count == 0 || place.holds(t, p) ? RawVector{*reinterpret_cast<const uint4*>(p), *reinterpret_cast<const uint4*>(high)}
                                                     : RawVector::none();
        }
    }
    DEV void unpack(u32 dtype, f32 (&v)[N][VECTOR]) const {
#pragma unroll
        for (u32 n = 0; n < N; ++n) raw[n].unpack(dtype, v[n]);
    }
    // The largest element: of 16 bits two at a time are looked at as they lie.
    DEV f32 largest(u32 dtype) const {
        if (WIDE) {
            f32 v[N][VECTOR];
            unpack(dtype, v);
#pragma unroll
            for (u32 n = 1; n < N; ++n)
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[0][k] = maximum(v[0][k], v[n][k]);
            return fold_tree<Largest>(v[0]);
        }
        const auto larger = [&](u32 a, u32 b) { return dtype == DTYPE_BF16 ? max_nan_bf16x2(a, b) : max_nan_f16x2(a, b); };
        uint4 most = raw[0].low;
#pragma unroll
        for (u32 n = 1; n < N; ++n) {
            const uint4& other = raw[n].low;
            most = make_uint4(larger(most.x, other.x), larger(most.y, other.y), larger(most.z, other.z), larger(most.w, other.w));
        }
        const u32 both = larger(larger(most.x, most.y), larger(most.z, most.w)), one = larger(both, both >> 16);
        return dtype == DTYPE_BF16 ? f32_from_bf16(static_cast<u16>(one)) : f32_from_f16(static_cast<u16>(one));
    }
};

// Calls f(dtype) with what the compiler knows to be the type: it is looked at once.
template <bool WIDE, class F> DEV void by_type(u32 dtype, F f) {
    if (WIDE) f(DTYPE_F32);
    else if (anew(dtype) == DTYPE_BF16) f(DTYPE_BF16);
    else f(DTYPE_F16);
}

// A thread's part of a row: up to N vectors; most often all of them.
template <bool WIDE, u32 N> struct HeldRow : RowThread {
    using Vectors = HeldVectors<WIDE, N>;
    static constexpr u32 TYPE = WIDE ? DTYPE_F32 : DTYPE_BF16;  // or f16, which is copied alike
    static constexpr u32 ROW = N * PLACE_BYTES<TYPE>, DEPTH = Rows::held_depth(N, WIDE ? 2 : 1);
    static_assert(DEPTH * ROW > STAGING_BYTES && DEPTH * ROW <= ROW_LAYERS * LAYER, "in the ring, and in scratch");

    static constexpr u32 CLAIMED_BYTES = 8 * 1024;      // rows that are shorter would make a queue at the counter,
    static constexpr bool CLAIMED = N > 4;              // and each instruction counts for a warp that has a row of its own

    const char* const begin;  // of the team's first row
    const u32 most;  // vectors of a thread
    const u32 own;   // index of this thread's first one
    const HeldPlace<WIDE> place;
    const u32 count;  // of this thread
    Claims claims;
    u32 turn = 0;
    u32 next;  // the row after that at hand
    Vectors raw;
    f32 v[N][VECTOR];
    char* to;                       // where v belongs
    char* places = nullptr;         // of this thread, LAYER apart
    u32 stage = (DEPTH - 1) * ROW;  // bytes from there to those of the row at hand

    DEV HeldRow(const Rows& given, u32 tile, const Block& workers)
        : RowThread(given, tile, workers), begin(rows.begin(1, min(row, given.count - 1))), most(N > 4 ? Rows::each_of(rows.all) : N),
          own(part / WARP * most * WARP + part % WARP), place(own, rows.vectors),
          count(min(most, static_cast<u32>(max(static_cast<i32>(rows.vectors + WARP - 1 - own) >> 5, 0)))),
          claims(CLAIMED && rows.vectors * place.BYTES >= CLAIMED_BYTES ? rows.claims : 0, rows.count, row, step,
                 block.warp() >> rows.team, DEPTH),
          next(row + step) {}
    DEV void load() {
        if (exists()) claims.begin(block, part == 0);
        raw.load(rows.tensors[1], begin, place, count);
    }
    // Whether the thread has all vectors that the code is made for; if not, it looks for each.
    DEV bool full() const { return anew(count) == N; }
    DEV bool is_last() const { return next >= rows.count; }
    DEV bool exists() const { return anew(row) < rows.count; }
    // Vectors of this thread's warp.
    DEV u32 warp_vectors() const {
        const u32 first = own & ~(WARP - 1);
        return rows.vectors > first ? min(rows.vectors - first, most * WARP) : 0;
    }

    DEV void locate() { to = rows.begin(0, row) + place.first; }
    // Starts to fetch the next rows, all but the last that there is room for. None of them is claimed.
    DEV void begin_to_fetch() {
        places = block.scratch() + block.thread() * VECTOR_BYTES;
#pragma unroll 1
        for (u32 n = 1; n < DEPTH; ++n) fetch(row + n * step, (n - 1) * ROW);
    }
    // The places of the row at hand are for that of a later one.
    DEV void fetch_next() {
        if (CLAIMED) claims.claim(turn, part == 0);
        fetch(CLAIMED ? claims.at(turn + DEPTH) : row + DEPTH * step, stage);
    }
    DEV void advance() {
        row = next;
        turn += 1;
        next = CLAIMED ? claims.at(turn + 1) : row + step;
        stage = stage + ROW < DEPTH * ROW ? stage + ROW : 0;
        copy_async_wait<DEPTH - 1>();
#pragma unroll
        for (u32 n = 0; n < N; ++n) raw.raw[n] = fetched_vector(places + stage + n * PLACE_BYTES<TYPE>, LAYER, TYPE);
        locate();
    }
    // Makes `word`, one element or two of 16 bits, of what this thread does not have.
    DEV void fill_raw(u32 word) {
        if (full()) return;
#pragma unroll
        for (u32 n = 0; n < N; ++n)
            if (n >= count) raw.raw[n] = {make_uint4(word, word, word, word), make_uint4(word, word, word, word)};
    }
    // Calls f(v) for each vector. Those that this thread does not have are whatever the last `fill` made them: no branch is in
    // the way of the others.
    template <class F> DEV void each(F f) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) f(v[n]);
    }
    DEV void fill(f32 value) {
        if (full()) return;
#pragma unroll
        for (u32 n = 0; n < N; ++n)
            if (n >= count)
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[n][k] = value;
    }
    // Writes v to out.
    DEV void write() const {
        by_type<WIDE>(rows.dtype[1], [&](u32 dtype) {
            RawVector packed[N];
#pragma unroll
            for (u32 n = 0; n < N; ++n) packed[n] = RawVector::pack(dtype, v[n]);
            if (full()) write_each(packed, N);
            else write_each(packed, count);
        });
    }

  private:
    DEV void write_each(const RawVector (&packed)[N], u32 many) const {
        char* p = to;
#pragma unroll
        for (u32 n = 0; n < N; ++n, p += place.APART) {
            if (n >= many || !place.holds(rows.tensors[0], p)) continue;
            *reinterpret_cast<uint4*>(p) = packed[n].low;
            if (WIDE) *reinterpret_cast<uint4*>(p + place.high) = packed[n].high;
        }
    }
    DEV void fetch(u32 line, u32 to) const {
        if (line < rows.count) {
            const char* from = rows.begin(1, line) + place.first;
            if (full()) {
#pragma unroll
                for (u32 n = 0; n < N; ++n) fetch_one(from, to, n);
            } else {
#pragma unroll 1
                for (u32 n = 0; n < count; ++n) fetch_one(from, to, n);
            }
        }
        copy_async_commit();
    }
    DEV void fetch_one(const char* from, u32 to, u32 n) const {
        char* slot = places + to + n * PLACE_BYTES<TYPE>;
        from += n * place.APART;
        if (!place.holds(rows.tensors[1], from)) return;
        copy_async_16(slot, from, VECTOR_BYTES);
        if (WIDE) copy_async_16(slot + LAYER, from + place.high, VECTOR_BYTES);
    }
};

// A team that has no row goes through the code of one, on whatever there is, before the work may begin. What a block executes after other
// instructions comes to its instruction cache line by line, of which each takes a hundred clocks or more; this way it is there when the
// others may begin.
template <bool WIDE, u32 N, class F> DEV void map_held_as(const Rows& rows, u32 tile, const Block& block, const F& f) {
    HeldRow<WIDE, N> row(rows, tile, block);
    typename F::template Held<WIDE, N> same;  // for all rows
    same.load(f, row);
    row.locate();
    if (!row.exists()) block.take_over();
    else if (!block.begin()) return;
    row.load();
    if (!row.is_last()) row.begin_to_fetch();
    by_type<WIDE>(rows.dtype[1], [&](u32 dtype) { same.unpack(f, dtype); });  // which nobody has waited for so far, while the row is on its way
#pragma unroll 1
    for (;; row.advance()) {
        if (!row.is_last()) row.fetch_next();
        f(row, same);
        if (row.exists()) row.write();
        if (row.is_last()) break;
    }
    if (!row.exists()) block.begin();
    else block.end();
}
template <bool WIDE, class F> DEV void map_held_wide(const Rows& rows, u32 tile, const Block& block, const F& f) {
    constexpr u32 MOST = F::most_held(WIDE);
    static_assert(MOST == 3 || MOST == 4 || MOST == 8, "as many cases");
    const u32 each = Rows::each_of(rows.all);
    if (each == 1) map_held_as<WIDE, 1>(rows, tile, block, f);
    else if (each == 2) map_held_as<WIDE, 2>(rows, tile, block, f);
    else if (each == 3) map_held_as<WIDE, 3>(rows, tile, block, f);
    else if (MOST < 8 || each > 4) map_held_as<WIDE, MOST>(rows, tile, block, f);
    else map_held_as<WIDE, 4>(rows, tile, block, f);
}
// Calls f(row, same) for each row of the tile, and writes to out what it leaves in row.v; `same`, an F::Held, is what f
// reads for every row: nobody writes there, so it is asked for before the work may begin. out may be x. For handlers that begin
// themselves.
template <class F> DEV void map_held(const Work& w, u32 tile, const Block& block, const F& f) {
    const Rows rows(w);
    if (rows.dtype[1] == DTYPE_F32) map_held_wide<true>(rows, tile, block, f);
    else map_held_wide<false>(rows, tile, block, f);
}
