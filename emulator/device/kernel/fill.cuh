// FILL: one number everywhere.
#pragma once
#include "arithmetic.cuh"
#include "views.cuh"

struct FillHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const FillArgs& args) { return elementwise_tiles(args.out().elements()); }

    static DEV_CALL void run(const FillArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            store_scalar(out, out.offset_of(i), args.work, args.value());
        });
    }
};
