// The workers: 256 threads that execute tiles.
#pragma once
#include "paths.cuh"

// What a warp keeps in shared memory while a tile is executed: its code takes all registers, and what the compiler saved
// would go to local memory, which every acquire empties from the cache.
struct Kept {
    DEV static Shared& shared() { return *reinterpret_cast<Shared*>(shared_memory_anew() + SHARED_AT); }
    DEV static u32 warp() { return thread_index_anew() / WARP - CONTROLLER_WARPS; }  // no shuffle: callers may be divergent
    DEV static volatile WorkerPlace& place() { return shared().workers[warp()]; }
    DEV static u32 taken() { return place().taken; }
    // Every lane writes the same: no lane has to wait for another.
    DEV static void set(u32 taken, u32 scratch) {
        place().taken = taken;
        place().scratch = scratch;
    }
};

// Executes the tiles of a work by its row's handler.
DEV void run_generic(u32 taken, const Block& block) {
    const Work& w = Kept::shared().works[taken % WORKS];
    const u32 granules = w.granules;
    u32 scratch = STAGING_AT;
    if (granules) {
        Shared& shared = Kept::shared();
        wait_phase(&shared.placed[taken % WORKS], taken / WORKS % 2);
        RingPlace place = w.place;
        const Stage stage = place.next(granules);
        while (!mbarrier_test(&shared.stages.full[stage.barrier()], stage.parity()) && !stopped(shared)) {
        }
        scratch = stage.offset();
    }
    Kept::set(taken, scratch);
    wait_phase(&Kept::shared().ready[taken % WORKS], taken / WORKS % 2);
    if (!w.go) return;
    if (block.thread() == 0) Kept::shared().instruction = w.instruction;
    for (u32 tile = w.first_tile;;) {
        Kept::place().tile = tile;
        run_tile(Kept::shared().works[Kept::taken() % WORKS], tile, block);
        tile = Kept::place().tile + gridDim.x;
        if (tile >= Kept::shared().works[Kept::taken() % WORKS].tiles) break;
        block.sync();  // the tiles share their scratch memory
    }
    Shared& shared = Kept::shared();
    const Work& done = shared.works[Kept::taken() % WORKS];
    if (done.granules) {
        RingPlace place = done.place;
        warp_arrive(&shared.stages.empty[place.next(done.granules).barrier()]);
    }
}

DEV void work(const Launch& launch) {
    const Block block;
    for (u32 taken = 0;; taken = Kept::taken() + 1) {
        const Shared& shared = Kept::shared();
        wait_phase(&Kept::shared().decoded[taken % WORKS], taken / WORKS % 2);
        if (shared.works[taken % WORKS].last) return;
        block.sync();  // all are done with the work before: with the staging, and with stores that this one may depend on
        run_generic(taken, block);
        warp_arrive(&Kept::shared().done[Kept::taken() % WORKS]);
    }
}
