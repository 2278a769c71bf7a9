// The fast path of elementwise rows: eight neighbouring floats at a time, in loads and stores of 16 bytes.
#pragma once
#include "merged.cuh"

constexpr u32 VECTOR = 8;      // elements
constexpr u32 IN_FLIGHT = 8;   // vectors of each operand that a thread has on their way

// Eight elements as they are in memory.
struct RawVector {
    uint4 low;
    uint4 high;  // of f32 only

    // Where there are no higher elements, the lower ones are read once more: 16 bytes that come from a load on one way and
    // from elsewhere on another are what the compiler spills first.
    DEV static RawVector load(const char* p, u32 dtype) {
        const char* high = p + (dtype == DTYPE_F32 ? VECTOR_BYTES : 0);
        return {*reinterpret_cast<const uint4*>(p), *reinterpret_cast<const uint4*>(high)};
    }
    DEV static RawVector load(const Tensor& t, i64 offset) { return load_inside(t, element(t, offset)); }
    DEV static RawVector load_inside(const Tensor& t, const char* p) {
        if (in_bounds(t, p) && in_bounds(t, p + (VECTOR - 1) * t.item_bytes)) return load(p, t.dtype);
        return none();
    }
    // The element at `p` alone, as element 0.
    DEV static RawVector load_one(const Tensor& t, const char* p) {
        RawVector raw = none();
        if (!in_bounds(t, p)) return raw;
        raw.low.x = t.dtype == DTYPE_F32 ? *reinterpret_cast<const u32*>(p) : *reinterpret_cast<const u16*>(p);
        return raw;
    }
    DEV static RawVector none() { return {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)}; }
    DEV void store(char* p, u32 dtype) const {
        *reinterpret_cast<uint4*>(p) = low;
        if (dtype == DTYPE_F32) *reinterpret_cast<uint4*>(p + VECTOR_BYTES) = high;
    }
    DEV void store(const Tensor& t, i64 offset) const {
        char* p = element(t, offset);
        if (in_bounds(t, p) && in_bounds(t, p + (VECTOR - 1) * t.item_bytes)) store(p, t.dtype);
    }
    DEV void unpack(u32 dtype, f32 (&v)[VECTOR]) const {
        const u32 words[VECTOR] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        if (dtype == DTYPE_F32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[k] = __uint_as_float(words[k]);
        } else if (dtype == DTYPE_BF16) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k)
                v[k] = __uint_as_float(k % 2 ? words[k / 2] & 0xffff0000u : words[k / 2] << 16);
        } else {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[k] = f32_from_f16(static_cast<u16>(words[k / 2] >> (k % 2 * 16)));
        }
    }
    DEV static RawVector pack(u32 dtype, const f32 (&v)[VECTOR]) {
        u32 words[VECTOR] = {};
        if (dtype == DTYPE_F32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) words[k] = __float_as_uint(v[k]);
        } else if (dtype == DTYPE_BF16) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; k += 2) words[k / 2] = pack_bf16(v[k], v[k + 1]);
        } else {
#pragma unroll
            for (u32 k = 0; k < VECTOR; k += 2) words[k / 2] = pack_f16(v[k], v[k + 1]);
        }
        return {make_uint4(words[0], words[1], words[2], words[3]), make_uint4(words[4], words[5], words[6], words[7])};
    }
};

// Bytes of a vector of `dtype`.
DEV u32 vector_bytes(u32 dtype) { return dtype == DTYPE_F32 ? 2 * VECTOR_BYTES : VECTOR_BYTES; }

// Starts to copy the vector at `p` to shared memory: 16 bytes to `slot` and, of f32, 16 more `apart` behind. `shared`: other
// threads of the block read it as well.
DEV void fetch_vector(const char* p, u32 dtype, char* slot, u32 apart, bool shared) {
    if (shared) {
        copy_async_16_cached(slot, p);
        if (dtype == DTYPE_F32) copy_async_16_cached(slot + apart, p + VECTOR_BYTES);
    } else {
        copy_async_16(slot, p, VECTOR_BYTES);
        if (dtype == DTYPE_F32) copy_async_16(slot + apart, p + VECTOR_BYTES, VECTOR_BYTES);
    }
}
DEV RawVector fetched_vector(const char* slot, u32 apart, u32 dtype) {
    const char* high = slot + (dtype == DTYPE_F32 ? apart : 0);  // as in RawVector::load
    return {*reinterpret_cast<const uint4*>(slot), *reinterpret_cast<const uint4*>(high)};
}

// The ways of elementwise handlers.
constexpr u32 WAY_VECTORS = 1;

// Measures operands that vectors of floats make up.
template <u32 N> DEV bool take_vectors(Merged<N>& all, const Work& w, u32 row_axes) {
    bool floats = true;
#pragma unroll
    for (u32 k = 0; k < N; ++k) floats &= is_float(w.operands[k].dtype);
    return floats && all.measure(w, VECTOR, row_axes);
}

// What a handler of so many sources needs of scratch memory.
template <u32 SOURCES> constexpr u32 VECTOR_DEPTH = SOURCES > 2 ? IN_FLIGHT / 2 : IN_FLIGHT;
template <u32 SOURCES> constexpr u32 VECTOR_SCRATCH_BYTES = VECTOR_DEPTH<SOURCES> * SOURCES * 2 * LAYER;

template <u32 N> DEV u32 vector_scratch(const Merged<N>& all) { return all.few() ? 0 : VECTOR_SCRATCH_BYTES<N - 1>; }

template <u32 USED, u32 N, class F> DEV void map_units(const Streams<N>& all, u32 tile, const Block& block, F f) {
    constexpr u32 SOURCES = N - 1;
    constexpr u32 DEPTH = VECTOR_DEPTH<SOURCES>, STAGE = SOURCES * 2 * LAYER, STAGES = DEPTH * STAGE;
    static_assert(STAGES <= SCRATCH_BYTES, "they fit in scratch");
    const u32 step = all.tiles() * WORKER_THREADS, first = tile * WORKER_THREADS + block.thread(), count = all.count();
    const bool direct = all.few();  // there is nothing to fetch ahead
    auto here = all.template place<USED>(first), there = here, by = here;
    char* mine = nullptr;
    u32 ahead = first;
    const auto fetch = [&](u32 stage) {
        if (ahead < all.units) {
#pragma unroll
            for (u32 k = 1; k < N; ++k) {
                const char* p = all.template at<USED>(k, there);
                if (all.neighbours(k) && all.holds(k, p, vector_bytes(all.dtype[k])))
                    fetch_vector(p, all.dtype[k], mine + stage + (k - 1) * 2 * LAYER, LAYER,
                                 USED > 1 && all.bytes[k][0] == 0);
            }
        }
        copy_async_commit();
        ahead += step;
        all.template move<USED>(there, by);
    };
    if (!direct) {
        by = all.template place<USED>(step);
        mine = block.scratch() + block.thread() * VECTOR_BYTES;
#pragma unroll 1
        for (u32 stage = 0; stage < STAGES; stage += STAGE) fetch(stage);
    }
    u32 stage = 0;
#pragma unroll 1
    for (u32 unit = first; unit < count; unit += step) {
        if (!direct) copy_async_wait<DEPTH - 1>();
        const bool whole = unit < all.units;
        RawVector raw[SOURCES];
#pragma unroll
        for (u32 k = 1; k < N; ++k) {
            const char* p =
                whole ? all.template at<USED>(k, here) : element(all.tensors[k], all.single(k, unit - all.units));
            if (!whole || !all.neighbours(k)) raw[k - 1] = RawVector::load_one(all.tensors[k], p);
            else if (!direct) raw[k - 1] = fetched_vector(mine + stage + (k - 1) * 2 * LAYER, LAYER, all.dtype[k]);
            else raw[k - 1] = RawVector::load_inside(all.tensors[k], p);
        }
        f32 v[SOURCES][VECTOR];
#pragma unroll
        for (u32 k = 1; k < N; ++k) {
            raw[k - 1].unpack(all.dtype[k], v[k - 1]);
            if (whole && all.neighbours(k)) continue;
#pragma unroll
            for (u32 i = 1; i < VECTOR; ++i) v[k - 1][i] = v[k - 1][0];
        }
        f(v);
        char* p = all.template at<USED>(0, here);
        if (!whole) store_f32(all.tensors[0], all.single(0, unit - all.units), v[0][0]);
        else if (all.holds(0, p, vector_bytes(all.dtype[0]))) RawVector::pack(all.dtype[0], v[0]).store(p, all.dtype[0]);
        if (direct) return;
        all.template move<USED>(here, by);
        fetch(stage);
        stage = stage + STAGE < STAGES ? stage + STAGE : 0;
    }
    if (!direct) copy_async_wait<0>();
}

// A block's share of the first tensor: f(v) replaces v[0], elements of the second, by the results; v[k] are the elements of
// tensor k + 1. Where there is much, what a thread reads is on its way to shared memory long before it is used. Threads
// read back only what they fetched themselves, so there is no barrier.
template <u32 N, class F> DEV void map_vectors(const Work& w, u32 tile, const Block& block, F f) {
    const Streams<N> all(w);
    if (all.rows() == 1) map_units<1>(all, tile, block, f);
    else if (N > 2 && all.size[1] == all.rows()) map_units<2>(all, tile, block, f);
    else map_units<Merged<N>::AXES>(all, tile, block, f);
}
