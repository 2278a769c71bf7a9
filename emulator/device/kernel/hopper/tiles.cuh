// Which tiles a product on wgmma has, and in which order.
#pragma once
#ifdef HOPPER
#include "hopper/multiply.cuh"

// One piece of work of a block: some of the depth of one tile.
struct ProductItem {
    u32 tile;         // counted over all batches; the splits of a tile share it
    u32 split;
    u32 batch;        // counted over all
    u32 row, column;  // first ones of the tile, within the batch
    u32 first_stage, stages;  // of the depth
};

// All tiles of `batches` products of rows x columns. Tiles go in bands of some rows of tiles, down before across, so that
// those that run at the same time share both operands in the L2 cache.
struct ProductTiles {
    u32 rows, columns, batches;       // of the result, at present (columns: of the sums)
    u32 tile_rows, tile_columns;
    u32 down, across;                 // tiles of a batch
    u32 stages, splits, band;

    DEV ProductTiles(u32 r, u32 c, u32 b, const ProductSchedule& s)
        : rows(r), columns(c), batches(b), tile_rows(s.tile_rows), tile_columns(s.tile_columns),
          down(divide_up(r, s.tile_rows)), across(divide_up(c, s.tile_columns)),
          stages(s.stages), splits(s.splits), band(s.band) {}

    // Division by a power of two.
    DEV static u32 divide_up(u32 n, u32 by) { return (n + by - 1) >> (31 - __clz(by)); }

    DEV u32 items() const { return down * across * batches * splits; }

    DEV ProductItem at(u32 item) const {
        ProductItem p{item, 0, 0, 0, 0, 0, stages};
        if (splits > 1) {
            p.tile = item / splits;
            p.split = item - p.tile * splits;
            const u32 share = stages / splits, more = stages - share * splits;
            p.first_stage = p.split * share + min(p.split, more);
            p.stages = share + (p.split < more);
        }
        u32 place = p.tile;
        if (batches > 1) {
            p.batch = place / (down * across);
            place -= p.batch * (down * across);
        }
        const u32 first = down <= band ? 0 : place / (band * across) * band;  // row of tiles that the band begins with
        const u32 height = min(band, down - first);
        place -= first * across;
        p.column = place / height;
        p.row = (first + place - p.column * height) * tile_rows;
        p.column *= tile_columns;
        return p;
    }
};
#endif
