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
        const u32 what = p.schedule().what;
        if (!p.alone() || p.schedule().splits > 1 || p.has(FLOATS) || what == 0) return false;
        return direct_of(Lines{nullptr, 0, what}) != Direct::NONE;
    }
    // What does not depend on operands is worked out before they are waited for, and what else is needed behind the main loop is
    // asked for before it. TOGETHER: the blocks of a pair share the depth.
    template <bool TOGETHER> static DEV void run(Workers& me) {
        const u32 warp = me.warp(), warpgroup = warp / 4;
#pragma unroll 1
        for (u32 item = me.work().first_tile; item < me.work().tiles; item += gridDim.x) {
            meet_for_halves(warp);  // the other one is done with its staging, too: with the tile before, or a rehearsal
            const Products p(me.work());
            if (TOGETHER && !Together::begin<HALF_SUMS>(warp, warp ^ WORKER_WARPS / 2)) return;
            const ProductTiles tiles = p.tiles();
            const ProductItem at = tiles.at(item);
            Part part(p, at, warp % 4);
            const u32 half = TOGETHER ? at.split : warpgroup;
            part.row += half * HALF_ROWS;
            const Lines lines = lines_of(p, tiles, at, part);
            const TileLayout layout = p.layout(0);
            const u32 flags = p.schedule().flags;
            if (item == p.work.first_tile && !me.wait_ready()) {
                if (TOGETHER) Together::part();
                return;
            }
            HalfExtras extras;
            if (!TOGETHER || warpgroup == 0) extras.fetch(ProductArgs(p.work), lines, part.column, tiles.columns, me.lane());
            f32 sums[PIECE_SUMS];
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
            HalfSums mine(sums, half);
            const HalfSums theirs(sums, !half);
            if (!TOGETHER) exchange_sums(mine.v, theirs.v, me);
            else if (!Together::join(mine.v, theirs.v)) continue;
            finish_half(mine.v, extras, lines, me);
        }
    }
};
#endif
