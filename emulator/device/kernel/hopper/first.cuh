// What a launch begins with. Its code comes from memory, and its first instruction waits for nobody: so that is decoded when the program is
// loaded, if it has neither registers nor scalars, and handed out as it is. If it is a product, what each block's loader begins with is worked
// out then, too, and its copies are under way before anybody else knows about works, paths and dependencies.
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

    // Of `item`, which is this block's.
    DEV void set(const HopperProducts& p, const ProductItem& item, u32 block) {
        stages = item.stages;
        corner = ProductCorner::at(item.row, item.column);
        if (p.work.path == PATH_CONV) {
            at<ConvPlace>(0) = ConvPlace(p, item);
            return;
        }
        for (u32 i = 0; i < 2; ++i) {
            OperandLoader<false> loader(p, i, block);
            loader.begin(p, i, item);
            at<OperandLoader<false>>(i) = loader;
        }
    }
};
static_assert(sizeof(FirstTile) == FIRST_TILE_BYTES && sizeof(ConvPlace) <= sizeof(FirstTile::places), "the host makes room for it");
static_assert(2 * sizeof(OperandLoader<false>) <= sizeof(FirstTile::places), "they fit");

// The launch's first work, where dla_prepare has decoded it (`first_work` of Launch), and its tile.
struct FirstWork {
    // When the program is loaded: keeps `w`, the first one, and what the loaders of all blocks begin with. Called by a warp.
    static DEV_CALL void keep(const Launch& launch, Work& w, u32 tiles, u32 granules, u32 lane) {
        if (lane == 0) {
            w.tiles = tiles;
            w.granules = granules;
            w.order = 1;
            w.counters = w.follows_own = 0;
        }
        __syncwarp();
        for (u32 i = lane; i < FIRST_WORK_BYTES / PIECE_BYTES; i += WARP)
            reinterpret_cast<uint4*>(launch.first)[i] = reinterpret_cast<const uint4*>(&w)[i];
        const HopperProducts p(w);
        if (launch.first_work != FIRST_PRODUCT || !p.has(FIRST_FITS)) return;
        FirstTile* const places = reinterpret_cast<FirstTile*>(launch.first + FIRST_WORK_BYTES);
        for (u32 block = lane; block < gridDim.x; block += WARP) {
            const u32 item = item_of(w, block);
            if (item < tiles) places[block].set(p, p.tiles().at(item), block);
        }
    }
    // The loader's warp asks for these, and for the maps: the plan counts those of the first instruction first.
    static DEV void ask(const Launch& launch, u32 lane) {
        if (!launch.first_work) return;
        Shared& shared = shared_state();
        copy<FIRST_WORK_BYTES>(&shared.works[0], launch.first, lane);
        if (launch.first_work == FIRST_PRODUCT) {
            copy<FIRST_TILE_BYTES>(shared.first_tile, launch.first + FIRST_WORK_BYTES + blockIdx.x * FIRST_TILE_BYTES, lane);
            if (elect_one()) {
                prefetch_map(launch.maps);
                prefetch_map(launch.maps + TENSOR_MAP_BYTES);
            }
        }
        copy_async_commit();
    }
    // The loader's: tells the others that it is there, and whether it is a product, of which this block has a tile. Called by all lanes, each
    // of which has asked for its part.
    static DEV bool found() {
        Shared& shared = shared_state();
        if (!shared.launch->first_work) return false;
        copy_async_wait<0>();
        __syncwarp();
        Work& w = shared.works[0];
        const u32 item = item_of(w, blockIdx.x);
        const bool here = shared.launch->first_work == FIRST_PRODUCT && HopperProducts(w).has(FIRST_FITS) && item < w.tiles;
        if (threadIdx.x % WARP == 0) {
            w.first_tile = item;
            w.place = RingPlace();
            shared.begins_here = here;
        }
        warp_arrive(&shared.announced);
        if (here) warp_arrive(&shared.placed[0]);
        return here;
    }
    // The workers': waits for that.
    static DEV bool is_loaded() {
        Shared& shared = Kept::shared();
        if (shared.launch->first_work != FIRST_PRODUCT) return false;
        wait_phase(&shared.announced, 0);
        return shared.begins_here;
    }
    // Loads all of it. Called by one lane.
    static DEV_CALL void load() {
        Loader loader{LoaderState()};
        const HopperProducts p(shared_state().works[0]);
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
    static DEV FirstTile& tile() { return *reinterpret_cast<FirstTile*>(shared_state().first_tile); }
    static DEV u32 item_of(const Work& w, u32 block) { return block - w.first_block + (block >= w.first_block ? 0 : gridDim.x); }
    template <u32 BYTES> static DEV void copy(void* to, const char* from, u32 lane) {
#pragma unroll
        for (u32 i = lane; i < BYTES / PIECE_BYTES; i += WARP) copy_async_16(static_cast<uint4*>(to) + i, from + i * PIECE_BYTES, PIECE_BYTES);
    }

    // Stages of large tiles come no faster than is needed: the code that the others of the block execute for the first time comes the same way.
    static DEV u32 at_once(const HopperProducts& p) { return p.has(OUT_IN_BOXES) ? 2 : GRANULES; }

    static DEV void load_windows(const HopperProducts& p, Loader& loader) {
        const u32 granules = p.granules(), bytes = p.stage_bytes(), most = at_once(p);
        ConvLoader copies(p, tile().at<ConvPlace>(0));
        u32 stages = tile().stages;
        loader.tell(tile().corner);
#pragma unroll 1
        for (u32 i = p.work.first_tile;;) {
            if (!loader.fill_first(stages, granules, bytes, most, [&](u32 stage, u64* full) { copies.load(stage, full); })) return;
            i += gridDim.x;
            if (i >= p.work.tiles) return;
            const ProductItem at = p.tiles().in_bands(i);
            loader.tell(ProductCorner::at(at.row, at.column));
            stages = at.stages;
            copies.go_to(ConvPlace(p, at));
        }
    }
    static DEV void load_operands(const HopperProducts& p, Loader& loader) {
        OperandLoader<false> a = tile().at<OperandLoader<false>>(0), b = tile().at<OperandLoader<false>>(1);
        const u32 granules = p.granules(), bytes = p.copied_bytes(), most = at_once(p);
        u32 stages = tile().stages;
        loader.tell(tile().corner);
        if (p.shares_operand() && !loader.hear_other()) return;
#pragma unroll 1
        for (u32 i = p.work.first_tile;;) {
            const bool filled = loader.fill_first(stages, granules, bytes, most, [&](u32 stage, u64* full) {
                b.load(p, stage, full);
                a.load(p, stage, full);
            });
            if (!filled) return;
            i += gridDim.x;
            if (i >= p.work.tiles) break;
            const ProductItem at = p.tiles().in_bands(i);
            loader.tell(ProductCorner::at(at.row, at.column));
            stages = at.stages;
            a.begin(p, 0, at);
            b.begin(p, 1, at);
        }
        if (p.shares_operand()) loader.wait_full();
    }
};
#endif
