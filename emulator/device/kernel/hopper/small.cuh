// The smallest tiles of products, 64 x 64, whose depth the two warpgroups share, and the blocks of a pair may: in small networks they
// are the work of few blocks, and what counts is how long one of them takes. A warp finishes 8 lines; of a pair, those of the first
// warpgroup do, in each block half of them.
#pragma once
#ifdef HOPPER
#include "hopper/tiles.cuh"
#include "hopper/together.cuh"

// Products, Part: HopperProducts and WarpPart, which know where tiles and their parts lie.
template <class Products, class Part> struct TileHalves {
    // Whether the tiles are the smallest, and of a kind that is finished so.
    static DEV bool do_for(const Products& p) {
        if (!p.alone() || p.schedule().splits > 1 || p.has(FLOATS)) return false;
        return Lines{nullptr, 0, p.schedule().what}.ending() != Ending::CALLS;
    }
    // What does not depend on operands is worked out before they are waited for, and what else is needed behind the main loop is
    // asked for before it. TOGETHER: the blocks of a pair share the depth. Whether the others know that this warp is done with the work.
    template <bool TOGETHER> static DEV bool run(Workers& me) {
        const u32 warp = me.warp(), warpgroup = warp / 4;
#pragma unroll 1
        for (u32 item = me.work().first_tile; item < me.work().tiles; item += gridDim.x) {
            meet_for_halves(warp);  // the other one is done with its staging, too: with the tile before
            const Products p(me.work());
            if (TOGETHER && !Together::begin<HALF_SUMS>(warp, warp ^ WORKER_WARPS / 2)) return false;
            const LastTile last(me, item);
            const ProductTiles tiles = p.tiles();
            const ProductItem at = p.item(item);
            Part part(p, at, warp % 4);
            const u32 half = TOGETHER ? at.split : warpgroup;
            part.row += half * HALF_ROWS;
            const Lines lines = lines_of(p, tiles, at, part);
            const TileLayout layout = p.layout(0);
            const u32 flags = p.schedule().flags;
            HalfExtras extras;
            const auto before = [&] {
                if (item == me.work().first_tile && !me.wait_ready()) return false;
                if (!TOGETHER || warpgroup == 0) extras.fetch(ProductArgs(me.work()), lines, part.column, tiles.columns, me.lane());
                return true;
            };
            f32 sums[PIECE_SUMS];
            if (!multiply(sums, flags, layout, at.stages, warpgroup, me, before)) {
                if (TOGETHER) Together::part();
                return false;
            }
            HalfSums mine(sums, half);
            const HalfSums theirs(sums, !half);
            if (!TOGETHER) exchange_sums(mine.v, theirs.v, me);
            else if (!Together::join(mine.v, theirs.v)) continue;
            finish_half(mine.v, extras, lines, lines.ending(), me);
            if (last.said()) return true;
        }
        return false;
    }

  private:
    template <class Before>
    static DEV bool multiply(f32 (&sums)[PIECE_SUMS], u32 flags, const TileLayout& layout, u32 stages, u32 warpgroup, Workers& me, const Before& before) {
        switch (flags & (A_ACROSS | B_ACROSS | HALF_FLOATS)) {
            case 0: return multiply_every_second<Bf16, PIECE_COLUMNS, false, false>(sums, layout, stages, warpgroup, me, before);
            case B_ACROSS: return multiply_every_second<Bf16, PIECE_COLUMNS, false, true>(sums, layout, stages, warpgroup, me, before);
            case A_ACROSS: return multiply_every_second<Bf16, PIECE_COLUMNS, true, false>(sums, layout, stages, warpgroup, me, before);
            case A_ACROSS | B_ACROSS: return multiply_every_second<Bf16, PIECE_COLUMNS, true, true>(sums, layout, stages, warpgroup, me, before);
            case HALF_FLOATS: return multiply_every_second<F16, PIECE_COLUMNS, false, false>(sums, layout, stages, warpgroup, me, before);
            case HALF_FLOATS | B_ACROSS: return multiply_every_second<F16, PIECE_COLUMNS, false, true>(sums, layout, stages, warpgroup, me, before);
            case HALF_FLOATS | A_ACROSS: return multiply_every_second<F16, PIECE_COLUMNS, true, false>(sums, layout, stages, warpgroup, me, before);
            default: return multiply_every_second<F16, PIECE_COLUMNS, true, true>(sums, layout, stages, warpgroup, me, before);
        }
    }
};
#endif
