// The epilogue of GEMM and CONV: alpha * sum + beta * c, up to four steps, one rounding.
#pragma once
#include "activations.cuh"
#include "matrix.cuh"

// What happens to the sums of one instruction. With `glu` sums stand in pairs, unit(alpha * first) * (alpha * second) is
// what the steps begin with, and there is no c. Operands that are absent are null; all others have the rank and dims of `out`.
struct Epilogue {
    const Tensor* out;
    const Tensor* c;
    const Tensor* bias;
    const Tensor* residual;
    const Tensor* gate;
    f32 alpha, beta;
    bool glu;
    u32 unit;  // code of an activation
    u32 steps;  // codes, first step in the low byte; 0 ends
    u32 act;
    f32 act_alpha, clamp_low, clamp_high;

    template <class Args> static DEV Epilogue of(const Args& args) {
        Epilogue e;
        e.out = &args.out();
        e.c = nullptr;
        e.bias = args.has_bias() ? &args.bias() : nullptr;
        e.residual = args.has_residual() ? &args.residual() : nullptr;
        e.gate = args.has_gate() ? &args.gate() : nullptr;
        e.alpha = e.beta = 1.0f;
        e.glu = false;
        e.unit = ACT_IDENTITY;
        e.steps = args.steps(0) | args.steps(1) << 8 | args.steps(2) << 16 | args.steps(3) << 24;
        e.act = args.act();
        e.act_alpha = args.act_alpha();
        e.clamp_low = args.clamp_low();
        e.clamp_high = args.clamp_high();
        return e;
    }
};

// Element offsets of one row of the result (all axes but the last) in every operand.
struct RowOffsets {
    i64 out, c, bias, residual, gate;

    DEV RowOffsets(const Epilogue& e, u32 row) : out(0), c(0), bias(0), residual(0), gate(0) {
        for (i32 k = e.out->rank - 2; k >= 0; --k) {
            const u32 quotient = k == 0 ? 0 : row / static_cast<u32>(e.out->dims[k]);
            const i64 index = row - quotient * static_cast<u32>(e.out->dims[k]);
            out += index * e.out->strides[k];
            if (e.c) c += index * e.c->strides[k];
            if (e.bias) bias += index * e.bias->strides[k];
            if (e.residual) residual += index * e.residual->strides[k];
            if (e.gate) gate += index * e.gate->strides[k];
            row = quotient;
        }
    }
};

// The result at one place, before it is rounded; `v` is the sum times alpha, or what glu made of two.
DEV f32 finish(const Epilogue& e, const RowOffsets& row, u32 column, f32 v) {
    const u32 axis = e.out->rank - 1;
    const auto operand = [&](const Tensor* t, i64 at) { return load_f32(*t, at + static_cast<i64>(column) * t->strides[axis]); };
    if (e.c) v += e.beta * operand(e.c, row.c);
#pragma unroll 1
    for (u32 steps = e.steps; steps != 0; steps >>= 8) {
        switch (steps & 0xff) {
            case STEP_BIAS: v += operand(e.bias, row.bias); break;
            case STEP_ACT: v = activate(e.act, v, e.act_alpha); break;
            case STEP_RESIDUAL: v += operand(e.residual, row.residual); break;
            case STEP_GATE: v *= operand(e.gate, row.gate); break;
            default: v = v < e.clamp_low ? e.clamp_low : v > e.clamp_high ? e.clamp_high : v; break;  // STEP_CLAMP; NaN stays
        }
    }
    return v;
}

// Stores `count` (up to 4) neighbours of a row of floats, in one access where that is possible. A call: every store of
// any type is long.
DEV_CALL void store_four(const Tensor& t, i64 offset, float4 v, u32 count) {
    const i64 step = t.strides[t.rank - 1];
    char* p = element(t, offset);
    const u32 bytes = 4 * t.item_bytes;
    if (count == 4 && step == 1 && reinterpret_cast<u64>(p) % bytes == 0 && range_in_bounds(t, p, bytes)) {
        if (t.dtype == DTYPE_F32) *reinterpret_cast<float4*>(p) = v;
        else if (t.dtype == DTYPE_BF16) *reinterpret_cast<uint2*>(p) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
        else *reinterpret_cast<uint2*>(p) = make_uint2(pack_f16(v.x, v.y), pack_f16(v.z, v.w));
        return;
    }
#pragma unroll 1
    for (u32 j = 0; j < count; ++j) store_f32(t, offset + j * step, j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w);
}

// The part of the result that one tile holds: `rows` from row `row` on, `columns` from `column` on.
struct TileExtent {
    u32 row, column;
    u32 rows, columns;
};

// Four neighbours of one row of sums that a tile left in scratch, added up in order of the parts.
DEV float4 add_parts(const char* sums, u32 parts, u32 part_bytes) {
    float4 sum = *reinterpret_cast<const float4*>(sums);
    for (u32 part = 1; part < parts; ++part) {
        const float4 more = *reinterpret_cast<const float4*>(sums + part * part_bytes);
        sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
    }
    return sum;
}

// Finishes and stores the sums that a tile left in scratch: f32 (or i32) [parts][height][pitch]. With glu, the extent is
// that of the result, which has half the columns of the sums.
DEV_CALL void store_tile(const Epilogue& e, const TileExtent& extent, u32 parts, u32 height, u32 pitch, const Block& block) {
    const u32 groups = (extent.columns + 3) / 4;
#pragma unroll 1
    for (u32 id = block.thread(); id < extent.rows * groups; id += WORKER_THREADS) {
        const u32 row = id / groups, first = id % groups * 4;
        const u32 count = extent.columns - first < 4 ? extent.columns - first : 4;
        const char* sums = block.scratch() + (row * pitch + (e.glu ? 2 * first : first)) * 4;
        const RowOffsets offsets(e, extent.row + row);
        const u32 column = extent.column + first;
        const i64 to = offsets.out + static_cast<i64>(column) * e.out->strides[e.out->rank - 1];
        if (!is_float(e.out->dtype)) {
            for (u32 j = 0; j < count; ++j) {
                u32 sum = 0;
                for (u32 part = 0; part < parts; ++part) sum += reinterpret_cast<const u32*>(sums + part * height * pitch * 4)[j];
                store_i64(*e.out, to + j * e.out->strides[e.out->rank - 1], static_cast<i32>(sum));
            }
            continue;
        }
        const float4 sum = add_parts(sums, parts, height * pitch * 4);
        f32 v[4] = {e.alpha * sum.x, e.alpha * sum.y, e.alpha * sum.z, e.alpha * sum.w};
        if (e.glu) {
            const float4 more = add_parts(sums + 16, parts, height * pitch * 4);
            const f32 second[4] = {v[1], v[3], e.alpha * more.y, e.alpha * more.w};
            v[1] = v[2];
            v[2] = e.alpha * more.x;
            v[3] = e.alpha * more.z;
#pragma unroll 1
            for (u32 j = 0; j < count; ++j) v[j] = activate(e.unit, v[j], 0.0f) * second[j];
        }
#pragma unroll 1
        for (u32 j = 0; j < count; ++j) v[j] = finish(e, offsets, column + j, v[j]);
        store_four(*e.out, to, make_float4(v[0], v[1], v[2], v[3]), count);
    }
}
