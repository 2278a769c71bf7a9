// Tiles whose depth the two warpgroups share: each multiplies every second slice of a stage. Then each warp gives half of its sums to the
// warp of the other warpgroup that has the same lines, and finishes the other half.
#pragma once
#ifdef HOPPER
#include "hopper/finish_lines.cuh"
#include "hopper/tiles.cuh"

constexpr u32 HALF_SUMS = PIECE_SUMS / 2;  // of a lane, in 8 lines: of each 8 columns, two neighbours

// Of a lane, in 8 lines of a piece, the upper or the lower ones.
struct HalfSums {
    f32 v[HALF_SUMS];

    DEV HalfSums(const f32 (&sums)[PIECE_SUMS], bool lower) {
#pragma unroll
        for (u32 k = 0; k < HALF_SUMS; ++k) v[k] = lower ? sums[k / 2 * 4 + 2 + k % 2] : sums[k / 2 * 4 + k % 2];
    }
};

// This warpgroup's sums over the depth; false, without them, if before() says so (multiply.cuh). It waits for its own products before it goes on: meanwhile, the other one keeps tensor cores
// busy, and what counts is that a stage is free, and filled again, soon.
template <class T, u32 COLUMNS, bool A_ACROSS, bool B_ACROSS, class Before>
DEV bool multiply_every_second(f32 (&sums)[COLUMNS / 2], const TileLayout& layout, u32 stages, u32 warpgroup, Workers& me, const Before& before) {
    constexpr u32 A_STEP = (A_ACROSS ? STEP_DEPTH * LINE_BYTES : STEP_DEPTH * 2) >> 4;  // in 16 bytes
    constexpr u32 B_STEP = (B_ACROSS ? STEP_DEPTH * LINE_BYTES : STEP_DEPTH * 2) >> 4;
    using Product = Wgmma<T, COLUMNS, A_ACROSS, B_ACROSS>;
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; ++i) sums[i] = 0.0f;
    if (!before()) return false;
#pragma unroll 1
    for (u32 i = 0; i < stages; ++i) {
        Stage stage;
        const u32 address = me.next(stage, layout.granules);
        u32 a = descriptor_low(address + layout.left_offset + warpgroup * layout.left_slice, layout.apart());
        u32 b = descriptor_low(address + layout.right_offset + warpgroup * layout.right_slice, layout.apart());
        me.wait(stage, layout.kind);
#pragma unroll 1
        for (u32 slice = warpgroup; slice < layout.slices; slice += 2) {
            warpgroup_fence();
#pragma unroll
            for (u32 step = 0; step < DEPTH / STEP_DEPTH; ++step)
                Product::multiply(sums, matrix_descriptor(a + step * A_STEP), matrix_descriptor(b + step * B_STEP));
            warpgroup_commit();
            warpgroup_wait<1>();
            a += layout.left_slice >> 3;
            b += layout.right_slice >> 3;
        }
        const u32 lane = me.lane();
        warpgroup_wait<0>();
        me.release_multiplied(stage, layout.kind, lane);
    }
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; ++i) pin(sums[i]);
    return true;
}

// The type is asked for once: asked for each pair, every one would be converted in both ways.
template <u32 N> DEV void add_pairs(f32 (&v)[2 * N], const u32 (&words)[N], u32 dtype) {
    const auto add = [&](u32 type) {
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            v[2 * j] += low_half(words[j], type);
            v[2 * j + 1] += high_half(words[j], type);
        }
    };
    if (dtype == DTYPE_BF16) add(DTYPE_BF16);
    else add(DTYPE_F16);
}
template <u32 N> DEV void pack_pairs(u32 (&words)[N], const f32 (&v)[2 * N], u32 dtype) {
    const auto pack = [&](u32 type) {
#pragma unroll
        for (u32 j = 0; j < N; ++j) words[j] = pack_pair(type, v[2 * j], v[2 * j + 1]);
    };
    if (dtype == DTYPE_BF16) pack(DTYPE_BF16);
    else pack(DTYPE_F16);
}

// The two warps that have the same lines meet.
DEV void meet_for_halves(u32 warp) { named_barrier(FIRST_FREE_BARRIER + warp % (WORKER_WARPS / 2), 2 * WARP); }

// Gives the other warp what is its part of the sums, and adds what it has of this one's. They go through the staging, from `offset` on.
template <u32 N> DEV void exchange_sums(f32 (&mine)[N], const f32 (&theirs)[N], const Workers& me, u32 offset = 0) {
    constexpr u32 PART = WARP * 16;
    constexpr u32 APART = STAGING_BYTES / 2;  // of the staging of the two warps
    const u32 warp = me.warp(), lane = me.lane();
    const u32 here = me.staging() + offset, there = warp / (WORKER_WARPS / 2) ? here - APART : here + APART;
#pragma unroll
    for (u32 k = 0; k < N / 4; ++k)
        store_shared(there + k * PART + lane * 16, make_uint4(__float_as_uint(theirs[4 * k]), __float_as_uint(theirs[4 * k + 1]),
                                                              __float_as_uint(theirs[4 * k + 2]), __float_as_uint(theirs[4 * k + 3])));
    meet_for_halves(warp);
#pragma unroll
    for (u32 k = 0; k < N / 4; ++k) {
        const uint4 more = load_shared_16(here + k * PART + lane * 16);
        mine[4 * k] += __uint_as_float(more.x);
        mine[4 * k + 1] += __uint_as_float(more.y);
        mine[4 * k + 2] += __uint_as_float(more.z);
        mine[4 * k + 3] += __uint_as_float(more.w);
    }
    __syncwarp();  // from here on, the staging is this warp's
}

// What is added to a warp's 8 lines before the activation, of the columns that a lane has sums of: asked for before the main loop.
struct HalfExtras {
    u32 bias[HALF_SUMS / 2], residual[HALF_SUMS / 2];

    DEV HalfExtras() : bias{}, residual{} {}
    // `column`: the first one of the lines, of `columns`.
    DEV void fetch(const ProductArgs& args, const Lines& lines, u32 column, u32 columns, u32 lane) {
        if (lines.has(Lines::BIAS)) {
            const char* const first = element(args.bias(), column + pair(lane));
#pragma unroll
            for (u32 j = 0; j < HALF_SUMS / 2; ++j) {
                const char* const p = first + j * CHUNK_BYTES;
                bias[j] = column + pair(lane) + j * 8 < columns && is_in_bias(p, 4) ? *reinterpret_cast<const u32*>(p) : 0;
            }
        }
        fetch_residual(args, lines, lane);
    }
    // It lies as the result does, in chunks.
    DEV void fetch_residual(const ProductArgs& args, const Lines& lines, u32 lane) {
        if (!lines.has(Lines::RESIDUAL)) return;
        const u32 row = lane / 4;
        const char* const first = lines.to + (args.residual().data - args.out().data) + static_cast<u64>(row) * lines.pitch + 2 * pair(lane);
#pragma unroll
        for (u32 j = 0; j < HALF_SUMS / 2; ++j) {
            const char* const p = first + j * CHUNK_BYTES;
            residual[j] = row < lines.rows() && j * 8 < lines.columns() && is_in_residual(p, 4) ? *reinterpret_cast<const u32*>(p) : 0;
        }
    }
    // A bias that has been fetched as EarlyBias does: two columns in a lane.
    DEV void take(u32 words, u32 lane) {
#pragma unroll
        for (u32 j = 0; j < HALF_SUMS / 2; ++j) bias[j] = __shfl_sync(0xffffffffu, words, j * 4 + lane % 4);
    }

  private:
    static DEV u32 pair(u32 lane) { return 2 * (lane % 4); }  // of columns, the first one
};

// Takes a warp's 8 lines to the result. HALF: they are of f16.
template <Ending KIND, bool HALF> DEV void finish_half_as(f32 (&v)[HALF_SUMS], const HalfExtras& extras, const Lines& lines, const Workers& me) {
    constexpr u32 DTYPE = HALF ? DTYPE_F16 : DTYPE_BF16;
    const u32 lane = me.lane(), staging = me.staging(), row = lane % 8;
    add_pairs(v, extras.bias, DTYPE);  // without a bias, it is 0
    if (KIND == Ending::RESIDUAL || KIND == Ending::CALLS) add_pairs(v, extras.residual, DTYPE);
    if (KIND == Ending::CALLS) {
        activate_few(v, lines.act());
    } else if (KIND == Ending::GELU) {
        const auto gelu = gelu_fit_of<HALF>(lines.act());
#pragma unroll
        for (u32 k = 0; k < HALF_SUMS; ++k) v[k] = gelu(v[k]);
    } else {
        const f32 bottom = bottom_of(lines.act());
#pragma unroll
        for (u32 k = 0; k < HALF_SUMS; ++k) v[k] = max_nan(v[k], bottom);
    }
    u32 words[HALF_SUMS / 2];
    pack_pairs(words, v, DTYPE);
#pragma unroll
    for (u32 j = 0; j < 8; j += 4)
        store_matrix_x4(staging + row * LINE_BYTES + (((j + lane / 8) ^ row) * CHUNK_BYTES), words[j], words[j + 1], words[j + 2], words[j + 3]);
    if (KIND == Ending::ANYWHERE || (KIND == Ending::CALLS && lines.has(Lines::ANYWHERE))) store_lines_anywhere(lines, staging);
    else store_lines<PIECE_COLUMNS>(lines, staging, lane);
}
// `ending`: of the whole tile.
DEV void finish_half(f32 (&v)[HALF_SUMS], const HalfExtras& extras, const Lines& lines, Ending ending, const Workers& me) {
    constexpr auto number = [](Ending kind, bool half) { return static_cast<u32>(kind) * 2 + half; };
    switch (number(ending, lines.has(Lines::HALF))) {
        case number(Ending::PLAIN, false): finish_half_as<Ending::PLAIN, false>(v, extras, lines, me); break;
        case number(Ending::PLAIN, true): finish_half_as<Ending::PLAIN, true>(v, extras, lines, me); break;
        case number(Ending::GELU, false): finish_half_as<Ending::GELU, false>(v, extras, lines, me); break;
        case number(Ending::GELU, true): finish_half_as<Ending::GELU, true>(v, extras, lines, me); break;
        case number(Ending::RESIDUAL, false): finish_half_as<Ending::RESIDUAL, false>(v, extras, lines, me); break;
        case number(Ending::RESIDUAL, true): finish_half_as<Ending::RESIDUAL, true>(v, extras, lines, me); break;
        case number(Ending::ANYWHERE, false): finish_half_as<Ending::ANYWHERE, false>(v, extras, lines, me); break;
        case number(Ending::ANYWHERE, true): finish_half_as<Ending::ANYWHERE, true>(v, extras, lines, me); break;
        case number(Ending::CALLS, false): finish_half_as<Ending::CALLS, false>(v, extras, lines, me); break;
        default: finish_half_as<Ending::CALLS, true>(v, extras, lines, me); break;
    }
}
#endif
