#pragma once
#include "matrix.cuh"

// Element (row, k) of an operand of wgmma in shared memory: 128-byte swizzle, or none where k are neighbours; descriptors as the PTX
// ISA has them.
inline u16 descriptor_element_(u64 d, bool across, u32 row, u32 k) {
    const u32 start = static_cast<u32>(d & 0x3fff) << 4, leading = static_cast<u32>(d >> 16 & 0x3fff) << 4, stride = static_cast<u32>(d >> 32 & 0x3fff) << 4;
    if (d >> 62 == 0 && !across) return read_shared_<u16>(start + row / 8 * stride + row % 8 * 16 + k / 8 * leading + k % 8 * 2);
    if (d >> 62 != 1) broken("a descriptor with another swizzle than that of 128 bytes");
    const u32 at = across ? start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2 : start + row / 8 * stride + row % 8 * 128 + k * 2;
    return read_shared_<u16>(swizzled_(at, 128));
}
template <class T> f32 element_of_(u16 bits);
template <> f32 element_of_<Bf16>(u16 bits) { return f32_from_bf16(bits); }
template <> f32 element_of_<F16>(u16 bits) { return f32_from_f16(bits); }
template <class T, u32 COLUMNS, bool A_ACROSS, bool B_ACROSS> struct Wgmma {
    template <u32 SIZE, class Left> static void product(f32 (&d)[SIZE], Left left, u64 b, bool adds) {
        const u32 l = lane_();
        f32 x[2][16];
        for (u32 h = 0; h < 2; ++h)
            for (u32 k = 0; k < 16; ++k) x[h][k] = left(h, k);
        for (u32 j = 0; j < COLUMNS / 8; ++j)
            for (u32 c = 0; c < 2; ++c) {
                f32 y[16];
                for (u32 k = 0; k < 16; ++k) y[k] = element_of_<T>(descriptor_element_(b, B_ACROSS, j * 8 + l % 4 * 2 + c, k));
                for (u32 h = 0; h < 2; ++h) {
                    f32 s = adds ? d[j * 4 + h * 2 + c] : 0.0f;
                    for (u32 k = 0; k < 16; ++k) s += x[h][k] * y[k];
                    d[j * 4 + h * 2 + c] = s;
                }
            }
    }
    template <u32 SIZE> static void shared(f32 (&d)[SIZE], u64 a, u64 b, bool adds) {
        const u32 first = threadIdx.x / 32 % 4 * 16 + lane_() / 4;
        product(d, [&](u32 h, u32 k) { return element_of_<T>(descriptor_element_(a, A_ACROSS, first + 8 * h, k)); }, b, adds);
    }
    template <u32 SIZE> static void registers(f32 (&d)[SIZE], const u32 (&a)[4], u64 b, bool adds) {
        WarpState& w = warp_();
        const u32 l = lane_();
        for (u32 i = 0; i < 4; ++i) w.words[l][i] = a[i];
        warp_barrier();
        f32 x[2][16];
        for (u32 h = 0; h < 2; ++h)
            for (u32 k = 0; k < 16; ++k) x[h][k] = element_of_<T>(static_cast<u16>(w.words[l / 4 * 4 + k % 8 / 2][h + k / 8 * 2] >> (k % 2 * 16)));
        warp_barrier();
        product(d, [&](u32 h, u32 k) { return x[h][k]; }, b, adds);
    }
    template <u32 SIZE> static void multiply(f32 (&d)[SIZE], u64 a, u64 b) { shared(d, a, b, true); }
    template <u32 SIZE> static void start(f32 (&d)[SIZE], u64 a, u64 b) { shared(d, a, b, false); }
    template <u32 SIZE> static void multiply_if(f32 (&d)[SIZE], u64 a, u64 b, u32 adds) { shared(d, a, b, adds != 0); }
    template <u32 SIZE> static void multiply(f32 (&d)[SIZE], const u32 (&a)[4], u64 b) { registers(d, a, b, true); }
    template <u32 SIZE> static void start(f32 (&d)[SIZE], const u32 (&a)[4], u64 b) { registers(d, a, b, false); }
};
template <u32 COLUMNS> struct Wgmma<Tf32, COLUMNS, false, false> {
    static f32 element(u64 d, u32 row, u32 k) {
        return tf32_(descriptor_element_(d, false, row, 2 * k) | static_cast<u32>(descriptor_element_(d, false, row, 2 * k + 1)) << 16);
    }
    template <u32 SIZE> static void multiply(f32 (&d)[SIZE], u64 a, u64 b) {
        const u32 first = threadIdx.x / 32 % 4 * 16 + lane_() / 4;
        f32 x[2][8];
        for (u32 h = 0; h < 2; ++h)
            for (u32 k = 0; k < 8; ++k) x[h][k] = element(a, first + 8 * h, k);
        product(d, x, b);
    }
    template <u32 SIZE> static void multiply(f32 (&d)[SIZE], const u32 (&a)[4], u64 b) {
        WarpState& w = warp_();
        const u32 l = lane_();
        for (u32 i = 0; i < 4; ++i) w.words[l][i] = a[i];
        warp_barrier();
        f32 x[2][8];
        for (u32 h = 0; h < 2; ++h)
            for (u32 k = 0; k < 8; ++k) x[h][k] = tf32_(w.words[l / 4 * 4 + k % 4][h + k / 4 * 2]);
        warp_barrier();
        product(d, x, b);
    }
    template <u32 SIZE> static void product(f32 (&d)[SIZE], const f32 (&x)[2][8], u64 b) {
        const u32 l = lane_();
        for (u32 j = 0; j < COLUMNS / 8; ++j)
            for (u32 c = 0; c < 2; ++c)
                for (u32 k = 0; k < 8; ++k) {
                    const f32 y = element(b, j * 8 + l % 4 * 2 + c, k);
                    for (u32 h = 0; h < 2; ++h) d[j * 4 + h * 2 + c] += x[h][k] * y;
                }
    }
};
