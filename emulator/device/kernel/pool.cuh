// POOL: the largest or the mean of sliding windows (a thread per element, or per 16 bytes of channels), or of all positions.
#pragma once
#include "arithmetic.cuh"
#include "fold.cuh"
#include "units.cuh"
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
        const i32 before = first < 0 ? steps(dilation - 1 - first, dilation) : 0;  // taps in the padding
        first += before * dilation;
        const i32 room = first < size ? steps(size - 1 - first, dilation) + 1 : 0;
        taps = max(0, min(window - before, room));
    }

  private:
    DEV static i32 steps(i32 way, i32 step) { return step == 1 ? way : way / step; }
};

template <class V> DEV void pool_windows(const PoolArgs& args, u32 tile, const Block& block) {
    const Tensor& out = args.out();
    const Tensor& x = args.x();
    const bool max = args.sub() == POOL_MAX, flat = x.rank == 3;
    const u32 axis = x.rank - 1, size = args.window(0) * args.window(1);
    for_each_element(block, tile, out.elements(), [&](i64 i) {
        u64 rest = i;
        const u32 channel = last_index(rest, out.dims[axis]);
        const i32 column = last_index(rest, out.dims[axis - 1]), row = flat ? 0 : last_index(rest, out.dims[1]);
        const WindowAxis across(column, args.strides(1), args.pads(1), args.dilations(1), args.window(1), x.dims[axis - 1]);
        const WindowAxis down(row, args.strides(0), args.pads(0), args.dilations(0), args.window(0), flat ? 1 : x.dims[1]);
        const i64 down_step = flat ? 0 : x.strides[1];
        const i64 corner = static_cast<i64>(rest) * x.strides[0] + down.first * down_step + across.first * x.strides[axis - 1] + channel * x.strides[axis];
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

// out, and the first element of each window of x before it is cut to the image: channels, columns, rows, samples.
struct PoolDims : SameDims {
    static constexpr bool APART = true;
    const PoolArgs& args;

    DEV explicit PoolDims(const PoolArgs& pool) : SameDims(pool.work), args(pool) {}
    DEV i64 stride(u32 k, i32 axis) const {
        const i64 step = SameDims::stride(k, axis);
        const i32 from_last = rank() - 1 - axis;
        return k == 0 || from_last == 0 || axis == 0 ? step : step * args.strides(from_last == 1 ? 1 : 0);
    }
    // Whether all columns and rows of x are aligned, not only those where windows begin.
    DEV bool windows_aligned() const {
        bool aligned = true;
#pragma unroll 1
        for (i32 axis = 1; axis < rank() - 1; ++axis)
            aligned &= tensors[1].dims[axis] == 1 || SameDims::stride(1, axis) % VECTOR_BYTES == 0;
        return aligned;
    }
};

// The largest of each of the elements in 16 bytes of two tensors.
DEV uint4 largest_of(u32 dtype, const uint4& a, const uint4& b) {
    const u32 p[4] = {a.x, a.y, a.z, a.w}, q[4] = {b.x, b.y, b.z, b.w};
    u32 r[4];
    if (dtype == DTYPE_BF16) {
#pragma unroll
        for (u32 k = 0; k < 4; ++k) r[k] = max_nan_bf16x2(p[k], q[k]);
    } else if (dtype == DTYPE_F16) {
#pragma unroll
        for (u32 k = 0; k < 4; ++k) r[k] = max_nan_f16x2(p[k], q[k]);
    } else {
#pragma unroll
        for (u32 k = 0; k < 4; ++k) r[k] = __float_as_uint(maximum(__uint_as_float(p[k]), __uint_as_float(q[k])));
    }
    return make_uint4(r[0], r[1], r[2], r[3]);
}
// -infinity, as often as it fits in a word.
DEV u32 least_words(u32 dtype) { return dtype == DTYPE_BF16 ? 0xff80ff80u : dtype == DTYPE_F16 ? 0xfc00fc00u : 0xff800000u; }

// Adds the elements in 16 bytes to sums, and makes 16 bytes of sums: eight, or four of f32.
DEV void add_elements(u32 dtype, const uint4& raw, f32 (&sums)[VECTOR]) {
    f32 v[VECTOR];
    RawVector{raw, make_uint4(0, 0, 0, 0)}.unpack(dtype, v);
#pragma unroll
    for (u32 k = 0; k < VECTOR; ++k) sums[k] += v[k];
}

// 16 bytes of neighbouring channels at a time. All loads of a window of up to AT_ONCE elements are under way together.
DEV_CALL void pool_vectors(const PoolArgs& args, u32 tile, const Block& block) {
    constexpr u32 AXES = Merged<2>::AXES, AT_ONCE = 9;
    const Streams<2> all(args.work);
    const Tensor& x = all.tensors[1];
    const u32 kind = args.sub();
    const auto max = [&] { return anew(kind) == POOL_MAX; };
    const bool flat = x.rank == 3;
    const u32 axis = x.rank - 1, size = args.window(0) * args.window(1), dtype = x.dtype;
    const i64 to_column = x.strides[axis - 1] * x.item_bytes, to_row = flat ? 0 : x.strides[1] * x.item_bytes;
    const i64 column_step = to_column * args.dilations(1), row_step = to_row * args.dilations(0);
    const u32 nothing = max() ? least_words(dtype) : 0;  // changes no result
    if (!block.begin()) return;
    walk_units<AXES>(all, tile, block, [&](const Merged<2>::Place& p) {
        const i32 column = p.index[1], row = anew(x.rank) == 3 ? 0 : p.index[2];
        const WindowAxis across(column, args.strides(1), args.pads(1), args.dilations(1), args.window(1), x.dims[axis - 1]);
        const WindowAxis down(row, args.strides(0), args.pads(0), args.dilations(0), args.window(0), anew(x.rank) == 3 ? 1 : x.dims[1]);
        const char* tap = all.at<AXES>(1, p) + (across.first - column * args.strides(1)) * to_column +
                          (down.first - row * args.strides(0)) * to_row;
        const i64 to_next_row = row_step - static_cast<i64>(across.taps - 1) * column_step;
        const u32 taps = across.taps * down.taps;
        uint4 result = make_uint4(nothing, nothing, nothing, nothing);
        f32 sums[VECTOR] = {};
        u32 at = 0;  // along the row
#pragma unroll 1
        for (u32 first = 0; first < taps; first += AT_ONCE) {
            uint4 raw[AT_ONCE];
#pragma unroll
            for (u32 t = 0; t < AT_ONCE; ++t) {
                raw[t] = make_uint4(nothing, nothing, nothing, nothing);
                if (first + t >= taps) continue;
                if (all.holds(1, tap, VECTOR_BYTES)) raw[t] = *reinterpret_cast<const uint4*>(tap);
                at += 1;
                tap += at == across.taps ? to_next_row : column_step;
                if (at == across.taps) at = 0;
            }
            if (max()) {
#pragma unroll
                for (u32 t = 0; t < AT_ONCE; ++t) result = largest_of(dtype, result, raw[t]);
            } else {
#pragma unroll
                for (u32 t = 0; t < AT_ONCE; ++t) add_elements(dtype, raw[t], sums);
            }
        }
        if (!max()) {
            const f32 count = static_cast<f32>(args.count_include_pad() ? size : taps);
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] /= count;
            result = RawVector::pack(dtype, sums).low;
        }
        char* to = all.at<AXES>(0, p);
        if (all.holds(0, to, VECTOR_BYTES)) *reinterpret_cast<uint4*>(to) = result;
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

constexpr u32 WAY_WINDOWS = 3;  // besides WAY_ROWS and WAY_COLUMNS, of all positions

struct PoolHandler {
    static constexpr u32 SCRATCH = FOLD_SCRATCH_BYTES;
    static constexpr bool BEGINS = true;
    using Kept = Merged<2>;

    static DEV void prepare(const PoolArgs& args, Kept& kept) {
        const Tensor& x = args.x();
        kept.way = 0;
        if (all(args)) {
            const Walk positions(x, leading_axes(x, 1) & ~1u);
            const u32 axis = x.rank - 1;
            if (x.strides[axis] != 1 || !positions.even || !args.out().contiguous || !aligned_for_vectors(args.out())) return;
            reinterpret_cast<Folds&>(kept).measure(x, x.dims[0], x.strides[0], positions.count, positions.stride, x.dims[axis]);
        } else if (is_float(x.dtype) && args.out().dtype == x.dtype && PoolDims(args).windows_aligned() &&
                   kept.measure_as(PoolDims(args), VECTOR_BYTES / x.item_bytes, 1)) {
            kept.way = kept.singles == 0 && kept.neighbours(0) && kept.neighbours(1) ? WAY_WINDOWS : 0;
        }
    }
    static DEV u32 scratch(const PoolArgs& args) {
        const Folds& f = Folds::of(args.work);
        return f.way == 0 ? STAGING_BYTES : f.way == WAY_WINDOWS ? 0 : f.scratch();
    }
    static DEV u32 tiles(const PoolArgs& args) {
        const Tensor& out = args.out();
        switch (Folds::of(args.work).way) {
            case WAY_ROWS:
            case WAY_COLUMNS: return Folds::of(args.work).tiles();
            case WAY_WINDOWS: return Kept::of(args.work).tiles();
            default: break;
        }
        if (!all(args)) return elementwise_tiles(out.elements());
        return out.dims[0] * ((out.dims[out.rank - 1] + WARP - 1) / WARP);
    }

    static DEV_CALL void run(const PoolArgs& args, u32 tile, const Block& block) {
        const Folds& f = Folds::of(args.work);
        if (f.way == WAY_WINDOWS) return pool_vectors(args, tile, block);
        if (f.way) {
            const u32 sub = args.sub() == POOL_GLOBAL_MAX ? REDUCE_MAX : REDUCE_MEAN;
            return fold_vectors<f32>(args.work, sub, tile, block);
        }
        if (!block.begin()) return;
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
