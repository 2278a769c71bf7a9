// The epilogue where a thread has one result: where its operands lie is known before they are waited for, and they are asked for
// before its sum is made.
#pragma once
#include "epilogue.cuh"

// How an element of 16 or 32 bits counts: what of a float type has to be known where it is used.
constexpr u32 FLOAT_BITS = 2, IS_F32 = 0, IS_F16 = 1, IS_BF16 = 2;
DEV u32 float_kind(const Tensor& t) { return t.dtype == DTYPE_F32 ? IS_F32 : t.dtype == DTYPE_F16 ? IS_F16 : IS_BF16; }

// An operand's element on its way from memory.
struct Coming {
    u32 bits = 0;

    DEV void load(const Tensor* t, const char* p) {
        if (!in_bounds(*t, p)) bits = 0;
        else if (t->item_bytes == 4) bits = *reinterpret_cast<const u32*>(p);
        else bits = *reinterpret_cast<const u16*>(p);
    }
    DEV f32 value(u32 kind) const {
        if (kind == IS_F32) return __uint_as_float(bits);
        return kind == IS_F16 ? f32_from_f16(static_cast<u16>(bits)) : f32_from_bf16(static_cast<u16>(bits));
    }
};

struct ResultPlace {
    u32 row, column;  // of the result

    // The element of an operand there, whose row begins at `offset`; its first one without a place.
    DEV char* of(const Epilogue& e, const Tensor& t, i64 offset, bool there) const {
        return element(t, there ? offset + static_cast<i64>(column) * t.strides[e.out->rank - 1] : 0);
    }
};

// The element of an operand there, of those that few products have. A call: it is long, and rare.
DEV_CALL f32 late(const Tensor& t, ResultPlace place) {
    Coming coming;
    coming.load(&t, element(t, row_offset(t, place.row) + static_cast<i64>(place.column) * t.strides[t.rank - 1]));
    return coming.value(float_kind(t));
}

// What one thread finishes: one element of the result, whose operands are fetched while the products are made. Where it
// goes is known before, too: once the sums are there, every word looked up would be waited for.
struct OneResult {
    bool exists = false;
    char* to = nullptr;
    const char *bias = nullptr, *residual = nullptr;
    u32 what = 0;  // the activation's code, and the kinds of floats: of the result, of bias and of residual
    Coming of_bias, of_residual;

    OneResult() = default;
    DEV OneResult(const Epilogue& e, const ResultPlace& place, bool there) : exists(there), what(e.act) {
        const RowOffsets rows(e, there ? place.row : 0);
        u32 bit = KINDS_AT;
        const auto at = [&](const Tensor* t, i64 offset) -> char* {
            if (t) what |= float_kind(*t) << bit;
            bit += FLOAT_BITS;
            return t ? place.of(e, *t, there ? offset : 0, there) : nullptr;
        };
        to = at(e.out, rows.out);
        bias = at(e.bias, rows.bias);
        residual = at(e.residual, rows.residual);
        if (e.c) what |= HAS_C;
    }
    DEV void fetch(const Epilogue& e) {
        if (!exists) return;
        if (bias) of_bias.load(e.bias, bias);
        if (residual) of_residual.load(e.residual, residual);
    }
    // `v` is the sum times alpha, or what glu made of two. rest() is the epilogue and find() the place that the constructor was
    // given, for what few products have.
    template <class Rest, class Find> DEV void store(f32 v, u32 steps, Rest rest, Find find) const {
        if (what & HAS_C) v += rest().beta * late(*rest().c, find());
#pragma unroll 1
        for (u32 left = steps; left != 0; left >>= 8) {
            switch (left & 0xff) {
                case STEP_BIAS: v += of_bias.value(kind(1)); break;
                case STEP_ACT: v = act() == ACT_RELU ? activation_relu(v, 0.0f) : activate(act(), v, rest().act_alpha); break;
                case STEP_RESIDUAL: v += of_residual.value(kind(2)); break;
                case STEP_GATE: v *= late(*rest().gate, find()); break;
                default: {  // STEP_CLAMP; NaN stays
                    const f32 low = rest().clamp_low, high = rest().clamp_high;
                    v = v < low ? low : v > high ? high : v;
                }
            }
        }
        if (!in_result(rest)) return;
        if (kind(0) == IS_F32) *reinterpret_cast<f32*>(to) = v;
        else *reinterpret_cast<u16*>(to) = kind(0) == IS_F16 ? f16_from_f32(v) : bf16_from_f32(v);
    }

  private:
    static constexpr u32 KINDS_AT = 8, HAS_C = 1u << 31;

    DEV u32 act() const { return what & 0xff; }
    DEV u32 kind(u32 operand) const { return what >> (KINDS_AT + FLOAT_BITS * operand) & 3; }
    template <class Rest> DEV bool in_result(Rest rest) const {
#ifdef DLA_CHECKED
        return in_bounds(*rest().out, to);
#else
        return true;
#endif
    }
};
