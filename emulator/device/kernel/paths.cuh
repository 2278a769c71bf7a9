// Paths: the ways in which the machine executes tensor instructions. The generic one has a handler for every row; the hot
// ones are for Hopper, for what the plan found to fit (emulator/device/paths).
#pragma once
#include "handlers.cuh"
#include "path_workers.cuh"
#include "hopper/boxes.cuh"
#include "hopper/first.cuh"
#include "hopper/flash.cuh"
#include "hopper/floats.cuh"
#include "hopper/gemm.cuh"
#include "hopper/pixels.cuh"
#include "hopper/stream.cuh"
#include "hopper/tall.cuh"
#include "hopper/tensor_floats.cuh"

// Granules of the ring that the handler of `w` needs; small scratch memory is in the staging, which is always there.
DEV u32 scratch_granules(const Work& w) {
#ifdef HOPPER
    if (w.path == PATH_PIXELS) return HopperPixels::granules(w);
#endif
    if (w.path != PATH_GENERIC) return 0;
    const u32 bytes = scratch_of(w);
    return bytes <= STAGING_BYTES ? 0 : (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES;
}

// What workers switch on: of products, how these are made, which is asked for once (`prepare_path`); of others, their path. NO_PART: whatever
// it is, this warp has no part in it.
constexpr u32 PRODUCT_TILES = PATH_HOST + 1, PRODUCT_HALVES = PRODUCT_TILES + 1, PRODUCT_HALVES_TOGETHER = PRODUCT_TILES + 2, PRODUCT_LOW = PRODUCT_TILES + 3;
constexpr u32 PRODUCT_LOW_TOGETHER = PRODUCT_TILES + 4, PRODUCT_BOXES = PRODUCT_TILES + 5, PRODUCT_TALL = PRODUCT_TILES + 6, PRODUCT_FLOATS = PRODUCT_TILES + 7;
constexpr u32 PRODUCT_TF32 = PRODUCT_TILES + 8, END_OF_WORK = PRODUCT_TILES + 9, NO_PART = PRODUCT_TILES + 10;

#ifdef HOPPER
DEV u32 way_of_product(const Work& w) {
    const HopperProducts p(w);
    if (HopperFloats::runs(w)) return PRODUCT_FLOATS;
    if (HopperTall::runs(w)) return PRODUCT_TALL;
    if (HopperBoxes::runs(w)) return PRODUCT_BOXES;
    if (HopperTf32::runs(w)) return PRODUCT_TF32;
    if (p.low()) return p.has(DEPTH_SHARED) ? PRODUCT_LOW_TOGETHER : PRODUCT_LOW;
    if (p.has(DEPTH_SHARED) && p.alone()) return PRODUCT_HALVES_TOGETHER;
    return HopperGemm::Halves::do_for(p) ? PRODUCT_HALVES : PRODUCT_TILES;
}
#endif
DEV u32 way_of(const Work& w) {
#ifdef HOPPER
    if (w.path == PATH_GEMM || w.path == PATH_CONV) return HopperProducts(w).schedule().way;
#endif
    return w.path;
}

// Lets the handler of `w` choose its way and keep what it measured for it; the tiles and the scratch memory depend on it.
DEV void prepare_path(Work& w, u32 lane) {
    if (lane == 0) {
        switch (w.path) {
            case PATH_GENERIC: prepare_of(w); break;
#ifdef HOPPER
            case PATH_GEMM:
            case PATH_CONV:
                HopperGemm::prepare(w);
                reinterpret_cast<ProductSchedule*>(w.detail)->way = way_of_product(w);
                break;
#endif
            default: break;
        }
    }
    __syncwarp();
}

DEV u32 tiles_of_path(const Work& w) {
    switch (w.path) {
#ifdef HOPPER
        case PATH_GEMM: return HopperGemm::tiles(w);
        case PATH_CONV: return HopperConv::tiles(w);
        case PATH_FLASH: return HopperFlash::tiles(w);
        case PATH_STREAM: return HopperStream::tiles(w);
        case PATH_PIXELS: return HopperPixels::tiles(w);
#endif
        default: return tiles_of(w);
    }
}

// The kind of stages that a work has.
DEV u32 stages_of(const Work& w) {
#ifdef HOPPER
    if (w.path == PATH_GEMM && HopperGemm::shares_operand(w)) return SHARED_STAGES;
#endif
    return OWN_STAGES;
}

// What the loader does for its present work on a hot path. A call: the code of each path has registers of its own.
template <class Path> DEV_CALL void load_by() {
    Loader loader;
    Path::load(shared_state().works[loader.taken % WORKS], loader);
    loader.keep();
}

// Lets the loader claim stages of one kind; false if the run is over.
DEV_CALL bool use_stages(u32 kind) {
    Loader loader;
    const bool used = loader.use(kind);
    loader.keep();
    return used;
}

// A call: behind a branch with all of this in it, a warp does not come together again by itself, which costs it 400 clocks.
DEV_CALL void load_path(const Work& w) {
    if (w.path == PATH_GENERIC && w.granules == 0) return;
    LoaderState& state = shared_state().loader;
    if (state.loaded) {
        state.loaded = 0;
        return;
    }
    const u32 kind = stages_of(w);
    if ((kind != OWN_STAGES || kind != state.kind) && !use_stages(kind)) return;
    switch (w.path) {
#ifdef HOPPER
        case PATH_GEMM:
            if (HopperBoxes::runs(w)) load_boxes(w);
            else load_by<HopperGemm>();
            break;
        case PATH_CONV: load_by<HopperConv>(); break;
        case PATH_FLASH: load_by<HopperFlash>(); break;
        case PATH_STREAM: load_by<HopperStream>(); break;
#endif
        default:
            Loader loader;
            Stage scratch;
            loader.claim(scratch, w.granules, 0);
            loader.keep();
    }
}

// One lane works, always the same one. Nothing is kept in registers while it loads.
DEV void run_loader() {
#ifdef HOPPER
    if (FirstWork::found()) {
        if (elect_one()) FirstWork::load();
        __syncwarp();
    }
#endif
    for (;;) {
        Shared& shared = Kept::shared();
        const u32 taken = shared.loader.taken, slot = taken % WORKS;
        wait_phase(&shared.decoded[slot], taken / WORKS % 2);
        Work& w = shared.works[slot];
        if (w.last) break;
        const bool loaded = shared.loader.loaded != 0;
        __syncwarp();  // every lane has read it, before the one that loads changes it
        if (!loaded) {
            if (elect_one()) w.place = stages_of(w) == shared.loader.kind ? shared.loader.place : shared.other_place;
            warp_arrive(&shared.placed[slot]);
        }
        if (w.path == PATH_GENERIC) expect_of(w, threadIdx.x % WARP);
        if (elect_one()) load_path(w);
        Shared& again = Kept::shared();
        warp_arrive(&again.free[again.loader.taken % WORKS]);
        if (elect_one()) again.loader.taken += 1;
        __syncwarp();
    }
    if (elect_one()) Loader().finish();
    __syncwarp();
}
