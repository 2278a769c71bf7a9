// ACT: a function of one tensor, element by element.
#pragma once
#include "activations.cuh"
#include "vectors.cuh"
#include "views.cuh"

struct ActHandler {
    static constexpr u32 SCRATCH = VECTOR_SCRATCH_BYTES<1>;
    static DEV bool fast(const ActArgs& args) { return takes_vectors(args.out()) && VectorSource(args.x()).fits; }
    static DEV u32 tiles(const ActArgs& args) {
        return fast(args) ? vector_tiles(args.out().elements()) : elementwise_tiles(args.out().elements());
    }

    static DEV void by_vectors(const ActArgs& args, u32 tile, const Block& block) {
        const u32 kind = args.sub();
        const f32 alpha = args.alpha();
        const VectorSource sources[] = {VectorSource(args.x())};
        map_vectors(block, tile, args.out(), sources, [&](f32 (&v)[1][VECTOR]) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[0][k] = activate(kind, v[0][k], alpha);
        });
    }

    static DEV_CALL void run(const ActArgs& args, u32 tile, const Block& block) {
        if (fast(args)) return by_vectors(args, tile, block);
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const u32 kind = args.sub();
        const f32 alpha = args.alpha();
        const bool floats = is_float(x.dtype);
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const i64 to = out.offset_of(i), from = x.offset_of(i);
            if (floats) store_f32(out, to, activate(kind, load_f32(x, from), alpha));
            else store_i64(out, to, activate_integer(kind, load_i64(x, from), x.dtype == DTYPE_BOOL));
        });
    }
};
