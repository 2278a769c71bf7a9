// COPY: moves equal types bit for bit, converts the others.
#pragma once
#include "vectors.cuh"
#include "views.cuh"

struct CopyHandler {
    static constexpr u32 SCRATCH = VECTOR_SCRATCH_BYTES<1>;
    // Elements that 16 bytes hold, if out and x are of one type and both are sequences of so many neighbours; else 0.
    static DEV i64 unit(const CopyArgs& args) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        if (out.dtype != x.dtype || !in_units(out) || !in_units(x)) return 0;
        return VECTOR_BYTES / out.item_bytes;
    }
    // Whether `t` is a sequence of aligned units.
    static DEV bool in_units(const Tensor& t) {
        if (!aligned_for_vectors(t)) return false;
        if (t.contiguous) return true;
        const i64 unit = VECTOR_BYTES / t.item_bytes;
        const u32 last = t.rank - 1;  // a tensor without dims is contiguous
        bool fits = t.strides[last] == 1 && t.dims[last] % unit == 0;
#pragma unroll 1
        for (u32 k = 0; k < last; ++k) fits &= t.dims[k] == 1 || t.strides[k] % unit == 0;
        return fits;
    }
    static DEV bool converts_vectors(const CopyArgs& args) {
        return takes_vectors(args.out()) && args.out().dtype != args.x().dtype && VectorSource(args.x()).fits;
    }
    // Units that a thread moves in one tile.
    static DEV u32 steps(i64 units) { return units >= DEEP_ELEMENTS / VECTOR ? DEEP_STEPS * 2 : 1; }

    static DEV u32 tiles(const CopyArgs& args) {
        const i64 elements = args.out().elements(), by = unit(args);
        if (by) {
            const i64 units = (elements + by - 1) / by, each = static_cast<i64>(WORKER_THREADS) * steps(units);
            return static_cast<u32>((units + each - 1) / each);
        }
        return converts_vectors(args) ? vector_tiles(elements) : elementwise_tiles(elements);
    }

    static DEV void move_units(const CopyArgs& args, u32 tile, const Block& block, i64 by) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const i64 elements = out.elements(), units = (elements + by - 1) / by;
        const u32 count = steps(units);
        const i64 begin = static_cast<i64>(tile) * count * WORKER_THREADS + block.thread();
#pragma unroll 4
        for (u32 s = 0; s < count; ++s) {
            const i64 first = (begin + s * WORKER_THREADS) * by;
            if (first + by <= elements) {
                const i64 to = out.offset_of(first), from = x.offset_of(first);
                if (!in_bounds(out, element(out, to + by - 1)) || !in_bounds(x, element(x, from + by - 1))) continue;
                *reinterpret_cast<uint4*>(element(out, to)) = *reinterpret_cast<const uint4*>(element(x, from));
            } else {
#pragma unroll 1
                for (i64 i = first; i < elements; ++i) move_element(out, out.offset_of(i), x, x.offset_of(i));
            }
        }
    }

    static DEV_CALL void run(const CopyArgs& args, u32 tile, const Block& block) {
        if (const i64 by = unit(args)) return move_units(args, tile, block, by);
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        if (converts_vectors(args)) {
            const VectorSource sources[] = {VectorSource(x)};
            return map_vectors(block, tile, out, sources, [](f32 (&)[1][VECTOR]) {});
        }
        const bool same = out.dtype == x.dtype;
        const bool through_f32 = is_float(x.dtype);
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const i64 to = out.offset_of(i), from = x.offset_of(i);
            if (same) move_element(out, to, x, from);
            else if (through_f32) store_f32(out, to, load_f32(x, from));
            else store_i64(out, to, load_i64(x, from));
        });
    }
};
