// SELECT: moves the element of a where cond holds, else that of b.
#pragma once
#include "numbers.cuh"
#include "views.cuh"

struct SelectHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const SelectArgs& args) { return elementwise_tiles(args.out().elements()); }

    static DEV_CALL void run(const SelectArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const Tensor& chosen = load_i64(args.cond(), args.cond().offset_of(i)) ? args.a() : args.b();
            move_element(out, out.offset_of(i), chosen, chosen.offset_of(i));
        });
    }
};
