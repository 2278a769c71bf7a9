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
static_assert(ALLREDUCE_MEAN == REDUCESCATTER_MEAN && ALLREDUCE_MAX == REDUCESCATTER_MAX && ALLREDUCE_MIN == REDUCESCATTER_MIN &&
              ALLREDUCE_PROD == REDUCESCATTER_PROD, "the same folds");

// The fold of 16 bytes of each member, one after the other; rounded once.
struct Fold {
    u32 dtype, sub;

    // `sums`: eight floats, or four integers.
    DEV void begin(f32 (&sums)[VECTOR], uint4 v) const { unpack(v, sums); }
    DEV void add(f32 (&sums)[VECTOR], uint4 v) const {
        f32 more[VECTOR];
        unpack(v, more);
        if (dtype == DTYPE_I32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR / 2; ++k)
                sums[k] = __uint_as_float(fold_integers(sub, __float_as_uint(sums[k]), __float_as_uint(more[k])));
        } else if (sub == ALLREDUCE_SUM || sub == ALLREDUCE_MEAN) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] = __fadd_rn(sums[k], more[k]);
        } else {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] = other_fold(sub, sums[k], more[k]);
        }
    }
    DEV uint4 end(f32 (&sums)[VECTOR], u32 members) const {
        if (dtype == DTYPE_I32)
            return make_uint4(__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]), __float_as_uint(sums[3]));
        if (sub == ALLREDUCE_MEAN) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] = __fdiv_rn(sums[k], static_cast<f32>(members));
        }
        return RawVector::pack(dtype, sums).low;
    }

  private:
    DEV void unpack(uint4 v, f32 (&to)[VECTOR]) const { RawVector{v, v}.unpack(dtype == DTYPE_I32 ? static_cast<u32>(DTYPE_F32) : dtype, to); }
};

