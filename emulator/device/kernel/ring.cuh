// The stage ring: shared memory through which the loader feeds the workers, across instructions.
//
// A stage is some neighbouring granules. Stages are handed out first in, first out: the loader claims one, arms its full
// barrier with the bytes that copies will bring, and starts the copies; the workers wait for it, use it, and release it.
// Loader and workers walk the same stages in the same order, so each works out for itself where the next one lies.
#pragma once
#include "config.cuh"
#include "ptx.cuh"

constexpr u32 GRANULE_BYTES = 8192;  // 64 rows of the 128 bytes that one swizzled tile of a tensor map is wide
constexpr u32 GRANULES = 24;
constexpr u32 RING_BYTES = GRANULES * GRANULE_BYTES;
constexpr u32 RING_BARRIERS = 32;    // more than stages that can be outstanding, and a power of two
static_assert(RING_BARRIERS >= GRANULES && (RING_BARRIERS & (RING_BARRIERS - 1)) == 0, "a barrier for each stage of a granule");

struct RingBarriers {
    u64 full[RING_BARRIERS];   // copies -> workers: one arrival of the loader, and the bytes
    u64 empty[RING_BARRIERS];  // workers -> loader: one arrival of each worker warp

    DEV void init() {
        for (u32 i = 0; i < RING_BARRIERS; ++i) {
            mbarrier_init(&full[i], 1);
            mbarrier_init(&empty[i], WORKER_WARPS);
        }
    }
};

// Where a stage lies, and which barriers are its own.
struct Stage {
    u32 sequence;  // stages before it, since the launch began
    u32 granule;   // its first one

    DEV u32 barrier() const { return sequence % RING_BARRIERS; }
    DEV u32 parity() const { return sequence / RING_BARRIERS % 2; }
    DEV u32 offset() const { return granule * GRANULE_BYTES; }  // from the start of the ring
};

// A walk over the stages; everybody who takes the same steps comes by the same stages.
struct RingPlace {
    u32 sequence = 0;
    u32 granule = 0;  // behind the last stage

    // A stage never wraps around: where there is no room before the end, it lies at the start.
    DEV Stage next(u32 granules) {
        const Stage stage{sequence, granule + granules <= GRANULES ? granule : 0};
        sequence += 1;
        granule = stage.granule + granules;
        return stage;
    }
};

// The loader's side: which stages are still in use, oldest first.
struct RingRoom {
    u32 oldest = 0;                  // sequence of the oldest stage that may be in use
    u8* first;                       // [RING_BARRIERS], shared memory: first granule of each

    // Whether stage `s`, which begins where `place` was, must wait for the oldest one to be released: it reaches it.
    DEV bool reaches_oldest(const RingPlace& before, const Stage& s, u32 granules) const {
        if (oldest == s.sequence) return false;
        const u32 reach = s.granule + granules - before.granule + (s.granule < before.granule ? GRANULES : 0);
        const u32 start = first[oldest % RING_BARRIERS];
        return start - before.granule + (start < before.granule ? GRANULES : 0) < reach;
    }
};
