// Lines: the elements along one axis, read and written by a team of threads, eight at a time where they are neighbours.
#pragma once
#include "reduction.cuh"
#include "vectors.cuh"

struct Line {
    const Tensor& tensor;
    i64 base;    // element offset of the first
    i64 stride;
    i64 count;   // 0 for a team without a line
    bool vectors;

    DEV Line(const Tensor& t, i64 first, i64 step, i64 elements)
        : tensor(t), base(first), stride(step), count(elements),
          vectors(is_float(t.dtype) && step == 1 && elements % VECTOR == 0 &&
                  reinterpret_cast<u64>(element(t, first)) % VECTOR_BYTES == 0) {}

    // Calls f(value, index) for the elements of this thread.
    template <class F> DEV void each(const Teams& teams, F f) const {
        if (vectors) {
#pragma unroll 1
            for (i64 i = teams.part * VECTOR; i < count; i += teams.parts * VECTOR) {
                f32 v[VECTOR];
                RawVector::load(tensor, base + i).unpack(tensor.dtype, v);
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) f(v[k], i + k);
            }
        } else {
#pragma unroll 1
            for (i64 i = teams.part; i < count; i += teams.parts) f(load_f32(tensor, base + i * stride), i);
        }
    }
    // Writes f(value, index) to the line `to` for the elements of this thread.
    template <class F> DEV void rewrite(const Teams& teams, const Line& to, F f) const {
        if (vectors && to.vectors) {
#pragma unroll 1
            for (i64 i = teams.part * VECTOR; i < count; i += teams.parts * VECTOR) {
                f32 v[VECTOR];
                RawVector::load(tensor, base + i).unpack(tensor.dtype, v);
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[k] = f(v[k], i + k);
                RawVector::pack(to.tensor.dtype, v).store(to.tensor, to.base + i);
            }
        } else {
#pragma unroll 1
            for (i64 i = teams.part; i < count; i += teams.parts)
                store_f32(to.tensor, to.base + i * to.stride, f(load_f32(tensor, base + i * stride), i));
        }
    }
};
