// Time on the emulated device (clock.cuh): it passes while nothing else does. Whoever asks lets the others go on.
#pragma once
#include "config.cuh"

static u64 clock_;
inline u64 nanoseconds() { yield_("the clock"); return clock_; }
inline u32 clocks() { return static_cast<u32>(clock_); }
inline u64 all_clocks() { return 2 * clock_; }
inline u32 multiprocessor() { return 10 + blockIdx.x; }
