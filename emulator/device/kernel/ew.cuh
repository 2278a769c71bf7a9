// EW: a function of two tensors, element by element.
#pragma once
#include "arithmetic.cuh"
#include "few.cuh"
#include "scalar.cuh"
#include "views.cuh"

// The remainder with the divisor's sign, as NumPy's mod.
DEV f32 remainder_of(f32 a, f32 b) {
    const f32 r = fmodf(a, b);
    return r == 0.0f ? copysignf(0.0f, b) : (r < 0.0f) != (b < 0.0f) ? r + b : r;
}

DEV_CALL f32 ew_arithmetic(u32 sub, f32 a, f32 b) {
    switch (sub) {
        case EW_ADD: return a + b;
        case EW_SUB: return a - b;
        case EW_MUL: return a * b;
        case EW_DIV: return a / b;
        case EW_MIN: return minimum(a, b);
        case EW_MAX: return maximum(a, b);
        case EW_POW: return powf(a, b);
        default: return remainder_of(a, b);  // EW_MOD
    }
}

DEV i64 integer_power(i64 base, i64 exponent) {
    i64 result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result = multiply(result, base);
        base = multiply(base, base);
    }
    return result;
}

// `traps` is set where the result does not exist.
DEV i64 ew_integer(u32 sub, i64 a, i64 b, bool& traps) {
    switch (sub) {
        case EW_ADD: return add(a, b);
        case EW_SUB: return subtract(a, b);
        case EW_MUL: return multiply(a, b);
        case EW_DIV:
            traps = b == 0;
            return traps ? 0 : b == -1 ? subtract(0, a) : a / b;
        case EW_MIN: return minimum(a, b);
        case EW_MAX: return maximum(a, b);
        case EW_POW:
            traps = b < 0;
            return traps ? 0 : integer_power(a, b);
        case EW_MOD:
            traps = b == 0;
            return traps ? 0 : floor_mod(a, b);
        case EW_AND: return a & b;
        case EW_OR: return a | b;
        default: return a ^ b;  // EW_XOR
    }
}

template <class T> DEV bool ew_comparison(u32 sub, T a, T b) {
    switch (sub) {
        case EW_EQ: return a == b;
        case EW_NE: return a != b;
        case EW_LT: return a < b;
        case EW_LE: return a <= b;
        case EW_GT: return a > b;
        default: return a >= b;  // EW_GE
    }
}

DEV bool is_comparison(u32 sub) {
    switch (sub) {
        case EW_EQ:
        case EW_NE:
        case EW_LT:
        case EW_LE:
        case EW_GT:
        case EW_GE: return true;
        default: return false;
    }
}

// The function is chosen once for all elements; those that take long are a call.
struct EwVectors {
    u32 sub;

    template <u32 C> DEV void operator()(f32 (&v)[2][C][VECTOR]) const {
        switch (sub) {
            case EW_ADD: pairwise(v, [](f32 p, f32 q) { return p + q; }); break;
            case EW_SUB: pairwise(v, [](f32 p, f32 q) { return p - q; }); break;
            case EW_MUL: pairwise(v, [](f32 p, f32 q) { return p * q; }); break;
            case EW_DIV: pairwise(v, [](f32 p, f32 q) { return p / q; }); break;
            case EW_MIN: pairwise(v, [](f32 p, f32 q) { return minimum(p, q); }); break;
            case EW_MAX: pairwise(v, [](f32 p, f32 q) { return maximum(p, q); }); break;
            default: pairwise(v, [&](f32 p, f32 q) { return ew_arithmetic(sub, p, q); });
        }
    }
    template <u32 C, class F> static DEV void pairwise(f32 (&v)[2][C][VECTOR], F f) {
#pragma unroll
        for (u32 c = 0; c < C; ++c)
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[0][c][k] = f(v[0][c][k], v[1][c][k]);
    }
};

struct EwHandler {
    static constexpr bool BEGINS = true;
    using Kept = Merged<3>;
    static DEV void prepare(const EwArgs& args, Kept& all) {
        const u32 claims = Claims::of(args.work);
        all.way = take_vectors(all, args.work, MAX_RANK) ? WAY_VECTORS : 0;
        if (all.size[3] == 1) all.bytes[2][2] = static_cast<i32>(claims);  // nothing moves along an axis of one element
    }
    static DEV u32 scratch(const EwArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? vector_scratch(all) : 0;
    }
    static DEV u32 units(const EwArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? all.one_each() : 0;
    }
    static DEV u32 tiles(const EwArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? all.tiles() : elementwise_tiles(args.out().elements());
    }

    static DEV_CALL void run(const EwArgs& args, u32 tile, const Block& block) {
        if (Kept::of(args.work).way) return map_vectors<3>(args.work, tile, block, EwVectors{args.sub()});
        if (!block.begin()) return;
        const Tensor& out = args.out();
        const Tensor& a = args.a();
        const Tensor& b = args.b();
        const u32 sub = args.sub();
        const bool floats = is_float(a.dtype), compares = is_comparison(sub);
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const i64 to = out.offset_of(i), left = a.offset_of(i), right = b.offset_of(i);
            if (floats) {
                const f32 p = load_f32(a, left), q = load_f32(b, right);
                if (compares) store_i64(out, to, ew_comparison(sub, p, q));
                else store_f32(out, to, ew_arithmetic(sub, p, q));
            } else {
                const i64 p = load_i64(a, left), q = load_i64(b, right);
                bool traps = false;
                store_i64(out, to, compares ? ew_comparison(sub, p, q) : ew_integer(sub, p, q, traps));
                if (traps) trap(block, TRAP_ARITHMETIC, sub);
            }
        });
    }
};
