// IOTA: start + step * index along an axis, in i64 if both are integers, else in f64.
#pragma once
#include "arithmetic.cuh"
#include "scalar.cuh"
#include "views.cuh"

struct IotaHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const IotaArgs& args) { return elementwise_tiles(args.out().elements()); }

    static DEV_CALL void run(const IotaArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const u32 start = args.start(), step = args.step();
        const bool exact = !args.work.scalar_is_float[start] && !args.work.scalar_is_float[step];
        i64 inner = 1;
        for (u32 k = args.axis() + 1; k < out.rank; ++k) inner *= out.dims[k];
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const i64 index = i / inner % out.dims[args.axis()];
            const i64 to = out.offset_of(i);
            if (exact) {
                store_i64(out, to, add(args.work.scalars[start], multiply(args.work.scalars[step], index)));
            } else {  // not fused: the golden machine rounds the product
                const f64 product = __dmul_rn(scalar_f64(args.work, step), static_cast<f64>(index));
                store_f64(out, to, __dadd_rn(scalar_f64(args.work, start), product));
            }
        });
    }
};
