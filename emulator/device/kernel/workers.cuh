// The workers: 256 threads that execute tiles.
#pragma once
#include "paths.cuh"

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
        while (!mbarrier_test(&shared.stages[OWN_STAGES].full[stage.barrier()], stage.parity()) && !stopped(shared)) {
        }
        scratch = stage.offset();
    }
    Kept::set(taken, scratch);
    wait_phase(&Kept::shared().ready[taken % WORKS], taken / WORKS % 2);
    if (!w.go) return;
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
        warp_arrive(&shared.stages[OWN_STAGES].empty[place.next(done.granules).barrier()]);
    }
}

// Executes a work by the path that the plan found for it.
DEV void run_path(u32 taken, const Block& block) {
    Kept::place().taken = taken;
    switch (Kept::shared().works[taken % WORKS].path) {
#ifdef HOPPER
        case PATH_GEMM:
        case PATH_CONV: {  // the same, once its operands are in shared memory
            Workers workers;
            if (HopperFloats::runs(workers.work())) HopperFloats::run();
            else HopperGemm::run(workers);
            break;
        }
        case PATH_STREAM: HopperStream::run(); break;
        case PATH_FLASH: {
            Workers workers;
            HopperFlash::run(workers);
            break;
        }
#endif
        default: run_generic(taken, block);
    }
}

DEV void work(const Launch& launch) {
    const Block block;
    for (u32 taken = 0;; taken = Kept::taken() + 1) {
        const Shared& shared = Kept::shared();
        wait_phase(&Kept::shared().decoded[taken % WORKS], taken / WORKS % 2);
        if (shared.works[taken % WORKS].last) return;
        block.sync();  // all are done with the work before: with the staging, and with stores that this one may depend on
        run_path(taken, block);
        warp_arrive(&Kept::shared().done[Kept::taken() % WORKS]);
    }
}
