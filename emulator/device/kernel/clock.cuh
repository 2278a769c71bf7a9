// What time it is, and where: special registers.
#pragma once
#include "config.cuh"

DEV u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
// Of this multiprocessor, modulo 2^32.
DEV u32 clocks() {
    u32 t;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
    return t;
}
DEV u64 all_clocks() {
    u64 t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t));
    return t;
}
DEV u32 multiprocessor() {
    u32 index;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(index));
    return index;
}
