// The functions of isa/activations.py in f32, one each. `alpha` already is the function's own where none is written.
#pragma once
#include "numbers.cuh"

constexpr f32 INVERSE_SQRT_2 = 0.70710678118654752f;
constexpr f32 SQRT_2_OVER_PI = 0.79788456080286536f;
constexpr f32 SELU_ALPHA = 1.67326319217681884765625f;
constexpr f32 SELU_GAMMA = 1.05070102214813232421875f;

DEV f32 activation_identity(f32 x, f32) { return x; }
DEV f32 activation_relu(f32 x, f32) { return x <= 0.0f ? 0.0f : x; }  // written so that NaN stays NaN
DEV f32 activation_leaky_relu(f32 x, f32 alpha) { return x >= 0.0f ? x : alpha * x; }
// Where exp(-x) overflows, its reciprocal is 0, and the result would be subnormal.
DEV f32 activation_sigmoid(f32 x, f32) { return fast_reciprocal(1.0f + expf(-x)); }
DEV f32 activation_tanh(f32 x, f32) { return tanhf(x); }
// The same for results of 16 bits, of which f16 asks for a relative error below 2^-12 besides its rounding: (1 - p) / (1 + p)
// with p = e^(-2 |x|), where 1 - p is at least 2^-5 and p off by 2^-22; below 2^-6, x is less than x^2 / 3 = 8.2e-5 off.
DEV f32 tanh_16_bits(f32 x) {
    const f32 p = fast_exp2(-2.0f * LOG2_E * fabsf(x));
    return fabsf(x) < 0x1p-6f ? x : copysignf((1.0f - p) * fast_reciprocal(1.0f + p), x);
}
// x times the normal distribution function. That of -|x| is 2**q(|x|), with q the polynomial of degree 5 whose largest
// error in the product is least (least squares over [0, 6.5], reweighted until even): 8.2e-7. q falls for all |x|.
DEV f32 activation_gelu(f32 x, f32) {
    const f32 u = fabsf(x);
    f32 q = fmaf(u, -4.8807752318680286e-4f, 7.198575884103775e-3f);
    q = fmaf(u, q, -5.214634910225868e-2f);
    q = fmaf(u, q, -4.5959606766700745e-1f);
    q = fmaf(u, q, -1.1510004997253418f);
    const f32 below = fast_exp2(fmaf(u, q, -1.0f));
    return x * fabsf((x > 0.0f ? 1.0f : 0.0f) - below);  // infinities as x / 2 * (1 + erf) has them
}
// (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y)).
DEV f32 activation_gelu_tanh(f32 x, f32) {
    constexpr f32 FACTOR = -2.0f * SQRT_2_OVER_PI * LOG2_E;
    const f32 power = x * fmaf(x * x, 0.044715f * FACTOR, FACTOR);
    return x * fast_reciprocal(1.0f + fast_exp2(power));
}
DEV f32 activation_silu(f32 x, f32) { return x * fast_reciprocal(1.0f + fast_exp2(-LOG2_E * x)); }
DEV f32 activation_softplus(f32 x, f32) { return (x <= 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x))); }
DEV f32 activation_mish(f32 x, f32) { return x * tanhf(activation_softplus(x, 0.0f)); }
DEV f32 activation_elu(f32 x, f32 alpha) { return x >= 0.0f ? x : alpha * expm1f(x); }
// Divided before the product, which then overflows only where the result does.
DEV f32 activation_hard_swish(f32 x, f32) { return x * (fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) / 6.0f); }
DEV f32 activation_exp(f32 x, f32) { return expf(x); }
DEV f32 activation_log(f32 x, f32) { return logf(x); }
DEV f32 activation_sqrt(f32 x, f32) { return sqrtf(x); }
DEV f32 activation_rsqrt(f32 x, f32) { return rsqrtf(x); }
DEV f32 activation_erf(f32 x, f32) { return erff(x); }
DEV f32 activation_sin(f32 x, f32) { return sinf(x); }
DEV f32 activation_cos(f32 x, f32) { return cosf(x); }
DEV f32 activation_abs(f32 x, f32) { return fabsf(x); }
DEV f32 activation_neg(f32 x, f32) { return -x; }
DEV f32 activation_floor(f32 x, f32) { return floorf(x); }
DEV f32 activation_ceil(f32 x, f32) { return ceilf(x); }
DEV f32 activation_round(f32 x, f32) { return rintf(x); }
DEV f32 activation_sign(f32 x, f32) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }  // 0 and NaN stay
DEV f32 activation_reciprocal(f32 x, f32) { return 1.0f / x; }
DEV f32 activation_isnan(f32 x, f32) { return isnan(x) ? 1.0f : 0.0f; }
DEV f32 activation_isinf(f32 x, f32) { return isinf(x) ? 1.0f : 0.0f; }
DEV f32 activation_tan(f32 x, f32) { return tanf(x); }
DEV f32 activation_asin(f32 x, f32) { return asinf(x); }
DEV f32 activation_acos(f32 x, f32) { return acosf(x); }
DEV f32 activation_atan(f32 x, f32) { return atanf(x); }
DEV f32 activation_sinh(f32 x, f32) { return sinhf(x); }
DEV f32 activation_cosh(f32 x, f32) { return coshf(x); }
DEV f32 activation_asinh(f32 x, f32) { return asinhf(x); }
DEV f32 activation_acosh(f32 x, f32) { return acoshf(x); }
DEV f32 activation_atanh(f32 x, f32) { return atanhf(x); }
DEV f32 activation_hard_sigmoid(f32 x, f32 alpha) {
    const f32 v = alpha * x + 0.5f;
    return v <= 0.0f ? 0.0f : v >= 1.0f ? 1.0f : v;  // NaN stays
}
DEV f32 activation_selu(f32 x, f32) { return SELU_GAMMA * (x > 0.0f ? x : SELU_ALPHA * expm1f(x)); }
DEV f32 activation_celu(f32 x, f32 alpha) { return x >= 0.0f ? x : alpha * expm1f(x / alpha); }
DEV f32 activation_softsign(f32 x, f32) { return x / (1.0f + fabsf(x)); }
DEV f32 activation_thresholded_relu(f32 x, f32 alpha) { return x > alpha ? x : 0.0f; }

#include "activate.cuh"

// Function `kind` of x. The two that networks use most are in line, the others are a call.
DEV f32 activate(u32 kind, f32 x, f32 alpha) {
    if (kind == ACT_IDENTITY) return x;
    if (kind == ACT_RELU) return activation_relu(x, alpha);
    return activate_any(kind, x, alpha);
}

template <u32 C, u32 N, class F> DEV void replace_each(f32 (&v)[C][N], F f) {
#pragma unroll
    for (u32 c = 0; c < C; ++c)
#pragma unroll
        for (u32 k = 0; k < N; ++k) v[c][k] = f(v[c][k]);
}
// Function `kind` of each element of v. The choice is made once, and those that networks use most are in line. `narrow`: the
// results are rounded to 16 bits.
template <u32 C, u32 N> DEV void activate_all(u32 kind, f32 (&v)[C][N], f32 alpha, bool narrow) {
    switch (kind) {
        case ACT_IDENTITY: break;
        case ACT_RELU: replace_each(v, [](f32 x) { return activation_relu(x, 0.0f); }); break;
        case ACT_GELU: replace_each(v, [](f32 x) { return activation_gelu(x, 0.0f); }); break;
        case ACT_GELU_TANH: replace_each(v, [](f32 x) { return activation_gelu_tanh(x, 0.0f); }); break;
        case ACT_SILU: replace_each(v, [](f32 x) { return activation_silu(x, 0.0f); }); break;
        case ACT_SIGMOID: replace_each(v, [](f32 x) { return activation_sigmoid(x, 0.0f); }); break;
        case ACT_TANH:
            if (narrow) replace_each(v, [](f32 x) { return tanh_16_bits(x); });
            else replace_each(v, [](f32 x) { return activation_tanh(x, 0.0f); });
            break;
        case ACT_EXP: replace_each(v, [](f32 x) { return activation_exp(x, 0.0f); }); break;
        default: replace_each(v, [&](f32 x) { return activate_any(kind, x, alpha); });
    }
}

// The kinds that integers and bools take.
DEV i64 activate_integer(u32 kind, i64 x, bool logical) {
    const i64 negated = static_cast<i64>(0 - static_cast<u64>(x));
    switch (kind) {
        case ACT_RELU: return x > 0 ? x : 0;
        case ACT_ABS: return x < 0 ? negated : x;
        case ACT_NEG: return negated;
        case ACT_SIGN: return (x > 0) - (x < 0);
        case ACT_NOT: return logical ? x == 0 : ~x;
        default: return x;  // ACT_IDENTITY
    }
}
