// Arithmetic that f32 and i64 share by name: integers wrap, NaN wins minima and maxima.
#pragma once
#include "numbers.cuh"

DEV f32 infinity() { return __uint_as_float(0x7f800000u); }

template <class T> DEV T load_as(const Tensor& t, i64 offset);
template <> DEV f32 load_as<f32>(const Tensor& t, i64 offset) { return load_f32(t, offset); }
template <> DEV i64 load_as<i64>(const Tensor& t, i64 offset) { return load_i64(t, offset); }
DEV void store_as(const Tensor& t, i64 offset, f32 v) { store_f32(t, offset, v); }
DEV void store_as(const Tensor& t, i64 offset, i64 v) { store_i64(t, offset, v); }

DEV f32 add(f32 a, f32 b) { return a + b; }
DEV i64 add(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b)); }
DEV f32 subtract(f32 a, f32 b) { return a - b; }
DEV i64 subtract(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) - static_cast<u64>(b)); }
DEV f32 multiply(f32 a, f32 b) { return a * b; }
DEV i64 multiply(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b)); }
DEV f32 minimum(f32 a, f32 b) { return min_nan(a, b); }
DEV i64 minimum(i64 a, i64 b) { return a < b ? a : b; }
DEV f32 maximum(f32 a, f32 b) { return max_nan(a, b); }
DEV i64 maximum(i64 a, i64 b) { return a > b ? a : b; }
DEV bool is_nan(f32 a) { return isnan(a); }
DEV bool is_nan(i64) { return false; }

// The smallest and the largest value that an element of `dtype` may have in the accumulator.
template <class T> DEV T least(u32 dtype);
template <> DEV f32 least<f32>(u32) { return -infinity(); }
template <> DEV i64 least<i64>(u32 dtype) { return lowest_of(dtype); }
template <class T> DEV T greatest(u32 dtype);
template <> DEV f32 greatest<f32>(u32) { return infinity(); }
template <> DEV i64 greatest<i64>(u32 dtype) { return highest_of(dtype); }

// Stores an f64: rounds once; integers truncate and saturate; bool is v != 0.
DEV void store_f64(const Tensor& t, i64 offset, f64 v) {
    switch (t.dtype) {
        case DTYPE_F32: store_f32(t, offset, static_cast<f32>(v)); break;
        case DTYPE_F16:
        case DTYPE_BF16: store_f32(t, offset, round_to_odd(v)); break;
        case DTYPE_BOOL: store_i64(t, offset, v != 0.0); break;
        default: store_i64(t, offset, i64_from_f64(v, lowest_of(t.dtype), highest_of(t.dtype)));
    }
}

// Stores scalar operand `k` of `w`.
DEV void store_scalar(const Tensor& t, i64 offset, const Work& w, u32 k) {
    if (w.scalar_is_float[k]) store_f64(t, offset, __longlong_as_double(w.scalars[k]));
    else store_i64(t, offset, w.scalars[k]);
}
