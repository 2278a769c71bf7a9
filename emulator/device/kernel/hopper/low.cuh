// Low tiles of products: 16, 32, 48 or 72 rows by 64 columns. In a chain of small products, a tile waits for its rows, which another
// product has just made, while its columns are weights that the loader has fetched before: a block that takes few rows of many
// columns waits for less than one that takes as many of both. Tensor cores take 64 rows at least, so the columns are these, and
// the sums are those of the tile, transposed: a tile may have any multiple of 8 rows, so that there are no more tiles than blocks, and
// none is higher than it needs to be. The two warpgroups share the depth (halves.cuh); then each finishes half of the rows, 16 at a
// time, and a warp 16 columns of them. Where these are no halves, both finish what is in the middle, to the same bits. Blocks of a pair
// that share the depth (together.cuh) finish half of the rows each, in their first warpgroups.
#pragma once
#ifdef HOPPER
#include "hopper/low_norm.cuh"
#include "hopper/products.cuh"
#include "hopper/together.cuh"

constexpr u32 LOW_COLUMNS = 16;                // that a warp finishes
constexpr u32 LOW_LINE = LOW_COLUMNS * 2;      // bytes of them in the staging
constexpr u32 GROUP_ROWS = 8;                  // of each, a lane has four sums: [column lane / 4, 8 further][row 2 (lane % 4), and the next]

// Where what a warp finishes of a low tile goes, and what happens to it before.
struct LowPlace {
    char* to;            // its corner
    u32 pitch, what;     // see Lines
    u32 rows, columns;   // that there are from the corner on

    DEV LowPlace(const HopperProducts& p, const ProductItem& at, u32 row, u32 column) : pitch(p.schedule().pitch), what(p.schedule().what) {
        row += at.row;
        column += at.column;
        rows = p.schedule().rows - min(p.schedule().rows, row);
        const u32 all = ProductArgs(p.work).columns();
        columns = all - min(all, column);
        to = p.work.operands[0].data + static_cast<u64>(row) * pitch + column * 2;
    }
    DEV bool has(u32 flags) const { return (what & flags) != 0; }
    DEV u32 dtype() const { return what & Lines::HALF ? DTYPE_F16 : DTYPE_BF16; }

    // Takes N finished sums of each lane, two in a word, to lines from `line` on, in whole chunks.
    template <u32 N> DEV void store(const u32 (&words)[N / 2], u32 line, u32 staging, u32 lane) const {
        store_matrix_x4_transposed(staging + lane / 16 * (GROUP_ROWS * LOW_LINE) + lane % 8 * LOW_LINE + lane / 8 % 2 * CHUNK_BYTES,
                                   words[0], words[1], N > 4 ? words[N / 2 - 2] : 0, N > 4 ? words[N / 2 - 1] : 0);
        __syncwarp();
        if (lane / 2 < N / 4 * GROUP_ROWS) store_chunk(load_shared_16(staging + lane * CHUNK_BYTES), line + lane / 2, lane % 2 * GROUP_ROWS);
    }
    // The same one by one, without the staging: lines of no whole, aligned chunks. Neighbouring lanes have neighbouring columns.
    template <u32 N> DEV void store_each(const u32 (&words)[N / 2], u32 line, u32 lane) const {
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            const u32 row = line + i / 4 * GROUP_ROWS + 2 * (lane % 4) + i % 2, column = i / 2 % 2 * GROUP_ROWS + lane / 4;
            char* const p = to + static_cast<u64>(row) * pitch + column * 2;
            if (row < rows && column < columns && is_in_result(p, 2)) *reinterpret_cast<u16*>(p) = static_cast<u16>(words[i / 2] >> i % 2 * 16);
        }
    }

  private:
    // Eight columns of a line.
    DEV void store_chunk(const uint4& chunk, u32 line, u32 column) const {
        if (line >= rows || column >= columns) return;
        char* const p = to + static_cast<u64>(line) * pitch + column * 2;
        if (is_in_result(p, CHUNK_BYTES)) *reinterpret_cast<uint4*>(p) = chunk;
    }
};

// N sums of a lane, and what is added to them: 0 where there is none.
template <u32 N> struct LowSums {
    f32 v[N];
    u16 bias[2], residual[N];

    DEV void add_bias(u32 dtype) {
        const f32 added[2] = {low_half(bias[0], dtype), low_half(bias[1], dtype)};
#pragma unroll
        for (u32 k = 0; k < N; ++k) v[k] += added[k / 2 % 2];
    }
    DEV void add_residual(u32 dtype) {
#pragma unroll
        for (u32 k = 0; k < N; ++k) v[k] += low_half(residual[k], dtype);
    }
    // What networks do most, with bf16.
    template <Ending KIND> DEV void finish(const LowPlace& place, u32 line, u32 staging, u32 lane) {
        add_bias(DTYPE_BF16);
        if (KIND == Ending::RESIDUAL) add_residual(DTYPE_BF16);
        const auto gelu = gelu_fit_bf16(place.what & Lines::ACT);
        const f32 bottom = bottom_of(place.what & Lines::ACT);
        u32 words[N / 2];
#pragma unroll
        for (u32 k = 0; k < N; ++k) v[k] = KIND == Ending::GELU ? gelu(v[k]) : max_nan(v[k], bottom);
        pack_pairs(words, v, DTYPE_BF16);
        if (KIND == Ending::ANYWHERE) place.store_each<N>(words, line, lane);
        else place.store<N>(words, line, staging, lane);
    }
};
// All else. A call: it would lie in the way. The last product of a classifier, which begins anywhere, executes this for the first time in its
// launch: so little lies in its way.
template <u32 N> DEV_CALL void finish_low(LowSums<N> sums, LowPlace place, u32 line, u32 staging, u32 lane) {
    if ((place.what & (Lines::ENDING | Lines::HALF)) == Lines::ending_as(0, Ending::ANYWHERE)) {
        sums.template finish<Ending::ANYWHERE>(place, line, staging, lane);
        return;
    }
    sums.add_bias(place.dtype());
    if (place.has(Lines::RESIDUAL_FIRST)) sums.add_residual(place.dtype());
    fast_activate(sums.v, place.what & Lines::ACT);
    if (place.has(Lines::RESIDUAL_LAST)) sums.add_residual(place.dtype());
    u32 words[N / 2];
    pack_pairs(words, sums.v, place.dtype());
    if (place.has(Lines::ANYWHERE)) place.store_each<N>(words, line, lane);
    else place.store<N>(words, line, staging, lane);
}

// A warp's part of a low tile: N sums of a lane at a time, in TURNS.
template <u32 N, u32 TURNS> struct LowPart {
    static constexpr u32 ROWS = N / 4 * GROUP_ROWS;  // in a turn

    LowPlace place;
    u16 bias[2];
    u16 residual[TURNS][N];

    DEV LowPart(const HopperProducts& p, const ProductItem& at, u32 row, u32 column) : place(p, at, row, column), bias{0, 0}, residual{} {}

    // Asks for what meets the sums, before the main loop.
    DEV void fetch(const ProductArgs& args, u32 column, u32 lane) {
        if (place.has(Lines::BIAS)) {
            const char* const first = element(args.bias(), column + lane / 4);
#pragma unroll
            for (u32 h = 0; h < 2; ++h) {
                const char* const p = first + h * CHUNK_BYTES;
                bias[h] = h * GROUP_ROWS + lane / 4 < place.columns && is_in_bias(p, 2) ? *reinterpret_cast<const u16*>(p) : 0;
            }
        }
        if (place.has(Lines::RESIDUAL)) {
            const char* const first = place.to + (args.residual().data - args.out().data) + lane / 4 * 2;
#pragma unroll
            for (u32 i = 0; i < TURNS * N; ++i) {
                const u32 row = i / 4 * GROUP_ROWS + 2 * (lane % 4) + i % 2, h = i / 2 % 2;
                const char* const p = first + static_cast<u64>(row) * place.pitch + h * CHUNK_BYTES;
                const bool exists = row < place.rows && h * GROUP_ROWS + lane / 4 < place.columns && is_in_residual(p, 2);
                residual[i / N][i % N] = exists ? *reinterpret_cast<const u16*>(p) : 0;
            }
        }
    }
    DEV void finish(u32 turn, const f32 (&v)[N], u32 staging, u32 lane) const {
        LowSums<N> sums{{}, {bias[0], bias[1]}, {}};
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
            sums.v[k] = v[k];
            sums.residual[k] = residual[turn][k];
        }
        switch (place.what & (Lines::ENDING | Lines::HALF)) {
            case Lines::ending_as(0, Ending::PLAIN): sums.template finish<Ending::PLAIN>(place, turn * ROWS, staging, lane); break;
            case Lines::ending_as(0, Ending::GELU): sums.template finish<Ending::GELU>(place, turn * ROWS, staging, lane); break;
            case Lines::ending_as(0, Ending::RESIDUAL): sums.template finish<Ending::RESIDUAL>(place, turn * ROWS, staging, lane); break;
            default: finish_low(sums, place, turn * ROWS, staging, lane);
        }
    }
};

// TOGETHER: the blocks of a pair share the depth.
template <u32 ROWS, bool TOGETHER> struct LowTiles {
    static constexpr u32 GROUPS = ROWS / GROUP_ROWS, AT_ONCE = GROUPS < 4 ? 1 : 2;  // that a warp finishes at a time,
    static constexpr u32 TURNS = (GROUPS + 2 * AT_ONCE - 1) / (2 * AT_ONCE);       // so often
    static constexpr u32 SECOND = GROUPS - TURNS * AT_ONCE;                         // the first group of the second warpgroup
    static constexpr u32 OWN = AT_ONCE * 4, HALF = TURNS * OWN;                     // sums of a lane in a turn, and in all
    static_assert(!TOGETHER || HALF <= HALF_SUMS, "there is room for the sums that the other block gives");

    // What does not depend on operands is worked out before they are waited for, and what else is needed behind the main loop is
    // asked for before it. Whether the others know that this warp is done with the work.
    static DEV bool run(Workers& me) {
        const u32 warp = me.warp(), warpgroup = warp / 4;
#pragma unroll 1
        for (u32 item = me.work().first_tile; item < me.work().tiles; item += gridDim.x) {
            const HopperProducts p(me.work());
            if (NORMALISES && p.norm()) put_channels();
            else meet_for_halves(warp);  // the other one is done with its staging, too: with the tile before
            if (TOGETHER && !Together::begin<HALF>(warp, warp ^ WORKER_WARPS / 2)) return false;
            const LastTile last(me, item);
            const ProductItem at = p.item(item);
            const u32 column = warp % 4 * LOW_COLUMNS, flags = p.schedule().flags, half = TOGETHER ? at.split : warpgroup;
            LowPart<OWN, TURNS> part(p, at, half * (SECOND * GROUP_ROWS), column);
            const TileLayout layout = transposed(p.layout(0));
            const auto before = [&] {
                const HopperProducts p(me.work());
                if (item == p.work.first_tile && !me.wait_ready()) return false;
                if (!TOGETHER || warpgroup == 0) part.fetch(ProductArgs(p.work), at.column + column, me.lane());
                if (NORMALISES && p.norm()) normalise_rows(p, me.place, at);
                return true;
            };
            f32 sums[ROWS / 2];
            if (!multiply(sums, flags, layout, at.stages, warpgroup, me, before)) {
                if (TOGETHER) Together::part();
                return false;
            }
            f32 mine[HALF], theirs[HALF];
#pragma unroll
            for (u32 k = 0; k < HALF; ++k) {
                const f32 first = sums[k], second = sums[SECOND * 4 + k];
                mine[k] = half ? second : first;
                theirs[k] = half ? first : second;
            }
            if constexpr (TOGETHER) {
                if (!Together::join(mine, theirs)) continue;
            }
#pragma unroll
            for (u32 turn = 0; turn < TURNS; ++turn) {
                const u32 at_staging = turn % 2 * HALF_BYTES;  // the other warp may be at the next turn already, not farther
                f32(&now)[OWN] = turn_of(mine, turn);
                if (!TOGETHER) exchange_sums(now, turn_of(theirs, turn), me, at_staging);
                part.finish(turn, now, me.staging() + at_staging, me.lane());
            }
            if (last.said()) return true;
        }
        return false;
    }

  private:
    static constexpr bool NORMALISES = ROWS == NORM_TILE_ROWS && !TOGETHER;

    template <class Before>
    static DEV bool multiply(f32 (&sums)[ROWS / 2], u32 flags, const TileLayout& layout, u32 stages, u32 warpgroup, Workers& me, const Before& before) {
        switch (flags & (B_ACROSS | HALF_FLOATS)) {
            case 0: return multiply_every_second<Bf16, ROWS, false, false>(sums, layout, stages, warpgroup, me, before);
            case B_ACROSS: return multiply_every_second<Bf16, ROWS, true, false>(sums, layout, stages, warpgroup, me, before);
            case HALF_FLOATS: return multiply_every_second<F16, ROWS, false, false>(sums, layout, stages, warpgroup, me, before);
            default: return multiply_every_second<F16, ROWS, true, false>(sums, layout, stages, warpgroup, me, before);
        }
    }
    template <u32 N> static DEV auto turn_of(f32 (&sums)[N], u32 turn) -> f32 (&)[OWN] { return reinterpret_cast<f32(&)[OWN]>(sums[turn * OWN]); }

    // For the tensor cores, columns are rows.
    static DEV TileLayout transposed(const TileLayout& l) {
        return TileLayout{l.kind, l.granules, l.slices, l.right_offset, l.left_offset, l.right_slice, l.left_slice};
    }
};
DEV bool run_low(Workers& me) {
    switch (HopperProducts(me.work()).schedule().tile_rows) {
        case 16: return LowTiles<16, false>::run(me);
        case 32: return LowTiles<32, false>::run(me);
        case 48: return LowTiles<48, false>::run(me);
        default: return LowTiles<72, false>::run(me);
    }
}
DEV bool run_low_together(Workers& me) {
    switch (HopperProducts(me.work()).schedule().tile_rows) {
        case 16: return LowTiles<16, true>::run(me);
        case 32: return LowTiles<32, true>::run(me);
        default: return LowTiles<48, true>::run(me);
    }
}
#endif
