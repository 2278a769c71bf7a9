// RESIZE: out[a..., p, b...] = sum over k of weights[p, k] * x[a..., indices[p, k], b...].
#pragma once
#include "numbers.cuh"
#include "views.cuh"

struct ResizeHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const ResizeArgs& args) { return elementwise_tiles(args.out().elements()); }

    // One element: the terms at `position` of the tables, of the line of x that starts at `from`.
    static DEV f32 value(const ResizeArgs& args, i64 position, i64 from, const Block& block) {
        const Tensor& x = args.x();
        const Tensor& indices = args.indices();
        const Tensor& weights = args.weights();
        const u32 axis = args.axis();
        f32 sum = 0.0f;
#pragma unroll 1
        for (i32 k = 0; k < indices.dims[1]; ++k) {
            const i64 picked = load_i64(indices, position * indices.strides[0] + k * indices.strides[1]);
            const f32 weight = load_f32(weights, position * weights.strides[0] + k * weights.strides[1]);
            if (picked < 0 || picked >= x.dims[axis]) trap(block, TRAP_INDEX, static_cast<u32>(picked));
            else if (weight != 0.0f) sum = fmaf(weight, load_f32(x, from + picked * x.strides[axis]), sum);
        }
        return sum;
    }

    static DEV_CALL void run(const ResizeArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const i32 axis = args.axis();
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            i64 from = 0, to = 0, position = 0, rest = i;
#pragma unroll 1
            for (i32 k = out.rank - 1; k >= 0; --k) {
                const u32 size = static_cast<u32>(out.dims[k]);
                const u64 next = rest >> 32 ? rest / size : static_cast<u32>(rest) / size;
                const i64 at = rest - static_cast<i64>(next) * size;
                to += at * out.strides[k];
                if (k == axis) position = at;
                else from += at * x.strides[k];
                rest = static_cast<i64>(next);
            }
            store_f32(out, to, value(args, position, from, block));
        });
    }
};
