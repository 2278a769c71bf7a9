// CONV of 16-bit floats on wgmma: a product whose rows are output positions and whose depth is (place in the kernel,
// channel). The copy engine gathers the rows: for a place in the kernel, what the windows of neighbouring positions have
// there are pixels at equal distances of x, or zeros outside of it (PTX ISA, "Im2col mode").
#pragma once
#ifdef HOPPER
#include "hopper/gemm.cuh"

// Starts the copies of one item, stage by stage. What is not here is read again at each use: the loader has few registers.
struct ConvLoader {
    const HopperProducts& p;
    i32 left, top;   // the window of the tile's first position
    u32 sample;
    u32 column;      // the tile's first output
    u32 x, y, block; // the next stage: place in the kernel, and DEPTH channels there

    DEV ConvLoader(const HopperProducts& products, const ProductItem& at) : p(products), column(at.column) {
        const Tensor& out = args().out();
        const u32 across = out.dims[out.rank - 2], down = out.rank == 4 ? out.dims[1] : 1, line = at.row / across;
        sample = line / down;
        left = static_cast<i32>(at.row - line * across) * args().strides(1) - args().pads(1);
        top = static_cast<i32>(line - sample * down) * args().strides(0) - args().pads(0);
        seek(at.first_stage);
    }
    DEV const ConvArgs& args() const { return ConvArgs::of(p.work); }
    DEV u32 kernel_columns() const { return args().w().dims[args().w().rank - 2]; }
    DEV u32 channel_blocks() const { return (args().w().dims[args().w().rank - 1] + DEPTH - 1) / DEPTH; }

    // Goes to stage `index` of the whole depth, and to the next one.
    DEV void seek(u32 index) {
        const u32 place = index / channel_blocks();
        block = index - place * channel_blocks();
        y = place / kernel_columns();
        x = place - y * kernel_columns();
    }
    DEV void next() {
        if (++block != channel_blocks()) return;
        block = 0;
        if (++x != kernel_columns()) return;
        x = 0;
        ++y;
    }

    DEV void load_windows(u32 shared, u64* full) const {
        const u32 right = x * args().dilations(1), below = y * args().dilations(0);
        tensor_load_im2col(shared, p.map(p.schedule().a_map), full, block * DEPTH, left, top, sample, right, below);
    }
    DEV void load_kernels(u32 shared, u64* full) const {
        tensor_load_4d(shared + p.left_bytes(), p.map(p.schedule().b_map), full, block * DEPTH, x, y, column);
    }
};

struct HopperConv {
    static DEV u32 tiles(const Work& w) { return HopperProducts(w).tiles().items(); }

    static DEV void load(const Work& w, Loader& loader) {
        const HopperProducts p(w);
        const ProductTiles tiles = p.tiles();
        const u32 granules = p.granules(), bytes = p.left_bytes() + p.right_bytes();
        bool ready = !p.has(B_CONSTANT);
        if (ready) loader.wait_ready();
#pragma unroll 1
        for (u32 item = w.first_tile; item < w.tiles; item += gridDim.x) {
            const ProductItem at = tiles.at(item);
            ConvLoader copies(p, at);
            u32 left = at.stages;
            Stage stage;
            if (!ready) {
                // Kernels that nothing in the program writes are on their way before it is known that x can be read.
                RingPlace behind = loader.place;
                for (u32 early = 0; early < left && loader.has_room(behind, granules); ++early, copies.next()) {
                    if (!loader.claim(stage, granules, bytes)) return;
                    copies.load_kernels(loader.address(stage), loader.full(stage));
                }
                loader.wait_ready();
                ready = true;
                copies.seek(at.first_stage);
                for (; behind.sequence != loader.place.sequence; --left, copies.next()) {
                    stage = behind.next(granules);
                    copies.load_windows(loader.address(stage), loader.full(stage));
                }
            }
            const bool filled = loader.fill(left, granules, bytes, [&](u32 to, u64* full) {
                copies.load_windows(to, full);
                copies.load_kernels(to, full);
                copies.next();
            });
            if (!filled) return;
            if (p.schedule().scratch && !loader.claim(stage, p.schedule().scratch, 0)) return;
        }
    }
};
#endif
