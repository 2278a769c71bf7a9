// What threads of a product of few rows read themselves: rows of a, and the operands of the epilogue.
#pragma once
#ifdef HOPPER
#include "epilogue.cuh"

// One row of a as a lane reads it: this lane's first chunk, and the depth that is left from there on; 0 without a row.
struct StreamRow {
    const Tensor* tensor;
    const char* at;
    u32 left;

    DEV StreamRow(const Tensor& a, u32 row, u32 rows, u32 depth) : tensor(&a) {
        const u32 all = a.dims[a.rank - 1];
        at = element(a, row < rows ? row_offset(a, row) + depth : 0);
        left = row < rows && depth < all ? all - depth : 0;
    }
    DEV uint4 load(u32 depth) const {
        const char* p = at + depth * 2;
        if (depth >= left || !range_in_bounds(*tensor, p, CHUNK_BYTES)) return make_uint4(0, 0, 0, 0);
        return *reinterpret_cast<const uint4*>(p);
    }
};

// An operand's element on its way from memory.
struct Coming {
    u32 bits = 0;

    DEV void load(const Tensor* t, i64 offset) {
        const char* p = element(*t, offset);
        if (!in_bounds(*t, p)) bits = 0;
        else if (t->item_bytes == 4) bits = *reinterpret_cast<const u32*>(p);
        else bits = *reinterpret_cast<const u16*>(p);
    }
    DEV f32 value(const Tensor* t) const {
        if (t->item_bytes == 4) return __uint_as_float(bits);
        return t->dtype == DTYPE_F16 ? f32_from_f16(static_cast<u16>(bits)) : f32_from_bf16(static_cast<u16>(bits));
    }
};

// What one thread finishes: one element of the result, whose operands are fetched while the products are made.
struct StreamResult {
    bool exists;
    i64 out, c, bias, residual, gate;  // element offsets
    Coming of_c, of_bias, of_residual, of_gate;

    DEV StreamResult(const Epilogue& e, u32 row, u32 column, bool there) : exists(there) {
        const u32 axis = e.out->rank - 1;
        const RowOffsets r(e, there ? row : 0);
        const auto at = [&](const Tensor* t, i64 offset) { return t ? offset + static_cast<i64>(column) * t->strides[axis] : 0; };
        out = at(e.out, r.out);
        c = at(e.c, r.c);
        bias = at(e.bias, r.bias);
        residual = at(e.residual, r.residual);
        gate = at(e.gate, r.gate);
    }
    DEV void fetch(const Epilogue& e) {
        if (!exists) return;
        if (e.c) of_c.load(e.c, c);
        if (e.bias) of_bias.load(e.bias, bias);
        if (e.residual) of_residual.load(e.residual, residual);
        if (e.gate) of_gate.load(e.gate, gate);
    }
    // `v` is the sum times alpha, or what glu made of two.
    DEV void store(const Epilogue& e, f32 v) const {
        if (e.c) v += e.beta * of_c.value(e.c);
#pragma unroll 1
        for (u32 steps = e.steps; steps != 0; steps >>= 8) {
            switch (steps & 0xff) {
                case STEP_BIAS: v += of_bias.value(e.bias); break;
                case STEP_ACT: v = activate(e.act, v, e.act_alpha); break;
                case STEP_RESIDUAL: v += of_residual.value(e.residual); break;
                case STEP_GATE: v *= of_gate.value(e.gate); break;
                default: v = v < e.clamp_low ? e.clamp_low : v > e.clamp_high ? e.clamp_high : v; break;  // STEP_CLAMP; NaN stays
            }
        }
        store_f32(*e.out, out, v);
    }
};
#endif
