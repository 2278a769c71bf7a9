// POOL: the largest or the mean of sliding windows (a thread per output element) or of all positions (a warp per share).
#pragma once
#include "arithmetic.cuh"
#include "views.cuh"

// Running result of a window: the largest, or the sum.
template <class V> struct Pooled {
    V value;
    DEV Pooled(bool max, u32 dtype) : value(max ? least<V>(dtype) : 0) {}
    DEV void add_element(bool max, V v) { value = max ? maximum(value, v) : add(value, v); }
};

DEV f32 mean_of(f32 sum, u32 count) { return sum / static_cast<f32>(count); }
DEV i64 mean_of(i64 sum, u32) { return sum; }  // integers have no mean

// Where a window lies along one spatial axis, cut to the image.
struct WindowAxis {
    i32 first, step;
    u32 taps;  // inside the image

    DEV WindowAxis(i32 position, i32 stride, i32 pad, i32 dilation, i32 window, i32 size) : step(dilation) {
        first = position * stride - pad;
        const i32 before = first < 0 ? (dilation - 1 - first) / dilation : 0;  // taps in the padding
        first += before * dilation;
        const i32 room = first < size ? (size - 1 - first) / dilation + 1 : 0;
        taps = max(0, min(window - before, room));
    }
};

template <class V> DEV void pool_windows(const PoolArgs& args, u32 tile, const Block& block) {
    const Tensor& out = args.out();
    const Tensor& x = args.x();
    const bool max = args.sub() == POOL_MAX, flat = x.rank == 3;
    const u32 axis = x.rank - 1, size = args.window(0) * args.window(1);
    for_each_element(block, tile, out.elements(), [&](i64 i) {
        const u32 channel = static_cast<u32>(i % out.dims[axis]);
        i64 rest = i / out.dims[axis];
        const i32 column = static_cast<i32>(rest % out.dims[axis - 1]);
        rest /= out.dims[axis - 1];
        const i32 row = flat ? 0 : static_cast<i32>(rest % out.dims[1]);
        if (!flat) rest /= out.dims[1];
        const WindowAxis across(column, args.strides(1), args.pads(1), args.dilations(1), args.window(1), x.dims[axis - 1]);
        const WindowAxis down(row, args.strides(0), args.pads(0), args.dilations(0), args.window(0), flat ? 1 : x.dims[1]);
        const i64 down_step = flat ? 0 : x.strides[1];
        const i64 corner = rest * x.strides[0] + down.first * down_step + across.first * x.strides[axis - 1] + channel * x.strides[axis];
        Pooled<V> pooled(max, x.dtype);
        for (u32 r = 0; r < down.taps; ++r) {
            const i64 line = corner + static_cast<i64>(r) * down.step * down_step;
            for (u32 c = 0; c < across.taps; ++c) {
                pooled.add_element(max, load_as<V>(x, line + static_cast<i64>(c) * across.step * x.strides[axis - 1]));
            }
        }
        const u32 count = args.count_include_pad() ? size : down.taps * across.taps;
        store_as(out, out.offset_of(i), max ? pooled.value : mean_of(pooled.value, count));
    });
}

// One sample's mean or maximum over all positions, for 32 neighbouring channels: lanes are channels, warps share positions.
template <class V> DEV void pool_all(const PoolArgs& args, u32 tile, const Block& block) {
    const Tensor& out = args.out();
    const Tensor& x = args.x();
    const bool max = args.sub() == POOL_GLOBAL_MAX;
    const u32 axis = x.rank - 1, channels = x.dims[axis], groups = (channels + WARP - 1) / WARP;
    const u32 sample = tile / groups, channel = tile % groups * WARP + block.lane();
    const u32 width = x.dims[axis - 1], positions = x.rank == 3 ? width : x.dims[1] * width;
    Pooled<V> pooled(max, x.dtype);
    if (channel < channels) {
        const i64 base = sample * x.strides[0] + channel * x.strides[axis];
        for (u32 p = block.warp(); p < positions; p += WORKER_WARPS) {
            const i64 at = x.rank == 3 ? p * x.strides[1] : p / width * x.strides[1] + p % width * x.strides[2];
            pooled.add_element(max, load_as<V>(x, base + at));
        }
    }
    V* shares = reinterpret_cast<V*>(block.scratch());  // [WORKER_WARPS][WARP]
    shares[block.thread()] = pooled.value;
    block.sync();
    if (block.warp() != 0 || channel >= channels) return;
    for (u32 w = 1; w < WORKER_WARPS; ++w) pooled.add_element(max, shares[w * WARP + block.lane()]);
    store_as(out, sample * out.strides[0] + channel * out.strides[axis], max ? pooled.value : mean_of(pooled.value, positions));
}

struct PoolHandler {
    static constexpr u32 SCRATCH = STAGING_BYTES;
    static DEV u32 tiles(const PoolArgs& args) {
        const Tensor& out = args.out();
        if (!all(args)) return elementwise_tiles(out.elements());
        return out.dims[0] * ((out.dims[out.rank - 1] + WARP - 1) / WARP);
    }

    static DEV_CALL void run(const PoolArgs& args, u32 tile, const Block& block) {
        if (is_float(args.x().dtype)) run_as<f32>(args, tile, block);
        else run_as<i64>(args, tile, block);
    }

  private:
    static DEV bool all(const PoolArgs& args) { return args.sub() == POOL_GLOBAL_MAX || args.sub() == POOL_GLOBAL_AVG; }
    template <class V> static DEV void run_as(const PoolArgs& args, u32 tile, const Block& block) {
        if (all(args)) pool_all<V>(args, tile, block);
        else pool_windows<V>(args, tile, block);
    }
};
