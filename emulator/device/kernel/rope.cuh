// ROPE: one thread rotates a pair, or copies an element beyond the pairs; so out may be x.
#pragma once
#include "reduction.cuh"
#include "views.cuh"

struct RopeHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV i64 pairs(const RopeArgs& args) { return args.cos().dims[args.cos().rank - 1]; }
    // Pairs and single elements of a row.
    static DEV i64 items(const RopeArgs& args) { return args.x().dims[args.x().rank - 1] - pairs(args); }
    static DEV u32 tiles(const RopeArgs& args) {
        return elementwise_tiles(Walk(args.x(), leading_axes(args.x(), 1)).count * items(args));
    }

    static DEV_CALL void run(const RopeArgs& args, u32 tile, const Block& block) {
        const Tensor& x = args.x();
        const Tensor& out = args.out();
        const Tensor& cos = args.cos();
        const Tensor& sin = args.sin();
        const Walk rows(x, leading_axes(x, 1)), out_rows(out, leading_axes(out, 1));
        const Walk cos_rows(cos, leading_axes(cos, 1)), sin_rows(sin, leading_axes(sin, 1));
        const i64 per_row = items(args), pairs = RopeHandler::pairs(args);
        const i64 step = x.strides[x.rank - 1], out_step = out.strides[out.rank - 1];
        const i64 cos_step = cos.strides[cos.rank - 1], sin_step = sin.strides[sin.rank - 1];
        const bool interleaved = args.interleaved();
        for_each_element(block, tile, rows.count * per_row, [&](i64 i) {
            const i64 row = i / per_row, item = i - row * per_row;
            const i64 from = rows.offset(row), to = out_rows.offset(row);
            if (item >= pairs) {
                store_f32(out, to + (item + pairs) * out_step, load_f32(x, from + (item + pairs) * step));
                return;
            }
            const i64 first = interleaved ? 2 * item : item, second = interleaved ? first + 1 : item + pairs;
            const f32 c = load_f32(cos, cos_rows.offset(row) + item * cos_step);
            const f32 s = load_f32(sin, sin_rows.offset(row) + item * sin_step);
            const f32 a = load_f32(x, from + first * step), b = load_f32(x, from + second * step);
            store_f32(out, to + first * out_step, a * c - b * s);
            store_f32(out, to + second * out_step, b * c + a * s);
        });
    }
};
