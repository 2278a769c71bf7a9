// Elementwise rows of little: no thread has more than one unit. What a small instruction costs is what its threads work out one
// after the other, so all that does not need the operands' elements is known before they are waited for; and units go to other
// warps from work to work, so that those of the next one work it out while those of this one wait for memory.
#pragma once
#include "vectors.cuh"

// A unit as it is in memory, or one element of it.
DEV RawVector load_unit(const Tensor& t, const char* p, u32 dtype, bool whole) {
    if (whole) return holds_vector(t, p) ? RawVector::load(p, dtype) : RawVector::none();
    RawVector raw = RawVector::none();
    if (!in_bounds(t, p)) return raw;
    if (dtype == DTYPE_F32) raw.low.x = *reinterpret_cast<const u32*>(p);
    else raw.low.x = *reinterpret_cast<const u16*>(p);
    return raw;
}

// One element behind the last whole unit.
template <u32 N, class F> DEV void map_single(const Streams<N>& all, u32 single, F f) {
    f32 v[N - 1][1][VECTOR];
#pragma unroll
    for (u32 k = 1; k < N; ++k) {
        const f32 one = load_float(all.tensors[k], element(all.tensors[k], all.single(k, single)));
#pragma unroll
        for (u32 i = 0; i < VECTOR; ++i) v[k - 1][0][i] = one;
    }
    f(v);
    store_float(all.tensors[0], element(all.tensors[0], all.single(0, single)), v[0][0][0]);
}

// As map_vectors, which see, where all.few(). Warps without a unit need not come here (NextWork), but may.
template <u32 N, class F> DEV void map_few(const Work& w, u32 tile, const Block& block, F f) {
    constexpr u32 AXES = Merged<N>::AXES;
    const u32 unit = tile * WORKER_THREADS + block.thread_in_turn();
    const Streams<N> all(w);
    const bool mine = unit < all.count(), whole = unit < all.units;
    const auto here = all.rows() == 1 ? typename Merged<N>::Place{unit, 0, 0, 0} : all.template place<AXES>(unit);
    char* at[N];
#pragma unroll
    for (u32 k = 0; k < N; ++k)
        at[k] = whole ? all.template at<AXES>(k, here) : element(all.tensors[k], all.single(k, unit - all.units));
    if (block.begin() && mine) {
        RawVector raw[N - 1];
#pragma unroll
        for (u32 k = 1; k < N; ++k) raw[k - 1] = load_unit(all.tensors[k], at[k], all.dtype[k], whole && all.neighbours(k));
        f32 v[N - 1][1][VECTOR];
#pragma unroll
        for (u32 k = 1; k < N; ++k) {
            raw[k - 1].unpack(all.dtype[k], v[k - 1][0]);
            if (whole && all.neighbours(k)) continue;
#pragma unroll
            for (u32 i = 1; i < VECTOR; ++i) v[k - 1][0][i] = v[k - 1][0][0];
        }
        f(v);
        char* const to[1] = {at[0]};
        if (whole) write_vectors(all.tensors[0], all.dtype[0], to, 1, v[0]);
        else store_float(all.tensors[0], to[0], v[0][0][0]);
    }
    block.end();
}

// A block's share of the first tensor: f(v) replaces v[0], elements of the second, by the results; v[k] are the elements of
// tensor k + 1, in one vector or VECTORS_AT_ONCE of them. Where there is much, what a thread reads is on its way to shared
// memory long before it is used. Threads read back only what they fetched themselves, so there is no barrier. For handlers that
// begin themselves.
template <u32 N, class F> DEV void map_vectors(const Work& w, u32 tile, const Block& block, F f) {
    if (Merged<N>::of(w).few()) return map_few<N>(w, tile, block, f);
    if (!block.begin()) return;
    const Streams<N> all(w);
    const u32 claims = N == 2 || all.size[3] == 1 ? Claims::of(w) : 0;
    if (reads_wide(w)) stream_units<true>(all, claims, tile, block, f);
    else stream_units<false>(all, claims, tile, block, f);
    const u32 unit = all.units + tile * WORKER_THREADS + block.thread();
    if (unit < all.count()) map_single(all, unit - all.units, f);
}
