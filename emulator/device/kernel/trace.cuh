// When this block did what, in the traced build: the roles note the clock as they go, and nobody waits for it. What they note lies in
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

    // The controller's: work number `taken` is handed out.
    DEV static void decoded(const Launch& launch, u32 taken, const Work& w) {
        TraceSpan* const span = of_work(launch, taken);
        if (span == nullptr) return;
        span->order = static_cast<u32>(w.order);
        span->instruction = w.instruction;
        span->tiles = (w.tiles - w.first_tile + gridDim.x - 1) / gridDim.x;
        span->decoded = all_clocks();
    }
    // The waiter's: all that it depends on is done.
    DEV static void ready(const Launch& launch, u32 taken) {
        if (TraceSpan* const span = of_work(launch, taken)) span->ready = all_clocks();
    }
    // The signaller's: until its workers are done, looks whether its first stage is there.
    DEV static void watch(const Launch& launch, Shared& shared, const Work& w, u32 taken) {
        TraceSpan* const span = of_work(launch, taken);
        const u32 slot = taken % WORKS, parity = taken / WORKS % 2;
        if (span == nullptr || w.path == PATH_GENERIC || w.path == PATH_PIXELS) return;
        while (!mbarrier_passed(&shared.done[slot], parity)) {
            if (!mbarrier_passed(&shared.placed[slot], parity)) continue;
            const u32 first = static_cast<const volatile RingPlace&>(w.place).sequence;
            if (!mbarrier_passed(&shared.stages[kind_of(w)].full[first % RING_BARRIERS], first / RING_BARRIERS % 2)) continue;
            span->loaded = all_clocks();
            return;
        }
    }
    DEV static void done(const Launch& launch, u32 taken) {
        if (TraceSpan* const span = of_work(launch, taken)) span->done = all_clocks();
    }
    DEV static void signalled(const Launch& launch, u32 taken) {
        if (TraceSpan* const span = of_work(launch, taken)) span->signalled = all_clocks();
    }

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
    DEV static void ready(const Launch&, u32) {}
    DEV static void watch(const Launch&, Shared&, const Work&, u32) {}
    DEV static void done(const Launch&, u32) {}
    DEV static void signalled(const Launch&, u32) {}
#endif
};
