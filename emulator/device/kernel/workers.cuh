// The workers: 256 threads that execute tiles.
#pragma once
#include "paths.cuh"

// Makes a work of a row's handler the one at hand: its first tile, and its scratch memory once that is free.
DEV void take_up(u32 taken) {
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
    Kept::set(taken, scratch, w.first_tile, w.tiles);
}
DEV void release_scratch(u32 taken) {
    Shared& shared = Kept::shared();
    const Work& w = shared.works[taken % WORKS];
    RingPlace place = w.place;
    warp_arrive(&shared.stages[OWN_STAGES].empty[place.next(w.granules).barrier()]);
}

// Whether warps leave works out that they have no part in. Before Hopper, the assembler would keep five words more of the loop over works in
// local memory for it.
#ifdef HOPPER
constexpr bool LEAVES_OUT = true;
#else
constexpr bool LEAVES_OUT = false;
#endif

// What a worker does next.
struct NextWork {
    u32 taken;  // its number,
    u32 way;    // and its way (paths.cuh), once it is decoded

    // The way comes from a shuffle, so that the compiler knows that all lanes go one way. And all have read their place by then:
    // whoever goes on first writes to it.
    DEV explicit NextWork(u32 number) : taken(number) {
        wait_phase(&Kept::shared().decoded[taken % WORKS], taken / WORKS % 2);
        const Work& w = Kept::shared().works[taken % WORKS];
        way = __shfl_sync(0xffffffffu, w.last ? END_OF_WORK : has_part(w) ? way_of(w) : NO_PART, 0);
    }
    // Behind a work that this warp is done with; `said`: as the others know already.
    DEV static NextWork behind(u32 taken, bool said = false) {
        if (!said) warp_arrive(&Kept::shared().done[taken % WORKS]);
        return NextWork(taken + 1);
    }
    // What a launch begins with.
    DEV static NextWork first() {
#ifdef HOPPER
        const u32 way = of_first_lane(FirstWork::is_loaded() ? way_of(Kept::shared().works[0]) : NO_PART);
        if (way != NO_PART) return NextWork(0, way);  // a product, whose workers wait for being allowed to begin all the same
#endif
        return NextWork(0);
    }

  private:
    DEV NextWork(u32 number, u32 its_way) : taken(number), way(its_way) {}
    // Whether the warp of this lane, the first one, has a unit of `w`, as thread_in_turn gives them out.
    DEV bool has_part(const Work& w) const {
        if (!LEAVES_OUT) return true;
        const u32 thread = (thread_index_anew() - CONTROLLER_WARPS * WARP + taken * WARP) % WORKER_THREADS;
        return w.units == 0 || w.first_tile * WORKER_THREADS + thread < w.units;
    }
};

constexpr u32 MORE_TILES = 1, HAS_SCRATCH = 2, HAS_SAID = 4;
// What a warp does behind a tile.
DEV u32 behind_tile(bool more, bool scratch, bool said) {
    return of_first_lane((more ? MORE_TILES : 0) | (scratch ? HAS_SCRATCH : 0) | (said ? HAS_SAID : 0));
}

// Executes works from `next` on as long as they are handlers', which wait until they may begin (run_tile in
// emulator/device/generate.py); gives the one that is not. A call: what the loop over all works keeps in local memory is not
// read between two of these, as it would be behind a branch.
DEV_CALL NextWork run_generic_works(NextWork next) {
    const Block block;
    for (;;) {
        if (LEAVES_OUT && next.way == NO_PART) {  // those that have one say when all before is done
            next = NextWork::behind(next.taken);
            continue;
        }
        if (next.way != PATH_GENERIC) return next;
        take_up(next.taken);
        u32 taken, what;
        for (;;) {
            run_tile(Kept::shared().works[Kept::taken() % WORKS], Kept::place().tile, block);
            volatile WorkerPlace& place = Kept::place();
            const u32 tile = place.tile + gridDim.x;  // all are read at once
            taken = place.taken;
            what = behind_tile(tile < place.tiles, place.scratch != STAGING_AT, place.end == HAS_ENDED);
            if (!(what & MORE_TILES)) break;
            block.sync();  // the tiles share their scratch memory
            place.tile = tile;
        }
        if (what & HAS_SCRATCH) release_scratch(taken);
        next = NextWork::behind(taken, what & HAS_SAID);
    }
}

DEV void begin_hot(u32 taken) {
    Kept::place().taken = taken;
    wait_done_before(Kept::shared(), taken);
}

// One switch, all of whose cases find out what is next: for each branch around them, the compiler would keep something in local
// memory and read it, at the price of an access to global memory, in every work.
DEV void work() {
    for (NextWork next = NextWork::first();;) {
        switch (next.way) {
            case PATH_GENERIC:
            case NO_PART: next = run_generic_works(next); break;
#ifdef HOPPER
            case PRODUCT_TILES: {
                begin_hot(next.taken);
                Workers workers;
                HopperGemm::run(workers);
                next = NextWork::behind(Kept::taken(), HopperGemm::has_said());
                break;
            }
            case PRODUCT_HALVES: {
                begin_hot(next.taken);
                Workers workers;
                workers.wait_placed();
                const bool said = HopperGemm::Halves::run<false>(workers);
                next = NextWork::behind(Kept::taken(), said);
                break;
            }
            case PRODUCT_HALVES_TOGETHER: {
                begin_hot(next.taken);
                Workers workers;
                workers.wait_placed();
                const bool said = HopperGemm::Halves::run<true>(workers);
                next = NextWork::behind(Kept::taken(), said);
                break;
            }
            case PRODUCT_LOW: {
                begin_hot(next.taken);
                Workers workers;
                workers.wait_placed();
                const bool said = run_low(workers);
                next = NextWork::behind(Kept::taken(), said);
                break;
            }
            case PRODUCT_LOW_TOGETHER: {
                begin_hot(next.taken);
                Workers workers;
                workers.wait_placed();
                const bool said = run_low_together(workers);
                next = NextWork::behind(Kept::taken(), said);
                break;
            }
            case PRODUCT_BOXES: {
                begin_hot(next.taken);
                Workers workers;
                HopperBoxes::run(workers);
                next = NextWork::behind(Kept::taken());
                break;
            }
            case PRODUCT_TALL: {
                begin_hot(next.taken);
                Workers workers;
                HopperTall::run(workers);
                next = NextWork::behind(Kept::taken());
                break;
            }
            case PRODUCT_FLOATS:
                begin_hot(next.taken);
                HopperFloats::run();
                next = NextWork::behind(Kept::taken());
                break;
            case PRODUCT_TF32: {
                begin_hot(next.taken);
                Workers workers;
                HopperTf32::run(workers);
                next = NextWork::behind(Kept::taken());
                break;
            }
            case PATH_STREAM:
                begin_hot(next.taken);
                HopperStream::run();
                next = NextWork::behind(Kept::taken(), HopperStream::has_said());
                break;
            case PATH_PIXELS: {
                begin_hot(next.taken);
                Workers workers;
                HopperPixels::run(workers);
                next = NextWork::behind(Kept::taken());
                break;
            }
            case PATH_FLASH: {
                begin_hot(next.taken);
                Workers workers;
                HopperFlash::run(workers);
                next = NextWork::behind(Kept::taken(), HopperFlash::has_said());
                break;
            }
#endif
            default: return;
        }
    }
}
