// Low tiles of products: 16 or 32 rows by 64 columns. In a chain of small products, a tile waits for its rows, which another
// product has just made, while its columns are weights that the loader has fetched before: a block that takes few rows of many
// columns waits for less than one that takes as many of both. Tensor cores take 64 rows at least, so the columns are these, and
// the sums are those of the tile, transposed. The two warpgroups share the depth, as in small.cuh; then each finishes half of the
// rows, and a warp 16 columns of them.
#pragma once
#ifdef HOPPER
#include "hopper/low_norm.cuh"
#include "hopper/products.cuh"
#include "hopper/small.cuh"

constexpr u32 LOW_COLUMNS = 16;                // that a warp finishes
constexpr u32 LOW_LINE = LOW_COLUMNS * 2;      // bytes of them in the staging
constexpr u32 GROUP_ROWS = 8;                  // of each, a lane has four sums: [column lane / 4, 8 further][row 2 (lane % 4), and the next]

// Where what a warp finishes of a low tile goes, and what happens to it before.
template <u32 N> struct LowPart {
    char* to;            // its corner
    u32 pitch, what;     // see Lines
    u32 rows, columns;   // that there are from the corner on
    u16 bias[2];
    u16 residual[N];

    DEV LowPart(const HopperProducts& p, const ProductItem& at, u32 row, u32 column)
        : pitch(p.schedule().pitch), what(p.schedule().what), bias{0, 0}, residual{} {
        row += at.row;
        column += at.column;
        rows = p.schedule().rows - min(p.schedule().rows, row);
        const u32 all = ProductArgs(p.work).columns();
        columns = all - min(all, column);
        to = p.work.operands[0].data + static_cast<u64>(row) * pitch + column * 2;
    }
    DEV bool has(u32 flags) const { return (what & flags) != 0; }
    DEV u32 dtype() const { return what & Lines::HALF ? DTYPE_F16 : DTYPE_BF16; }

    // Asks for what meets the sums, before the main loop.
    DEV void fetch(const ProductArgs& args, u32 column, u32 lane) {
        if (has(Lines::BIAS)) {
            const char* const first = element(args.bias(), column + lane / 4);
#pragma unroll
            for (u32 h = 0; h < 2; ++h) {
                const char* const p = first + h * CHUNK_BYTES;
                bias[h] = h * GROUP_ROWS + lane / 4 < columns && is_in_bias(p, 2) ? *reinterpret_cast<const u16*>(p) : 0;
            }
        }
        if (has(Lines::RESIDUAL)) {
            const char* const first = to + (args.residual().data - args.out().data) + lane / 4 * 2;
#pragma unroll
            for (u32 k = 0; k < N; ++k) {
                const u32 row = k / 4 * GROUP_ROWS + 2 * (lane % 4) + k % 2, h = k / 2 % 2;
                const char* const p = first + static_cast<u64>(row) * pitch + h * CHUNK_BYTES;
                const bool exists = row < rows && h * GROUP_ROWS + lane / 4 < columns && is_in_residual(p, 2);
                residual[k] = exists ? *reinterpret_cast<const u16*>(p) : 0;
            }
        }
    }
    DEV void finish(f32 (&v)[N], u32 staging, u32 lane) const {
        if (has(Lines::BIAS)) {
#pragma unroll
            for (u32 k = 0; k < N; ++k) v[k] += low_half(bias[k / 2 % 2], dtype());
        }
        if (has(Lines::RESIDUAL_FIRST)) add_residual(v);
        fast_activate(v, what & Lines::ACT);
        if (has(Lines::RESIDUAL_LAST)) add_residual(v);
        u32 words[N / 2];
        pack_pairs(words, v, dtype());
        store_matrix_x4_transposed(staging + lane / 16 * (GROUP_ROWS * LOW_LINE) + lane % 8 * LOW_LINE + lane / 8 % 2 * CHUNK_BYTES,
                                   words[0], words[1], N > 4 ? words[N / 2 - 2] : 0, N > 4 ? words[N / 2 - 1] : 0);
        __syncwarp();
        store(load_shared_16(staging + lane * CHUNK_BYTES), lane / 2, lane % 2 * GROUP_ROWS);
    }

  private:
    // Eight columns of a line.
    DEV void store(const uint4& chunk, u32 line, u32 column) const {
        if (line >= min(rows, N / 4 * GROUP_ROWS) || column >= columns) return;
        char* const p = to + static_cast<u64>(line) * pitch + column * 2;
        if (!has(Lines::ANYWHERE)) {
            if (is_in_result(p, CHUNK_BYTES)) *reinterpret_cast<uint4*>(p) = chunk;
            return;
        }
        const u32 words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
        for (u32 k = 0; k < GROUP_ROWS; ++k) {
            if (column + k < columns && is_in_result(p + k * 2, 2)) *reinterpret_cast<u16*>(p + k * 2) = static_cast<u16>(words[k / 2] >> k % 2 * 16);
        }
    }
    DEV void add_residual(f32 (&v)[N]) const {
#pragma unroll
        for (u32 k = 0; k < N; ++k) v[k] += low_half(residual[k], dtype());
    }
};

template <u32 ROWS> struct LowTiles {
    static constexpr u32 OWN = ROWS / 4;  // sums that a lane finishes

    // What does not depend on operands is worked out before they are waited for, and what else is needed behind the main loop is
    // asked for before it.
    static DEV void run(Workers& me) {
        const u32 warp = me.warp(), warpgroup = warp / 4;
#pragma unroll 1
        for (u32 item = me.work().first_tile; item < me.work().tiles; item += gridDim.x) {
            const HopperProducts p(me.work());
            if (p.norm()) put_channels();
            else meet_for_halves(warp);  // the other one is done with its staging, too: with the tile before
            const ProductItem at = p.tiles().at(item);
            const u32 column = warp % 4 * LOW_COLUMNS, flags = p.schedule().flags;
            LowPart<OWN> part(p, at, warpgroup * (ROWS / 2), column);
            const TileLayout layout = transposed(p.layout(0));
            if (item == p.work.first_tile && !me.wait_ready()) return;
            part.fetch(ProductArgs(p.work), at.column + column, me.lane());
            if (p.norm()) normalise_rows(p, me.place, at);
            f32 sums[ROWS / 2], mine[OWN], theirs[OWN];
            switch (flags & (B_ACROSS | HALF_FLOATS)) {
                case 0: multiply_every_second<Bf16, ROWS, false, false>(sums, layout, at.stages, warpgroup, me); break;
                case B_ACROSS: multiply_every_second<Bf16, ROWS, true, false>(sums, layout, at.stages, warpgroup, me); break;
                case HALF_FLOATS: multiply_every_second<F16, ROWS, false, false>(sums, layout, at.stages, warpgroup, me); break;
                default: multiply_every_second<F16, ROWS, true, false>(sums, layout, at.stages, warpgroup, me); break;
            }
#pragma unroll
            for (u32 k = 0; k < OWN; ++k) {
                mine[k] = warpgroup ? sums[OWN + k] : sums[k];
                theirs[k] = warpgroup ? sums[k] : sums[OWN + k];
            }
            exchange_sums(mine, theirs, me);
            part.finish(mine, me.staging(), me.lane());
        }
    }

  private:
    // For the tensor cores, columns are rows.
    static DEV TileLayout transposed(const TileLayout& l) {
        return TileLayout{l.kind, l.granules, l.slices, l.right_offset, l.left_offset, l.right_slice, l.left_slice};
    }
};
DEV void run_low(Workers& me) {
    if (HopperProducts(me.work()).schedule().tile_rows == 16) LowTiles<16>::run(me);
    else LowTiles<32>::run(me);
}
#endif
