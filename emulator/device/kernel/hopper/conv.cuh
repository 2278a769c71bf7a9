// CONV of 16-bit floats, and of f32 as tf32, on wgmma; and of f32 as it is: a product whose rows are output positions and
// whose depth is (place in the kernel, channel). The copy engine gathers the rows: for a place in the kernel, what the
// windows of neighbouring positions have there are pixels at equal distances of x, or zeros outside of it (PTX ISA, "Im2col
// mode").
#pragma once
#ifdef HOPPER
#include "hopper/gemm.cuh"

// A stage of the whole depth: a place in the kernel, and a line of channels there.
struct ConvStage {
    u32 x, y, block;

    DEV ConvStage(u32 index, u32 channel_blocks, u32 kernel_columns) {
        const u32 place = index / channel_blocks;
        block = index - place * channel_blocks;
        y = place / kernel_columns;
        x = place - y * kernel_columns;
    }
    DEV void next(u32 channel_blocks, u32 kernel_columns) {
        if (++block != channel_blocks) return;
        block = 0;
        if (++x != kernel_columns) return;
        x = 0;
        ++y;
    }
};

// Starts the copies of one item, stage by stage. What is not here is read again at each use: the loader has few registers.
struct ConvLoader {
    const HopperProducts& p;
    const void *x_map, *w_map;
    u32 left_bytes, line, channel_blocks, kernel_columns;
    i32 left, top;  // the window of the tile's first position
    u32 sample;
    u32 column;     // the tile's first output
    ConvStage windows, kernels;  // the next ones

    DEV ConvLoader(const HopperProducts& products, const ProductItem& at)
        : p(products), x_map(p.map(p.schedule().a_map)), w_map(p.map(p.schedule().b_map)), left_bytes(p.left_bytes()), line(p.line()),
          channel_blocks((args().w().dims[args().w().rank - 1] + line - 1) / line), kernel_columns(args().w().dims[args().w().rank - 2]),
          column(at.column), windows(at.first_stage, channel_blocks, kernel_columns), kernels(windows) {
        const Tensor& out = args().out();
        const u32 across = out.dims[out.rank - 2], down = out.rank == 4 ? out.dims[1] : 1, position = at.row / across;
        sample = position / down;
        left = static_cast<i32>(at.row - position * across) * args().strides(1) - args().pads(1);
        top = static_cast<i32>(position - sample * down) * args().strides(0) - args().pads(0);
    }
    DEV const ConvArgs& args() const { return ConvArgs::of(p.work); }

    DEV void load_windows(u32 stage, u64* full) {
        const u32 right = windows.x * args().dilations(1), below = windows.y * args().dilations(0);
        tensor_load_im2col(stage, x_map, full, windows.block * line, left, top, sample, right, below);
        windows.next(channel_blocks, kernel_columns);
    }
    DEV void load_kernels(u32 stage, u64* full) {
        tensor_load_4d(stage + left_bytes, w_map, full, kernels.block * line, kernels.x, kernels.y, column);
        kernels.next(channel_blocks, kernel_columns);
    }
};

struct HopperConv {
    static DEV u32 tiles(const Work& w) { return HopperProducts(w).tiles().items(); }

    static DEV void load(const Work& w, Loader& loader) {
        const HopperProducts p(w);
        const ProductTiles tiles = p.tiles();
        const u32 granules = p.granules(), bytes = p.left_bytes() + p.right_bytes();
        bool ready = false;
        prefetch_map(p.map(p.schedule().a_map));
        prefetch_map(p.map(p.schedule().b_map));
#pragma unroll 1
        for (u32 item = w.first_tile; item < w.tiles; item += gridDim.x) {
            const ProductItem at = tiles.at(item);
            ConvLoader copies(p, at);
            if (!ready && !p.has(B_CONSTANT)) {
                loader.wait_ready();
                ready = true;
            }
            const bool filled = loader.fill_ahead(
                at.stages, granules, bytes, ready, [&](u32 stage, u64* full) { copies.load_kernels(stage, full); },
                [&](u32 stage, u64* full) { copies.load_windows(stage, full); });
            ready = true;
            if (!filled) return;
            Stage scratch;
            if (p.schedule().scratch && !loader.claim(scratch, p.schedule().scratch, 0)) return;
        }
    }
};
#endif
