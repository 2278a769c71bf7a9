// COPY: moves equal types bit for bit, converts the others.
#pragma once
#include "numbers.cuh"
#include "views.cuh"

struct CopyHandler {
    static DEV u32 tiles(const CopyArgs& args) { return elementwise_tiles(args.out().elements()); }

    static DEV_CALL void run(const CopyArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
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
