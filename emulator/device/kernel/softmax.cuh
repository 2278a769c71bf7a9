// SOFTMAX: rows of neighbours are read once; otherwise a team of threads reads its line for the maximum, for the sum, and to
// write it.
#pragma once
#include "lines.cuh"
#include "rows.cuh"
#include "views.cuh"

struct SoftmaxHandler {
    static constexpr u32 SCRATCH = ROWS_SCRATCH_BYTES;
    using Kept = Merged<2>;
    static DEV void prepare(const SoftmaxArgs& args, Kept& all) {
        if (args.axis() + 1 == args.x().rank) Rows::measure(all, args.work);
        else all.way = 0;
    }
    static DEV u32 scratch(const SoftmaxArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? Rows::scratch(all) : STAGING_BYTES;
    }
    static constexpr u32 TERMS = 8;

    static DEV i64 lines(const SoftmaxArgs& args) {
        const i64 length = args.x().dims[args.axis()];
        return length == 0 ? 0 : args.x().elements() / length;
    }
    static DEV bool neighbours(const SoftmaxArgs& args) { return args.x().strides[args.axis()] == 1; }
    static DEV u32 parts(const SoftmaxArgs& args) {
        return Teams::parts_for(lines(args), args.x().dims[args.axis()], TERMS, neighbours(args));
    }

    static DEV u32 tiles(const SoftmaxArgs& args) {
        const Kept& all = Kept::of(args.work);
        if (all.way) return Rows::row_tiles(all);
        return Teams::tiles_for(lines(args), parts(args));
    }

    template <u32 N> static DEV_CALL void by_row(const SoftmaxArgs& args, u32 tile, const Block& block) {
        const Rows rows(args.work);
        const bool log = args.sub() == SOFTMAX_LOG;
        map_rows<N>(rows, tile, block, [&](f32 (&v)[N][VECTOR], RowPart<N>& part) {
            const auto larger = [](f32 a, f32 b) { return maximum(a, b); };
            f32 most[VECTOR];
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) most[k] = -infinity();
#pragma unroll
            for (u32 n = 0; n < N; ++n)
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) most[k] = part.held(n) ? maximum(most[k], v[n][k]) : most[k];
            const f32 largest = part.combine(fold_tree(most, larger), larger);
            const f32 top = largest == -infinity() ? 0.0f : largest;
            f32 sums[VECTOR] = {};
#pragma unroll
            for (u32 n = 0; n < N; ++n)
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) {
                    const f32 power = part.held(n) ? fast_exp2(LOG2_E * (v[n][k] - top)) : 0.0f;
                    sums[k] += power;
                    v[n][k] = log ? v[n][k] - top : power;
                }
            const auto add = [](f32 a, f32 b) { return a + b; };
            const f32 sum = part.combine(fold_tree(sums, add), add);
            const f32 total = sum == 0.0f ? 1.0f : sum;  // a row of -infinity
            const f32 less = log ? logf(total) : 0.0f, scale = log ? 1.0f : 1.0f / total;
#pragma unroll
            for (u32 n = 0; n < N; ++n)
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[n][k] = (v[n][k] - less) * scale;
        });
    }
    static DEV_CALL void run(const SoftmaxArgs& args, u32 tile, const Block& block) {
        const u32 each = Kept::of(args.work).way;
        if (each == 1) return by_row<1>(args, tile, block);
        if (each == 2) return by_row<2>(args, tile, block);
        if (each != 0) return by_row<Rows::MOST>(args, tile, block);
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
