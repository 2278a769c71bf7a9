// What a product on wgmma is, as the plan scheduled it, and where the parts of its tiles lie.
#pragma once
#ifdef HOPPER
#include "hopper/finish_lines.cuh"
#include "hopper/multiply.cuh"
#include "hopper/product_args.cuh"
#include "hopper/tiles.cuh"

// A GEMM, or a CONV, as the plan scheduled it, at its present dims.
struct HopperProducts {
    const Work& work;

    DEV explicit HopperProducts(const Work& w) : work(w) {}

    DEV const ProductSchedule& schedule() const { return *reinterpret_cast<const ProductSchedule*>(work.detail); }
    DEV bool has(u32 flags) const { return (schedule().flags & flags) != 0; }
    DEV bool shares_operand() const { return has(A_SHARED | B_SHARED); }
    // Batch group g stands for axes axis(g) .. axis(g + 1) - 1 of the result; rows for those from axis(3) on, but the last.
    // Maps count the groups separately, the kernel all at once, outermost first.
    DEV u32 axis(u32 g) const { return schedule().axes >> 4 * g & 0xf; }
    DEV u32 extent(u32 begin, u32 end) const {
        u32 n = 1;
#pragma unroll 1
        for (u32 k = begin; k < end; ++k) n *= work.operands[0].dims[k];
        return n;
    }
    DEV ProductTiles tiles() const {
        const u32 rows = schedule().rows, columns = ProductArgs(work).columns();
        const bool swapped = has(TRANSPOSED);
        return ProductTiles(swapped ? columns : rows, swapped ? rows : columns, schedule());
    }
    // The part of the work with this number. What few products need is a call: it would lie in the way of the others.
    DEV ProductItem item(u32 index) const { return has(ONE_BAND) ? tiles().in_band(index) : any_item(work, index); }
    static DEV_CALL ProductItem any_item(const Work& w, u32 index) { return HopperProducts(w).tiles().at(index); }
    // What does not change from tile to tile, worked out once: for most programs when they are loaded (dla_prepare).
    static DEV void prepare(Work& w);

    // The coordinates that batch `batch` has in the map of operand 0 (a) or 1 (b), innermost first: 0 for a group that the
    // operand has once.
    DEV void coordinates(u32 batch, u32 operand, i32 (&c)[3]) const {
#pragma unroll
        for (i32 g = 2; g >= 0; --g) {
            const u32 size = extent(axis(g), axis(g + 1)), rest = batch / size;
            c[2 - g] = schedule().axes >> (4 * 4 + operand * 3 + g) & 1 ? 0 : batch - rest * size;
            batch = rest;
        }
    }
    DEV const void* map(u32 index) const { return shared_state().launch->maps + static_cast<u64>(index) * TENSOR_MAP_BYTES; }

    // Elements in a line of a slice: of the depth or, of an operand that lies across, of its rows (M or N).
    DEV u32 line() const { return has(FLOATS) ? LINE_BYTES / 4 : LINE_BYTES / 2; }
    // What of a stage the workers have to turn: of f32, tensor cores take what lies along the depth, multiply-add what lies
    // across. Stages then have one slice.
    DEV Squares turned() const {
        const bool a = has(A_ACROSS) != has(EXACT), b = has(B_ACROSS) != has(EXACT);
        const u32 first = a ? 0 : left_bytes(), end = left_bytes() + (b ? right_bytes() : 0);
        return Squares{first, (end - first) / SQUARE_BYTES};
    }

    // Whether each 64 rows of a have all slices of a stage; else each slice has all rows.
    DEV bool a_by_groups() const { return has(A_ACROSS | A_SHARED); }
    // Whether tiles are the smallest: but for what TileHalves do, the first warpgroup alone works on them. Else, whether both stand
    // side by side.
    DEV bool alone() const { return schedule().tile_rows == BLOCK_ROWS && schedule().tile_columns == PIECE_COLUMNS; }
    DEV bool beside() const { return schedule().tile_rows == BLOCK_ROWS && !alone(); }
    DEV bool low() const { return schedule().tile_rows % BLOCK_ROWS != 0 && schedule().tile_rows < 2 * BLOCK_ROWS; }  // see hopper/low.cuh
    DEV u32 left_bytes() const { return schedule().tile_rows * schedule().slices * LINE_BYTES; }  // of a in a stage
    DEV u32 right_bytes() const { return schedule().tile_columns * schedule().slices * LINE_BYTES; }
    // Of these, what copies bring of each slice: a tile that has more rows (or columns) than there are gets but those, in groups of 8. What
    // is in shared memory beside them comes to sums that nobody stores.
    DEV u32 left_lines() const { return schedule().a_groups * 8u; }
    DEV u32 right_lines() const { return schedule().b_groups * 8u; }
    DEV u32 copied_bytes() const { return (left_lines() + right_lines()) * schedule().slices * LINE_BYTES; }
    DEV static u32 groups_of(u32 lines) { return (lines + 7) / 8; }
    DEV u32 stage_bytes() const { return (schedule().tile_rows + schedule().tile_columns) * schedule().slices * LINE_BYTES; }
    DEV u32 granules() const { return schedule().granules; }
    // So many that the ring is a number of them (5 and 7 do not divide 24): else the loader has to look for room each time.
    static DEV constexpr u32 granules_of(u32 bytes) {
        const u32 count = (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES;
        return count + (count == 5 || count == 7);
    }
    DEV u32 norm() const { return schedule().flags >> PRODUCT_NORM_AT & (1u << PRODUCT_NORM_BITS) - 1; }  // that tiles do themselves: NORM_ROWS and so on; else 0
    DEV TileLayout layout(u32 warpgroup) const {
        const u32 slices = schedule().slices, lines = schedule().tile_columns / 2;  // of b, for each of two side by side
        TileLayout l{shares_operand() ? SHARED_STAGES : OWN_STAGES, granules(), slices, 0, left_bytes(), left_lines() * LINE_BYTES, right_lines() * LINE_BYTES};
        if (beside()) l.right_offset += warpgroup * lines * LINE_BYTES * (has(B_ACROSS) ? slices : 1);
        else l.left_offset = warpgroup * GRANULE_BYTES * (a_by_groups() ? slices : 1);
        if (a_by_groups()) l.left_slice = GRANULE_BYTES;
        if (has(B_ACROSS)) l.right_slice = GRANULE_BYTES;
        return l;
    }
};

// Where a warp's part of a tile lies in the result, and how wide it is.
struct WarpPart {
    u32 row, column, width;

    DEV WarpPart(const HopperProducts& p, const ProductItem& at, u32 warp) {
        const u32 warpgroup = warp / 4;
        width = width_of(p, warp);
        row = at.row + (p.beside() ? 0 : warpgroup * BLOCK_ROWS) + warp % 4 * PIECE_ROWS;
        column = at.column + (p.beside() ? warpgroup * width : 0);
    }
    DEV static u32 width_of(const HopperProducts& p, u32 warp) {
        const u32 columns = p.schedule().tile_columns;
        return p.beside() ? columns / 2 : p.alone() && warp >= 4 ? 0 : columns;
    }
};

// Where a row of all batches begins. A call: it would lie in the way of products that have none.
DEV_CALL char* batched_row(const Tensor& out, u32 row) { return element(out, row_offset(out, row)); }

// Where the warp's part of a tile goes, and what happens to it before: all that is needed once the sums are there. Each batch has
// `all_rows` rows, and columns of sums.
DEV Lines lines_of(const HopperProducts& p, u32 all_rows, u32 all_columns, const ProductItem& at, const WarpPart& part) {
    const Tensor& out = p.work.operands[0];
    const u32 what = p.schedule().what, pitch = p.schedule().pitch;
    const u32 halves = what & Lines::GLU ? 1 : 0;  // the result of glu has half the columns of the sums
    char* to = p.has(BATCHED) ? batched_row(out, at.batch * all_rows + part.row) : out.data + static_cast<u64>(part.row) * pitch;
    const u32 rows = all_rows - min(all_rows, part.row), columns = min(part.width, all_columns - min(all_columns, part.column)) >> halves;
    return Lines{to + (part.column >> halves) * 2, pitch, what | Lines::size_of(rows, columns)};
}

DEV Lines lines_of(const HopperProducts& p, const ProductTiles& tiles, const ProductItem& at, const WarpPart& part) {
    return lines_of(p, tiles.rows, tiles.columns, at, part);
}

DEV void HopperProducts::prepare(Work& w) {
    const HopperProducts p(w);
    const ProductArgs args(w);
    ProductSchedule& s = *reinterpret_cast<ProductSchedule*>(w.detail);
    s.rows = p.extent(p.axis(3), args.out().rank - 1u);
    s.batches = p.extent(0, p.axis(3));
    const u32 columns = args.columns(), pair_rows = ProductTiles::rows_of_pair(s), pair_columns = ProductTiles::columns_of_pair(s);
    s.down = ((p.has(TRANSPOSED) ? columns : s.rows) + pair_rows - 1) / pair_rows;
    s.across = ((p.has(TRANSPOSED) ? s.rows : columns) + pair_columns - 1) / pair_columns;
    s.a_groups = groups_of(p.has(A_SHORT) ? s.rows : s.tile_rows);
    s.b_groups = groups_of(p.has(B_SHORT) ? columns : s.tile_columns);
    s.granules = granules_of(p.stage_bytes());
    s.what = p.has(OUT_IN_LINES) ? Lines::what_of(args, p.has(OUT_IN_CHUNKS)) : 0;
    // Whether bias is the first to meet the sums: then it is fetched before the main loop, and added before the steps.
    if (args.steps(0) != STEP_BIAS || args.alpha() != 1.0f || args.has_c() || args.is_glu()) s.flags &= ~BIAS_EARLY;
    const ProductTiles tiles = p.tiles();
    const bool small = s.batches == 1 && s.splits <= (tiles.shares_operand() ? 1u : 2u) && tiles.items() < 1u << ProductTiles::MOST_BITS;
    s.flags = small && tiles.is_one_band() ? s.flags | ONE_BAND : s.flags & ~ONE_BAND;
    s.flags = small && s.scratch == 0 && !p.has(BATCHED) ? s.flags | FIRST_FITS : s.flags & ~FIRST_FITS;
}

// Where the warp's part of the tile at work lies, for HopperGemm::finish_piece.
DEV void keep_place(const ProductTiles& tiles, const ProductItem& at, const WarpPart& part) {
    volatile auto& kept = Kept::place().product;
    kept.none = 0;
    kept.batch = at.batch;
    kept.row = part.row;
    kept.column = part.column;
    kept.rows = tiles.rows;
    kept.columns = tiles.columns;
}
#endif
