// Order between instructions: counters in global memory, which blocks wait for and add to.
#pragma once
#include "state.cuh"
#include "trace.cuh"

// Brings the machine's own code to the L2 cache, each block a part. Code comes from memory where it is executed first, a few lines at a
// time and by all blocks at once, which took 2 to 5 us of a launch behind other kernels; and again where tensors have passed through
// the cache since, which takes them CODE_STAYS clocks at least.
constexpr u32 CODE_STAYS = 40'000;
DEV void prefetch_code(const Launch& launch, u32 lane) {
#ifdef HOPPER
    constexpr u32 PIECE = 8192;
    const u32 at = (lane * gridDim.x + blockIdx.x) * PIECE;
    if (at < launch.code_bytes) prefetch_to_stay(launch.code + at, min(PIECE, launch.code_bytes - at));
#endif
}

// Waits, in each `active` lane of a warp, until `counter` reaches `target`; false after a trap or a time-out.
DEV bool wait_counters(const Launch& launch, bool active, u32 counter, u32 target, u32 instruction) {
    const u32* p = shared_state().counters + counter;
    const bool ok = !active || spin(
        &launch, [&] { return static_cast<i32>(load_acquire(p) - target) >= 0; },
        [&] { raise(&launch, TRAP_TIMEOUT, instruction, WAITED_FOR_COUNTER, counter, load_relaxed(p), target); });
    return __all_sync(0xffffffffu, ok);
}

DEV bool wait_for(const Launch& launch, const Work& w, u32 lane) {
    const bool active = lane < w.counters;
    return wait_counters(launch, active, active ? w.wait_counter[lane] : 0, active ? w.wait_target[lane] : 0, w.instruction);
}
