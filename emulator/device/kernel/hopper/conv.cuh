// CONV of 16-bit floats, and of f32 as tf32, on wgmma; and of f32 as it is: a product whose rows are output positions and
// whose depth is (place in the kernel, channel). The copy engine gathers the rows: for a place in the kernel, what the
// windows of neighbouring positions have there are pixels at equal distances of x, or zeros outside of it (PTX ISA, "Im2col
// mode").
#pragma once
#ifdef HOPPER
#include "hopper/gemm.cuh"

// A slice of the whole depth: a line of channels at a place in the kernel. Behind the depth's end there are none, and the copy
// engine brings zeros.
struct ConvSlice {
    u32 channel, x, y;
    u32 right, down;  // of where a window begins, in pixels

    DEV ConvSlice(u32 index, u32 line, const ConvArgs& args) : channel(0), x(0), y(0) {
        const Tensor& w = args.w();
        if (index != 0) {
            const u32 blocks = (w.dims[w.rank - 1] + line - 1) / line, across = w.dims[w.rank - 2], place = index / blocks;
            channel = (index - place * blocks) * line;
            y = place / across;
            x = place - y * across;
        }
        right = x * args.dilations(1);
        down = y * args.dilations(0);
    }
    // To the first channels of the next place: rare enough to look up what it takes.
    DEV void next_place(const ConvArgs& args) {
        const Tensor& w = args.w();
        channel = 0;
        right += args.dilations(1);
        if (++x != w.dims[w.rank - 2]) return;
        x = right = 0;
        down += args.dilations(0);
        if (++y >= (w.rank == 4 ? w.dims[1] : 1)) channel = BEYOND;
    }

  private:
    static constexpr u32 BEYOND = 1u << 30;
};

// What the copies of one item are to begin with.
struct ConvPlace {
    const char* x_map;
    u32 slices;  // of a stage, which has those of x first
    u32 line, channels;
    i32 left, top;  // the window of the tile's first position
    u32 sample;
    u32 column;     // the tile's first output
    ConvSlice windows, kernels;  // the next ones

    DEV ConvPlace(const HopperProducts& p, const ProductItem& at) : ConvPlace(p, at, ConvArgs::of(p.work)) {}

  private:
    DEV ConvPlace(const HopperProducts& p, const ProductItem& at, const ConvArgs& args)
        : x_map(static_cast<const char*>(p.map(p.schedule().a_map))), slices(p.schedule().slices), line(p.line()),
          channels(args.w().dims[args.w().rank - 1]), column(at.column), windows(at.first_stage * slices, line, args), kernels(windows) {
        const Tensor& out = args.out();
        const u32 across = out.dims[out.rank - 2], down = out.rank == 4 ? out.dims[1] : 1, position = at.row / across;
        sample = position / down;
        left = static_cast<i32>(at.row - position * across) * args.strides(1) - args.pads(1);
        top = static_cast<i32>(position - sample * down) * args.strides(0) - args.pads(0);
    }
};

// Starts the copies of one item, stage by stage, slice by slice. Each instruction counts: about five clocks, of some hundred that
// the products of a slice take.
struct ConvLoader : ConvPlace {
    const Work& work;

    DEV ConvLoader(const HopperProducts& p, const ProductItem& at) : ConvPlace(p, at), work(p.work) {}
    DEV ConvLoader(const HopperProducts& p, const ConvPlace& place) : ConvPlace(place), work(p.work) {}
    DEV void go_to(const ConvPlace& place) { static_cast<ConvPlace&>(*this) = place; }
    DEV const ConvArgs& args() const { return ConvArgs::of(work); }
    // What follows is looked up for each stage: the loader has few registers.
    DEV const ProductSchedule& schedule() const { return HopperProducts(work).schedule(); }
    DEV const char* w_map() const { return x_map + static_cast<i32>((schedule().b_map - schedule().a_map) * TENSOR_MAP_BYTES); }
    DEV u32 left_slice() const { return schedule().tile_rows * LINE_BYTES; }  // bytes
    DEV u32 right_slice() const { return schedule().tile_columns * LINE_BYTES; }

    DEV void load_windows(u32 stage, u64* full) {
        const u32 step = left_slice();
#pragma unroll 1
        for (u32 i = 0; i < slices; ++i) {
            load_window(stage, full, windows);
            stage += step;
            go_on(windows);
        }
    }
    DEV void load_kernels(u32 stage, u64* full) {
        const char* const map = w_map();
        const u32 step = right_slice();
        stage += slices * left_slice();
#pragma unroll 1
        for (u32 i = 0; i < slices; ++i) {
            load_kernel(stage, map, full);
            stage += step;
            go_on(kernels);
        }
    }
    // Both, of a stage behind those that had one of them before the other; from then on, `kernels` counts for both.
    DEV void load(u32 stage, u64* full) {
        const char* const map = w_map();
        const u32 left_step = left_slice(), right_step = right_slice();
        u32 to = stage + slices * left_step;
#pragma unroll 1
        for (u32 i = 0; i < slices; ++i) {
            load_kernel(to, map, full);
            load_window(stage, full, kernels);
            to += right_step;
            stage += left_step;
            go_on(kernels);
        }
    }

  private:
    DEV void load_window(u32 to, u64* full, const ConvSlice& at) const {
        tensor_load_im2col(to, x_map, full, at.channel, left, top, sample, at.right, at.down);
    }
    DEV void load_kernel(u32 to, const char* map, u64* full) const {
        tensor_load_4d(to, map, full, kernels.channel, kernels.x, kernels.y, column);
    }
    DEV void go_on(ConvSlice& at) const {
        at.channel += line;
        if (at.channel >= channels) at.next_place(args());
    }
};

struct HopperConv {
    static DEV u32 tiles(const Work& w) { return HopperProducts(w).tiles().items(); }

    static DEV void load(const Work& w, Loader& loader) {
        const HopperProducts p(w);
        const u32 granules = p.granules(), bytes = p.stage_bytes();
        bool ready = false;
        prefetch_map(p.map(p.schedule().a_map));
        prefetch_map(p.map(p.schedule().b_map));
#pragma unroll 1
        for (u32 item = w.first_tile; item < w.tiles; item += gridDim.x) {
            const ProductItem at = p.item(item);
            ConvLoader copies(p, at);
            loader.tell(at.row, at.column);
            if (!ready && !p.has(B_CONSTANT)) {
                loader.wait_ready();
                ready = true;
            }
            u32 left = at.stages;
            const bool filled = loader.begin_ahead(
                                    left, granules, bytes, ready, [&](u32 stage, u64* full) { copies.load_kernels(stage, full); },
                                    [&](u32 stage, u64* full) { copies.load_windows(stage, full); }) &&
                                loader.fill(left, granules, bytes, [&](u32 stage, u64* full) { copies.load(stage, full); });
            ready = true;
            if (!filled) return;
            Stage scratch;
            if (p.schedule().scratch && !loader.claim(scratch, p.schedule().scratch, 0)) return;
        }
    }
};
#endif
