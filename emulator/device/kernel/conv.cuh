// CONV: convolution as a matrix product whose rows are output positions and whose depth is (kernel position, channel).
// The rows of x are gathered while they are loaded; nothing is unfolded in memory, and gaps are zeros that no memory
// holds. Small groups are computed directly; kernels of single channels, and few channels, have ways of their own.
#pragma once
#include "conv_depthwise.cuh"
#include "conv_narrow.cuh"
#include "tilings.cuh"

// One chunk of a window that starts at (top, left) of the image at `offset`: the elements from depth `at` on. The image is
// a sample of x or, whole, the kernel of one output. For any strides and channels; a call, because it is slow and large.
template <class E, bool IS_X> DEV_CALL void gather_window(const Tensor& t, const ConvShape& s, char* to, i64 offset, i32 top, i32 left, u32 at) {
    constexpr u32 PER_CHUNK = CHUNK_BYTES / E::BYTES, PER_WORD = 4 / E::BYTES;
    u32 channel = at % s.channels;
    i32 y = at / s.channels / s.kernel[1], x = at / s.channels % s.kernel[1];
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 j = 0; j < PER_CHUNK; ++j) {
        i32 row = IS_X ? top + y * s.dilation[0] : y, column = IS_X ? left + x * s.dilation[1] : x;
        if (IS_X && s.has_gaps()) {
            row = s.behind_gaps(0, row);
            column = s.behind_gaps(1, column);
        }
        const bool inside = !IS_X || (row >= 0 && row < s.size[0] && column >= 0 && column < s.size[1]);
        if (at + j < s.depth && inside) {
            const i64 line = offset + (s.spatial == 2 ? row * t.strides[1] : 0);
            const u32 bits = E::load(t, line + column * t.strides[s.spatial] + channel * t.strides[s.spatial + 1]);
            words[j / PER_WORD] |= bits << (j % PER_WORD * 16);
        }
        if (++channel == s.channels) {
            channel = 0;
            if (++x == s.kernel[1]) {
                x = 0;
                ++y;
            }
        }
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

// Tiles of x (IS_X) or w: each row is a window of [kernel, channels] in an image; elements outside the image are 0.
template <class E, u32 ROWS, u32 DEPTH, bool IS_X> struct WindowLoader {
    static constexpr u32 PER_CHUNK = CHUNK_BYTES / E::BYTES, PER_LINE = DEPTH / PER_CHUNK;
    static constexpr u32 COUNT = ROWS * PER_LINE / WORKER_THREADS;
    static constexpr u32 KEPT = IS_X ? COUNT : 1;  // chunks whose window is kept; those of w are worked out, and begin at 0
    static constexpr bool deep = true;
    static_assert(COUNT * WORKER_THREADS == ROWS * PER_LINE, "every thread loads as many chunks");

    // Strides and sizes are read again at each use: registers are dearer.
    const Tensor& t;
    const ConvShape& s;
    u32 group, first;                    // row of the tile: of w, over all groups
    u32 image[KEPT];                     // of each chunk's row: sample of x
    i32 top[KEPT], left[KEPT];           // of the row's window in it
    u32 rows, thread;
    bool whole, gaps;

    // `count` rows from `begin` on: positions of x, or outputs of w.
    DEV WindowLoader(const Tensor& tensor, const ConvShape& shape, u32 of_group, u32 begin, u32 count, u32 worker)
        : t(tensor), s(shape), group(of_group), first(of_group * shape.outputs + begin), rows(count), thread(worker) {
        whole = s.channels % PER_CHUNK == 0 && copies_whole<E>(t, t.rank - 1);
        gaps = IS_X && s.has_gaps();
#pragma unroll
        for (u32 i = 0; i < KEPT; ++i) {
            top[i] = left[i] = 0;
            image[i] = 0;
            if (!IS_X) continue;
            const u32 row = begin + line(i);
            const u32 across_at = row % s.positions[1], rest = row / s.positions[1];
            top[i] = static_cast<i32>(rest % s.positions[0]) * s.stride[0] - s.pad[0];
            left[i] = static_cast<i32>(across_at) * s.stride[1] - s.pad[1];
            image[i] = rest / s.positions[0];
        }
    }

    DEV void load(char* tile, u32 first_depth, bool) const {
        const u32 at = first_depth + thread % PER_LINE * PER_CHUNK;
        const u32 tap = at / s.channels;
        const i32 y = tap / s.kernel[1], x = tap - y * s.kernel[1];
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            char* to = tile + (line(i) * PER_LINE + E::permute(line(i), thread % PER_LINE, PER_LINE, true)) * CHUNK_BYTES;
            const bool there = at < s.depth && line(i) < rows;
            const i64 offset = image_offset(i);
            const i32 from_row = top[i % KEPT], from_column = left[i % KEPT];
            if (whole) {
                i32 row = IS_X ? from_row + y * s.dilation[0] : y, column = IS_X ? from_column + x * s.dilation[1] : x;
                if (IS_X && gaps) {
                    row = s.behind_gaps(0, row);
                    column = s.behind_gaps(1, column);
                }
                const bool inside = there && (!IS_X || (row >= 0 && row < s.size[0] && column >= 0 && column < s.size[1]));
                const i64 line_offset = offset + (s.spatial == 2 ? row * t.strides[1] : 0);
                copy_chunk<E>(t, to, line_offset + column * t.strides[s.spatial] + (at - tap * s.channels), inside ? PER_CHUNK : 0);
            } else {
                gather_window<E, IS_X>(t, s, to, offset, from_row, from_column, there ? at : s.depth);
            }
        }
    }

  private:
    DEV u32 line(u32 i) const { return thread / PER_LINE + i * (WORKER_THREADS / PER_LINE); }
    // Of the image that chunk i is in: a sample of x, from the group's first channel on, or the kernel of an output.
    DEV i64 image_offset(u32 i) const {
        if (!IS_X) return static_cast<i64>(first + line(i)) * t.strides[0];
        return static_cast<i64>(group * s.channels) * t.strides[s.spatial + 1] + image[i % KEPT] * t.strides[0];
    }
};

template <class Tile> DEV_CALL void conv_tile(const ConvArgs& args, const ConvShape& s, const Tiling::Place& at, const Block& block) {
    using E = typename Tile::Element;
    const u32 rows = min(Tile::ROWS, s.rows - at.row), columns = min(Tile::COLUMNS, s.outputs - at.column);
    const WindowLoader<E, Tile::ROWS, Tile::STEP, true> left(args.x(), s, at.batch, at.row, rows, block.thread());
    const WindowLoader<E, Tile::COLUMNS, Tile::STEP, false> right(args.w(), s, at.batch, at.column, columns, block.thread());
    Tile::multiply(left, right, s.depth, block);
    // Worked out again rather than kept: registers are dear until here.
    const TileExtent extent{at.row, at.batch * s.outputs + at.column, min(Tile::ROWS, s.rows - at.row),
                            min(Tile::COLUMNS, s.outputs - at.column)};
    store_tile(Epilogue::of(args), extent, Tile::PARTS, Tile::ROWS, Tile::PITCH, block);
}

// One output element, term by term.
DEV f32 conv_element(const ConvArgs& args, const ConvShape& s, u32 row, u32 output) {
    const Tensor& x = args.x();
    const Tensor& w = args.w();
    const u32 axis = s.spatial + 1;
    const u32 across_at = row % s.positions[1], rest = row / s.positions[1];
    const i32 top = static_cast<i32>(rest % s.positions[0]) * s.stride[0] - s.pad[0];
    const i32 left = static_cast<i32>(across_at) * s.stride[1] - s.pad[1];
    const i64 image = rest / s.positions[0] * x.strides[0] + static_cast<i64>(output / s.outputs) * s.channels * x.strides[axis];
    f32 sum = 0.0f;
    for (i32 i = 0; i < s.kernel[0]; ++i) {
        const i32 r = s.behind_gaps(0, top + i * s.dilation[0]);
        if (r < 0 || r >= s.size[0]) continue;
        for (i32 j = 0; j < s.kernel[1]; ++j) {
            const i32 c = s.behind_gaps(1, left + j * s.dilation[1]);
            if (c < 0 || c >= s.size[1]) continue;
            i64 from = image + c * x.strides[s.spatial], weight = output * w.strides[0] + j * w.strides[s.spatial];
            if (s.spatial == 2) {
                from += r * x.strides[1];
                weight += i * w.strides[1];
            }
            for (u32 k = 0; k < s.channels; ++k) {
                sum = fmaf(load_f32(x, from + k * x.strides[axis]), load_f32(w, weight + k * w.strides[axis]), sum);
            }
        }
    }
    return sum;
}

DEV_CALL void conv_direct(const ConvArgs& args, const ConvShape& s, u32 tile, const Block& block) {
    const Tensor& out = args.out();
    const Epilogue e = Epilogue::of(args);
    const u32 columns = s.outputs * s.groups;
    for_each_element(block, tile, out.elements(), [&](i64 i) {
        const u32 row = static_cast<u32>(i / columns), output = static_cast<u32>(i % columns);
        const RowOffsets offsets(e, row);
        store_f32(out, offsets.out + output * out.strides[out.rank - 1], finish(e, offsets, output, conv_element(args, s, row, output)));
    });
}

struct ConvHandler {
    static constexpr u32 SCRATCH = SCRATCH_BYTES;
    static DEV u32 tiles(const ConvArgs& args) {
        const ConvShape s(args);
        if (Depthwise::applies(args, s)) return Depthwise(s).tiles(s);
        if (s.direct()) return elementwise_tiles(args.out().elements());
        if (Narrow::applies(args, s)) return Narrow(s).tiles(s);
        return tiling_of(args, s).tiles;
    }

    static DEV_CALL void run(const ConvArgs& args, u32 tile, const Block& block) {
        const ConvShape s(args);
        const bool half = args.x().dtype == DTYPE_F16;
        if (Depthwise::applies(args, s)) {
            if (half) depthwise_tile<true>(args, tile, block);
            else depthwise_tile<false>(args, tile, block);
            return;
        }
        if (s.direct()) {
            conv_direct(args, s, tile, block);
            return;
        }
        if (Narrow::applies(args, s)) {
            if (half) narrow_tile<F16>(args, tile, block);
            else narrow_tile<Bf16>(args, tile, block);
            return;
        }
        const Tiling tiling = tiling_of(args, s);
        const Tiling::Place at = tiling.place(tile);
        switch (args.x().dtype) {
            case DTYPE_BF16: run_on_tensor_cores<Bf16>(args, s, tiling, at, block); break;
            case DTYPE_F16: run_on_tensor_cores<F16>(args, s, tiling, at, block); break;
            default:
                if (args.math() == CONV_MATH_TF32) run_on_tensor_cores<Tf32>(args, s, tiling, at, block);
                else if (tiling.rows == TallFloatTile::ROWS) conv_tile<TallFloatTile>(args, s, at, block);
                else conv_tile<SmallFloatTile>(args, s, at, block);
                break;
        }
    }

  private:
    static DEV Tiling tiling_of(const ConvArgs& args, const ConvShape& s) {
        const bool exact = args.x().dtype == DTYPE_F32 && args.math() == CONV_MATH_EXACT;
        static_assert(TallFloatTile::COLUMNS == TallTile<Bf16>::COLUMNS, "one shape");
        return Tiling::choose(s.groups, s.rows, s.outputs, TallFloatTile::COLUMNS, exact ? 13 : HAS_LARGE ? 8 : NEVER, !exact);
    }

    template <class T> static DEV void run_on_tensor_cores(const ConvArgs& args, const ConvShape& s, const Tiling& tiling,
                                                           const Tiling::Place& at, const Block& block) {
        if constexpr (HAS_LARGE) {
            if (tiling.rows == 128) return conv_tile<TallTile<T>>(args, s, at, block);
        }
        if (tiling.rows == 64) conv_tile<MediumTile<T>>(args, s, at, block);
        else conv_tile<SmallTile<T>>(args, s, at, block);
    }
};
