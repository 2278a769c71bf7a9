// Products of warpgroups for the device on CPU: each lane works out its own part of a warpgroup's product, when its turn comes.
#pragma once
#include "matrix.cuh"

// 32 bytes of a row of an operand, which is all that wgmma takes of it: as two halves, which are together in memory, or as pairs.
using Row = u32[8];
// From shared memory: 128-byte swizzle, or none where k are neighbours; descriptors as the PTX ISA has them.
INLINED void row_of_(Row& words, u64 d, bool across, u32 row) {
    const u32 start = static_cast<u32>(d & 0x3fff) << 4, leading = static_cast<u32>(d >> 16 & 0x3fff) << 4, stride = static_cast<u32>(d >> 32 & 0x3fff) << 4;
    const bool plain = d >> 62 == 0 && !across;
    if (!plain && d >> 62 != 1) broken("a descriptor with another swizzle than that of 128 bytes");
    if (across) {
        for (u32 k = 0; k < 16; ++k) {
            const u32 at = swizzled_(start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2, 128);
            memcpy(reinterpret_cast<u16*>(words) + k, shared_at(at), 2);
        }
    } else {
        for (u32 half = 0; half < 2; ++half) {
            const u32 at = start + row / 8 * stride + (plain ? row % 8 * 16 + half * leading : row % 8 * 128 + half * 16);
            memcpy(words + half * 4, shared_at(plain ? at : swizzled_(at, 128)), 16);
        }
    }
}
// From registers of its warp; `half`: of the 16 rows.
inline void row_of_(Row& words, const WarpState& w, u32 half) {
    for (u32 i = 0; i < 8; ++i) words[i] = w.words[lane_() / 4 * 4 + i % 4][half + i / 4 * 2];
}
template <class T> struct Values {
    static constexpr u32 COUNT = 16;
    f32 v[COUNT];
    __attribute__((always_inline)) explicit Values(const Row& words) {
        for (u32 k = 0; k < 16; ++k) {
            const u16 bits = static_cast<u16>(words[k / 2] >> k % 2 * 16);
            v[k] = std::is_same<T, Bf16>::value ? f32_from_bf16(bits) : f32_from_f16(bits);
        }
    }
};
template <> struct Values<Tf32> {
    static constexpr u32 COUNT = 8;
    f32 v[COUNT];
    __attribute__((always_inline)) explicit Values(const Row& words) {
        for (u32 k = 0; k < 8; ++k) v[k] = tf32_(words[k]);
    }
};
// A lane's results are two of a row, and below them two of another: four at once, each summed up in order of k.
using Four = f32 __attribute__((vector_size(16)));
template <class T> __attribute__((optimize("O3"))) void multiply_(f32* d, u32 columns, const Row (&a)[2], u64 b, bool b_across, bool adds) {
    const Values<T> first(a[0]), second(a[1]);
    Four x[Values<T>::COUNT];
    for (u32 k = 0; k < first.COUNT; ++k) x[k] = Four{first.v[k], first.v[k], second.v[k], second.v[k]};
    for (u32 j = 0; j < columns / 8; ++j) {
        Row left, right;
        row_of_(left, b, b_across, j * 8 + lane_() % 4 * 2);
        row_of_(right, b, b_across, j * 8 + lane_() % 4 * 2 + 1);
        const Values<T> l(left), r(right);
        Four sums = {};
        if (adds) memcpy(&sums, d + j * 4, 16);
        for (u32 k = 0; k < l.COUNT; ++k) sums += x[k] * Four{l.v[k], r.v[k], l.v[k], r.v[k]};
        memcpy(d + j * 4, &sums, 16);
    }
}
template <class T, u32 COLUMNS, bool A_ACROSS, bool B_ACROSS> struct Wgmma {
    template <u32 SIZE> static void shared(f32 (&d)[SIZE], u64 a, u64 b, bool adds) {
        const u32 first = threadIdx.x / 32 % 4 * 16 + lane_() / 4;
        Row rows[2];
        for (u32 half = 0; half < 2; ++half) row_of_(rows[half], a, A_ACROSS, first + 8 * half);
        multiply_<T>(d, COLUMNS, rows, b, B_ACROSS, adds);
    }
    template <u32 SIZE> static void registers(f32 (&d)[SIZE], const u32 (&a)[4], u64 b, bool adds) {
        WarpState& w = warp_();
        for (u32 i = 0; i < 4; ++i) w.words[lane_()][i] = a[i];
        warp_barrier();
        Row rows[2];
        for (u32 half = 0; half < 2; ++half) row_of_(rows[half], w, half);
        warp_barrier();
        multiply_<T>(d, COLUMNS, rows, b, B_ACROSS, adds);
    }
    template <u32 SIZE> static void multiply(f32 (&d)[SIZE], u64 a, u64 b) { shared(d, a, b, true); }
    template <u32 SIZE> static void start(f32 (&d)[SIZE], u64 a, u64 b) { shared(d, a, b, false); }
    template <u32 SIZE> static void multiply_if(f32 (&d)[SIZE], u64 a, u64 b, u32 adds) { shared(d, a, b, adds != 0); }
    template <u32 SIZE> static void multiply(f32 (&d)[SIZE], const u32 (&a)[4], u64 b) { registers(d, a, b, true); }
    template <u32 SIZE> static void start(f32 (&d)[SIZE], const u32 (&a)[4], u64 b) { registers(d, a, b, false); }
};
