// The stage ring: shared memory through which the loader feeds the workers, across instructions.
//
// A stage is some neighbouring granules. Stages are handed out first in, first out: the loader claims one, arms its full
// barrier with the bytes that copies will bring, and starts the copies; the workers wait for it, use it, and release it.
// Loader and workers walk the same stages in the same order, so each works out for itself where the next one lies.
//
// Two blocks that are a pair can share stages: each brings half of an operand to both (multicast). Both claim the same ones
// then, in the same order, and a stage is free once the workers of both have released it. Shared stages take the place of
// the block's own ones in the ring, never at the same time, and have barriers and a count of their own.
#pragma once
#include "config.cuh"
#include "ptx.cuh"

constexpr u32 GRANULE_BYTES = 8192;  // 64 rows of the 128 bytes that one swizzled tile of a tensor map is wide
#ifdef HOPPER
constexpr u32 GRANULES = 24;
#else
constexpr u32 GRANULES = SCRATCH_BYTES / GRANULE_BYTES;
#endif
constexpr u32 RING_BYTES = GRANULES * GRANULE_BYTES;
constexpr u32 OWN_STAGES = 0, SHARED_STAGES = 1;  // the two kinds
constexpr u32 RING_BARRIERS = 32;    // more than stages that can be outstanding, and a power of two
static_assert(RING_BARRIERS >= GRANULES && (RING_BARRIERS & (RING_BARRIERS - 1)) == 0, "a barrier for each stage of a granule");

struct RingBarriers {
    u64 full[RING_BARRIERS];   // copies -> workers: one arrival of the loader, and the bytes
    u64 empty[RING_BARRIERS];  // workers -> loader: each worker warp arrives
    static constexpr u32 TO_EMPTY = sizeof(full);  // bytes from a stage's full barrier to its empty one

    // A worker warp's part of them. `blocks`: those whose workers release a stage.
    DEV void init(u32 blocks, u32 worker) {
        constexpr u32 EACH = RING_BARRIERS / WORKER_WARPS;
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            mbarrier_init(&full[worker * EACH + i], 1);
            mbarrier_init(&empty[worker * EACH + i], blocks * WORKER_WARPS * ARRIVING_LANES);
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
