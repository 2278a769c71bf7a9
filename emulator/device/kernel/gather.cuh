// GATHER: out[a..., i..., b...] = x[a..., indices[i...], b...].
#pragma once
#include "units.cuh"
#include "views.cuh"

// out, the slice of x that index 0 picks, and indices, as tensors of out's dims: x does not move along i..., indices move
// there only.
struct GatherDims : SameDims {
    i32 axis, end;  // of i... in out

    DEV explicit GatherDims(const GatherArgs& args)
        : SameDims(args.work), axis(args.axis()), end(axis + args.indices().rank) {}
    DEV i64 stride(u32 k, i32 a) const {
        const bool picked = a >= axis && a < end;
        if (k == 0) return SameDims::stride(0, a);
        if (k == 2) return picked ? SameDims::stride(2, a - axis) : 0;
        return picked ? 0 : SameDims::stride(1, a < axis ? a : a - (end - axis) + 1);
    }
};

struct GatherHandler {
    static constexpr u32 DEPTH = 16;  // units that a thread has on their way
    static constexpr u32 SCRATCH = DEPTH * LAYER;
    static constexpr u32 WAY_UNITS = 1;
    static constexpr bool BEGINS = true;
    using Kept = Merged<3>;
    using Place = Kept::Place;

    // Bytes from one slice of x to the next.
    static DEV i64 pitch(const GatherArgs& args) { return args.x().strides[args.axis()] * args.x().item_bytes; }

    static DEV void prepare(const GatherArgs& args, Kept& all) {
        bool fits = all.measure_as(GatherDims(args), VECTOR_BYTES / args.out().item_bytes, MAX_RANK);
        fits &= pitch(args) % VECTOR_BYTES == 0;  // no axis of GatherDims has it
        all.way = fits && all.singles == 0 && all.neighbours(0) && all.neighbours(1) && !all.neighbours(2) ? WAY_UNITS : 0;
    }
    static DEV u32 scratch(const GatherArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way == 0 || all.few() ? 0 : SCRATCH;
    }
    static DEV u32 units(const GatherArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? all.one_each() : 0;
    }
    static DEV u32 tiles(const GatherArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? all.tiles() : elementwise_tiles(args.out().elements());
    }

    // Slices of neighbours, 16 bytes at a time.
    template <u32 USED> static DEV void by_units(const GatherArgs& args, u32 tile, const Block& block) {
        const Streams<3> all(args.work);
        const Tensor& x = all.tensors[1];
        const u32 rows = x.dims[args.axis()];
        const i64 pitch = GatherHandler::pitch(args);
        const bool wide = all.dtype[2] == DTYPE_I64;
        // What is picked at `first`, the unit of the slice that index 0 picks; null after a trap.
        const auto source = [&](const char* first, const char* index) -> const char* {
            if (!all.holds(2, index, all.tensors[2].item_bytes)) return nullptr;
            const i64 picked = wide ? *reinterpret_cast<const i64*>(index) : *reinterpret_cast<const i32*>(index);
            const char* from = first + picked * pitch;
            if (static_cast<u64>(picked) < rows) return all.holds(1, from, VECTOR_BYTES) ? from : nullptr;
            trap_index(picked, block);
            return nullptr;
        };
        const auto store = [&](char* to, uint4 raw) {
            if (all.holds(0, to, VECTOR_BYTES)) *reinterpret_cast<uint4*>(to) = raw;
        };
        struct Located {
            char* at[3];
        };
        if (all.few())
            return one_unit_located<USED>(
                all, tile, block,
                [&](const Place& p, bool) {
                    return Located{{all.template at<USED>(0, p), all.template at<USED>(1, p), all.template at<USED>(2, p)}};
                },
                [&](const Located& l) {
                    if (const char* from = source(l.at[1], l.at[2])) store(l.at[0], *reinterpret_cast<const uint4*>(from));
                });
        if (!block.begin()) return;
        fetch_units<USED, DEPTH, 1>(
            all, tile, block,
            [&](const Place& p, char* slot) {
                const char* from = source(all.template at<USED>(1, p), all.template at<USED>(2, p));
                if (from) copy_async_16(slot, from, VECTOR_BYTES);
            },
            [&](const Place& p, const char* slot) { store(all.template at<USED>(0, p), *reinterpret_cast<const uint4*>(slot)); });
    }

    static DEV void by_elements(const GatherArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const Tensor& indices = args.indices();
        const i32 axis = args.axis(), index_rank = indices.rank;
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            i64 from = 0, where = 0;
            u64 rest = i;
#pragma unroll 1
            for (i32 k = out.rank - 1; k >= 0; --k) {
                const i64 at = last_index(rest, out.dims[k]);
                if (k < axis) from += at * x.strides[k];
                else if (k < axis + index_rank) where += at * indices.strides[k - axis];
                else from += at * x.strides[k - index_rank + 1];
            }
            const i64 picked = load_i64(indices, where);
            if (picked < 0 || picked >= x.dims[axis]) trap_index(picked, block);
            else move_element(out, out.offset_of(i), x, from + picked * x.strides[axis]);
        });
    }

    static DEV_CALL void run(const GatherArgs& args, u32 tile, const Block& block) {
        const Kept& all = Kept::of(args.work);
        if (!all.way) {
            if (block.begin()) by_elements(args, tile, block);
        } else if (all.rows() == all.size[1]) by_units<2>(args, tile, block);
        else by_units<Kept::AXES>(args, tile, block);
    }
};
