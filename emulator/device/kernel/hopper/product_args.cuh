// The arguments of what the tiles of products on wgmma execute: GEMM, or CONV.
#pragma once
#ifdef HOPPER
#include "decode.cuh"
#include "gemm.cuh"
#include "path_workers.cuh"

// A CONV has output positions for rows, and no alpha, c and unit. Its epilogue is GEMM's, but for the places of its parts:
// the operands come one earlier (there is no c), and the record one later (a WINDOW is in front).
struct ProductArgs {
    const Work& work;

    DEV explicit ProductArgs(const Work& w) : work(w) {}
    DEV bool conv() const { return opcode_of(work) == OP_CONV; }
    DEV const GemmArgs& gemm() const { return GemmArgs::of(work); }

    DEV const Tensor& out() const { return gemm().out(); }  // the first of both
    DEV u32 columns() const { return (conv() ? out() : gemm().b()).dims[out().rank - 1]; }  // of the sums
    DEV bool is_glu() const { return !conv() && gemm().sub() == GEMM_GLU; }
    DEV u32 unit() const { return gemm().unit(); }
    DEV f32 alpha() const { return conv() ? 1.0f : gemm().alpha(); }
    DEV f32 beta() const { return gemm().beta(); }
    DEV bool has_c() const { return !conv() && gemm().has_c(); }
    DEV const Tensor& c() const { return gemm().c(); }
    DEV const Tensor& bias() const { return by_operands().bias(); }
    DEV const Tensor& residual() const { return by_operands().residual(); }
    DEV const Tensor& gate() const { return by_operands().gate(); }
    DEV u32 steps(u32 i) const { return by_records().steps(i); }
    DEV u32 act() const { return by_records().act(); }
    DEV f32 clamp_low() const { return by_records().clamp_low(); }
    DEV f32 clamp_high() const { return by_records().clamp_high(); }
    DEV Epilogue epilogue() const { return conv() ? Epilogue::of(ConvArgs::of(work)) : gemm_epilogue(gemm()); }

  private:
    DEV const GemmArgs& by_operands() const { return moved(conv() ? -static_cast<i32>(sizeof(Tensor)) : 0); }
    DEV const GemmArgs& by_records() const { return moved(conv() ? static_cast<i32>(WORD_BYTES) : 0); }
    DEV const GemmArgs& moved(i32 bytes) const {
        return GemmArgs::of(*reinterpret_cast<const Work*>(reinterpret_cast<const char*>(&work) + bytes));
    }
};

// The instruction at work, for what is rarely needed.
DEV ProductArgs args_at_work() { return ProductArgs(Workers().work()); }

// Whether accesses to its operands are in order. Only the checked build asks, and looks for the operand.
DEV bool is_in_result(const char* p, u32 bytes) {
#ifdef DLA_CHECKED
    return range_in_bounds(args_at_work().out(), p, bytes);
#else
    return true;
#endif
}
DEV bool is_in_bias(const char* p, u32 bytes) {
#ifdef DLA_CHECKED
    return range_in_bounds(args_at_work().bias(), p, bytes);
#else
    return true;
#endif
}
DEV bool is_in_residual(const char* p, u32 bytes) {
#ifdef DLA_CHECKED
    return range_in_bounds(args_at_work().residual(), p, bytes);
#else
    return true;
#endif
}
#endif
