// PAD: every element of out finds its source, or is the value that PAD.constant adds.
#pragma once
#include "arithmetic.cuh"
#include "views.cuh"

struct PadHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const PadArgs& args) { return elementwise_tiles(args.out().elements()); }

    // Where index `i` (below 0 or beyond n where something was added) lies in an axis of n elements; -1 outside.
    static DEV i64 source(u32 sub, i64 i, i64 n) {
        if (i >= 0 && i < n) return i;
        if (n == 0) return -1;
        switch (sub) {
            case PAD_REFLECT: {
                const i64 mirrored = i < 0 ? -i : 2 * (n - 1) - i;
                return mirrored >= 0 && mirrored < n ? mirrored : -1;
            }
            case PAD_EDGE: return i < 0 ? 0 : n - 1;
            case PAD_WRAP: return floor_mod(i, n);
            default: return -1;
        }
    }

    static DEV_CALL void run(const PadArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            i64 from = 0;
            u64 rest = i;
            bool inside = true;
#pragma unroll 1
            for (i32 k = out.rank - 1; k >= 0; --k) {
                const i64 at = source(args.sub(), static_cast<i64>(last_index(rest, out.dims[k])) - args.low(k), x.dims[k]);
                inside &= at >= 0;
                from += at * x.strides[k];
            }
            const i64 to = out.offset_of(i);
            if (inside) move_element(out, to, x, from);
            else store_scalar(out, to, args.work, args.value());
        });
    }
};
