// The fast path of elementwise rows: eight neighbouring floats at a time, in loads and stores of 16 bytes.
#pragma once
#include "numbers.cuh"

constexpr u32 VECTOR = 8;                  // elements
constexpr u32 VECTOR_BYTES = 16;           // of one load; f32 takes two
constexpr u32 DEEP_STEPS = 4;              // vectors that a thread has in flight where there is enough work
constexpr i64 DEEP_ELEMENTS = 1ll << 20;   // elements from which on there is

DEV bool aligned_for_vectors(const Tensor& t) { return reinterpret_cast<u64>(t.data) % VECTOR_BYTES == 0; }

// Eight elements as they are in memory.
struct RawVector {
    uint4 low;
    uint4 high;  // of f32 only

    DEV static RawVector load(const Tensor& t, i64 offset) {
        const char* p = element(t, offset);
        RawVector raw{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
        if (!in_bounds(t, p) || !in_bounds(t, p + (VECTOR - 1) * t.item_bytes)) return raw;
        raw.low = *reinterpret_cast<const uint4*>(p);
        if (t.dtype == DTYPE_F32) raw.high = *reinterpret_cast<const uint4*>(p + VECTOR_BYTES);
        return raw;
    }
    DEV void store(const Tensor& t, i64 offset) const {
        char* p = element(t, offset);
        if (!in_bounds(t, p) || !in_bounds(t, p + (VECTOR - 1) * t.item_bytes)) return;
        *reinterpret_cast<uint4*>(p) = low;
        if (t.dtype == DTYPE_F32) *reinterpret_cast<uint4*>(p + VECTOR_BYTES) = high;
    }
    DEV void unpack(u32 dtype, f32 (&v)[VECTOR]) const {
        const u32 words[VECTOR] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        if (dtype == DTYPE_F32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[k] = __uint_as_float(words[k]);
        } else {
            const bool half = dtype == DTYPE_F16;
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) {
                const u16 bits = static_cast<u16>(words[k / 2] >> (k % 2 * 16));
                v[k] = half ? f32_from_f16(bits) : f32_from_bf16(bits);
            }
        }
    }
    DEV static RawVector pack(u32 dtype, const f32 (&v)[VECTOR]) {
        u32 words[VECTOR] = {};
        if (dtype == DTYPE_F32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) words[k] = __float_as_uint(v[k]);
        } else {
            const bool half = dtype == DTYPE_F16;
#pragma unroll
            for (u32 k = 0; k < VECTOR; k += 2)
                words[k / 2] = half ? pack_f16(v[k], v[k + 1]) : pack_bf16(v[k], v[k + 1]);
        }
        return {make_uint4(words[0], words[1], words[2], words[3]), make_uint4(words[4], words[5], words[6], words[7])};
    }
};

// Where the elements of an operand lie, seen from the linear index i of the result: at i / repeat % period.
// A tensor without gaps has repeat 1 and its own size as period; a row that serves every row has repeat 1; a column
// that serves every column has the row's length as repeat.
struct VectorSource {
    const Tensor& tensor;
    i64 total;
    i64 repeat = 1;
    i64 period = 1;
    bool fits;  // eight elements of the result need eight neighbours of the operand, or one

    DEV explicit VectorSource(const Tensor& t) : tensor(t), total(t.elements()) {
        i64 tail = 1;  // elements of the axes passed so far
        bool regular = true, repeating = true, wrapped = false;
#pragma unroll 1
        for (i32 k = t.rank - 1; k >= 0; --k) {
            const i64 size = t.dims[k], stride = t.strides[k];
            tail *= size;
            if (size == 1) continue;
            if (repeating && stride == 0) {
                repeat *= size;
                continue;
            }
            repeating = false;
            if (stride == 0) wrapped = true;
            else if (stride == period && !wrapped) period *= size;
            else regular = false;
        }
        const bool neighbours = repeat == 1 && aligned_for_vectors(t) && (period % VECTOR == 0 || period == tail);
        const bool one = repeat % VECTOR == 0 || repeat == tail;
        fits = is_float(t.dtype) && regular && (neighbours || (repeat > 1 && one));
    }
    DEV i64 offset(i64 i) const {
        if (repeat == 1 && period == total) return i;
        const i64 row = repeat == 1 ? i : repeat == total ? 0 : i / repeat;
        return row < period ? row : row % period;
    }
    // Starts to copy the elements for i ... i + 7 of the result to shared memory, VECTOR_BYTES at `slot` and at `next`.
    DEV void fetch(char* slot, char* next, i64 i) const {
        if (repeat != 1) return;
        const char* p = element(tensor, offset(i));
        if (!in_bounds(tensor, p) || !in_bounds(tensor, p + (VECTOR - 1) * tensor.item_bytes)) return;
        copy_async_16(slot, p, VECTOR_BYTES);
        if (tensor.dtype == DTYPE_F32) copy_async_16(next, p + VECTOR_BYTES, VECTOR_BYTES);
    }
    DEV void take(const char* slot, const char* next, i64 i, f32 (&v)[VECTOR]) const {
        if (repeat == 1) {
            const RawVector raw{*reinterpret_cast<const uint4*>(slot), *reinterpret_cast<const uint4*>(next)};
            raw.unpack(tensor.dtype, v);
        } else {
            const f32 one = load_f32(tensor, offset(i));
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[k] = one;
        }
    }
};

// Fewer elements are done sooner one by one than by way of shared memory.
constexpr i64 FEW_ELEMENTS = 4 * TILE_ELEMENTS;
DEV bool takes_vectors(const Tensor& t) {
    return is_float(t.dtype) && t.contiguous && aligned_for_vectors(t) && t.elements() >= FEW_ELEMENTS;
}
DEV u32 vector_steps(i64 elements) { return elements >= DEEP_ELEMENTS ? DEEP_STEPS : 1; }
DEV u32 vector_tiles(i64 elements) {
    const i64 each = static_cast<i64>(WORKER_THREADS) * VECTOR * vector_steps(elements);
    return static_cast<u32>((elements + each - 1) / each);
}

template <u32 SOURCES> constexpr u32 VECTOR_SCRATCH_BYTES = DEEP_STEPS * SOURCES * 2 * WORKER_THREADS * VECTOR_BYTES;

// One tile of `out` (which takes vectors): f(v) replaces v[0], the elements of the first source, by the results.
// Everything that a thread reads is on its way to shared memory before the first of it is used: registers would not do.
// Threads read back only what they fetched themselves, so there is no barrier.
template <u32 SOURCES, class F>
DEV void map_vectors(const Block& block, u32 tile, const Tensor& out, const VectorSource (&sources)[SOURCES], F f) {
    constexpr i64 STRIDE = static_cast<i64>(WORKER_THREADS) * VECTOR;
    const i64 total = out.elements();
    const u32 steps = vector_steps(total);
    const i64 begin = tile * steps * STRIDE + block.thread() * VECTOR;
    const auto slot = [&](u32 step, u32 source, u32 half) {
        return block.scratch() + (((step * SOURCES + source) * 2 + half) * WORKER_THREADS + block.thread()) * VECTOR_BYTES;
    };
#pragma unroll 1
    for (u32 s = 0; s < steps; ++s)
        if (begin + s * STRIDE + VECTOR <= total)
#pragma unroll
            for (u32 k = 0; k < SOURCES; ++k) sources[k].fetch(slot(s, k, 0), slot(s, k, 1), begin + s * STRIDE);
    copy_async_commit();
    copy_async_wait<0>();
    f32 v[SOURCES][VECTOR] = {};
#pragma unroll 1
    for (u32 s = 0; s < steps; ++s) {
        const i64 i = begin + s * STRIDE;
        if (i + VECTOR <= total) {
#pragma unroll
            for (u32 k = 0; k < SOURCES; ++k) sources[k].take(slot(s, k, 0), slot(s, k, 1), i, v[k]);
            f(v);
            RawVector::pack(out.dtype, v[0]).store(out, i);
            continue;
        }
#pragma unroll 1
        for (i64 last = i; last < total; ++last) {  // the elements that fill no vector
#pragma unroll
            for (u32 k = 0; k < SOURCES; ++k) v[k][0] = load_f32(sources[k].tensor, sources[k].tensor.offset_of(last));
            f(v);
            store_f32(out, last, v[0][0]);
        }
    }
}
