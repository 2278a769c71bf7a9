// Low tiles of products (low.cuh) that do the NORM of their 32 rows themselves (emulator/device/paths/fusion.py). The ring holds all
// of a tile's rows at once. Each warp normalises four of them where they are, by the formula of norm.cuh: 8 lanes have a row, all of
// it in registers, so that it is read once. For others who read the rows, one of the tiles that have them stores them.
#pragma once
#ifdef HOPPER
#include "hopper/products.cuh"
#include "hopper/stream_norm.cuh"

constexpr u32 BIAS_CHANNELS_AT = STAGING_BYTES / 2;  // in the staging, behind the gains
constexpr u32 SLICE_CHUNKS = LINE_BYTES / CHUNK_BYTES, NORM_TILE_ROWS = WARP / SLICE_CHUNKS * WORKER_WARPS;
static_assert(MAX_NORM_SLICES * LINE_BYTES <= BIAS_CHANNELS_AT, "the channels of the longest rows fit");

// Leaves gains and biases in the staging. Workers call it together, before the rows are waited for.
DEV_CALL void put_channels() {
    constexpr u32 ONES = 0x3f803f80u;
    const Workers me;
    const HopperProducts p(me.work());
    const u32 flags = p.norm(), vector = me.thread();
    me.sync();  // all are done with the staging
    if (vector < p.work.operands[1].dims[p.work.operands[1].rank - 1] / VECTOR) {
        StreamChannels<DTYPE_BF16> channels(p.work, flags);
        channels.load(vector);
        const u32 to = shared_address(shared_memory) + STAGING_AT + vector * CHUNK_BYTES;
        store_shared(to, flags & NORM_GAIN ? channels.gain.raw : make_uint4(ONES, ONES, ONES, ONES));
        store_shared(to + BIAS_CHANNELS_AT, flags & NORM_BIAS ? channels.bias.raw : make_uint4(0, 0, 0, 0));
    }
    me.sync();
}

// Over the lanes that have a row.
DEV f32 fold_row(f32 v) {
#pragma unroll
    for (u32 k = 1; k < SLICE_CHUNKS; k *= 2) v += __shfl_xor_sync(0xffffffffu, v, k);
    return v;
}
template <class F> DEV f32 fold_chunk(const f32 (&v)[VECTOR], F term) {
    return ((term(v[0]) + term(v[1])) + (term(v[2]) + term(v[3]))) + ((term(v[4]) + term(v[5])) + (term(v[6]) + term(v[7])));
}

// The rows of a warp: a lane has one 8 elements of each slice, which lie at `place` of it; lane i knows where slice i begins.
// `to`: where the lane's part of the first slice goes in memory, if at all. There are no branches: what is not there is read from
// the last slice, and not counted.
template <u32 MOST> DEV void normalise_rows_at(u32 place, u32 begin, u32 slices, bool centred, f32 eps, u32 channels, char* to, const Tensor& result) {
    f32 v[MOST][VECTOR];
    uint4 raw[MOST];
    u32 at[MOST];
#pragma unroll
    for (u32 i = 0; i < MOST; ++i) at[i] = __shfl_sync(0xffffffffu, begin, min(i, slices - 1)) + place;
#pragma unroll
    for (u32 i = 0; i < MOST; ++i) raw[i] = load_shared_16(at[i]);
    f32 sum = 0.0f, squares = 0.0f;
    const f32 share = fast_reciprocal(static_cast<f32>(slices * DEPTH));
#pragma unroll
    for (u32 i = 0; i < MOST; ++i) {
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const float2 pair = unpack_pair<DTYPE_BF16>(word_of(raw[i], k));
            v[i][2 * k] = pair.x;
            v[i][2 * k + 1] = pair.y;
        }
        const f32 chunk = fold_chunk(v[i], [](f32 x) { return x; });
        sum += i < slices ? chunk : 0.0f;
    }
    const f32 centre = centred ? fold_row(sum) * share : 0.0f;
#pragma unroll
    for (u32 i = 0; i < MOST; ++i) {
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) v[i][k] -= centre;
        const f32 chunk = fold_chunk(v[i], [](f32 x) { return x * x; });
        squares += i < slices ? chunk : 0.0f;
    }
    const f32 scale = rsqrtf(fmaf(fold_row(squares), share, eps));
#pragma unroll
    for (u32 i = 0; i < MOST; ++i) {
        const uint4 gains = load_shared_16(channels + i * LINE_BYTES), biases = load_shared_16(channels + i * LINE_BYTES + BIAS_CHANNELS_AT);
        u32 words[4];
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const float2 gain = unpack_pair<DTYPE_BF16>(word_of(gains, k)), bias = unpack_pair<DTYPE_BF16>(word_of(biases, k));
            words[k] = pack_bf16(fmaf(v[i][2 * k] * scale, gain.x, bias.x), fmaf(v[i][2 * k + 1] * scale, gain.y, bias.y));
        }
        const uint4 made = make_uint4(words[0], words[1], words[2], words[3]);
        if (i < slices) store_shared(at[i], made);
        if (to && i < slices && range_in_bounds(result, to + i * LINE_BYTES, CHUNK_BYTES)) *reinterpret_cast<uint4*>(to + i * LINE_BYTES) = made;
    }
}

// Waits for all stages of a tile, the first of which is the next one at `at`, and normalises its rows, which begin with row `first`
// of all and, if `stored`, go to memory, too. A call: it has registers of its own.
template <u32 MOST> DEV_CALL void normalise_tile(RingPlace at, u32 first, bool stored) {
    Workers me;
    me.place = at;
    const HopperProducts p(me.work());
    const u32 lane = me.lane(), stages = p.schedule().stages, per_stage = p.schedule().slices, granules = p.granules();
    const u32 depth = p.work.operands[1].dims[p.work.operands[1].rank - 1], slices = depth / DEPTH;
    const u32 chunk = lane % SLICE_CHUNKS, row = me.warp() * (NORM_TILE_ROWS / WORKER_WARPS) + lane / SLICE_CHUNKS;
    const u32 channels = shared_address(shared_memory) + STAGING_AT + chunk * CHUNK_BYTES;
    const f32 eps = __uint_as_float(p.schedule().out_map);
    const Tensor& result = p.work.operands[NORMALISED_SLOT];
    u32 begin = 0;
#pragma unroll 1
    for (u32 i = 0, before = 0; i < stages; ++i, before += per_stage) {
        Stage stage;
        const u32 address = me.next(stage, granules);
        if (lane - before < per_stage) begin = address + (lane - before) * NORM_TILE_ROWS * LINE_BYTES;
        me.wait(stage);
    }
    char* const to = stored && first + row < p.schedule().rows ? result.data + (static_cast<u64>(first + row) * depth + chunk * VECTOR) * 2 : nullptr;
    normalise_rows_at<MOST>(row * LINE_BYTES + (chunk ^ row % 8) * CHUNK_BYTES, begin, slices, p.norm() & NORM_CENTRED, eps, channels, to, result);
    fence_proxy_shared();
    me.sync();  // nobody needs the channels any longer, either
}
// Of the tiles that have the same rows, the first one stores them.
DEV void normalise_rows(const HopperProducts& p, RingPlace place, const ProductItem& at) {
    constexpr u32 FEW = MAX_NORM_SLICES / 2;
    const bool stored = p.norm() & NORM_STORED && at.column == 0;
    if (p.schedule().stages * p.schedule().slices <= FEW) normalise_tile<FEW>(place, at.row, stored);
    else normalise_tile<MAX_NORM_SLICES>(place, at.row, stored);
}
#endif
