// Rows that stay in registers while they are worked on. A team's first row comes there straight from memory, and may be its
// only one; the next ones are on their way to shared memory meanwhile.
#pragma once
#include "rows.cuh"

// Vectors of a thread, as they lie in a row. WIDE: of f32; else of 16 bits.
template <bool WIDE, u32 N> struct HeldVectors {
    static constexpr u32 BYTES = WIDE ? 2 * VECTOR_BYTES : VECTOR_BYTES;  // of one
    RawVector raw[N];

    // The `part`-th vector from `begin` on, and `count` in all, `threads` vectors apart. What a thread does not have, it
    // reads from the row's beginning: no branch is in the way.
    DEV void load(const Tensor& t, const char* begin, u32 part, u32 threads, u32 count) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            const char* p = begin + (n < count ? (n * threads + part) * BYTES : 0);
            raw[n] = holds_vector(t, p) ? RawVector::load(p, WIDE ? DTYPE_F32 : DTYPE_BF16) : RawVector::none();
        }
    }
    DEV void unpack(u32 dtype, f32 (&v)[N][VECTOR]) const {
#pragma unroll
        for (u32 n = 0; n < N; ++n) raw[n].unpack(dtype, v[n]);
    }
    // What a later load will find in a cache.
    DEV static void expect(const Tensor& t, const char* begin, u32 part, u32 threads, u32 count) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            const char* p = begin + (n < count ? (n * threads + part) * BYTES : 0);
            if (in_bounds(t, p)) prefetch(p);
        }
    }
};

// Calls f(dtype) with what the compiler knows to be the type: it is looked at once.
template <bool WIDE, class F> DEV void by_type(u32 dtype, F f) {
    if (WIDE) f(DTYPE_F32);
    else if (anew(dtype) == DTYPE_BF16) f(DTYPE_BF16);
    else f(DTYPE_F16);
}

// A thread's part of a row: N vectors, or one less.
template <bool WIDE, u32 N> struct HeldRow : RowThread {
    using Vectors = HeldVectors<WIDE, N>;
    static constexpr u32 TYPE = WIDE ? DTYPE_F32 : DTYPE_BF16;  // or f16, which is copied alike
    static constexpr u32 ROW = N * PLACE_BYTES<TYPE>, DEPTH = Rows::held_depth(N, WIDE ? 2 : 1);
    static_assert(DEPTH * ROW > STAGING_BYTES && DEPTH * ROW <= VECTOR_SCRATCH_BYTES, "in the ring, and in scratch");

    const char* const begin;  // of the team's first row
    const u32 count;          // vectors of this thread
    Vectors raw;
    f32 v[N][VECTOR];
    char* to;                       // where v belongs
    char* places = nullptr;         // of this thread, LAYER apart
    u32 stage = (DEPTH - 1) * ROW;  // bytes from there to those of the row at hand

    DEV HeldRow(const Rows& given, u32 tile, const Block& workers)
        : RowThread(given, tile, workers), begin(rows.begin(1, row)),
          count((N - 1) * threads + part < rows.vectors ? N : N - 1) {}
    DEV void load() { raw.load(rows.tensors[1], begin, part, threads, count); }
    // Whether the thread has vector n; nothing to ask of all but the last.
    DEV bool has(u32 n) const { return n + 1 < N || count == N; }
    DEV bool is_last() const { return row + step >= rows.count; }

    DEV void locate() { to = first(0, row); }
    // Starts to fetch the next rows, all but the last that there is room for.
    DEV void begin_to_fetch() {
        places = block.scratch() + block.thread() * VECTOR_BYTES;
#pragma unroll 1
        for (u32 n = 1; n < DEPTH; ++n) fetch(row + n * step, (n - 1) * ROW);
    }
    // The places of the row at hand are for that of a later one.
    DEV void fetch_next() { fetch(row + DEPTH * step, stage); }
    DEV void advance() {
        row += step;
        stage = stage + ROW < DEPTH * ROW ? stage + ROW : 0;
        copy_async_wait<DEPTH - 1>();
#pragma unroll
        for (u32 n = 0; n < N; ++n) raw.raw[n] = fetched_vector(places + stage + n * PLACE_BYTES<TYPE>, LAYER, TYPE);
        locate();
        by_type<WIDE>(rows.dtype[1], [&](u32 dtype) { raw.unpack(dtype, v); });
    }
    // Calls f(v) for each vector.
    template <class F> DEV void each(F f) {
#pragma unroll
        for (u32 n = 0; n < N; ++n)
            if (has(n)) f(v[n]);
    }
    // Writes v to out.
    DEV void write() const {
        char* all[N];
        spread(to, all);
        if (WIDE) write_vectors_as<DTYPE_F32>(rows.tensors[0], all, count, v);
        else if (anew(rows.dtype[1]) == DTYPE_BF16) write_vectors_as<DTYPE_BF16>(rows.tensors[0], all, count, v);
        else write_vectors_as<DTYPE_F16>(rows.tensors[0], all, count, v);
    }

  private:
    DEV void fetch(u32 line, u32 to) const {
        if (line < rows.count) {
            char* place = places + to;
            const char* from = first(1, line);
#pragma unroll
            for (u32 n = 0; n < N; ++n, from += apart(1), place += PLACE_BYTES<TYPE>)
                if (has(n) && holds_vector(rows.tensors[1], from)) fetch_vector(from, TYPE, place, LAYER, false);
        }
        copy_async_commit();
    }
};

template <bool WIDE, u32 N, class F> DEV void map_held_as(const Rows& rows, u32 tile, const Block& block, const F& f) {
    HeldRow<WIDE, N> row(rows, tile, block);
    typename F::template Held<WIDE, N> same;  // for all rows
    same.expect(f, row);
    row.locate();
    if (!block.begin()) return;
    row.load();
    same.load(f, row);
    if (!row.is_last()) row.begin_to_fetch();
    by_type<WIDE>(rows.dtype[1], [&](u32 dtype) {
        row.raw.unpack(dtype, row.v);
        same.unpack(f, dtype);
    });
#pragma unroll 1
    for (;; row.advance()) {
        if (!row.is_last()) row.fetch_next();
        f(row, same);
        row.write();
        if (row.is_last()) return;
    }
}
template <bool WIDE, class F> DEV void map_held_wide(const Rows& rows, u32 tile, const Block& block, const F& f) {
    static_assert(MOST_HELD == 3 || MOST_HELD == 4, "as many cases");
    const u32 each = Rows::each_of(rows.all);
    if (each == 1) map_held_as<WIDE, 1>(rows, tile, block, f);
    else if (each == 2) map_held_as<WIDE, 2>(rows, tile, block, f);
    else if (each == 3) map_held_as<WIDE, 3>(rows, tile, block, f);
    else map_held_as<WIDE, MOST_HELD>(rows, tile, block, f);
}
// Calls f(row, same) for each row of the tile, and writes to out what it leaves in row.v; `same`, an F::Held, is what f
// reads for every row. out may be x. For handlers that begin themselves.
template <class F> DEV void map_held(const Work& w, u32 tile, const Block& block, const F& f) {
    const Rows rows(w);
    if (RowThread(rows, tile, block).row >= rows.count) {
        block.begin();
        return;
    }
    if (rows.dtype[1] == DTYPE_F32) map_held_wide<true>(rows, tile, block, f);
    else map_held_wide<false>(rows, tile, block, f);
}
