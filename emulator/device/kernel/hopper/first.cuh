// What a launch begins with, where that is a product: its copies wait for nobody, and what they take is in the instruction's image. So they
// are under way while the controller decodes it, and before anybody knows about works, paths and dependencies, all of which is code that comes
// from memory; so does this, and there is nothing in it that can be left out.
#pragma once
#ifdef HOPPER
#include "hopper/conv.cuh"

struct FirstProduct {
    // The loader's warp asks for the image, and for the maps: the plan counts those of the first instruction first.
    static DEV void ask(const Launch& launch, u32 lane) {
        if (!launch.first_product) return;
        uint4* const to = shared_state().first;
        for (u32 i = lane; i < FIRST_PIECES; i += WARP) copy_async_16(to + i, launch.images + i * PIECE_BYTES, PIECE_BYTES);
        copy_async_commit();
        if (elect_one()) {
            prefetch_map(launch.maps);
            prefetch_map(launch.maps + TENSOR_MAP_BYTES);
        }
    }
    // The loader's: whether this block's first work is such a product, of which it has a tile. Tells the workers so, and what they can begin
    // with; the controller, which decodes the same, writes the same. Called by all lanes, each of which has asked for its part.
    static DEV bool found() {
        Shared& shared = shared_state();
        if (!shared.launch->first_product) return false;
        copy_async_wait<0>();
        __syncwarp();
        const bool here = HopperProducts(image()).has(FIRST_FITS) && item() + 1 < image().tiles;
        Work& w = shared.works[0];
        const u32 lane = threadIdx.x % WARP;
        if (here && lane < PATH_DETAIL) w.detail[lane] = image().detail[lane];
        if (lane == 0) {
            shared.begins_here = here;
            if (here) {
                w.path = image().path;
                w.place = RingPlace();
            }
        }
        warp_arrive(&shared.announced);
        if (here) warp_arrive(&shared.placed[0]);
        return here;
    }
    // The workers': waits for that.
    static DEV bool is_here() {
        Shared& shared = Kept::shared();
        if (!shared.launch->first_product) return false;
        wait_phase(&shared.announced, 0);
        return shared.begins_here;
    }
    // Loads all of it. Called by one lane.
    static DEV_CALL void load() {
        Loader loader{LoaderState()};
        const HopperProducts p(image());
        loader.loaded = 1;
        if (p.shares_operand()) {
            loader.kind = SHARED_STAGES;
            loader.tell_other();
        }
        if (p.work.path == PATH_CONV) load_windows(p, loader);
        else load_operands(p, loader);
        loader.keep();
    }

  private:
    // As much of a work as an image has: its tiles count from 1 on, and are 0 where registers have a say.
    static DEV const Work& image() { return *reinterpret_cast<const Work*>(shared_state().first); }
    static DEV u32 item() { return blockIdx.x - image().first_block + (blockIdx.x >= image().first_block ? 0 : gridDim.x); }

    // Stages of large tiles come no faster than is needed: the code that the others of the block execute for the first time comes the same way.
    static DEV u32 at_once(const HopperProducts& p) { return p.has(OUT_IN_BOXES) ? 2 : GRANULES; }

    static DEV void load_windows(const HopperProducts& p, Loader& loader) {
        const u32 granules = p.granules(), bytes = p.stage_bytes(), most = at_once(p);
#pragma unroll 1
        for (u32 i = item(); i + 1 < image().tiles; i += gridDim.x) {
            const ProductItem at = p.tiles().in_bands(i);
            ConvLoader copies(p, at);
            loader.tell(at.row, at.column);
            if (!loader.fill_first(at.stages, granules, bytes, most, [&](u32 stage, u64* full) { copies.load(stage, full); })) return;
        }
    }
    static DEV void load_operands(const HopperProducts& p, Loader& loader) {
        OperandLoader<false> a(p, 0), b(p, 1);
        const u32 granules = p.granules(), bytes = p.copied_bytes(), most = at_once(p);
        bool heard = !p.shares_operand();
#pragma unroll 1
        for (u32 i = item(); i + 1 < image().tiles; i += gridDim.x) {
            const ProductItem at = p.tiles().in_bands(i);
            a.begin(p, 0, at);
            b.begin(p, 1, at);
            loader.tell(at.row, at.column);
            if (!heard && !loader.hear_other()) return;
            heard = true;
            const bool filled = loader.fill_first(at.stages, granules, bytes, most, [&](u32 stage, u64* full) {
                b.load(p, stage, full);
                a.load(p, stage, full);
            });
            if (!filled) return;
        }
        if (p.shares_operand()) loader.wait_full();
    }
};
#endif
