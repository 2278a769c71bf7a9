// SCATTER: a tile owns some columns of out (elements that differ along the axis only) from a first row (place along the
// axis) to a last. It copies these elements of x, then folds into them, in order, the updates that go there. Tiles look
// at the same indices but own different elements, so nothing is atomic and the order within an element is that of the row.
#pragma once
#include "arithmetic.cuh"
#include "views.cuh"

struct ScatterShape {
    static constexpr u32 SUMS = 16384;       // f32 sums that a tile keeps where out cannot hold them
    static constexpr i64 COPIED = 1024;      // elements that a tile should have at least where it copies
    static constexpr i64 FOLDED = 16;        // and updates of a column where it does not
    static constexpr i64 TILES_PER_BLOCK = 2;

    u32 axis;
    u32 width;      // columns of a tile: a power of two
    i64 columns;
    i64 rows;       // along the axis
    i64 height;     // rows of a tile
    i64 bands;      // tiles, one above the other, that share columns
    bool in_place;  // out is x
    bool sums;      // 16-bit floats are summed in f32, apart from out

    DEV explicit ScatterShape(const ScatterArgs& args) {
        const Tensor& out = args.out();
        axis = args.axis();
        rows = out.dims[axis];
        columns = 1;
#pragma unroll 1
        for (u32 k = 0; k < out.rank; ++k) columns *= k == axis ? 1 : out.dims[k];
        width = 1;
        while (width < WORKER_THREADS && width < columns) width *= 2;
        in_place = out.data == args.x().data;
        sums = (out.dtype == DTYPE_F16 || out.dtype == DTYPE_BF16) && (args.sub() == SCATTER_ADD || args.sub() == SCATTER_MUL);
        // As many bands as give every block work, unless that leaves a band too little: each reads all indices.
        const i64 most = in_place ? args.updates().dims[axis] / FOLDED : rows * width / COPIED;
        bands = columns == 0 ? 1 : TILES_PER_BLOCK * gridDim.x / across();
        if (bands > most) bands = most;
        if (bands < 1) bands = 1;
        height = (rows + bands - 1) / bands;
        if (sums && height > SUMS / width) height = SUMS / width;
        bands = height == 0 ? 1 : (rows + height - 1) / height;
    }
    DEV i64 across() const { return (columns + width - 1) / width; }  // tiles side by side
};

// Element offset in `t` of column `linear` of `out`; -1 if t is too small to have it.
DEV_CALL i64 scatter_column(const Tensor& t, const Tensor& out, i32 axis, u64 linear) {
    i64 offset = 0;
    bool there = true;
#pragma unroll 1
    for (i32 k = out.rank - 1; k >= 0; --k) {
        if (k == axis) continue;
        const i64 at = last_index(linear, out.dims[k]);
        there &= at < t.dims[k];
        offset += at * t.strides[k];
    }
    return there ? offset : -1;
}

// What a thread folds into: one column, from row `begin` to `end` (counted from the tile's first row).
struct ScatterLane {
    u32 sub;
    bool sums;
    i64 begin, end;
    i64 to;        // offset in out of the column at the tile's first row
    i64 from;      // offset in updates of the column; -1 for a thread without one
    u32 slot;      // of the column's sum at the tile's first row
    u32 pitch;     // slots from one row to the next
    f32* sum;      // sums that have begun, and whether they have
    u8* begun;

    template <class T> static DEV T folded(u32 sub, T a, T b) {
        switch (sub) {
            case SCATTER_MUL: return multiply(a, b);
            case SCATTER_MAX: return maximum(a, b);
            case SCATTER_MIN: return minimum(a, b);
            default: return add(a, b);  // SCATTER_ADD
        }
    }
    // Folds update `step` of the column into its element at `row`, if that is this thread's.
    DEV void fold(const ScatterArgs& args, u32 axis, i64 row, i64 step) const {
        if (row < begin || row >= end || from < 0) return;
        const Tensor& out = args.out();
        const Tensor& updates = args.updates();
        const i64 at = to + row * out.strides[axis], update = from + step * updates.strides[axis];
        if (sub == SCATTER_SET) {
            move_element(out, at, updates, update);
        } else if (sums) {
            const u32 i = slot + static_cast<u32>(row) * pitch;
            const f32 before = begun[i] ? sum[i] : load_f32(out, at);
            sum[i] = folded(sub, before, load_f32(updates, update));
            begun[i] = 1;
        } else if (is_float(out.dtype)) {
            store_f32(out, at, folded(sub, load_f32(out, at), load_f32(updates, update)));
        } else {
            store_i64(out, at, folded(sub, load_i64(out, at), load_i64(updates, update)));
        }
    }
    DEV void clear() const {
#pragma unroll 1
        for (i64 row = begin; row < end; ++row) begun[slot + static_cast<u32>(row) * pitch] = 0;
    }
    // Writes the sums; elements without updates stay as they were copied.
    DEV void finish(const Tensor& out, u32 axis) const {
#pragma unroll 1
        for (i64 row = begin; row < end; ++row) {
            const u32 i = slot + static_cast<u32>(row) * pitch;
            if (begun[i]) store_f32(out, to + row * out.strides[axis], sum[i]);
        }
    }
};

struct ScatterHandler {
    static constexpr u32 SCRATCH = SCRATCH_BYTES;
    // An update that goes to a tile.
    struct Hit {
        u32 row;   // from the tile's first
        u32 step;  // along the axis of updates
    };
    struct Scratch {
        f32 sum[ScatterShape::SUMS];
        u8 begun[ScatterShape::SUMS];
        Hit hits[WORKER_THREADS];
        u32 found[WORKER_WARPS];
    };
    static_assert(sizeof(Scratch) <= SCRATCH_BYTES, "sums and hits fit in shared memory");
    static constexpr u32 AT_ONCE = 4;  // indices under way in a thread
    static constexpr u32 COPIES = 8;   // and elements

    static DEV u32 tiles(const ScatterArgs& args) {
        const ScatterShape s(args);
        return static_cast<u32>(s.across() * s.bands);
    }

    // Copies every `step`-th element of a column, from row `begin` to `end`. Several loads are under way before the first
    // store: the compiler may not move them ahead of it.
    template <class T> static DEV void copy_column(const Tensor& out, i64 to, const Tensor& x, i64 from, u32 axis, i64 begin, i64 end,
                                                   u32 step) {
        const i64 out_stride = out.strides[axis], x_stride = x.strides[axis];
#pragma unroll 1
        for (i64 first = begin; first < end; first += COPIES * step) {
            T value[COPIES];
#pragma unroll
            for (u32 k = 0; k < COPIES; ++k) {
                const i64 row = first + k * step;
                const char* p = element(x, from + row * x_stride);
                value[k] = row < end && in_bounds(x, p) ? *reinterpret_cast<const T*>(p) : T(0);
            }
#pragma unroll
            for (u32 k = 0; k < COPIES; ++k) {
                const i64 row = first + k * step;
                char* p = element(out, to + row * out_stride);
                if (row < end && in_bounds(out, p)) *reinterpret_cast<T*>(p) = value[k];
            }
        }
    }

    // Copies the tile's elements: neighbouring threads take neighbours along the axis or across it, as they lie in memory.
    static DEV_CALL void copy(const ScatterArgs& args, const ScatterShape& s, i64 column, i64 row, i64 height, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const bool along = out.strides[s.axis] == 1;
        u32 lanes = WORKER_THREADS / s.width;  // along the axis
        if (along) {
            lanes = 1;
            while (lanes < WORKER_THREADS && lanes < height) lanes *= 2;
        }
        const u32 across = WORKER_THREADS / lanes, first = along ? block.thread() / lanes : block.thread() % s.width;
        const i64 begin = row + (along ? block.thread() % lanes : block.thread() / s.width), end = row + height;
#pragma unroll 1
        for (u32 c = first; c < s.width && column + c < s.columns; c += across) {
            const i64 to = scatter_column(out, out, s.axis, column + c), from = scatter_column(x, out, s.axis, column + c);
            switch (out.item_bytes) {
                case 1: copy_column<u8>(out, to, x, from, s.axis, begin, end, lanes); break;
                case 2: copy_column<u16>(out, to, x, from, s.axis, begin, end, lanes); break;
                case 4: copy_column<u32>(out, to, x, from, s.axis, begin, end, lanes); break;
                default: copy_column<u64>(out, to, x, from, s.axis, begin, end, lanes); break;
            }
        }
    }

    // Whether `index` is a place along the axis.
    static DEV bool valid(i64 index, const ScatterShape& s, const Block& block) {
        if (index >= 0 && index < s.rows) return true;
        trap(block, TRAP_INDEX, static_cast<u32>(index));
        return false;
    }

    // Every column has its own indices: each thread reads those of its column.
    static DEV_CALL void fold_columns(const ScatterArgs& args, const ScatterShape& s, const ScatterLane& lane, i64 column, i64 row,
                                      const Block& block) {
        const Tensor& indices = args.indices();
        const i64 count = indices.dims[s.axis], stride = indices.strides[s.axis];
        const i64 from = lane.from < 0 ? -1 : scatter_column(indices, args.out(), s.axis, column);
        if (from < 0) return;
#pragma unroll 1
        for (i64 first = 0; first < count; first += AT_ONCE) {
            i64 index[AT_ONCE];
#pragma unroll
            for (u32 k = 0; k < AT_ONCE; ++k) index[k] = first + k < count ? load_i64(indices, from + (first + k) * stride) : 0;
#pragma unroll 1
            for (u32 k = 0; k < AT_ONCE && first + k < count; ++k)
                if (valid(index[k], s, block)) lane.fold(args, s.axis, index[k] - row, first + k);
        }
    }

    // All columns share their indices: the block reads as many as it has threads, and keeps those that go to this tile.
    static DEV_CALL void fold_slices(const ScatterArgs& args, const ScatterShape& s, const ScatterLane& lane, i64 row, i64 height,
                                     const Block& block) {
        const Tensor& indices = args.indices();
        const i64 count = indices.dims[s.axis];
        Scratch& scratch = *reinterpret_cast<Scratch*>(block.scratch());
#pragma unroll 1
        for (i64 first = 0; first < count; first += WORKER_THREADS) {
            const i64 step = first + block.thread();
            i64 place = -1;
            if (step < count) {
                const i64 index = load_i64(indices, step * indices.strides[s.axis]);
                if (valid(index, s, block)) place = index - row;
            }
            const bool hit = place >= 0 && place < height;
            const u32 votes = __ballot_sync(0xffffffffu, hit);
            if (block.lane() == 0) scratch.found[block.warp()] = __popc(votes);
            block.sync();
            u32 before = 0, all = 0;
#pragma unroll
            for (u32 w = 0; w < WORKER_WARPS; ++w) {
                if (w < block.warp()) before += scratch.found[w];
                all += scratch.found[w];
            }
            if (hit) scratch.hits[before + __popc(votes & ((1u << block.lane()) - 1))] = {static_cast<u32>(place), static_cast<u32>(step)};
            block.sync();
#pragma unroll 1
            for (u32 k = 0; k < all; ++k) lane.fold(args, s.axis, scratch.hits[k].row, scratch.hits[k].step);
            block.sync();
        }
    }

    // Whether the indices repeat along all axes but the one.
    static DEV bool shared_indices(const Tensor& indices, u32 axis) {
        bool same = true;
#pragma unroll 1
        for (u32 k = 0; k < indices.rank; ++k) same &= k == axis || indices.dims[k] == 1 || indices.strides[k] == 0;
        return same;
    }

    static DEV_CALL void run(const ScatterArgs& args, u32 tile, const Block& block) {
        const ScatterShape s(args);
        const Tensor& out = args.out();
        const u32 across = static_cast<u32>(s.across());
        const i64 first = static_cast<i64>(tile % across) * s.width, row = tile / across * s.height;
        const i64 height = s.rows - row < s.height ? s.rows - row : s.height;
        if (!s.in_place) copy(args, s, first, row, height, block);
        if (args.indices().elements() == 0) return;
        // Threads that share a column divide its rows among them.
        const u32 parts = WORKER_THREADS / s.width, part = block.thread() / s.width, c = block.thread() % s.width;
        const i64 share = (height + parts - 1) / parts;
        const bool mine = first + c < s.columns;
        const u32 sums = anew(s.sums);
        Scratch& scratch = *reinterpret_cast<Scratch*>(block.scratch());
        ScatterLane lane{args.sub(), s.sums, part * share, (part + 1) * share < height ? (part + 1) * share : height, 0, -1,
                         c, s.width, scratch.sum, scratch.begun};
        if (mine) {
            lane.to = scatter_column(out, out, s.axis, first + c) + row * out.strides[s.axis];
            lane.from = scatter_column(args.updates(), out, s.axis, first + c);
            if (s.sums) lane.clear();
        }
        block.sync();  // what others copied for this thread is there
        if (shared_indices(args.indices(), s.axis)) fold_slices(args, s, lane, row, height, block);
        else fold_columns(args, s, lane, first + c, row, block);
        if (anew(sums) && first + anew(c) < s.columns) lane.finish(out, s.axis);
    }
};
