// The loader: one warp of each block hands out the stages of the ring, and fills those of the hot paths by copies that run
// ahead of the workers, across instructions.
#pragma once
#include "state.cuh"
#include "waiting.cuh"

static_assert(RING_BARRIERS == 32, "a bit for each");
struct Loader {
    const Launch& launch;
    Shared& shared;
    RingPlace place;
    u32 oldest = 0;  // sequence of the oldest stage that may be in use
    u32 scratch = 0; // a bit for each stage: workers write to it
    u32 taken = 0;   // works done

    DEV Loader(const Launch& l, Shared& s) : launch(l), shared(s) {}

    // The next stage, once nobody uses it; false if the run is over. Its full barrier waits for `bytes` of copies, all of
    // which the caller has to start: also after a trap, which the loader hears of here and nowhere else. Without bytes,
    // the stage is scratch memory of the workers.
    DEV bool claim(Stage& stage, u32 granules, u32 bytes) {
        const RingPlace before = place;
        stage = place.next(granules);
        while (reaches_oldest(before, stage, granules)) {
            u64* empty = &shared.stages.empty[oldest % RING_BARRIERS];
            while (!mbarrier_test(empty, oldest / RING_BARRIERS % 2)) {
                if (stopped(shared)) {
                    place = before;
                    return false;
                }
            }
            // Workers read and wrote scratch memory themselves; copies are another proxy.
            if (scratch >> oldest % RING_BARRIERS & 1) fence_proxy();
            scratch &= ~(1u << oldest % RING_BARRIERS);
            oldest += 1;
        }
        shared.stage_granule[stage.barrier()] = stage.granule;
        if (bytes) {
            mbarrier_arrive_expect(full(stage), bytes);
        } else {
            scratch |= 1u << stage.barrier();
            mbarrier_arrive(full(stage));
        }
        return true;
    }
    DEV u64* full(const Stage& stage) { return &shared.stages.full[stage.barrier()]; }
    // Where the stage lies, in the shared window.
    DEV u32 address(const Stage& stage) const { return shared_address(shared_memory) + stage.offset(); }

    // Waits until everything that the present work depends on is done; copies started afterwards see it.
    DEV void wait_ready() {
        wait_phase(&shared.ready[taken % WORKS], taken / WORKS % 2);
        fence_proxy();
    }

    // Waits for all copies that were started: a block must not end before them.
    DEV void finish() {
        for (; oldest != place.sequence; ++oldest) wait_phase(&shared.stages.full[oldest % RING_BARRIERS], oldest / RING_BARRIERS % 2);
    }

  private:
    // Whether `stage`, claimed where `before` was, comes by memory of the oldest stage. Those in use form one stretch of the
    // ring, oldest first, and what a stage skips at the end of the ring is part of its way.
    DEV bool reaches_oldest(const RingPlace& before, const Stage& stage, u32 granules) const {
        if (oldest == stage.sequence) return false;
        const u32 way = stage.granule + granules - before.granule + (stage.granule < before.granule ? GRANULES : 0);
        const u32 start = shared.stage_granule[oldest % RING_BARRIERS];
        return start - before.granule + (start < before.granule ? GRANULES : 0) < way;
    }
};
