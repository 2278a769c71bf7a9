// ACT: a function of one tensor, element by element.
#pragma once
#include "activations.cuh"
#include "few.cuh"
#include "views.cuh"

struct ActVectors {
    u32 kind;
    f32 alpha;
    bool narrow;  // the results have 16 bits
    template <u32 C> DEV void operator()(f32 (&v)[1][C][VECTOR]) const { activate_all(kind, v[0], alpha, narrow); }
};

struct ActHandler {
    static constexpr bool BEGINS = true;
    using Kept = Merged<2>;
    static DEV void prepare(const ActArgs& args, Kept& all) {
        all.way = take_vectors(all, args.work, MAX_RANK) ? WAY_VECTORS : 0;
    }
    static DEV u32 scratch(const ActArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? vector_scratch(all) : 0;
    }
    static DEV u32 units(const ActArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? all.one_each() : 0;
    }
    static DEV u32 tiles(const ActArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? all.tiles() : elementwise_tiles(args.out().elements());
    }

    static DEV_CALL void run(const ActArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const u32 kind = args.sub();
        const f32 alpha = args.alpha();
        const ActVectors function{kind, alpha, out.dtype != DTYPE_F32};
        if (Kept::of(args.work).way) return map_vectors<2>(args.work, tile, block, function);
        if (!block.begin()) return;
        const bool floats = is_float(x.dtype);
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const i64 to = out.offset_of(i), from = x.offset_of(i);
            if (floats) store_f32(out, to, activate(kind, load_f32(x, from), alpha));
            else store_i64(out, to, activate_integer(kind, load_i64(x, from), x.dtype == DTYPE_BOOL));
        });
    }
};
