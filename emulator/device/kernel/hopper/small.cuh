// The smallest tiles of products, 64 x 64, whose depth the two warpgroups share: in small networks they are the work of few blocks,
// and what counts is how long one of them takes. Each warpgroup multiplies every second slice of a stage. Then each warp gives
// half of its sums, 8 lines, to the warp of the other warpgroup that has the same lines, and finishes the other half.
#pragma once
#ifdef HOPPER
#include "hopper/finish_lines.cuh"
#include "hopper/tiles.cuh"

constexpr u32 HALF_SUMS = PIECE_SUMS / 2;  // of a lane, in 8 lines: of each 8 columns, two neighbours

// This warpgroup's sums over the depth.
template <class T, u32 COLUMNS, bool A_ACROSS, bool B_ACROSS>
DEV void multiply_every_second(f32 (&sums)[COLUMNS / 2], const TileLayout& layout, u32 stages, u32 warpgroup, Workers& me) {
    constexpr u32 A_STEP = (A_ACROSS ? STEP_DEPTH * LINE_BYTES : STEP_DEPTH * 2) >> 4;  // in 16 bytes
    constexpr u32 B_STEP = (B_ACROSS ? STEP_DEPTH * LINE_BYTES : STEP_DEPTH * 2) >> 4;
    using Product = Wgmma<T, COLUMNS, A_ACROSS, B_ACROSS>;
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; ++i) sums[i] = 0.0f;
    Stage before{0, 0};
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
        if (i != 0) me.release(before, layout.kind);
        before = stage;
    }
    warpgroup_wait<0>();
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; ++i) pin(sums[i]);
    if (stages != 0) me.release(before, layout.kind);
}

// The two warps that have the same lines meet.
DEV void meet_for_halves(u32 warp) { named_barrier(FIRST_FREE_BARRIER + warp % (WORKER_WARPS / 2), 2 * WARP); }

// Gives the other warp what is its part of the sums, and adds what it has of this one's.
template <u32 N> DEV void exchange_sums(f32 (&mine)[N], const f32 (&theirs)[N], const Workers& me) {
    constexpr u32 PART = WARP * 16;
    constexpr u32 APART = STAGING_BYTES / 2;  // of the staging of the two warps
    const u32 warp = me.warp(), lane = me.lane();
    const u32 here = me.staging(), there = warp / (WORKER_WARPS / 2) ? here - APART : here + APART;
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
DEV void exchange_halves(f32 (&mine)[HALF_SUMS], const f32 (&sums)[PIECE_SUMS], const Workers& me) {
    const bool upper = me.warp() / (WORKER_WARPS / 2);
    f32 theirs[HALF_SUMS];
#pragma unroll
    for (u32 k = 0; k < HALF_SUMS; ++k) {
        const f32 first = sums[k / 2 * 4 + k % 2], second = sums[k / 2 * 4 + 2 + k % 2];
        mine[k] = upper ? second : first;
        theirs[k] = upper ? first : second;
    }
    exchange_sums(mine, theirs, me);
}

// A warp's 8 lines of the residual, which lies as the result's do.
struct HalfResidual {
    uint4 words[2];

    DEV void fetch(const Lines& lines, u32 lane) {
        const ProductArgs args = args_at_work();
        const i64 moved = args.residual().data - args.out().data;
        const u32 chunk = lane % 8;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 line = i * 4 + lane / 8;
            const char* p = lines.to + moved + static_cast<u64>(line) * lines.pitch + chunk * CHUNK_BYTES;
            const bool exists = line < lines.rows() && chunk * (CHUNK_BYTES / 2) < lines.columns() && is_in_residual(p, CHUNK_BYTES);
            words[i] = exists ? *reinterpret_cast<const uint4*>(p) : make_uint4(0, 0, 0, 0);
        }
    }
    // Adds it to the sums, through the staging.
    DEV void add(f32 (&v)[HALF_SUMS], u32 dtype, u32 staging, u32 lane) const {
        const u32 row = lane % 8;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 line = i * 4 + lane / 8;
            store_shared(staging + line * LINE_BYTES + ((row ^ line) * CHUNK_BYTES), words[i]);
        }
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < 8; j += 4) {
            u32 pairs[4];
            load_matrix_x4(pairs, staging + row * LINE_BYTES + (((j + lane / 8) ^ row) * CHUNK_BYTES));
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                v[(j + i) * 2] += low_half(pairs[i], dtype);
                v[(j + i) * 2 + 1] += high_half(pairs[i], dtype);
            }
        }
        __syncwarp();
    }
};

// Takes a warp's 8 lines to the result. `bias`: of columns 2 * lane and the next.
DEV void finish_half(f32 (&v)[HALF_SUMS], u32 bias, const HalfResidual& residual, const Lines& lines, const Workers& me) {
    const u32 lane = me.lane(), dtype = lines.dtype(), staging = me.staging();
    if (lines.has(Lines::BIAS)) {
#pragma unroll
        for (u32 j = 0; j < HALF_SUMS / 2; ++j) {
            const u32 word = __shfl_sync(0xffffffffu, bias, j * 4 + lane % 4);
            v[j * 2] += low_half(word, dtype);
            v[j * 2 + 1] += high_half(word, dtype);
        }
    }
    if (lines.has(Lines::RESIDUAL)) residual.add(v, dtype, staging, lane);
    fast_activate(v, lines.act());
    const u32 row = lane % 8;
#pragma unroll
    for (u32 j = 0; j < 8; j += 4) {
        u32 words[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[i] = pack_pair(dtype, v[(j + i) * 2], v[(j + i) * 2 + 1]);
        store_matrix_x4(staging + row * LINE_BYTES + (((j + lane / 8) ^ row) * CHUNK_BYTES), words[0], words[1], words[2], words[3]);
    }
    if (lines.has(Lines::ANYWHERE)) store_lines_anywhere(lines, staging);
    else store_lines<PIECE_COLUMNS>(lines, staging, lane);
}

// Products, Part: HopperProducts and WarpPart, which know where tiles and their parts lie.
template <class Products, class Part> struct TileHalves {
    // Whether the tiles are the smallest, and of a kind that is finished so.
    static DEV bool do_for(const Products& p) {
        const u32 what = p.schedule().what;
        if (!p.alone() || p.schedule().splits > 1 || p.has(FLOATS) || what == 0) return false;
        return direct_of(Lines{nullptr, 0, what}) != Direct::NONE;
    }
    // What does not depend on operands is worked out before they are waited for, and what else is needed behind the main loop is
    // asked for before it.
    static DEV void run(Workers& me) {
        const u32 warp = me.warp(), warpgroup = warp / 4;
#pragma unroll 1
        for (u32 item = me.work().first_tile; item < me.work().tiles; item += gridDim.x) {
            meet_for_halves(warp);  // the other one is done with its staging, too: with the tile before, or a rehearsal
            const Products p(me.work());
            const ProductTiles tiles = p.tiles();
            const ProductItem at = tiles.at(item);
            Part part(p, at, warp % 4);
            part.row += warpgroup * HALF_ROWS;
            const Lines lines = lines_of(p, tiles, at, part);
            const TileLayout layout = p.layout(0);
            const u32 flags = p.schedule().flags;
            if (item == p.work.first_tile && !me.wait_ready()) return;
            EarlyBias bias{};
            if (flags & BIAS_EARLY) bias.fetch(ProductArgs(p.work).bias(), part.column, tiles.columns, me.lane());
            HalfResidual residual{};
            if (lines.has(Lines::RESIDUAL)) residual.fetch(lines, me.lane());
            f32 sums[PIECE_SUMS], mine[HALF_SUMS];
            switch (flags & (A_ACROSS | B_ACROSS | HALF_FLOATS)) {
                case 0: multiply_every_second<Bf16, PIECE_COLUMNS, false, false>(sums, layout, at.stages, warpgroup, me); break;
                case B_ACROSS: multiply_every_second<Bf16, PIECE_COLUMNS, false, true>(sums, layout, at.stages, warpgroup, me); break;
                case A_ACROSS: multiply_every_second<Bf16, PIECE_COLUMNS, true, false>(sums, layout, at.stages, warpgroup, me); break;
                case A_ACROSS | B_ACROSS: multiply_every_second<Bf16, PIECE_COLUMNS, true, true>(sums, layout, at.stages, warpgroup, me); break;
                case HALF_FLOATS: multiply_every_second<F16, PIECE_COLUMNS, false, false>(sums, layout, at.stages, warpgroup, me); break;
                case HALF_FLOATS | B_ACROSS: multiply_every_second<F16, PIECE_COLUMNS, false, true>(sums, layout, at.stages, warpgroup, me); break;
                case HALF_FLOATS | A_ACROSS: multiply_every_second<F16, PIECE_COLUMNS, true, false>(sums, layout, at.stages, warpgroup, me); break;
                default: multiply_every_second<F16, PIECE_COLUMNS, true, true>(sums, layout, at.stages, warpgroup, me); break;
            }
            exchange_halves(mine, sums, me);
            finish_half(mine, bias.words[0], residual, lines, me);
        }
    }
};
#endif
