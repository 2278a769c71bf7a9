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

constexpr u32 BAND_ROWS = 2048;

// Row and column that a tile begins with, at most. Where the last tile would end behind the last row (or column), it may begin
// earlier: the copy engine takes four times as long for rows that do not exist. What two tiles have both work out, to the same bits.
DEV u32 last_row(const ProductSchedule& s, u32 rows) { return s.flags & OVERLAPPING_DOWN ? rows - min(rows, s.tile_rows) : ~0u; }
DEV u32 last_column(const ProductSchedule& s, u32 columns) { return s.flags & OVERLAPPING_ACROSS ? columns - min(columns, s.tile_columns) : ~0u; }

// All tiles of `batches` products of rows x columns. Tiles go in bands of BAND_ROWS, down before across, so that
// those that run at the same time share both operands in the L2 cache.
struct ProductTiles {
    u32 rows, columns;                // of the result, at present (columns: of the sums)
    u32 tile_rows, tile_columns;
    u32 pair_rows, pair_columns;      // of the tiles of a pair, of which each block has half; else of a tile
    u32 down, across, batches;        // tiles of a batch, or pairs
    u32 last_row, last_column;        // that one begins with, at most
    u32 stages, splits;

    // Of a product that has been prepared.
    DEV ProductTiles(u32 r, u32 c, const ProductSchedule& s)
        : rows(r), columns(c), tile_rows(s.tile_rows), tile_columns(s.tile_columns), pair_rows(rows_of_pair(s)), pair_columns(columns_of_pair(s)),
          down(s.down), across(s.across), batches(s.batches), last_row(::last_row(s, r)), last_column(::last_column(s, c)),
          stages(s.stages), splits(s.splits) {}

    DEV static u32 rows_of_pair(const ProductSchedule& s) { return s.tile_rows << ((s.flags & B_SHARED) != 0); }
    DEV static u32 columns_of_pair(const ProductSchedule& s) { return s.tile_columns << ((s.flags & A_SHARED) != 0); }

    // By a power of two.
    DEV static u32 shifted(u32 n, u32 by) { return n >> (31 - __clz(by)); }
    // By any number: most are powers of two, which saves a division of some twenty instructions.
    DEV static u32 divide(u32 n, u32 by) { return (by & (by - 1)) == 0 ? shifted(n, by) : n / by; }

    DEV bool shares_operand() const { return pair_rows != tile_rows || pair_columns != tile_columns; }
    DEV u32 items() const { return down * across * batches * splits << shares_operand(); }

    DEV bool is_one_band() const { return down * pair_rows <= BAND_ROWS; }

    // at() where there is one band of one product, and the depth is in two parts at most: nothing to jump over.
    DEV ProductItem in_band(u32 item) const { return in_band(item, 0, down); }
    // The same of any number of bands, if there are fewer than 2^MOST_BITS items.
    DEV ProductItem in_bands(u32 item) const {
        const u32 band = divide_small(BAND_ROWS + pair_rows - 1, pair_rows);
        const u32 first = divide_small(item >> (shares_operand() + splits - 1), band * across) * band;
        return in_band(item, first, min(band, down - first));
    }
    // n / by for n below 2^MOST_BITS: the quotient of n + 1/2 is at least 1 / (2 by) from any integer, and off by less than 2^-21 n / by.
    static constexpr u32 MOST_BITS = 20;
    DEV static u32 divide_small(u32 n, u32 by) {
        return static_cast<u32>((static_cast<f32>(n) + 0.5f) * fast_reciprocal(static_cast<f32>(by)));
    }

    // The blocks of a pair take neighbouring items, the first of them an even one.
    DEV ProductItem at(u32 item) const {
        const u32 half = shares_operand() ? item % PAIR : 0;
        item >>= shares_operand();
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
        u32 first = 0, height = down;  // row of tiles that the band begins with
        if (down * pair_rows > BAND_ROWS) {
            const u32 band = (BAND_ROWS + pair_rows - 1) / pair_rows;
            first = place / (band * across) * band;
            height = min(band, down - first);
            place -= first * across;
        }
        p.column = divide(place, height);
        p.row = (first + place - p.column * height) * pair_rows;
        p.column *= pair_columns;
        if (shares_operand()) {
            p.tile = p.tile * PAIR + half;
            if (pair_rows != tile_rows) p.row += half * tile_rows;
            else p.column += half * tile_columns;
        }
        p.row = min(p.row, last_row);
        p.column = min(p.column, last_column);
        return p;
    }

  private:
    // In the band of `height` tiles (or pairs) that begins with row `first` of these.
    DEV ProductItem in_band(u32 item, u32 first, u32 height) const {
        const u32 shared = shares_operand(), half = item & shared, parted = splits - 1, place = (item >> (shared + parted)) - first * across;
        const u32 column = divide_small(place, height), row = first + place - column * height, split = item & parted;
        const u32 share = stages >> parted, more = stages & parted;
        const bool below = pair_rows != tile_rows;
        return ProductItem{item >> parted, split, 0, min(row * pair_rows + (below ? half * tile_rows : 0), last_row),
                           min(column * pair_columns + (below ? 0 : half * tile_columns), last_column), split * (share + more),
                           share + (split < more)};
    }
};
#endif
