// When this block did what, in the traced build: the roles read the clock as they go, and write it down once nobody waits for them. It lies in
// global memory: a TraceBlock for each block, then its spans. The host makes times of it (emulator/device/tracing.py). In other
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

    // The controller's: work number `taken` has been handed out.
    DEV static void decoded(const Launch& launch, u32 taken, const Work& w) {
        TraceSpan* const span = of_work(launch, taken);
        if (span == nullptr) return;
        span->decoded = all_clocks();
        span->order = static_cast<u32>(w.order);
        span->instruction = w.instruction;
        span->tiles = w.tiles;
        span->first_tile = w.first_tile;
    }
    // The waiter's: all that it depends on was done at `clock`.
    DEV static void ready(const Launch& launch, u32 taken, u64 clock) {
        if (TraceSpan* const span = of_work(launch, taken)) span->ready = clock;
    }
    // The signaller's: when its first stage was there, before its workers were done; else 0.
    DEV static u64 loaded(Shared& shared, const Work& w, u32 taken) {
        const u32 slot = taken % WORKS;
        if (w.path == PATH_GENERIC || w.path == PATH_PIXELS) return 0;
        wait_phase(&shared.placed[slot], taken / WORKS % 2);
        const u32 first = static_cast<const volatile RingPlace&>(w.place).sequence;
        u64* const full = &shared.stages[kind_of(w)].full[first % RING_BARRIERS];
        while (!mbarrier_test(full, first / RING_BARRIERS % 2))
            if (mbarrier_passed(&shared.done[slot], taken / WORKS % 2)) return 0;
        return all_clocks();
    }
    // What it has seen, once others know: a store in front of the release would be waited for.
    DEV static void signalled(const Launch& launch, u32 taken, u64 loaded, u64 done) {
        TraceSpan* const span = of_work(launch, taken);
        if (span == nullptr) return;
        span->signalled = all_clocks();
        span->loaded = loaded;
        span->done = done;
    }
    DEV static u64 now() { return all_clocks(); }

  private:
    static constexpr u32 MOST_POLLS = 4096;

    DEV static TraceBlock& of_block(const Launch& launch) { return reinterpret_cast<TraceBlock*>(launch.trace)[blockIdx.x]; }
    // Null where there is no room for it.
    DEV static TraceSpan* of_work(const Launch& launch, u32 taken) {
        if (taken >= launch.trace_room) return nullptr;
        auto* const all = reinterpret_cast<TraceSpan*>(launch.trace + gridDim.x * sizeof(TraceBlock));
        return all + static_cast<u64>(blockIdx.x) * launch.trace_room + taken;
    }
    DEV static u32 kind_of(const Work& w) {
        const bool shared = w.path == PATH_GEMM && reinterpret_cast<const ProductSchedule*>(w.detail)->flags & (A_SHARED | B_SHARED);
        return shared ? SHARED_STAGES : OWN_STAGES;
    }
#else
    DEV static void begin(const Launch&) {}
    DEV static void end(const Launch&, u32) {}
    DEV static void decoded(const Launch&, u32, const Work&) {}
    DEV static void ready(const Launch&, u32, u64) {}
    DEV static u64 loaded(Shared&, const Work&, u32) { return 0; }
    DEV static void signalled(const Launch&, u32, u64, u64) {}
    DEV static u64 now() { return 0; }
#endif
};
