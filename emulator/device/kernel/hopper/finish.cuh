// The epilogue of products on wgmma, in registers: for the steps that networks use most, on operands whose rows lie packed.
#pragma once
#ifdef HOPPER
#include "epilogue.cuh"
#include "hopper/multiply.cuh"

constexpr u32 PIECE_COLUMNS = 64;  // a warp finishes 16 rows of so many columns at once
constexpr u32 PIECE_SUMS = 32;     // of a lane: [8][row lane / 4, row lane / 4 + 8][column 2 (lane % 4), and the next]
constexpr u32 PIECE_ROWS = 16;
constexpr u32 HALF_ROWS = 8;

// ---- activations by the special function unit: absolute errors below 5.1e-7 max(1, |x|), which rows allow (isa/activations.py) ----
DEV f32 fast_sigmoid(f32 x) { return fast_reciprocal(1.0f + fast_exp2(-LOG2_E * x)); }
// Both kinds of gelu are max(x, 0) - |x| C(|x|), where C falls from a half to nothing: C(a) = 2^P(a). P is fitted on [0, last] so
// that the largest error of a 2^P(a) is least: 5e-8 for x Phi(x), 4.5e-7 for the tanh form. Further on, what is left is less.
template <u32 TERMS> struct GeluFit {
    f32 last, p[TERMS];  // highest power first

    DEV f32 operator()(f32 x) const {
        const f32 a = fminf(fabsf(x), last);  // one instruction; with min_nan it is two
        f32 power = p[0];
#pragma unroll
        for (u32 k = 1; k < TERMS; ++k) power = fmaf(power, a, p[k]);
        return fmaf(-a, fast_exp2(power), max_nan(x, 0.0f));
    }
};
constexpr GeluFit<8> GELU_FIT{6.0f, {3.1519921e-6f, 2.9370733e-7f, -6.3592993e-4f, 7.8107086e-3f, -5.3123809e-2f, -4.5892835e-1f, -1.1511629f, -0.99999613f}};
constexpr GeluFit<8> GELU_TANH_FIT{5.0f, {9.2008348e-5f, -5.8381248e-4f, -1.3794572e-3f, 1.1826059e-2f, -5.6391567e-2f, -4.564918e-1f, -1.1517718f, -0.99994785f}};
// The same for results that are rounded to 16 bits, which may be off by half of their last place before that, and by 5.1e-7 max(1, |x|)
// (isa/bounds.py): these are by less than a quarter and 3e-7. Three powers less took 4096^3 with bias and gelu from 204.9 to 202.1 us.
constexpr GeluFit<5> GELU_FIT_BF16{6.0f, {2.6991316e-3f, -3.7570119e-2f, -4.7898114e-1f, -1.1418556f, -1.0007551f}};
constexpr GeluFit<5> GELU_TANH_FIT_BF16{5.0f, {-7.1306033e-3f, -3.1998577e-3f, -5.1527143e-1f, -1.1287453f, -1.001555f}};
constexpr GeluFit<7> GELU_FIT_F16{6.0f, {3.5704405e-5f, -7.8871334e-4f, 8.1286225e-3f, -5.3450126e-2f, -4.5878053e-1f, -1.1511822f, -0.99999696f}};
constexpr GeluFit<7> GELU_TANH_FIT_F16{5.0f, {4.6474781e-4f, -6.0206922e-3f, 2.1895606e-2f, -6.7468643e-2f, -4.507781e-1f, -1.1528423f, -0.99992299f}};

// Which of them does not matter to the code: there is only one.
template <u32 TERMS> DEV GeluFit<TERMS> chosen(u32 kind, const GeluFit<TERMS>& erf_form, const GeluFit<TERMS>& tanh_form) {
    GeluFit<TERMS> fit;
    const bool tanh = kind == ACT_GELU_TANH;
    fit.last = tanh ? tanh_form.last : erf_form.last;
#pragma unroll
    for (u32 k = 0; k < TERMS; ++k) fit.p[k] = tanh ? tanh_form.p[k] : erf_form.p[k];
    return fit;
}
DEV GeluFit<8> gelu_fit(u32 kind) { return chosen(kind, GELU_FIT, GELU_TANH_FIT); }
DEV GeluFit<5> gelu_fit_bf16(u32 kind) { return chosen(kind, GELU_FIT_BF16, GELU_TANH_FIT_BF16); }
DEV GeluFit<7> gelu_fit_f16(u32 kind) { return chosen(kind, GELU_FIT_F16, GELU_TANH_FIT_F16); }
template <bool HALF> DEV auto gelu_fit_of(u32 kind) {
    if constexpr (HALF) return gelu_fit_f16(kind);
    else return gelu_fit_bf16(kind);
}

// Function `kind` of every element; the kinds that the host allows here (paths/epilogue.py).
template <u32 N> DEV void fast_activate(f32 (&v)[N], u32 kind) {
    switch (kind) {
        case ACT_RELU:
#pragma unroll
            for (u32 i = 0; i < N; ++i) v[i] = activation_relu(v[i], 0.0f);
            break;
        case ACT_GELU:
        case ACT_GELU_TANH: {
            const GeluFit<8> fit = gelu_fit(kind);
#pragma unroll
            for (u32 i = 0; i < N; ++i) v[i] = fit(v[i]);
            break;
        }
        case ACT_SILU:
#pragma unroll
            for (u32 i = 0; i < N; ++i) v[i] *= fast_sigmoid(v[i]);
            break;
        case ACT_SIGMOID:
#pragma unroll
            for (u32 i = 0; i < N; ++i) v[i] = fast_sigmoid(v[i]);
            break;
        case ACT_TANH:
#pragma unroll
            for (u32 i = 0; i < N; ++i) v[i] = fmaf(2.0f, fast_sigmoid(2.0f * v[i]), -1.0f);
            break;
        default: break;  // identity
    }
}

// The same by a call, where relu and none are what it mostly is: the others would lie in the way.
template <u32 N> struct SumsOfCall {
    f32 v[N];
};
template <u32 N> DEV_CALL SumsOfCall<N> activated(SumsOfCall<N> sums, u32 kind) {
    fast_activate(sums.v, kind);
    return sums;
}
template <u32 N> DEV void activate_few(f32 (&v)[N], u32 kind) {
    if (kind == ACT_IDENTITY) return;
    if (kind == ACT_RELU) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) v[i] = max_nan(v[i], 0.0f);
        return;
    }
    SumsOfCall<N> sums;
#pragma unroll
    for (u32 i = 0; i < N; ++i) sums.v[i] = v[i];
    sums = activated(sums, kind);
#pragma unroll
    for (u32 i = 0; i < N; ++i) v[i] = sums.v[i];
}

// A gated linear unit: sums stand in pairs, which one lane holds; of each pair, unit(first) * second is left.
DEV void fast_glu(f32 (&products)[PIECE_SUMS / 2], const f32 (&v)[PIECE_SUMS], u32 unit) {
#pragma unroll
    for (u32 i = 0; i < PIECE_SUMS / 2; ++i) products[i] = v[2 * i];
    fast_activate(products, unit);
#pragma unroll
    for (u32 i = 0; i < PIECE_SUMS / 2; ++i) products[i] *= v[2 * i + 1];
}

// What a lane holds of the result, as pairs of columns: of two rows, of which the second is 8 below, and 8 columns apart.
// Where the product is that of the transposed operands, of one pair of columns: of two neighbouring rows, and 8 rows apart.
template <bool TRANSPOSED_PIECE> struct Piece {
    u32 row, rows;        // first row, and how many there are: of all batches, as out counts them
    u32 column, columns;  // first column, and how many there are

    DEV u32 row_of(u32 half) const { return row + (TRANSPOSED_PIECE ? half : half * HALF_ROWS); }
    DEV bool has(u32 half, u32 j) const {
        return row_of(half) + (TRANSPOSED_PIECE ? j * 8 : 0) < rows && column + (TRANSPOSED_PIECE ? 0 : j * 8) < columns;
    }
    // Elements from a pair to the next one, whose neighbours are `column` apart. Rows of what is transposed lie at one distance.
    DEV static i64 step(const Tensor& t, i64 column) { return 8 * (TRANSPOSED_PIECE ? t.strides[t.rank - 2] : column); }
};

DEV f32 low_half(u32 word, u32 dtype) {
    return dtype == DTYPE_BF16 ? f32_from_bf16(static_cast<u16>(word)) : f32_from_f16(static_cast<u16>(word));
}
DEV f32 high_half(u32 word, u32 dtype) {
    return dtype == DTYPE_BF16 ? __uint_as_float(word & 0xffff0000u) : f32_from_f16(static_cast<u16>(word >> 16));
}

// v * x, or v + factor * x, for the piece's elements x of `t`, whose columns are neighbours and whose pairs are aligned.
template <class At, u32 N> DEV void combine_piece(f32 (&v)[N], const Tensor& t, const At& at, bool multiplies, f32 factor) {
    const u32 dtype = t.dtype, pair = 2 * t.item_bytes;
    const i64 step = At::step(t, 1) * t.item_bytes;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const At here{at.row, anew(at.rows), at.column, anew(at.columns)};
        const char* p = element(t, row_offset(t, min(at.row_of(half), at.rows - 1)) + at.column);
        float2 x[N / 4];
#pragma unroll
        for (u32 j = 0; j < N / 4; ++j) {
            x[j] = make_float2(0.0f, 0.0f);
            const char* q = p + j * step;
            if (!here.has(half, j) || !range_in_bounds(t, q, pair)) continue;
            if (dtype == DTYPE_F32) x[j] = *reinterpret_cast<const float2*>(q);
            else x[j].x = __uint_as_float(*reinterpret_cast<const u32*>(q));
        }
#pragma unroll
        for (u32 j = 0; j < N / 4; ++j) {
            if (dtype != DTYPE_F32) {
                const u32 word = __float_as_uint(x[j].x);
                x[j] = make_float2(low_half(word, dtype), high_half(word, dtype));
            }
            f32& low = v[j * 4 + half * 2];
            f32& high = v[j * 4 + half * 2 + 1];
            low = multiplies ? low * x[j].x : fmaf(factor, x[j].x, low);
            high = multiplies ? high * x[j].y : fmaf(factor, x[j].y, high);
        }
    }
}

struct PieceSums {
    f32 v[PIECE_SUMS];
};

// The sums of piece `i` of a warp's part of a tile.
DEV f32 (&piece_of(f32 (&sums)[SUMS], u32 i))[PIECE_SUMS] { return *reinterpret_cast<f32(*)[PIECE_SUMS]>(&sums[i * PIECE_SUMS]); }

// Two columns of bias per lane and piece of a tile, fetched before the main loop: afterwards everybody would wait for them.
struct EarlyBias {
    u32 words[SUMS / PIECE_SUMS];

    DEV void fetch(const Tensor& t, u32 column, u32 columns, u32 lane) {
#pragma unroll
        for (u32 i = 0; i < SUMS / PIECE_SUMS; ++i) {
            const u32 at = column + i * PIECE_COLUMNS + 2 * lane;
            const char* p = element(t, at);
            words[i] = at < columns && range_in_bounds(t, p, 4) ? *reinterpret_cast<const u32*>(p) : 0;
        }
    }
    // Adds it to the sums of piece `i`.
    DEV void add(f32 (&v)[PIECE_SUMS], u32 i, u32 dtype, u32 lane) const {
#pragma unroll
        for (u32 j = 0; j < PIECE_SUMS / 4; ++j) {
            const u32 word = __shfl_sync(0xffffffffu, words[i], j * 4 + lane % 4);
            const f32 low = low_half(word, dtype), high = high_half(word, dtype);
            v[j * 4] += low;
            v[j * 4 + 1] += high;
            v[j * 4 + 2] += low;
            v[j * 4 + 3] += high;
        }
    }
};

// Takes the sums of one piece through the steps of `args`, from step `first` on.
template <class Args, class At, u32 N> DEV void finish_steps(f32 (&v)[N], const Args& args, const At& at, u32 first) {
#pragma unroll 1
    for (u32 i = first; i < 4; ++i) {
        const u32 step = args.steps(i);
        if (step == 0) break;
        if (step == STEP_ACT) {
            fast_activate(v, args.act());
        } else if (step == STEP_CLAMP) {
            const f32 low = args.clamp_low(), high = args.clamp_high();
#pragma unroll
            for (u32 k = 0; k < N; ++k) v[k] = v[k] < low ? low : v[k] > high ? high : v[k];  // NaN stays
        } else {
            combine_piece(v, step == STEP_BIAS ? args.bias() : step == STEP_RESIDUAL ? args.residual() : args.gate(), at, step == STEP_GATE, 1.0f);
        }
    }
}
#endif
