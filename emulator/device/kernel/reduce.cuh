// REDUCE: floats that lie in vectors are folded as such; else a team of threads folds the elements of each result.
#pragma once
#include "fold.cuh"
#include "views.cuh"

struct ReduceHandler {
    static constexpr u32 SCRATCH = FOLD_SCRATCH_BYTES;
    static constexpr u32 TERMS = 8;
    static constexpr bool BEGINS = true;
    using Kept = Folds;

    static DEV void prepare(const ReduceArgs& args, Folds& f) {
        f.way = 0;
        const Tensor& x = args.x();
        const Tensor& out = args.out();
        const u32 axes = args.axes();
        const Walk folded(x, axes);
        if (args.sub() == REDUCE_LOGSUMEXP || !folded.even) return;
        i64 inner = 1;
        i32 k = x.rank - 1;
#pragma unroll 1
        for (; k >= 0 && !(axes >> k & 1) && (x.dims[k] == 1 || x.strides[k] == inner); --k) inner *= x.dims[k];
        const Walk outer(x, ~axes & ((1u << (k + 1)) - 1));
        if (!outer.even || (inner > 1 && !(out.contiguous && aligned_for_vectors(out)))) return;
        f.measure(x, outer.count, outer.stride, folded.count, folded.stride, inner);
    }
    static DEV u32 scratch(const ReduceArgs& args) {
        const Folds& f = Folds::of(args.work);
        return f.way ? f.scratch() : STAGING_BYTES;
    }

    static DEV bool gives_index(u32 sub) { return sub == REDUCE_ARGMAX || sub == REDUCE_ARGMIN; }
    static DEV bool needs_elements(u32 sub) { return gives_index(sub) || sub == REDUCE_MAX || sub == REDUCE_MIN; }
    static DEV u32 parts(const ReduceArgs& args, const Walk& folded) {
        return Teams::parts_for(args.out().elements(), folded.count, TERMS, folded.stride == 1);
    }

    static DEV u32 tiles(const ReduceArgs& args) {
        if (Folds::of(args.work).way) return Folds::of(args.work).tiles();
        const Walk folded(args.x(), args.axes());
        if (folded.count == 0 && needs_elements(args.sub())) return 1;  // which traps
        return Teams::tiles_for(args.out().elements(), parts(args, folded));
    }

    template <class T> static DEV T fold(u32 sub, T a, T b) {
        switch (sub) {
            case REDUCE_MAX: return maximum(a, b);
            case REDUCE_MIN: return minimum(a, b);
            case REDUCE_PROD: return multiply(a, b);
            default: return add(a, b);
        }
    }
    template <class T> static DEV T identity(u32 sub, u32 dtype) {
        switch (sub) {
            case REDUCE_MAX: return least<T>(dtype);
            case REDUCE_MIN: return greatest<T>(dtype);
            case REDUCE_PROD: return 1;
            default: return 0;
        }
    }

    // What a thread works on: the elements `part`, `part + parts`, ... of the fold at `base`.
    struct Share {
        const Tensor& x;
        const Walk& folded;
        const Teams& teams;
        i64 base;
        i64 count;  // 0 for a thread without a fold

        // fold(... fold(start, map(element 0, index 0)) ...), then over the team.
        template <class T, class A, class Map, class Fold>
        DEV A over(const Block& block, A start, Map map, Fold fold) const {
#pragma unroll 1
            for (i64 i = teams.part; i < count; i += teams.parts)
                start = fold(start, map(load_as<T>(x, base + folded.offset(i)), static_cast<u32>(i)));
            return teams.combine(block, start, fold);
        }
    };

    template <class T> static DEV T value_of(u32 sub, const Share& share, const Block& block) {
        const T start = identity<T>(sub, share.x.dtype);
        return share.over<T>(
            block, start, [&](T v, u32) { return sub == REDUCE_L2 ? multiply(v, v) : v; },
            [&](T a, T b) { return fold(sub, a, b); });
    }
    template <class T> static DEV i64 index_of(u32 sub, const Share& share, const Block& block) {
        const Best<T> best = share.over<T>(
            block, Best<T>{0, Best<T>::NOWHERE}, [](T v, u32 i) { return Best<T>{v, i}; },
            [&](const Best<T>& a, const Best<T>& b) { return Best<T>::of(a, b, sub == REDUCE_ARGMAX); });
        return best.index;
    }
    // Shifted by the largest element, so that exp neither overflows nor loses everything.
    static DEV f32 logsumexp(const Share& share, const Block& block) {
        const f32 largest = value_of<f32>(REDUCE_MAX, share, block);
        const f32 top = isfinite(largest) ? largest : 0.0f;
        const f32 sum = share.over<f32>(
            block, 0.0f, [&](f32 v, u32) { return expf(v - top); }, [](f32 a, f32 b) { return a + b; });
        return logf(sum) + top;
    }
    static DEV f32 finish(u32 sub, f32 v, i64 count) {
        return sub == REDUCE_MEAN ? v / static_cast<f32>(count) : sub == REDUCE_L2 ? sqrtf(v) : v;
    }

    static DEV_CALL void run(const ReduceArgs& args, u32 tile, const Block& block) {
        const Tensor& x = args.x();
        const Tensor& out = args.out();
        const u32 sub = args.sub();
        if (Folds::of(args.work).way) {
            if (gives_index(sub)) return fold_vectors<Best<f32>>(args.work, sub, tile, block);
            return fold_vectors<f32>(args.work, sub, tile, block);
        }
        if (!block.begin()) return;
        const Walk folded(x, args.axes());
        if (folded.count == 0 && needs_elements(sub)) {
            if (block.thread() == 0) trap(block, TRAP_EXTENT, sub);
            return;
        }
        const Walk kept(x, ~args.axes());
        const Teams teams(block, parts(args, folded), folded.stride == 1);
        const i64 result = static_cast<i64>(tile) * teams.rows() + teams.row;
        const bool mine = result < kept.count;
        const Share share{x, folded, teams, mine ? kept.offset(result) : 0, mine ? folded.count : 0};
        const bool floats = is_float(x.dtype), writes = mine && teams.part == 0;
        const i64 to = mine ? out.offset_of(result) : 0;
        if (gives_index(sub)) {
            const i64 index = floats ? index_of<f32>(sub, share, block) : index_of<i64>(sub, share, block);
            if (writes) store_i64(out, to, index);
        } else if (floats) {
            const f32 v = sub == REDUCE_LOGSUMEXP ? logsumexp(share, block) : value_of<f32>(sub, share, block);
            if (writes) store_f32(out, to, finish(sub, v, folded.count));
        } else {
            const i64 v = value_of<i64>(sub, share, block);
            if (writes) store_i64(out, to, v);
        }
    }
};
