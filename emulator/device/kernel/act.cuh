// ACT: a function of one tensor, element by element.
#pragma once
#include "activations.cuh"
#include "vectors.cuh"
#include "views.cuh"

struct ActHandler {
    static constexpr u32 SCRATCH = VECTOR_SCRATCH_BYTES<1>;
    static DEV u32 scratch(const ActArgs& args) { return vector_scratch(merged(args)); }
    static DEV Merged<2> merged(const ActArgs& args) { return Merged<2>(VECTOR, MAX_RANK, args.out(), args.x()); }
    static DEV u32 tiles(const ActArgs& args) {
        const Merged<2> all = merged(args);
        return takes_vectors(all) ? all.tiles() : elementwise_tiles(args.out().elements());
    }

    static DEV_CALL void run(const ActArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const u32 kind = args.sub();
        const f32 alpha = args.alpha();
        const Merged<2> all = merged(args);
        const auto function = [&](f32 (&v)[1][VECTOR]) { activate_all(kind, v[0], alpha); };
        if (takes_vectors(all)) return map_vectors(all, tile, block, function);
        const bool floats = is_float(x.dtype);
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const i64 to = out.offset_of(i), from = x.offset_of(i);
            if (floats) store_f32(out, to, activate(kind, load_f32(x, from), alpha));
            else store_i64(out, to, activate_integer(kind, load_i64(x, from), x.dtype == DTYPE_BOOL));
        });
    }
};
