// SOFTMAX: rows of neighbours are read from memory once; neighbouring columns go eight at a time; otherwise a team of threads
// reads its line for the maximum, for the sum, and to write it.
#pragma once
#include "activations.cuh"
#include "columns.cuh"
#include "held_rows.cuh"
#include "lines.cuh"
#include "views.cuh"

// The last step of a row in vectors.
struct SoftEnd {
    f32 top;    // the largest element
    f32 less;   // the logarithm of the sum of the powers,
    f32 scale;  // and the sum's reciprocal
    bool log;

    template <u32 N> DEV void operator()(f32 (&v)[N][VECTOR], const Rewritten&) const {
#pragma unroll
        for (u32 n = 0; n < N; ++n)
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[n][k] -= top;
        if (log) {
#pragma unroll
            for (u32 n = 0; n < N; ++n)
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[n][k] -= less;
        } else {
#pragma unroll
            for (u32 n = 0; n < N; ++n)
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[n][k] = fast_exp2(LOG2_E * v[n][k]) * scale;
        }
    }
};

// Powers of a warp's elements, of which `top` is the largest, or 0 where that is -infinity.
struct SoftPowers {
    f32 top;

    DEV explicit SoftPowers(f32 largest) : top(largest == -infinity() ? 0.0f : largest) {}
    DEV f32 of(f32 x) const { return fast_exp2(LOG2_E * (x - top)); }
    // What makes powers of this kind ones of `other`, whose top is no smaller; 0 if there were none but of -infinity.
    DEV f32 as(const SoftPowers& other, f32 largest) const { return fast_exp2(LOG2_E * (largest - other.top)); }
};
// Of elements of 16 bits: each power is e^(x - top) times a factor that depends on `top` only, and is the same for equal ones. So
// the factor drops out of quotients, and what is subtracted costs no instruction of its own.
struct NarrowPowers {
    // From here on, the factor might be beyond all floats; elements are equal or so far apart that their powers are 0 to any base.
    static constexpr f32 MOST = 0x1p20f;
    f32 factor;
    f32 less;  // the product of factor and top

    DEV explicit NarrowPowers(f32 largest)
        : factor(fabsf(largest) < MOST || largest == -infinity() ? LOG2_E : 1.0f), less(largest == -infinity() ? 0.0f : factor * largest) {}
    DEV f32 of(f32 x) const { return fast_exp2(fmaf(x, factor, -less)); }
    DEV f32 as(const NarrowPowers& other, f32 largest) const {
        return factor != other.factor || largest == -infinity() ? 0.0f : fast_exp2(less - other.less);
    }
};

// Of a row whose warps each have their own largest element, and a sum of powers in each thread: the sum of all powers, of those
// that belong to `most`, the largest of all. `thread`, `team`, `place`: see fold_team.
template <class Powers> DEV f32 sum_of_powers(f32 largest, f32 sum, f32& most, u32 thread, u32 team, u32 place) {
    const u32 warp = thread / WARP, lane = thread % WARP;
    float2* const shared = exchange_place<float2>(place);
    sum = fold_warp<Sum>(sum);
    most = largest;
    f32 total = sum;
    if (team) {
        if (lane == 0) shared[warp] = make_float2(largest, sum);
        named_barrier(FIRST_FREE_BARRIER + (warp >> team), WARP << team);
        const u32 first = warp >> team << team;
        if (team == 2) {
            const float4 low = *reinterpret_cast<const float4*>(shared + first);
            const float4 high = *reinterpret_cast<const float4*>(shared + first + 2);
            most = maximum(maximum(low.x, low.z), maximum(high.x, high.z));
            const Powers all(most);
            const auto part = [&](f32 top, f32 powers) { return powers * Powers(top).as(all, top); };
            total = (part(low.x, low.y) + part(low.z, low.w)) + (part(high.x, high.y) + part(high.z, high.w));
        } else {
            // Several lanes have one warp's; a sum counts it once.
            const float2 v = shared[first + (lane & (1 << team) - 1)];
            most = fold_warps<Largest>(v.x);
            const f32 part = v.y * Powers(v.x).as(Powers(most), v.x);
            total = fold_warps<Sum>(lane % WORKER_WARPS >> team == 0 ? part : 0.0f);
        }
    }
    return total == 0.0f ? 1.0f : total;  // a row of -infinity
}
// What this warp's powers are to be multiplied by.
template <class Powers> DEV_CALL f32 finish_soft(f32 largest, f32 sum, u32 thread, u32 team, u32 place) {
    f32 most;
    const f32 total = sum_of_powers<Powers>(largest, sum, most, thread, team, place);
    return Powers(largest).as(Powers(most), largest) * fast_reciprocal(total);
}
// What is still to be subtracted for the logarithm.
DEV_CALL f32 finish_log_soft(f32 largest, f32 sum, u32 thread, u32 team, u32 place) {
    f32 most;
    const f32 total = sum_of_powers<SoftPowers>(largest, sum, most, thread, team, place);
    return SoftPowers(most).top - SoftPowers(largest).top + logf(total);
}

// What becomes of a row in vectors: the powers of its elements, their sum, and the quotients.
struct SoftRow {
    static constexpr u32 MOST_LOG = MOST_HELD < 4 ? MOST_HELD : 4;  // vectors that are held for the logarithm: longer code is slower
    bool log;

    DEV static constexpr u32 most_held(bool) { return MOST_HELD; }
    template <bool WIDE, u32 N> struct Held {
        DEV void load(const SoftRow&, const HeldRow<WIDE, N>&) {}
        DEV void unpack(const SoftRow&, u32) {}
    };
    template <bool WIDE, u32 N> DEV void operator()(HeldRow<WIDE, N>& row, const Held<WIDE, N>&) const {
        f32 largest;
        by_type<WIDE>(row.rows.dtype[1], [&](u32 dtype) {
            row.fill_raw(dtype == DTYPE_F32 ? 0xff800000u : dtype == DTYPE_BF16 ? 0xff80ff80u : 0xfc00fc00u);
            largest = row.raw.largest(dtype);
            row.raw.unpack(dtype, row.v);
        });
        largest = fold_warp<Largest>(largest);
        if (N <= MOST_LOG && log) with_log(row, largest);
        else if constexpr (WIDE) divide<SoftPowers>(row, largest);
        else divide<NarrowPowers>(row, largest);
    }
    DEV void operator()(StreamedRow& row) const {
        // What is subtracted: the largest element, if it is finite or NaN.
        const f32 found = row.combine<Largest>(largest_of(row)), top = found == -infinity() ? 0.0f : found;
        f32 sums[VECTOR] = {};
        row.each([&](const f32 (&v)[VECTOR]) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] += fast_exp2(LOG2_E * (v[k] - top));
        });
        const f32 sum = row.combine<Sum>(fold_tree<Sum>(sums)), total = sum == 0.0f ? 1.0f : sum;  // of a row of -infinity
        row.rewrite(SoftEnd{top, log ? logf(total) : 0.0f, 1.0f / total, log});
    }

  private:
    template <class Powers, class Row> DEV static void divide(Row& row, f32 largest) {
        const Powers powers(largest);
        f32 sums[VECTOR] = {};
        row.each([&](f32 (&v)[VECTOR]) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] += v[k] = powers.of(v[k]);
        });
        const f32 scale = finish_soft<Powers>(largest, fold_tree<Sum>(sums), row.block.thread(), row.rows.team, row.exchange ^= 1);
        replace_each(row.v, [&](f32 x) { return x * scale; });
    }
    template <class Row> DEV static void with_log(Row& row, f32 largest) {
        const SoftPowers powers(largest);
        f32 sums[VECTOR] = {};
        row.each([&](const f32 (&v)[VECTOR]) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] += powers.of(v[k]);
        });
        const f32 less = finish_log_soft(largest, fold_tree<Sum>(sums), row.block.thread(), row.rows.team, row.exchange ^= 1);
        replace_each(row.v, [&](f32 x) { return x - powers.top - less; });
    }
    // Of what this thread has.
    template <class Row> DEV static f32 largest_of(Row& row) {
        f32 most[VECTOR];
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) most[k] = -infinity();
        row.each([&](const f32 (&v)[VECTOR]) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) most[k] = maximum(most[k], v[k]);
        });
        return fold_tree<Largest>(most);
    }
};

struct SoftmaxHandler {
    static constexpr bool BEGINS = true;
    using Kept = Merged<2>;
    static DEV void prepare(const SoftmaxArgs& args, Kept& all) {
        const u32 axis = args.axis(), here = 1u << axis;
        if (axis + 1 == args.x().rank) Rows::measure(all, args.work, args.sub() == SOFTMAX_LOG ? SoftRow::MOST_LOG : MOST_HELD);
        else reinterpret_cast<ColumnSets&>(all).measure(args.work, here - 1, here, ~(2 * here - 1), 1);
    }
    static DEV u32 scratch(const SoftmaxArgs& args) {
        const Kept& all = Kept::of(args.work);
        if (all.way == WAY_SETS) return ColumnSets::of(args.work).scratch();
        return all.way ? Rows::scratch(all, args.work) : STAGING_BYTES;
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
        if (all.way == WAY_SETS) return ColumnSets::of(args.work).tiles();
        if (all.way) return Rows::row_tiles(all);
        return Teams::tiles_for(lines(args), parts(args));
    }

    static DEV_CALL void held(const SoftmaxArgs& args, u32 tile, const Block& block) {
        map_held(args.work, tile, block, SoftRow{args.sub() == SOFTMAX_LOG});
    }
    static DEV_CALL void streamed(const SoftmaxArgs& args, u32 tile, const Block& block) {
        map_streamed(args.work, tile, block, [] {}, SoftRow{args.sub() == SOFTMAX_LOG});
    }
    static DEV_CALL void by_columns(const SoftmaxArgs& args, u32 tile, const Block& block) {
        const ColumnThread thread(args.work, tile, block);
        const bool log = args.sub() == SOFTMAX_LOG;
        f32 top[VECTOR], total[VECTOR];
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {
            top[k] = -infinity();
            total[k] = 0.0f;
        }
        thread.each([&](const f32 (&v)[VECTOR], u32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) top[k] = maximum(top[k], v[k]);
        });
        thread.combine(top, 1, [](f32 a, f32 b) { return maximum(a, b); });
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) top[k] = top[k] == -infinity() ? 0.0f : top[k];
        thread.each([&](const f32 (&v)[VECTOR], u32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) total[k] += fast_exp2(LOG2_E * (v[k] - top[k]));
        });
        thread.combine(total, 1, [](f32 a, f32 b) { return a + b; });
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {  // what is subtracted, or multiplied by
            const f32 sum = total[k] == 0.0f ? 1.0f : total[k];  // of nothing but -infinity
            total[k] = log ? logf(sum) : 1.0f / sum;
        }
        thread.rewrite([&](f32 (&v)[VECTOR]) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k)
                v[k] = log ? v[k] - top[k] - total[k] : fast_exp2(LOG2_E * (v[k] - top[k])) * total[k];
        });
    }
    static DEV void run(const SoftmaxArgs& args, u32 tile, const Block& block) {
        const u32 way = Kept::of(args.work).way;
        if (way == WAY_HELD) return held(args, tile, block);
        if (!block.begin()) return;
        if (way == WAY_STREAMED) return streamed(args, tile, block);
        if (way == WAY_SETS) return by_columns(args, tile, block);
        by_line(args, tile, block);
    }

  private:
    // Of any line.
    static DEV_CALL void by_line(const SoftmaxArgs& args, u32 tile, const Block& block) {
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
