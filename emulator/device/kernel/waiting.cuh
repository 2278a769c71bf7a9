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

// Waits until each lane's `counter` has reached its `target`; false after a trap or a time-out. All lanes poll until the last one is done:
// where each left when its own was, to put the warp together again took 200 clocks of every wait.
DEV bool wait_counters(const Launch& launch, u32 counter, u32 target, u32 instruction) {
    const u32* p = shared_state().counters + counter;
    const auto reached = [&] { return static_cast<i32>(load_acquire(p) - target) >= 0; };
    u64 start = 0;
    for (u32 polls = 1; !__all_sync(0xffffffffu, reached()); ++polls) {
        if (polls % SPINS_PER_CHECK != 0) continue;
        const u64 now = nanoseconds();
        if (start == 0) start = now;
        const bool late = now - start > launch.timeout_ns;
        if (late && !reached()) raise(&launch, TRAP_TIMEOUT, instruction, WAITED_FOR_COUNTER, counter, load_relaxed(p), target);
        if (__any_sync(0xffffffffu, late || load_relaxed(launch.abort))) return false;
    }
    return true;
}

DEV bool wait_for(const Launch& launch, const Work& w, u32 lane) {
    if (w.counters == 0) return true;
    const u32 mine = lane < w.counters ? lane : 0;
    return wait_counters(launch, w.wait_counter[mine], w.wait_target[mine], w.instruction);
}
