// The waiter and the signaller: what a block hears from the others, and tells them.
#pragma once
#include "paths.cuh"

// The run is over: nobody is to begin with `w`. A call: it would lie in the way.
DEV_CALL void give_up(Work& w) {
    stop(shared_state());
    w.go = 0;
}

// The waiter: one warp waits for what each work depends on, while the workers are still busy with the one before.
DEV void run_waiter(const Launch& launch, Shared& shared, u32 lane) {
    for (u32 taken = 0;; ++taken) {
        const u32 slot = taken % WORKS;
        wait_phase(&shared.decoded[slot], taken / WORKS % 2);
        Work& w = shared.works[slot];
        if (w.last) return;
#ifdef HOPPER
        const bool finishes = HopperStream::is_finished_here(w);  // asked before the others can be done with it, and its slot be another's
#endif
        if (lane == 0) w.go = !stopped(shared);
        // Between the last counter and the barrier there is nothing else: every instruction of a chain waits for it.
        if (!w.follows_own && !wait_for(launch, w, lane)) give_up(w);
        if (lane == 0) Tracing::ready(w);
        warp_arrive(&shared.ready[slot], lane);
#ifdef HOPPER
        if (finishes) SumsOfFew::finish(w, taken, lane);
#endif
    }
}

// The signaller: one warp tells the other blocks that this one is done with an instruction, while its workers go on.
DEV void run_signaller(const Launch& launch, Shared& shared, u32 lane) {
    u32 asked = clocks();
    if (lane == 0) Tracing::begin(launch);
    for (u32 taken = 0;; ++taken) {
        const u32 slot = taken % WORKS, parity = taken / WORKS % 2;
        wait_phase(&shared.decoded[slot], parity);
        const Work& w = shared.works[slot];
        if (w.last) {
            if (lane == 0) Tracing::end(launch, taken);
#ifdef DLA_RANKS
            // A rank that has trapped does not send any more: the others are not to wait for it.
            if (lane < launch.world && load_relaxed(launch.abort)) store_relaxed_everywhere(launch.mailboxes[lane].abort, 1);
#endif
            return;
        }
        if (const u32 now = clocks(); now - asked > CODE_STAYS) {
            prefetch_code(launch, lane);
            asked = now;
        }
        const bool tells = lane == 0 && w.signal != COUNTERS;
        u32* const counter = shared.counters + w.signal;
        const u64 loaded = lane == 0 ? Tracing::loaded(launch, shared, w, taken) : 0;
        wait_phase(&shared.done[slot], parity);
        const u64 done = Tracing::now();
        // The barrier orders every worker's stores before this one thread's release.
        // What is added depends on the lane, as far as the compiler knows: else it would ask first which lanes are here.
        if (tells && !stopped(shared)) add_release(counter, anew(lane) + 1);
        if (lane == 0) Tracing::signalled(launch, taken, w, loaded, done);
        wait_phase(&shared.placed[slot], parity);  // handlers without scratch memory do not: so that each phase has been waited for
        warp_arrive(&shared.free[slot]);
    }
}
