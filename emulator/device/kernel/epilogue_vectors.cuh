// The epilogue of eight neighbouring columns at a time, of some positions of one line of a convolution's result.
#pragma once
#include "epilogue.cuh"
#include "vectors.cuh"

DEV bool whole_columns(const Tensor* t) {
    return !t || (t->dtype == DTYPE_F32 ? copies_whole<Bits32>(*t, t->rank - 1) : copies_whole<Bits16>(*t, t->rank - 1));
}
// Whether every operand can be read, and the result written, eight columns at a time.
DEV bool finishes_vectors(const Epilogue& e) {
    return is_float(e.out->dtype) && e.out->dims[e.out->rank - 1] % VECTOR == 0 && whole_columns(e.out) && !e.c &&
           whole_columns(e.bias) && whole_columns(e.residual) && whole_columns(e.gate);
}

// Some positions of a line, at equal distances.
struct LinePlace {
    u32 sample, line, at, distance;

    DEV i64 first(const Tensor& t) const {
        const i64 offset = sample * t.strides[0] + at * t.strides[t.rank - 2];
        return t.rank == 4 ? offset + line * t.strides[1] : offset;
    }
    DEV i64 step(const Tensor& t) const { return distance * t.strides[t.rank - 2]; }
};

// v = f(v, the elements of t there), for the first `count` of the positions. All loads are under way before the first is used.
template <u32 POSITIONS, class F>
DEV void combine_columns(const Tensor& t, const LinePlace& p, u32 column, u32 count, f32 (&v)[POSITIONS][VECTOR], F f) {
    const i64 first = p.first(t) + column, step = p.step(t);
    RawVector raw[POSITIONS];
#pragma unroll
    for (u32 i = 0; i < POSITIONS; ++i) raw[i] = RawVector::load(t, first + min(i, count - 1) * step);
#pragma unroll
    for (u32 i = 0; i < POSITIONS; ++i) {
        f32 other[VECTOR];
        raw[i].unpack(t.dtype, other);
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) v[i][k] = f(v[i][k], other[k]);
    }
}
template <u32 POSITIONS, class F> DEV void map_columns(f32 (&v)[POSITIONS][VECTOR], F f) {
#pragma unroll
    for (u32 i = 0; i < POSITIONS; ++i)
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) v[i][k] = f(v[i][k]);
}

// Whether all rows have the same bias, so that a tile may load it once.
DEV bool one_bias(const Epilogue& e) {
    bool one = e.bias != nullptr;
    for (u32 k = 0; one && k + 1 < e.bias->rank; ++k) one = e.bias->dims[k] == 1 || e.bias->strides[k] == 0;
    return one;
}

// Finishes and stores the sums of `count` positions, eight columns each. `e`, and `bias` (these columns', or null), lie in
// shared memory: local memory, and what is read again and again through the first-level cache, would come from far away,
// for whoever polls empties that cache.
template <u32 POSITIONS>
DEV void finish_vectors(const Epilogue& e, const f32* bias, const LinePlace& p, u32 column, u32 count, f32 (&v)[POSITIONS][VECTOR]) {
    const auto add = [](f32 a, f32 b) { return a + b; };
#pragma unroll 1
    for (u32 steps = e.steps; steps != 0; steps >>= 8) {
        switch (steps & 0xff) {
            case STEP_BIAS:
                if (bias) {
                    const float4 low = *reinterpret_cast<const float4*>(bias), high = *reinterpret_cast<const float4*>(bias + 4);
                    const f32 row[VECTOR] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                    for (u32 i = 0; i < POSITIONS; ++i)
#pragma unroll
                        for (u32 k = 0; k < VECTOR; ++k) v[i][k] += row[k];
                } else {
                    combine_columns(*e.bias, p, column, count, v, add);
                }
                break;
            case STEP_RESIDUAL: combine_columns(*e.residual, p, column, count, v, add); break;
            case STEP_GATE: combine_columns(*e.gate, p, column, count, v, [](f32 a, f32 b) { return a * b; }); break;
            case STEP_ACT:
                if (e.act == ACT_RELU) map_columns(v, [](f32 x) { return activation_relu(x, 0.0f); });
                else map_columns(v, [&](f32 x) { return activate(e.act, x, e.act_alpha); });
                break;
            default:  // STEP_CLAMP; NaN stays
                map_columns(v, [low = e.clamp_low, high = e.clamp_high](f32 x) { return x < low ? low : x > high ? high : x; });
                break;
        }
    }
    const i64 first = p.first(*e.out) + column, step = p.step(*e.out);
#pragma unroll
    for (u32 i = 0; i < POSITIONS; ++i)
        if (i < count) RawVector::pack(e.out->dtype, v[i]).store(*e.out, first + i * step);
}

// The same for one element of any operands.
DEV_CALL void finish_one(const Epilogue& e, const RowOffsets& row, u32 column, f32 v) {
    store_f32(*e.out, row.out + static_cast<i64>(column) * e.out->strides[e.out->rank - 1], finish(e, row, column, v));
}
