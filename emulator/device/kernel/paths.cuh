// Paths: the ways in which the machine executes tensor instructions. The generic one has a handler for every row; the hot
// ones are for Hopper, for what the plan found to fit (emulator/device/paths).
#pragma once
#include "handlers.cuh"
#include "loader.cuh"

// The workers of a block as the hot paths see them: 8 warps, and the stages that the loader filled for the present work.
struct Workers {
    const Launch& launch;
    Shared& shared;
    const Work& work;
    u32 slot, parity;  // of the work
    RingPlace place;

    DEV Workers(const Launch& l, Shared& s, u32 taken)
        : launch(l), shared(s), work(s.works[taken % WORKS]), slot(taken % WORKS), parity(taken / WORKS % 2) {}

    DEV u32 thread() const { return threadIdx.x - CONTROLLER_WARPS * WARP; }
    DEV u32 warp() const { return __shfl_sync(0xffffffffu, thread() / WARP, 0); }
    DEV u32 lane() const { return threadIdx.x % WARP; }
    DEV void sync() const { named_barrier(WORKER_BARRIER, WORKER_THREADS); }

    // Waits until everything that the work depends on is done; false if the run is over.
    DEV bool wait_ready() const {
        wait_phase(&shared.ready[slot], parity);
        return work.go;
    }
    // Waits until it is known where the work's first stage lies.
    DEV void wait_placed() {
        wait_phase(&shared.placed[slot], parity);
        place = work.place;
    }
    // The next stage; its address in the shared window.
    DEV u32 next(Stage& stage, u32 granules) {
        stage = place.next(granules);
        return shared_address(shared_memory) + stage.offset();
    }
    // Waits for the bytes of a stage; after a trap they may be missing.
    DEV void wait(const Stage& stage) const {
        while (!mbarrier_test(&shared.stages.full[stage.barrier()], stage.parity())) {
            if (stopped(shared)) return;
        }
    }
    // Called by every warp once it is done with the stage.
    DEV void release(const Stage& stage) const { warp_arrive(&shared.stages.empty[stage.barrier()]); }
    // The 2 KB of store staging that a warp has, in the shared window, 1024-byte aligned.
    DEV u32 staging() const { return shared_address(shared_memory) + STAGING_AT + warp() * (STAGING_BYTES / WORKER_WARPS); }
};

// Granules of the ring that the handler of `w` needs; small scratch memory is in the staging, which is always there.
DEV u32 scratch_granules(const Work& w) {
    if (w.path != PATH_GENERIC) return 0;
    const u32 bytes = scratch_of(w);
    return bytes <= STAGING_BYTES ? 0 : (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES;
}

DEV u32 tiles_of_path(const Work& w) {
    switch (w.path) {
        default: return tiles_of(w);
    }
}

// What the loader does for one work.
DEV void load_path(Loader& loader, const Work& w) {
    switch (w.path) {
        default:
            if (w.granules) {
                Stage scratch;
                loader.claim(scratch, w.granules, 0);
            }
    }
}

DEV void run_loader(const Launch& launch, Shared& shared, u32 lane) {
    Loader loader(launch, shared);
    for (;; ++loader.taken) {
        const u32 slot = loader.taken % WORKS;
        wait_phase(&shared.decoded[slot], loader.taken / WORKS % 2);
        Work& w = shared.works[slot];
        if (w.last) break;
        if (lane == 0) w.place = loader.place;
        warp_arrive(&shared.placed[slot]);
        if (lane == 0) load_path(loader, w);
        warp_arrive(&shared.free[slot]);
    }
    if (lane == 0) loader.finish();
    __syncwarp();
}
