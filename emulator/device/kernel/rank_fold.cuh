// Folds of what several ranks bring.
#pragma once
#include "vectors.cuh"

// What is no sum, as isa/instructions/allreduce.py has it: of equal numbers the first, NaN if one is.
DEV f32 other_fold(u32 sub, f32 a, f32 b) {
    const bool second = sub == ALLREDUCE_MAX ? b > a : b < a;
    return sub == ALLREDUCE_PROD ? __fmul_rn(a, b) : second || b != b ? b : a;
}
DEV u32 fold_integers(u32 sub, u32 a, u32 b) {
    const bool second = sub == ALLREDUCE_MAX ? static_cast<i32>(b) > static_cast<i32>(a) : static_cast<i32>(b) < static_cast<i32>(a);
    return sub == ALLREDUCE_SUM ? a + b : sub == ALLREDUCE_PROD ? a * b : second ? b : a;
}
static_assert(ALLREDUCE_SUM == REDUCESCATTER_SUM && ALLREDUCE_MEAN == REDUCESCATTER_MEAN && ALLREDUCE_MAX == REDUCESCATTER_MAX && ALLREDUCE_MIN == REDUCESCATTER_MIN &&
              ALLREDUCE_PROD == REDUCESCATTER_PROD, "the same folds");

// What has been folded so far of some words of each member: two floats of each, or one, or an integer.
template <u32 WORDS> struct Sums {
    f32 of[2 * WORDS];
};
template <u32 WORDS> DEV_CALL Sums<WORDS> divided(Sums<WORDS> sums, u32 members) {
#pragma unroll
    for (f32& sum : sums.of) sum = __fdiv_rn(sum, static_cast<f32>(members));
    return sums;
}

// The fold of what each member brings, one after the other; rounded once. Of N times so many words, the first `count`.
struct Fold {
    u32 dtype, sub;
    bool mean;  // of a sum
    DEV Fold(u32 type, u32 kind) : dtype(type), sub(kind), mean(kind == ALLREDUCE_MEAN) {
        if (mean) sub = ALLREDUCE_SUM;
    }

    // What the first member brings.
    template <u32 WORDS, u32 N> DEV void begin(Sums<WORDS> (&sums)[N], const uint4 (&v)[N], u32 count) const {
        if (floats() == DTYPE_F32) unpack<DTYPE_F32>(sums, v, count);
        else if (floats() == DTYPE_BF16) unpack<DTYPE_BF16>(sums, v, count);
        else unpack<DTYPE_F16>(sums, v, count);
    }
    // And another one. Sums take few instructions, of each type its own; other folds are calls: written out wherever members are folded,
    // they would not stay in the instruction cache.
    template <u32 WORDS, u32 N> DEV void add(Sums<WORDS> (&sums)[N], const uint4 (&v)[N], u32 count) const;
    template <u32 WORDS, u32 N> DEV void end(uint4 (&v)[N], Sums<WORDS> (&sums)[N], u32 count, u32 members) const {
#pragma unroll
        for (u32 i = 0; i < N; ++i)
            if (mean && i < count) sums[i] = divided(sums[i], members);
        if (floats() == DTYPE_F32) pack<DTYPE_F32>(v, sums, count);
        else if (floats() == DTYPE_BF16) pack<DTYPE_BF16>(v, sums, count);
        else pack<DTYPE_F16>(v, sums, count);
    }

  private:
    DEV u32 floats() const { return dtype == DTYPE_I32 ? static_cast<u32>(DTYPE_F32) : dtype; }  // integers are kept bit for bit

    template <u32 DTYPE, u32 WORDS, u32 N> static DEV void unpack(Sums<WORDS> (&sums)[N], const uint4 (&v)[N], u32 count) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            if (i >= count) continue;
            f32 all[VECTOR] = {};
            RawVector{v[i], v[i]}.unpack(DTYPE, all);
#pragma unroll
            for (u32 k = 0; k < 2 * WORDS; ++k) sums[i].of[k] = all[k];
        }
    }
    template <u32 DTYPE, u32 WORDS, u32 N> static DEV void sum(Sums<WORDS> (&sums)[N], const uint4 (&v)[N], u32 count) {
        Sums<WORDS> more[N] = {};  // also where there are fewer: see direct.cuh
        unpack<DTYPE>(more, v, count);
#pragma unroll
        for (u32 i = 0; i < N; ++i)
#pragma unroll
            for (u32 k = 0; k < (DTYPE == DTYPE_F32 ? WORDS : 2 * WORDS); ++k)
                if (i < count) sums[i].of[k] = __fadd_rn(sums[i].of[k], more[i].of[k]);
    }
    template <u32 DTYPE, u32 WORDS, u32 N> static DEV void pack(uint4 (&v)[N], const Sums<WORDS> (&sums)[N], u32 count) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            f32 all[VECTOR] = {};
#pragma unroll
            for (u32 k = 0; k < 2 * WORDS; ++k) all[k] = sums[i].of[k];
            if (i < count) v[i] = RawVector::pack(DTYPE, all).low;
        }
    }
};
template <u32 WORDS> DEV_CALL Sums<WORDS> fold_other(Fold all, Sums<WORDS> sums, uint4 v) {
    Sums<WORDS> more[1] = {};
    const uint4 brought[1] = {v};
    all.begin(more, brought, 1);
#pragma unroll
    for (u32 k = 0; k < 2 * WORDS; ++k) {
        const f32 a = sums.of[k], b = more[0].of[k];
        sums.of[k] = all.dtype == DTYPE_I32 ? __uint_as_float(fold_integers(all.sub, __float_as_uint(a), __float_as_uint(b))) : other_fold(all.sub, a, b);
    }
    return sums;
}
template <u32 WORDS, u32 N> DEV void Fold::add(Sums<WORDS> (&sums)[N], const uint4 (&v)[N], u32 count) const {
    if (sub != ALLREDUCE_SUM || dtype == DTYPE_I32) {
#pragma unroll
        for (u32 i = 0; i < N; ++i)
            if (i < count) sums[i] = fold_other(*this, sums[i], v[i]);
    } else if (dtype == DTYPE_F32) sum<DTYPE_F32>(sums, v, count);
    else if (dtype == DTYPE_BF16) sum<DTYPE_BF16>(sums, v, count);
    else sum<DTYPE_F16>(sums, v, count);
}
