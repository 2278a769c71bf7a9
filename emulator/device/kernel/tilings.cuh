// Which tiles there are, and how products are cut into them.
#pragma once
#include "scalar_tile.cuh"
#include "tensor_tile.cuh"

// Tile shapes, from large to small, for every kind of element.
template <class T> constexpr u32 LINE_DEPTH = 128 / T::Element::BYTES;  // of a tile whose lines are 128 bytes long
template <class T> using LargeTile = TensorCoreTile<T, 128, 128, LINE_DEPTH<T>, 2, 4, 1, 4>;
// Of convolutions: they gather, and need the registers.
template <class T> using TallTile = TensorCoreTile<T, 128, 64, LINE_DEPTH<T>, 4, 2, 1, 5>;
template <class T> using MediumTile = TensorCoreTile<T, 64, 64, LINE_DEPTH<T>, 2, 2, 2, 6>;
template <class T> using SmallTile = TensorCoreTile<T, 32, 32, 2 * LINE_DEPTH<T>, 1, 1, 8, 7>;
using TallFloatTile = ScalarTile<f32, Bits32, 128, 64, 32, 4>;
using SmallFloatTile = ScalarTile<f32, Bits32, 32, 32, 64, 6>;
using IntegerTile = ScalarTile<i32, Widened, 32, 32, 64, 6>;

// Hopper's paths take the large products on tensor cores. What they leave is small or odd, and a large tile for it would
// only make the build longer.
#ifdef HOPPER
constexpr bool HAS_LARGE = false;
#else
constexpr bool HAS_LARGE = true;
#endif
constexpr u32 NEVER = 1 << 16;  // the cost of a tile that does not exist

// How a product of `batches` matrices is cut into tiles.
struct Tiling {
    u32 rows, columns;  // of a tile
    u32 down, across;   // tiles of one matrix
    u32 tiles;

    DEV Tiling(u32 batches, u32 m, u32 n, u32 tile_rows, u32 tile_columns) : rows(tile_rows), columns(tile_columns) {
        down = (m + rows - 1) / rows;
        across = (n + columns - 1) / columns;
        tiles = batches * down * across;
    }
    // Time in units of a small tile's: rounds of tiles over the blocks, times the cost of a tile.
    DEV u32 time(u32 cost) const { return (tiles + gridDim.x - 1) / gridDim.x * cost; }

    // The tiling of floats that takes least time; `wide` is the columns of the largest tile, which has 128 rows, and `cost` what
    // it takes; `middle`: whether there are tiles of 64 x 64. Costs are relative times per unit of depth, larger tiles being
    // more efficient.
    static DEV Tiling choose(u32 batches, u32 m, u32 n, u32 wide, u32 cost, bool middle) {
        const Tiling small(batches, m, n, 32, 32), medium(batches, m, n, 64, 64), large(batches, m, n, 128, wide);
        const u32 best = middle && medium.time(5) < small.time(2) ? medium.time(5) : small.time(2);
        if (large.time(cost) <= best) return large;
        return middle && medium.time(5) == best ? medium : small;
    }

    struct Place {
        u32 batch, row, column;  // of a tile's first element
    };
    // Tiles go down in bands of 8, so that blocks at work at one time share operands in L2.
    DEV Place place(u32 tile) const {
        constexpr u32 BAND = 8;
        const u32 batch = tile / (down * across), rest = tile % (down * across);
        const u32 band = rest / (BAND * across) * BAND, in_band = rest % (BAND * across);
        const u32 height = down - band < BAND ? down - band : BAND;
        return {batch, (band + in_band % height) * rows, in_band / height * columns};
    }
};
