// When this block did what, in the traced build: roles read the clock as they go, and the signaller writes it down once nobody waits for it. It
// lies in global memory: a TraceBlock for each block, then its spans. The host makes times of it (emulator/device/tracing.py). In other
// builds there is nothing of this.
#pragma once
#include "state.cuh"

struct Tracing {
#ifdef DLA_TRACED
    DEV static void begin(const Launch& launch) {
        if (launch.trace == nullptr) return;
        TraceBlock& block = of_block(launch);
        block.multiprocessor = multiprocessor();
        block.began_clock = all_clocks();
        block.began_ns = nanoseconds();
    }
    // The clock of nanoseconds goes in steps, of which one is waited for.
    DEV static void end(const Launch& launch, u32 works) {
        if (launch.trace == nullptr) return;
        TraceBlock& block = of_block(launch);
        const u64 before = nanoseconds();
        u64 now = before;
        for (u32 i = 0; i < MOST_POLLS && now == before; ++i) now = nanoseconds();
        block.ended_clock = all_clocks();
        block.ended_ns = now;
        block.works = works;
    }

    // The controller's and the waiter's: the work is handed out, and all that it depends on is done. There is no room for more in shared
    // memory: of a work, only the fetcher reads what comes after it, and that in the image or before; and what it waits for, only the waiter, before.
    DEV static void decoded(Work& w) { keep(w.ahead_begin, w.ahead_pieces); }
    DEV static void ready(Work& w) { keep(w.wait_target[0], w.wait_target[1]); }
    // The signaller's: when its first stage was there, before its workers were done; else 0.
    DEV static u64 loaded(const Launch& launch, Shared& shared, const Work& w, u32 taken) {
        if (launch.trace == nullptr || w.path == PATH_GENERIC || w.path == PATH_PIXELS) return 0;
        const u32 slot = taken % WORKS;
        wait_phase(&shared.placed[slot], taken / WORKS % 2);
        const u32 first = static_cast<const volatile RingPlace&>(w.place).sequence;
        u64* const full = &shared.stages[kind_of(w)].full[first % RING_BARRIERS];
        while (!mbarrier_test(full, first / RING_BARRIERS % 2))
            if (mbarrier_passed(&shared.done[slot], taken / WORKS % 2)) return 0;
        return all_clocks();
    }
    // All of it, once others know that the work is done: a store in front of a release would be waited for.
    DEV static void signalled(const Launch& launch, u32 taken, const Work& w, u64 loaded, u64 done) {
        if (launch.trace == nullptr || taken >= launch.trace_room) return;
        auto* const all = reinterpret_cast<TraceSpan*>(launch.trace + gridDim.x * sizeof(TraceBlock));
        TraceSpan& span = all[static_cast<u64>(blockIdx.x) * launch.trace_room + taken];
        span.decoded = kept(w.ahead_begin, w.ahead_pieces);
        span.ready = kept(w.wait_target[0], w.wait_target[1]);
        span.loaded = loaded;
        span.done = done;
        span.signalled = all_clocks();
        span.order = static_cast<u32>(w.order);
        span.instruction = w.instruction;
        span.tiles = w.tiles;
        span.first_tile = w.first_tile;
    }
    DEV static u64 now() { return all_clocks(); }

  private:
    static constexpr u32 MOST_POLLS = 4096;

    DEV static void keep(u32& low, u32& high) {
        const u64 now = all_clocks();
        low = static_cast<u32>(now);
        high = static_cast<u32>(now >> 32);
    }
    DEV static u64 kept(u32 low, u32 high) { return static_cast<u64>(high) << 32 | low; }
    DEV static TraceBlock& of_block(const Launch& launch) { return reinterpret_cast<TraceBlock*>(launch.trace)[blockIdx.x]; }
    DEV static u32 kind_of(const Work& w) {
        const bool shared = w.path == PATH_GEMM && reinterpret_cast<const ProductSchedule*>(w.detail)->flags & (A_SHARED | B_SHARED);
        return shared ? SHARED_STAGES : OWN_STAGES;
    }
#else
    DEV static void begin(const Launch&) {}
    DEV static void end(const Launch&, u32) {}
    DEV static void decoded(Work&) {}
    DEV static void ready(Work&) {}
    DEV static u64 loaded(const Launch&, Shared&, const Work&, u32) { return 0; }
    DEV static void signalled(const Launch&, u32, const Work&, u64, u64) {}
    DEV static u64 now() { return 0; }
#endif
};
