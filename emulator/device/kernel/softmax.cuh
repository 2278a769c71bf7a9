// SOFTMAX: a team of threads reads its line for the maximum, for the sum, and to write it.
#pragma once
#include "lines.cuh"
#include "views.cuh"

struct SoftmaxHandler {
    static constexpr u32 SCRATCH = STAGING_BYTES;
    static constexpr u32 TERMS = 8;

    static DEV i64 lines(const SoftmaxArgs& args) {
        const i64 length = args.x().dims[args.axis()];
        return length == 0 ? 0 : args.x().elements() / length;
    }
    static DEV bool neighbours(const SoftmaxArgs& args) { return args.x().strides[args.axis()] == 1; }
    static DEV u32 parts(const SoftmaxArgs& args) {
        return Teams::parts_for(lines(args), args.x().dims[args.axis()], TERMS, neighbours(args));
    }
    static DEV u32 tiles(const SoftmaxArgs& args) { return Teams::tiles_for(lines(args), parts(args)); }

    static DEV_CALL void run(const SoftmaxArgs& args, u32 tile, const Block& block) {
        const Tensor& x = args.x();
        const Tensor& out = args.out();
        const u32 axis = args.axis(), others = ~(1u << axis);
        const Teams teams(block, parts(args), neighbours(args));
        const i64 line = static_cast<i64>(tile) * teams.rows() + teams.row;
        const bool mine = line < lines(args);
        const i64 length = mine ? x.dims[axis] : 0;
        const Line from(x, mine ? Walk(x, others).offset(line) : 0, x.strides[axis], length);
        const Line to(out, mine ? Walk(out, others).offset(line) : 0, out.strides[axis], length);
        f32 largest = -infinity();
        from.each(teams, [&](f32 v, i64) { largest = maximum(largest, v); });
        largest = teams.combine(block, largest, [](f32 a, f32 b) { return maximum(a, b); });
        const f32 top = largest == -infinity() ? 0.0f : largest;
        f32 sum = 0.0f;
        from.each(teams, [&](f32 v, i64) { sum += expf(v - top); });
        sum = teams.combine(block, sum, [](f32 a, f32 b) { return a + b; });
        const f32 total = sum == 0.0f ? 1.0f : sum;  // a line of -infinity
        if (args.sub() == SOFTMAX_LOG) {
            const f32 log_total = logf(total);
            from.rewrite(teams, to, [&](f32 v, i64) { return v - top - log_total; });
        } else {
            const f32 scale = 1.0f / total;
            from.rewrite(teams, to, [&](f32 v, i64) { return expf(v - top) * scale; });
        }
    }
};
