// Elements in memory and values in registers: loads, stores and the conversion rules of isa/dtypes.py.
#pragma once
#include "state.cuh"

constexpr f32 LOG2_E = 1.4426950408889634f;

#ifdef DLA_CHECKED
// The checked build looks at every address before it is used, in thousands of places: what follows where one is wrong is a call.
DEV_CALL bool out_of_bounds() {
    raise(shared_state().launch, TRAP_BOUNDS, present_instruction());
    return false;
}
DEV bool in_bounds(const Tensor& t, const char* p) { return (p >= t.low && p + t.item_bytes <= t.high) || out_of_bounds(); }
#else
DEV bool in_bounds(const Tensor&, const char*) { return true; }
#endif

DEV char* element(const Tensor& t, i64 offset) { return in_global(t.data + offset * t.item_bytes); }

DEV bool is_float(u32 dtype) { return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

// Truncates toward zero, saturates, NaN becomes 0.
DEV i64 i64_from_f64(f64 v, i64 low, i64 high) {
    if (isnan(v)) return 0;
    if (v <= static_cast<f64>(low)) return low;
    if (v >= static_cast<f64>(high)) return high;
    return static_cast<i64>(v);
}

DEV i64 lowest_of(u32 dtype) {
    switch (dtype) {
        case DTYPE_I8: return -128;
        case DTYPE_I32: return -2147483647ll - 1;
        case DTYPE_I64: return -9223372036854775807ll - 1;
        default: return 0;
    }
}
DEV i64 highest_of(u32 dtype) {
    switch (dtype) {
        case DTYPE_I8: return 127;
        case DTYPE_U8: return 255;
        case DTYPE_I32: return 2147483647ll;
        default: return 9223372036854775807ll;
    }
}

// f64 as f32, such that a second rounding, to a 16-bit type, gives the same as one rounding (Boldo and Melquiond 2008).
DEV f32 round_to_odd(f64 v) {
    const f32 toward_zero = __double2float_rz(v);
    const bool exact = static_cast<f64>(toward_zero) == v;
    return exact || isnan(v) ? toward_zero : __uint_as_float(__float_as_uint(toward_zero) | 1u);
}

// The element at `offset` (in elements) as f32; integers are rounded to nearest.
DEV f32 load_f32(const Tensor& t, i64 offset) {
    const char* p = element(t, offset);
    if (!in_bounds(t, p)) return 0.0f;
    switch (t.dtype) {
        case DTYPE_F32: return *reinterpret_cast<const f32*>(p);
        case DTYPE_F16: return f32_from_f16(*reinterpret_cast<const u16*>(p));
        case DTYPE_BF16: return f32_from_bf16(*reinterpret_cast<const u16*>(p));
        case DTYPE_I32: return static_cast<f32>(*reinterpret_cast<const i32*>(p));
        case DTYPE_I64: return static_cast<f32>(*reinterpret_cast<const i64*>(p));
        case DTYPE_I8: return static_cast<f32>(*reinterpret_cast<const i8*>(p));
        default: return static_cast<f32>(*reinterpret_cast<const u8*>(p));
    }
}

// The element at `offset` of an integer or bool tensor.
DEV i64 load_i64(const Tensor& t, i64 offset) {
    const char* p = element(t, offset);
    if (!in_bounds(t, p)) return 0;
    switch (t.dtype) {
        case DTYPE_I32: return *reinterpret_cast<const i32*>(p);
        case DTYPE_I64: return *reinterpret_cast<const i64*>(p);
        case DTYPE_I8: return *reinterpret_cast<const i8*>(p);
        default: return *reinterpret_cast<const u8*>(p);
    }
}

// Stores an integer: keeps the low bits; bool becomes v != 0; float types round to nearest, once.
DEV void store_i64(const Tensor& t, i64 offset, i64 v) {
    char* p = element(t, offset);
    if (!in_bounds(t, p)) return;
    switch (t.dtype) {
        case DTYPE_F32: *reinterpret_cast<f32*>(p) = static_cast<f32>(v); break;
        case DTYPE_F16: *reinterpret_cast<u16*>(p) = f16_from_f32(round_to_odd(static_cast<f64>(v))); break;
        case DTYPE_BF16: *reinterpret_cast<u16*>(p) = bf16_from_f32(round_to_odd(static_cast<f64>(v))); break;
        case DTYPE_I32: *reinterpret_cast<i32*>(p) = static_cast<i32>(v); break;
        case DTYPE_I64: *reinterpret_cast<i64*>(p) = v; break;
        case DTYPE_BOOL: *reinterpret_cast<u8*>(p) = v != 0; break;
        default: *reinterpret_cast<u8*>(p) = static_cast<u8>(v); break;
    }
}

// Stores a float: rounds to nearest even for float types; integers truncate and saturate; bool becomes v != 0.
DEV void store_f32(const Tensor& t, i64 offset, f32 v) {
    char* p = element(t, offset);
    if (!in_bounds(t, p)) return;
    switch (t.dtype) {
        case DTYPE_F32: *reinterpret_cast<f32*>(p) = v; break;
        case DTYPE_F16: *reinterpret_cast<u16*>(p) = f16_from_f32(v); break;
        case DTYPE_BF16: *reinterpret_cast<u16*>(p) = bf16_from_f32(v); break;
        case DTYPE_BOOL: *reinterpret_cast<u8*>(p) = __float_as_uint(v) << 1 != 0; break;  // subnormals are not 0
        default: store_i64(t, offset, i64_from_f64(v, lowest_of(t.dtype), highest_of(t.dtype)));
    }
}

// Moves one element between tensors of one type, bit for bit.
DEV void move_element(const Tensor& to, i64 to_offset, const Tensor& from, i64 from_offset) {
    char* d = element(to, to_offset);
    const char* s = element(from, from_offset);
    if (!in_bounds(to, d) || !in_bounds(from, s)) return;
    switch (to.item_bytes) {
        case 1: *reinterpret_cast<u8*>(d) = *reinterpret_cast<const u8*>(s); break;
        case 2: *reinterpret_cast<u16*>(d) = *reinterpret_cast<const u16*>(s); break;
        case 4: *reinterpret_cast<u32*>(d) = *reinterpret_cast<const u32*>(s); break;
        default: *reinterpret_cast<u64*>(d) = *reinterpret_cast<const u64*>(s); break;
    }
}

// Elements of one tile of an elementwise instruction, and how many tiles `elements` make.
constexpr u32 ELEMENTS_PER_THREAD = 4;
constexpr u32 TILE_ELEMENTS = WORKER_THREADS * ELEMENTS_PER_THREAD;
DEV u32 elementwise_tiles(i64 elements) { return static_cast<u32>((elements + TILE_ELEMENTS - 1) / TILE_ELEMENTS); }

// Calls `f(linear index)` for every element of `tile`, neighbouring threads on neighbouring elements.
template <class F> DEV void for_each_element(const Block& block, u32 tile, i64 elements, F f) {
    const i64 begin = static_cast<i64>(tile) * TILE_ELEMENTS + block.thread();
#pragma unroll 1
    for (u32 k = 0; k < ELEMENTS_PER_THREAD; ++k) {
        const i64 i = begin + k * WORKER_THREADS;
        if (i < elements) f(i);
    }
}
