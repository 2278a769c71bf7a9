// NORM (layer and rms) of rows of 16-bit floats that a warp has alone, one each, all of it in registers: what stands between the
// products of a transformer of few tokens. What those wait for are a warp's instructions from the wait to the end, so all that does
// not depend on x comes before the wait.
#pragma once
#include "path_workers.cuh"
#include "rows.cuh"

constexpr u32 WAY_LONE = 5;  // besides those of rows, of channels and of sets
constexpr u32 MOST_LONE = 4;  // vectors of a lane

template <class T> DEV void unpack_lone(const uint4& raw, f32 (&v)[VECTOR]) {
    const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        const float2 pair = T::unpack(words[k]);
        v[2 * k] = pair.x;
        v[2 * k + 1] = pair.y;
    }
}

// Gains or biases of a lane's vectors; `instead` where there are none.
template <class T, u32 N> struct LoneChannels {
    f32 v[N][VECTOR];

    DEV LoneChannels(const Tensor& t, bool present, u32 lane, u32 vectors, f32 instead) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            const char* const p = element(t, (lane + n * WARP) * VECTOR);
            const bool there = present && lane + n * WARP < vectors && range_in_bounds(t, p, VECTOR_BYTES);
            const uint4 raw = there ? *reinterpret_cast<const uint4*>(p) : make_uint4(0, 0, 0, 0);
            unpack_lone<T>(raw, v[n]);
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[n][k] = present ? v[n][k] : instead;
        }
    }
};

// `centred`: layer; else rms. A warp without a row goes through the code ahead of the others: see map_held_as.
template <class T, u32 N>
DEV_CALL void norm_lone(const Work& work, u32 tile, bool centred, f32 eps, bool has_gain, bool has_bias, const Tensor& gains, const Tensor& biases) {
    const Block block;
    const Rows rows(work);
    const u32 lane = block.lane(), row = tile + block.warp() * Rows::row_tiles(rows.all), line = min(row, rows.count - 1);
    const bool exists = of_first_lane(row < rows.count);
    const char* const from = rows.begin(1, line) + lane * VECTOR_BYTES;
    char* const to = rows.begin(0, line) + lane * VECTOR_BYTES;
    const LoneChannels<T, N> gain(gains, has_gain, lane, rows.vectors, 1.0f), bias(biases, has_bias, lane, rows.vectors, 0.0f);
    const f32 share = fast_reciprocal(static_cast<f32>(rows.vectors * VECTOR));
    hold_all(from, to, gain.v, bias.v, share);
    if (!exists) block.take_over();
    else if (!block.begin()) return;
    uint4 raw[N];
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        const char* const p = from + n * WARP * VECTOR_BYTES;
        const bool there = lane + n * WARP < rows.vectors && range_in_bounds(rows.tensors[1], p, VECTOR_BYTES);
        raw[n] = there ? *reinterpret_cast<const uint4*>(p) : make_uint4(0, 0, 0, 0);
    }
    f32 v[N][VECTOR], sums[VECTOR] = {}, squares[VECTOR] = {};
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        unpack_lone<T>(raw[n], v[n]);
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) sums[k] += v[n][k];
    }
    const f32 centre = centred ? fold_warp<Sum>(fold_tree<Sum>(sums)) * share : 0.0f;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        const f32 own = lane + n * WARP < rows.vectors ? centre : 0.0f;  // what there is not counts nothing
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {
            v[n][k] -= own;
            squares[k] = fmaf(v[n][k], v[n][k], squares[k]);
        }
    }
    const f32 scale = rsqrtf(fmaf(fold_warp<Sum>(fold_tree<Sum>(squares)), share, eps));
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        u32 words[4];
#pragma unroll
        for (u32 k = 0; k < 4; ++k)
            words[k] = T::pack(fmaf(v[n][2 * k] * scale, gain.v[n][2 * k], bias.v[n][2 * k]),
                               fmaf(v[n][2 * k + 1] * scale, gain.v[n][2 * k + 1], bias.v[n][2 * k + 1]));
        char* const p = to + n * WARP * VECTOR_BYTES;
        if (exists && lane + n * WARP < rows.vectors && range_in_bounds(rows.tensors[0], p, VECTOR_BYTES))
            *reinterpret_cast<uint4*>(p) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    if (!exists) block.begin();
    else block.end();
}
