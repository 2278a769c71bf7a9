// Where code lies. The functions that the kernel calls lie behind it, in the order of their names as the linker knows them. Behind each
// multiprocessor's own instruction cache there is one that those of a GPC share: 128 KB. By what layouts have taken, four lines at the
// same place modulo 32 KB find room there. What a network executes in a layer nearly fills it; where more lines meet, they come from the
// L2 cache, again and again. So how far what is called lies behind the kernel was chosen by what programs execute
// (benchmarks/code_layout.py), and is kept, modulo 32 KB, where the kernel grows or shrinks.
#pragma once
#include "ptx.cuh"

constexpr u32 PADDING = 100;  // instructions

// Lies in a function that is called seldom, and whose name comes before those of most functions that are called often. It does nothing.
DEV void pad_layout() {
#ifdef HOPPER
    if (blocks_anew() != 0) return;  // always; but the compiler does not know
#pragma unroll
    for (u32 i = 0; i < PADDING; ++i) nap();
#endif
}
