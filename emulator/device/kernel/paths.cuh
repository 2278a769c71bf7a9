// Paths: the ways in which the machine executes tensor instructions. The generic one has a handler for every row; the hot
// ones are for Hopper, for what the plan found to fit (emulator/device/paths).
#pragma once
#include "handlers.cuh"
#include "path_workers.cuh"
#include "hopper/conv.cuh"
#include "hopper/flash.cuh"
#include "hopper/gemm.cuh"
#include "hopper/stream.cuh"

// Granules of the ring that the handler of `w` needs; small scratch memory is in the staging, which is always there.
DEV u32 scratch_granules(const Work& w) {
    if (w.path != PATH_GENERIC) return 0;
    const u32 bytes = scratch_of(w);
    return bytes <= STAGING_BYTES ? 0 : (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES;
}

// Lets the handler of `w` choose its way and keep what it measured for it; the tiles and the scratch memory depend on it.
DEV void prepare_path(Work& w, u32 lane) {
    if (lane == 0 && w.path == PATH_GENERIC) prepare_of(w);
    __syncwarp();
}

DEV u32 tiles_of_path(const Work& w) {
    switch (w.path) {
#ifdef HOPPER
        case PATH_GEMM: return HopperGemm::tiles(w);
        case PATH_CONV: return HopperConv::tiles(w);
        case PATH_FLASH: return HopperFlash::tiles(w);
        case PATH_STREAM: return HopperStream::tiles(w);
#endif
        default: return tiles_of(w);
    }
}

// What the loader does for its present work on a hot path. A call: the code of each path has registers of its own. The
// loader is passed by value, and so stays in registers, too.
template <class Path> DEV_CALL Loader load_by(Loader loader) {
    Path::load(shared_state().works[loader.taken % WORKS], loader);
    return loader;
}

DEV void load_path(Loader& loader, const Work& w) {
    switch (w.path) {
#ifdef HOPPER
        case PATH_GEMM: loader = load_by<HopperGemm>(loader); break;
        case PATH_CONV: loader = load_by<HopperConv>(loader); break;
        case PATH_FLASH: loader = load_by<HopperFlash>(loader); break;
        case PATH_STREAM: loader = load_by<HopperStream>(loader); break;
#endif
        default:
            if (w.granules) {
                Stage scratch;
                loader.claim(scratch, w.granules, 0);
            }
    }
}

// One lane works, always the same one.
DEV void run_loader(Shared& shared) {
    Loader loader;
    for (;; ++loader.taken) {
        const u32 slot = loader.taken % WORKS;
        wait_phase(&shared.decoded[slot], loader.taken / WORKS % 2);
        Work& w = shared.works[slot];
        if (w.last) break;
        if (elect_one()) w.place = loader.place;
        warp_arrive(&shared.placed[slot]);
        if (elect_one()) load_path(loader, w);
        warp_arrive(&shared.free[slot]);
    }
    if (elect_one()) loader.finish();
    __syncwarp();
}
