// The workers: 256 threads that execute tiles.
#pragma once
#include "paths.cuh"

// What a warp keeps in shared memory while a tile is executed: its code takes all registers, and what the compiler saved
// would go to local memory, which every acquire empties from the cache.
struct Kept {
    DEV static Shared& shared() { return *reinterpret_cast<Shared*>(shared_memory_anew() + SHARED_AT); }
    DEV static u32 warp() { return thread_index_anew() / WARP - CONTROLLER_WARPS; }  // no shuffle: callers may be divergent
    DEV static u32 get(const u32 (&of_warps)[WORKER_WARPS]) { return static_cast<const volatile u32*>(of_warps)[warp()]; }
    DEV static void set(u32 (&of_warps)[WORKER_WARPS], u32 v) {
        __syncwarp();
        if (thread_index_anew() % WARP == 0) static_cast<volatile u32*>(of_warps)[warp()] = v;
        __syncwarp();
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
    Kept::set(Kept::shared().scratch, scratch);
    Kept::set(Kept::shared().taken, taken);
    wait_phase(&Kept::shared().ready[taken % WORKS], taken / WORKS % 2);
    if (!w.go) return;
    if (block.thread() == 0) Kept::shared().instruction = w.instruction;
    for (u32 tile = w.first_tile;;) {
        Kept::set(Kept::shared().tile, tile);
        run_tile(w, tile, block);
        const Shared& shared = Kept::shared();
        tile = Kept::get(shared.tile) + gridDim.x;
        if (tile >= shared.works[Kept::get(shared.taken) % WORKS].tiles) break;
        block.sync();  // the tiles share their scratch memory
    }
    Shared& shared = Kept::shared();
    const Work& done = shared.works[Kept::get(shared.taken) % WORKS];
    if (done.granules) {
        RingPlace place = done.place;
        warp_arrive(&shared.stages.empty[place.next(done.granules).barrier()]);
    }
}

DEV void work(const Launch& launch) {
    const Block block;
    for (u32 taken = 0;; taken = Kept::get(Kept::shared().taken) + 1) {
        const Shared& shared = Kept::shared();
        wait_phase(&Kept::shared().decoded[taken % WORKS], taken / WORKS % 2);
        if (shared.works[taken % WORKS].last) return;
        block.sync();  // all are done with the work before: with the staging, and with stores that this one may depend on
        run_generic(taken, block);
        warp_arrive(&Kept::shared().done[Kept::get(Kept::shared().taken) % WORKS]);
    }
}
