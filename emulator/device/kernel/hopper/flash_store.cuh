// How a tile of attention on wgmma ends: sums over their denominators, and logarithms of these.
#pragma once
#ifdef HOPPER
#include "attention_shape.cuh"
#include "hopper/multiply.cuh"

// What a lane has of 64 columns of a tile's result, at its end. In a call, so much of a struct stays in registers.
struct FlashPanel {
    f32 outputs[32];
};

// A call: few instructions have it. `base` and `total`: of query `at`.
DEV_CALL void store_flash_lse(u32 at, f32 base, f32 total) {
    const Workers me;
    const AttentionArgs& args = AttentionArgs::of(me.work());
    const Tensor& lse = args.lse();
    const i64 to = Kept::place().attention.sample * lse.strides[0] + Kept::place().attention.head * lse.strides[1] + at * lse.strides[2];
    store_lse(lse, to, base / LOG2_E, total);
}

// This warp has stored its part of a tile. If that is the work's last one, the others are told at once.
DEV void flash_tile_ends() {
    if (Kept::place().attention.last) warp_arrive(&Kept::shared().done[Kept::taken() % WORKS]);
}

// Divides by the denominators, and stores by way of the staging. A call, with registers of its own; what it needs of the tile
// is in shared memory.
// `last`: of this tile.
template <class T> DEV_CALL void store_panel(FlashPanel r, f32 base0, f32 base1, f32 total0, f32 total1, u32 panel, bool last) {
    const Workers me;
    const AttentionArgs& args = AttentionArgs::of(me.work());
    const Tensor& out = args.out();
    const u32 query = Kept::place().attention.query + me.warp() * 16, lane = me.lane(), line = lane % 16;
    const u32 queries = out.dims[2], columns = out.dims[3];
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        f32 total = half == 0 ? total0 : total1;
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const u32 at = query + lane / 4 + 8 * half;
        if (panel == 0 && args.has_lse() && lane % 4 == 0 && at < queries) store_flash_lse(at, half == 0 ? base0 : base1, total);
        const f32 inverse = total == 0.0f ? 0.0f : fast_reciprocal(total);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            r.outputs[4 * j + 2 * half] *= inverse;
            r.outputs[4 * j + 2 * half + 1] *= inverse;
        }
    }
    const u32 staging = me.staging(), l = lane / 8, chunk = lane % 8, column = panel * 64 + chunk * 8;
    const i64 base = Kept::place().attention.sample * out.strides[0] + Kept::place().attention.head * out.strides[1];
    char* to = element(out, base + (query + l) * out.strides[2] + column);
    const i64 step = 4 * out.strides[2] * sizeof(u16);
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const f32* o = &r.outputs[i * 8];
        store_matrix_x4(staging + line * LINE_BYTES + ((2 * i + lane / 16) ^ (line & 7)) * CHUNK_BYTES, T::pack(o[0], o[1]),
                        T::pack(o[2], o[3]), T::pack(o[4], o[5]), T::pack(o[6], o[7]));
    }
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 4; ++i, to += step) {
        const uint4 v = load_shared_16(staging + (i * 4 + l) * LINE_BYTES + (chunk ^ (i * 4 + l & 7)) * CHUNK_BYTES);
        if (query + i * 4 + l < queries && column < columns && range_in_bounds(out, to, CHUNK_BYTES)) *reinterpret_cast<uint4*>(to) = v;
    }
    __syncwarp();
    if (last) flash_tile_ends();
}
#endif
