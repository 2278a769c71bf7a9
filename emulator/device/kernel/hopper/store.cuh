// From registers to the result, through a warp's store staging.
#pragma once
#ifdef HOPPER
#include "hopper/finish.cuh"

constexpr u32 HALF_BYTES = HALF_ROWS * LINE_BYTES;  // of staging: 8 rows of 64 columns of 16 bits, one swizzled tile

// Stores one row of staging, `columns` of 16 bits that begin at `shared`, chunk by chunk; this lane does chunks lane, lane + 4, ...
// `swizzle` is what a chunk's place is XORed with.
DEV void store_row(const Tensor& out, i64 offset, u32 shared, u32 columns, u32 chunk, u32 swizzle) {
    constexpr u32 PER_CHUNK = CHUNK_BYTES / 2;
    const i64 step = out.strides[out.rank - 1];
#pragma unroll 1
    for (; chunk * PER_CHUNK < columns; chunk += 4) {
        const u32 from = shared + (chunk ^ swizzle) * CHUNK_BYTES;
        char* p = element(out, offset + static_cast<i64>(chunk * PER_CHUNK) * step);
        if (step == 1 && columns - chunk * PER_CHUNK >= PER_CHUNK && reinterpret_cast<u64>(p) % CHUNK_BYTES == 0 &&
            range_in_bounds(out, p, CHUNK_BYTES)) {
            *reinterpret_cast<uint4*>(p) = make_uint4(load_shared(from), load_shared(from + 4), load_shared(from + 8), load_shared(from + 12));
            continue;
        }
#pragma unroll 1
        for (u32 i = 0; i < PER_CHUNK && chunk * PER_CHUNK + i < columns; ++i) {
            char* q = element(out, offset + static_cast<i64>(chunk * PER_CHUNK + i) * step);
            if (in_bounds(out, q)) *reinterpret_cast<u16*>(q) = static_cast<u16>(load_shared(from + i / 2 * 4) >> i % 2 * 16);
        }
    }
}

// Stores what a warp has put into one half of its staging: 8 rows from `row` on (of all batches), WIDTH columns from `column` on.
template <u32 WIDTH> DEV void store_half(const Tensor& out, u32 shared, u32 row, u32 rows, u32 column, u32 columns, u32 lane) {
    __syncwarp();
    const u32 mine = lane / 4;
    if (row + mine < rows && column < columns) {
        const i64 offset = row_offset(out, row + mine) + static_cast<i64>(column) * out.strides[out.rank - 1];
        store_row(out, offset, shared + mine * WIDTH * 2, min(WIDTH, columns - column), lane % 4, WIDTH == 64 ? mine : mine / 2);
    }
    __syncwarp();
}

DEV u32 pack_pair(u32 dtype, f32 low, f32 high) { return dtype == DTYPE_BF16 ? pack_bf16(low, high) : pack_f16(low, high); }

// Puts half of a piece into staging, as 8 lines of 64 columns of 16 bits, whose chunks are permuted by the line.
DEV void stage_half(const f32 (&v)[PIECE_SUMS], u32 half, u32 dtype, u32 shared, u32 lane) {
    const u32 row = lane % 8;
#pragma unroll
    for (u32 j = 0; j < 8; j += 4) {
        u32 words[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[i] = pack_pair(dtype, v[(j + i) * 4 + half * 2], v[(j + i) * 4 + half * 2 + 1]);
        store_matrix_x4(shared + row * LINE_BYTES + (((j + lane / 8) ^ row) * CHUNK_BYTES), words[0], words[1], words[2], words[3]);
    }
}

// Stores a piece of 16-bit elements; `at.row` is the lane's row.
DEV void store_piece_16(const f32 (&v)[PIECE_SUMS], const Tensor& out, const Piece<false>& at, u32 staging, u32 lane) {
    const u32 first_row = at.row - lane / 4, first_column = at.column - 2 * (lane % 4);
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 shared = staging + half * HALF_BYTES;
        stage_half(v, half, out.dtype, shared, lane);
        store_half<PIECE_COLUMNS>(out, shared, first_row + half * HALF_ROWS, at.rows, first_column, at.columns, lane);
    }
}

// Stores a piece of f32: eight rows of 32 neighbouring bytes at a time, or four of 64.
template <class At, u32 N> DEV void store_piece_32(const f32 (&v)[N], const Tensor& out, const At& at) {
    const i64 neighbour = 4 * out.strides[out.rank - 1], step = 4 * At::step(out, out.strides[out.rank - 1]);
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        if (at.row_of(half) >= at.rows) continue;
        const At here{at.row, anew(at.rows), at.column, anew(at.columns)}, next{at.row, here.rows, at.column + 1, here.columns};
        char* p = element(out, row_offset(out, at.row_of(half))) + at.column * neighbour;
        const bool pairs = neighbour == 4 && reinterpret_cast<u64>(p) % 8 == 0 && step % 8 == 0;
#pragma unroll
        for (u32 j = 0; j < N / 4; ++j) {
            char* q = p + j * step;
            const f32 low = v[j * 4 + half * 2], high = v[j * 4 + half * 2 + 1];
            if (pairs && next.has(half, j) && range_in_bounds(out, q, 8)) {
                *reinterpret_cast<float2*>(q) = make_float2(low, high);
            } else {
                if (here.has(half, j) && in_bounds(out, q)) *reinterpret_cast<f32*>(q) = low;
                if (next.has(half, j) && in_bounds(out, q + neighbour)) *reinterpret_cast<f32*>(q + neighbour) = high;
            }
        }
    }
}

// Puts half of the results of fast_glu into staging: 8 lines of 32 columns of 16 bits.
DEV void stage_half_glu(const f32 (&products)[PIECE_SUMS / 2], u32 half, u32 dtype, u32 shared, u32 lane) {
    const u32 row = lane / 4;
    const bool even = lane % 2 == 0;
#pragma unroll
    for (u32 j = 0; j < 8; j += 2) {
        // Two groups of four columns: an even lane keeps its column of the first and gets the neighbour's, an odd one
        // likewise for the second, so that each has two neighbouring columns.
        const f32 first = products[j * 2 + half], second = products[j * 2 + 2 + half];
        const f32 other = __shfl_xor_sync(0xffffffffu, even ? second : first, 1);
        const u32 word = even ? pack_pair(dtype, first, other) : pack_pair(dtype, other, second);
        const u32 column = (even ? j : j + 1) * 4 + (lane & 2);
        const u32 chunk = column / 8 ^ (row / 2 & 3);
        store_shared(shared + row * (LINE_BYTES / 2) + chunk * CHUNK_BYTES + column % 8 * 2, word);
    }
}

// Stores a piece of a gated linear unit. `at` counts columns of sums.
DEV void store_piece_glu(const f32 (&v)[PIECE_SUMS], u32 unit, const Tensor& out, const Piece<false>& at, u32 staging, u32 lane) {
    const u32 first_row = at.row - lane / 4, first_column = (at.column - 2 * (lane % 4)) / 2;
    f32 products[PIECE_SUMS / 2];
    fast_glu(products, v, unit);
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 shared = staging + half * HALF_BYTES;
        stage_half_glu(products, half, out.dtype, shared, lane);
        store_half<PIECE_COLUMNS / 2>(out, shared, first_row + half * HALF_ROWS, at.rows, first_column, at.columns / 2, lane);
    }
}
#endif
