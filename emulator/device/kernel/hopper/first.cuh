// What a launch begins with, where that is a product: its copies wait for nobody, and what they take is in the instruction's image, or was
// worked out for each block when the program was loaded. So they are under way while the controller decodes it, and before anybody knows about
// works, paths and dependencies, all of which is code that comes from memory; so does this, and there is nothing in it that can be left out.
#pragma once
#ifdef HOPPER
#include "hopper/conv.cuh"

// What a block's loader begins with. Instructions in front of the first copy, which nobody has executed before, take 6 clocks each.
struct __align__(16) FirstTile {
    u32 stages;
    ProductCorner corner;
    u32 reserved[2];
    u64 places[(FIRST_TILE_BYTES - 16) / sizeof(u64)];  // a and b's OperandLoader, or a ConvPlace

    template <class T> DEV T& at(u32 index) { return reinterpret_cast<T*>(places)[index]; }

    // Of `item`, for this block.
    DEV void set(const HopperProducts& p, const ProductItem& item) {
        stages = item.stages;
        corner = ProductCorner::at(item.row, item.column);
        if (p.work.path == PATH_CONV) {
            at<ConvPlace>(0) = ConvPlace(p, item);
            return;
        }
        for (u32 i = 0; i < 2; ++i) {
            OperandLoader<false> loader(p, i);
            loader.begin(p, i, item);
            at<OperandLoader<false>>(i) = loader;
        }
    }
};
static_assert(sizeof(FirstTile) == FIRST_TILE_BYTES && sizeof(ConvPlace) <= sizeof(FirstTile::places), "the host makes room for it");
static_assert(2 * sizeof(OperandLoader<false>) <= sizeof(FirstTile::places), "they fit");

struct FirstProduct {
    // When the program is loaded, in each block: puts what its loader begins with to the block's place of `tiles`. `w` is the first instruction.
    static DEV_CALL void prepare(const Work& w, char* tiles) {
        if (w.path != PATH_GEMM && w.path != PATH_CONV) return;
        const HopperProducts p(w);
        const u32 item = item_of(w.first_block);
        if (p.has(FIRST_FITS) && item < p.tiles().items()) reinterpret_cast<FirstTile*>(tiles)[blockIdx.x].set(p, p.tiles().at(item));
    }
    // The loader's warp asks for the image, for its block's first tile, and for the maps: the plan counts those of the first instruction first.
    static DEV void ask(const Launch& launch, u32 lane) {
        if (!launch.first_product) return;
        Shared& shared = shared_state();
        for (u32 i = lane; i < FIRST_PIECES; i += WARP) copy_async_16(shared.first + i, launch.images + i * PIECE_BYTES, PIECE_BYTES);
        const char* const tile = launch.first_tiles + blockIdx.x * FIRST_TILE_BYTES;
        if (lane < FIRST_TILE_BYTES / PIECE_BYTES) copy_async_16(shared.first_tile + lane, tile + lane * PIECE_BYTES, PIECE_BYTES);
        copy_async_commit();
        if (elect_one()) {
            prefetch_map(launch.maps);
            prefetch_map(launch.maps + TENSOR_MAP_BYTES);
        }
    }
    // The loader's: whether this block's first work is such a product, of which it has a tile. Tells the workers so, and what they can begin
    // with: header and operands, of which the controller writes the same, and tiles, which are one too many while it decodes. Called by all
    // lanes, each of which has asked for its part.
    static DEV bool found() {
        Shared& shared = shared_state();
        if (!shared.launch->first_product) return false;
        copy_async_wait<0>();
        __syncwarp();
        const bool here = HopperProducts(image()).has(FIRST_FITS) && item() + 1 < image().tiles;
        Work& w = shared.works[0];
        const u32 lane = threadIdx.x % WARP;
        for (u32 i = 1 + lane; here && i < FIRST_PIECES; i += WARP) reinterpret_cast<uint4*>(&w)[i] = shared.first[i];
        if (lane == 0) {
            shared.begins_here = here;
            if (here) {
                w.tiles = image().tiles - 1;
                w.first_tile = item();
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
    static DEV FirstTile& tile() { return *reinterpret_cast<FirstTile*>(shared_state().first_tile); }
    static DEV u32 item() { return item_of(image().first_block); }
    static DEV u32 item_of(u32 first_block) { return blockIdx.x - first_block + (blockIdx.x >= first_block ? 0 : gridDim.x); }

    // Stages of large tiles come no faster than is needed: the code that the others of the block execute for the first time comes the same way.
    static DEV u32 at_once(const HopperProducts& p) { return p.has(OUT_IN_BOXES) ? 2 : GRANULES; }

    static DEV void load_windows(const HopperProducts& p, Loader& loader) {
        const u32 granules = p.granules(), bytes = p.stage_bytes(), most = at_once(p);
        ConvLoader copies(p, tile().at<ConvPlace>(0));
        ProductCorner corner = tile().corner;
        u32 stages = tile().stages;
#pragma unroll 1
        for (u32 i = item();;) {
            loader.tell(corner);
            if (!loader.fill_first(stages, granules, bytes, most, [&](u32 stage, u64* full) { copies.load(stage, full); })) return;
            i += gridDim.x;
            if (i + 1 >= image().tiles) return;
            const ProductItem at = p.tiles().in_bands(i);
            corner = ProductCorner::at(at.row, at.column);
            stages = at.stages;
            copies.go_to(ConvPlace(p, at));
        }
    }
    static DEV void load_operands(const HopperProducts& p, Loader& loader) {
        OperandLoader<false> a = tile().at<OperandLoader<false>>(0), b = tile().at<OperandLoader<false>>(1);
        const u32 granules = p.granules(), bytes = p.copied_bytes(), most = at_once(p);
        ProductCorner corner = tile().corner;
        u32 stages = tile().stages;
        if (p.shares_operand() && !loader.hear_other()) return;
#pragma unroll 1
        for (u32 i = item();;) {
            loader.tell(corner);
            const bool filled = loader.fill_first(stages, granules, bytes, most, [&](u32 stage, u64* full) {
                b.load(p, stage, full);
                a.load(p, stage, full);
            });
            if (!filled) return;
            i += gridDim.x;
            if (i + 1 >= image().tiles) break;
            const ProductItem at = p.tiles().in_bands(i);
            corner = ProductCorner::at(at.row, at.column);
            stages = at.stages;
            a.begin(p, 0, at);
            b.begin(p, 1, at);
        }
        if (p.shares_operand()) loader.wait_full();
    }
};
#endif
