// The scalar unit: registers, arithmetic, loops, branches and calls. The controller warp of every block runs it alike,
// so every block takes the same path without talking to the others. All lanes compute; lane 0 writes.
#pragma once
#include "numbers.cuh"
#include "views.cuh"

// Reads any register by its code in a word: an i64, or the bits of an f64.
DEV i64 read_register(const Scalars& m, u32 code) {
    if (code == REG_RANK) return m.rank;
    if (code == REG_WORLD) return m.world;
    if (code >= REG_P0) return m.registers.p[code - REG_P0];
    if (code >= REG_F0) return __double_as_longlong(m.registers.f[code - REG_F0]);
    return m.registers.s[code - REG_S0];
}
DEV bool is_float_register(u32 code) { return code >= REG_F0 && code < REG_P0; }

DEV void write_register(Scalars& m, u32 lane, u32 code, i64 bits) {
    __syncwarp();
    if (lane == 0) {
        if (code >= REG_P0) m.registers.p[code - REG_P0] = bits != 0;
        else if (code >= REG_F0) m.registers.f[code - REG_F0] = __longlong_as_double(bits);
        else m.registers.s[code - REG_S0] = bits;
    }
    __syncwarp();
}

// Scalar operand `k` of `w` as an integer, or as a float (integers convert).
DEV i64 scalar_i64(const Work& w, u32 k) {
    return w.scalar_is_float[k] ? i64_from_f64(__longlong_as_double(w.scalars[k]), lowest_of(DTYPE_I64), highest_of(DTYPE_I64))
                                : w.scalars[k];
}
DEV f64 scalar_f64(const Work& w, u32 k) {
    return w.scalar_is_float[k] ? __longlong_as_double(w.scalars[k]) : static_cast<f64>(w.scalars[k]);
}

DEV i64 floor_mod(i64 a, i64 b) {
    if (b == -1) return 0;
    const i64 r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

DEV i64 alu_integer(u32 sub, i64 a, i64 b, bool& by_zero) {
    const u64 ua = static_cast<u64>(a), ub = static_cast<u64>(b);
    switch (sub) {
        case ALU_ADD: return static_cast<i64>(ua + ub);
        case ALU_SUB: return static_cast<i64>(ua - ub);
        case ALU_MUL: return static_cast<i64>(ua * ub);
        case ALU_DIV: by_zero = b == 0; return b == 0 ? 0 : b == -1 ? static_cast<i64>(0 - ua) : a / b;
        case ALU_MOD: by_zero = b == 0; return b == 0 ? 0 : floor_mod(a, b);
        case ALU_MIN: return a < b ? a : b;
        case ALU_MAX: return a > b ? a : b;
        case ALU_AND: return a & b;
        case ALU_OR: return a | b;
        case ALU_XOR: return a ^ b;
        case ALU_SHL: return static_cast<i64>(ua << (ub & 63));
        case ALU_SHR: return a >> (ub & 63);
        case ALU_NEG: return static_cast<i64>(0 - ua);
        case ALU_ABS: return a < 0 ? static_cast<i64>(0 - ua) : a;
        default: return ~a;  // ALU_NOT; the verifier has refused the rest
    }
}

DEV f64 alu_float(u32 sub, f64 a, f64 b) {
    switch (sub) {
        case ALU_ADD: return a + b;
        case ALU_SUB: return a - b;
        case ALU_MUL: return a * b;
        case ALU_DIV: return a / b;
        case ALU_MIN: return isnan(a) || isnan(b) ? a + b : fmin(a, b);
        case ALU_MAX: return isnan(a) || isnan(b) ? a + b : fmax(a, b);
        case ALU_NEG: return -a;
        case ALU_ABS: return fabs(a);
        default: return sqrt(a);  // ALU_SQRT
    }
}

template <class T> DEV bool compare(u32 sub, T a, T b) {
    switch (sub) {
        case CMP_EQ: return a == b;
        case CMP_NE: return a != b;
        case CMP_LT: return a < b;
        case CMP_LE: return a <= b;
        case CMP_GT: return a > b;
        default: return a >= b;
    }
}

// Executes ALU; false if it divides by zero.
DEV bool execute_alu(Scalars& m, const Work& w, u32 lane) {
    const AluArgs& args = AluArgs::of(w);
    const u32 dst = args.dst();
    bool by_zero = false;
    i64 result;
    if (args.sub() == ALU_CVT) {
        result = is_float_register(dst) ? __double_as_longlong(scalar_f64(w, 0)) : scalar_i64(w, 0);
    } else if (is_float_register(dst)) {
        result = __double_as_longlong(alu_float(args.sub(), scalar_f64(w, 0), scalar_f64(w, 1)));
    } else {
        result = alu_integer(args.sub(), scalar_i64(w, 0), scalar_i64(w, 1), by_zero);
        if (dst >= REG_P0) result &= 1;
    }
    write_register(m, lane, dst, result);
    return !by_zero;
}

DEV void execute_mov(Scalars& m, const Work& w, u32 lane) {
    const MovArgs& args = MovArgs::of(w);
    const i64 value = is_float_register(args.dst()) ? __double_as_longlong(scalar_f64(w, 0)) : scalar_i64(w, 0);
    write_register(m, lane, args.dst(), value);
}

DEV void execute_cmp(Scalars& m, const Work& w, u32 lane) {
    const CmpArgs& args = CmpArgs::of(w);
    const bool floats = w.scalar_is_float[0] || w.scalar_is_float[1];
    const bool result = floats ? compare(args.sub(), scalar_f64(w, 0), scalar_f64(w, 1))
                               : compare(args.sub(), scalar_i64(w, 0), scalar_i64(w, 1));
    write_register(m, lane, args.dst(), result);
}

// Enters a loop or skips its body; false if the count is out of range. `next` is the index to go on at.
DEV bool execute_loop(Scalars& m, const Work& w, u32 lane, u32& next) {
    const LoopArgs& args = LoopArgs::of(w);
    const i64 count = scalar_i64(w, 0);
    const bool from_register = args.max() != 0;
    if (count < 0 || (from_register && count > args.max())) return false;
    write_register(m, lane, args.counter(), 0);
    if (count == 0) {
        next = args.end() + 1;
        return true;
    }
    if (lane == 0) {
        LoopFrame& frame = m.loops[m.loop_depth];
        frame.begin = w.instruction;
        frame.counter = args.counter();
        frame.count = count;
        m.loop_depth += 1;
    }
    __syncwarp();
    return true;
}

DEV u32 execute_endloop(Scalars& m, u32 lane, u32 next) {
    const LoopFrame frame = m.loops[m.loop_depth - 1];
    const i64 index = read_register(m, frame.counter) + 1;
    write_register(m, lane, frame.counter, index);
    if (index < frame.count) return frame.begin + 1;
    if (lane == 0) m.loop_depth -= 1;
    __syncwarp();
    return next;
}

DEV u32 execute_branch(Scalars& m, const Work& w, u32 lane, u32 next) {
    const BrArgs& args = BrArgs::of(w);
    const bool taken = args.if_() ? read_register(m, args.if_()) != 0 : args.unless() ? read_register(m, args.unless()) == 0 : true;
    if (!taken) return next;
    __syncwarp();
    if (lane == 0) m.loop_depth -= args.leaves();
    __syncwarp();
    return args.target();
}

DEV u32 execute_call(Scalars& m, const Work& w, u32 lane, u32 next) {
    __syncwarp();
    if (lane == 0) m.calls[m.call_depth++] = next;
    __syncwarp();
    return CallArgs::of(w).target();
}

DEV u32 execute_ret(Scalars& m, u32 lane) {
    const u32 next = m.calls[m.call_depth - 1];
    __syncwarp();
    if (lane == 0) m.call_depth -= 1;
    __syncwarp();
    return next;
}
