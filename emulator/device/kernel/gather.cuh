// GATHER: out[a..., i..., b...] = x[a..., indices[i...], b...].
#pragma once
#include "numbers.cuh"
#include "views.cuh"

struct GatherHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const GatherArgs& args) { return elementwise_tiles(args.out().elements()); }

    static DEV_CALL void run(const GatherArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const Tensor& indices = args.indices();
        const i32 axis = args.axis(), index_rank = indices.rank;
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            i64 from = 0, where = 0, rest = i;
#pragma unroll 1
            for (i32 k = out.rank - 1; k >= 0; --k) {
                const i64 at = rest % out.dims[k];
                rest /= out.dims[k];
                if (k < axis) from += at * x.strides[k];
                else if (k < axis + index_rank) where += at * indices.strides[k - axis];
                else from += at * x.strides[k - index_rank + 1];
            }
            const i64 picked = load_i64(indices, where);
            if (picked < 0 || picked >= x.dims[axis]) trap(block, TRAP_INDEX, static_cast<u32>(picked));
            else move_element(out, out.offset_of(i), x, from + picked * x.strides[axis]);
        });
    }
};
