// What the hot paths see of the workers.
#pragma once
#include "loader.cuh"

// What a warp keeps in shared memory while a tile is executed: its code takes all registers, and what the compiler saved
// would go to local memory, which every acquire empties from the cache.
struct Kept {
    DEV static Shared& shared() { return *reinterpret_cast<Shared*>(shared_memory_anew() + SHARED_AT); }
    DEV static u32 warp() { return thread_index_anew() / WARP - CONTROLLER_WARPS; }  // no shuffle: callers may be divergent
    DEV static u32 lane() { return thread_index_anew() % WARP; }
    DEV static volatile WorkerPlace& place() { return shared().workers[warp()]; }
    DEV static u32 taken() { return place().taken; }
    // Every lane writes the same: no lane has to wait for another.
    DEV static void set(u32 taken, u32 scratch, u32 tile, u32 tiles) {
        volatile WorkerPlace& here = place();
        here.end = scratch == STAGING_AT && tile + gridDim.x >= tiles ? MAY_END : 0;
        here.taken = taken;
        here.tile = tile;
        here.scratch = scratch;
        here.tiles = tiles;
    }
};

// What all lanes of a warp have found alike, by a shuffle, so that the compiler knows that they go one way; else it may keep in local
// memory where they would meet again.
DEV u32 of_first_lane(u32 v) { return __shfl_sync(0xffffffffu, v, 0); }

// The workers of a block as the hot paths see them: 8 warps, and the stages that the loader filled for the present work.
struct Workers {
    RingPlace place;

    // The work, by an address worked out anew: what is read through it is not kept in registers over a main loop.
    DEV const Work& work() const { return Kept::shared().works[Kept::taken() % WORKS]; }

    // Anew: else the compiler keeps what it can work out from the lane, of all paths, from the kernel's start on.
    DEV u32 thread() const { return thread_index_anew() - CONTROLLER_WARPS * WARP; }
    DEV u32 warp() const { return __shfl_sync(0xffffffffu, thread() / WARP, 0); }
    DEV u32 lane() const { return thread_index_anew() % WARP; }
    DEV void sync() const { named_barrier(WORKER_BARRIER, WORKER_THREADS); }

    // Waits until everything that the work depends on is done; false if the run is over.
    DEV bool wait_ready() const {
        const u32 taken = Kept::taken();
        wait_phase(&Kept::shared().ready[taken % WORKS], taken / WORKS % 2);
        return work().go;  // one answer for all warps, whoever traps meanwhile
    }
    // Waits until it is known where the work's first stage lies.
    DEV void wait_placed() {
        const u32 taken = Kept::taken();
        wait_phase(&Kept::shared().placed[taken % WORKS], taken / WORKS % 2);
        place = work().place;
    }
    // The next stage; its address in the shared window.
    DEV u32 next(Stage& stage, u32 granules) {
        stage = place.next(granules);
        return shared_address(shared_memory) + stage.offset();
    }
    // Where the tile begins whose first stage is the next one, once that is there.
    DEV ProductCorner corner(u32 granules, u32 kind) const {
        RingPlace ahead = place;
        const Stage stage = ahead.next(granules);
        wait(stage, kind);
        return Kept::shared().corners[stage.sequence % CORNERS];
    }
    // Waits for the bytes of a stage; after a trap they may be missing.
    DEV void wait(const Stage& stage, u32 kind = OWN_STAGES) const {
        while (!mbarrier_test(&shared_state().stages[kind].full[stage.barrier()], stage.parity())) {
            if (stopped(shared_state())) return;
        }
    }
    // Called by every warp once it is done with the stage.
    DEV void release(const Stage& stage, u32 kind = OWN_STAGES) const {
        u64* empty = &shared_state().stages[kind].empty[stage.barrier()];
        warp_arrive(empty);
        if (kind == SHARED_STAGES && lane() < ARRIVING_LANES) mbarrier_arrive_there(empty);
    }
    // The same of a stage that products have read, and no lane since all have met. `lane` was asked for while they were under way.
    DEV void release_multiplied(const Stage& stage, u32 kind, u32 lane) const {
        u64* empty = &shared_state().stages[kind].empty[stage.barrier()];
        if (lane < ARRIVING_LANES) mbarrier_arrive(empty);
        if (kind == SHARED_STAGES && lane < ARRIVING_LANES) mbarrier_arrive_there(empty);
    }
    // The 2 KB of store staging that a warp has, in the shared window, 1024-byte aligned.
    DEV u32 staging() const { return shared_address(shared_memory) + STAGING_AT + warp() * (STAGING_BYTES / WORKER_WARPS); }
};

// How a warp says that it is done with a work, behind its last tile. Known before the main loop: everybody waits for what is worked out
// behind it.
struct LastTile {
    u64* done;  // where it says so
    u32 lane;
    bool is_last;

    DEV LastTile(const Workers& me, u32 item)
        : done(&Kept::shared().done[Kept::taken() % WORKS]), lane(me.lane()), is_last(item + gridDim.x >= me.work().tiles) {}
    // Called by a warp that is done with the tile. Whether the others know now that it is done with the work: then the work's slot may
    // be another one's soon, and the warp does not look there any more.
    DEV bool said() const {
        if (is_last) warp_arrive(done, lane);
        return is_last;
    }
};

// The same of a handler's tile with scratch memory, which is the warp's only one of the work: what Block::end does for those without.
struct LastScratch {
    u64 *done, *empty;

    DEV LastScratch() {
        Shared& shared = Kept::shared();
        const u32 slot = Kept::taken() % WORKS;
        const Work& w = shared.works[slot];
        RingPlace place = w.place;
        done = &shared.done[slot];
        empty = &shared.stages[OWN_STAGES].empty[place.next(w.granules).barrier()];
    }
    // Called by a whole warp that has stored all of its tile, and touches nothing of the work or its scratch memory any more.
    DEV void end() const {
        warp_arrive(empty);
        warp_arrive(done);
        volatile WorkerPlace& here = Kept::place();
        here.scratch = STAGING_AT;
        here.end = HAS_ENDED;
    }
};
