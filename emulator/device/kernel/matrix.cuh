// Tiles of matrix products: operands of any strides to shared memory, and their product on tensor cores or by FMA.
//
// A product is out[rows, columns] = a[rows, depth] * b[columns, depth]; "rows" of an operand are its M or N.
// A tile in shared memory is made of lines of 16-byte chunks. A deep tile has a line per row, with neighbours in depth
// next to each other; the other kind has a line per depth. Chunks of a line are permuted (XOR) so that the eight
// addresses that the hardware serves at once lie in different banks.
#pragma once
#include "numbers.cuh"

constexpr u32 CHUNK_BYTES = 16;

// Whether raw access to `bytes` at p is in order. Only the checked build asks.
DEV bool range_in_bounds(const Tensor& t, const char* p, u32 bytes) {
#ifdef DLA_CHECKED
    if (bytes != 0 && (p < t.low || p + bytes > t.high)) {
        raise(shared_state().launch, TRAP_BOUNDS, shared_state().instruction);
        return false;
    }
#endif
    return true;
}

// ---- element types ----

// How elements are loaded, and how they lie in shared memory.
struct Bits16 {
    static constexpr u32 BYTES = 2;
    static constexpr bool VECTORS = true;  // whether memory and shared memory hold the same bytes
    static DEV u32 load(const Tensor& t, i64 offset) {
        const char* p = element(t, offset);
        return in_bounds(t, p) ? *reinterpret_cast<const u16*>(p) : 0;
    }
    static DEV u32 permute(u32 line, u32 chunk, u32 per_line, bool) { return chunk ^ (per_line >= 8 ? line & 7 : line >> 1 & 3); }
};
struct Bits32 {
    static constexpr u32 BYTES = 4;
    static constexpr bool VECTORS = true;
    static DEV u32 load(const Tensor& t, i64 offset) {
        const char* p = element(t, offset);
        return in_bounds(t, p) ? *reinterpret_cast<const u32*>(p) : 0;
    }
    static DEV u32 permute(u32 line, u32 chunk, u32, bool deep) { return deep ? chunk ^ (line >> 2 & 7) : chunk; }
};
// 8-bit integers as i32.
struct Widened {
    static constexpr u32 BYTES = 4;
    static constexpr bool VECTORS = false;
    static DEV u32 load(const Tensor& t, i64 offset) { return static_cast<u32>(load_i64(t, offset)); }
    static DEV u32 permute(u32 line, u32 chunk, u32 per_line, bool deep) { return Bits32::permute(line, chunk, per_line, deep); }
};

struct Bf16 {
    static DEV void multiply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_bf16(d, a, b0, b1); }
    static DEV u32 pack(f32 low, f32 high) { return pack_bf16(low, high); }
};
struct F16 {
    static DEV void multiply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_f16(d, a, b0, b1); }
    static DEV u32 pack(f32 low, f32 high) { return pack_f16(low, high); }
};

// Whether every 16-byte chunk along `axis` can be copied whole: neighbours adjacent, and every line aligned.
template <class E> DEV bool copies_whole(const Tensor& t, u32 axis) {
    bool whole = E::VECTORS && reinterpret_cast<u64>(t.data) % CHUNK_BYTES == 0;
    for (u32 k = 0; k < t.rank; ++k) {
        whole &= t.dims[k] == 1 || (k == axis ? t.strides[k] == 1 : t.strides[k] % (CHUNK_BYTES / E::BYTES) == 0);
    }
    return whole;
}

// Fills one chunk of shared memory: `have` elements from `from` on along `axis`, then zeros. For any strides; a call,
// because it is slow and large.
template <class E> DEV_CALL void gather_chunk(const Tensor& t, char* to, i64 from, u32 have, u32 axis) {
    constexpr u32 PER_WORD = 4 / E::BYTES;
    const i64 step = t.strides[axis];
#pragma unroll 1  // few registers: the caller's sums are alive
    for (u32 word = 0; word < 4; ++word) {
        u32 bits = 0;
#pragma unroll
        for (u32 j = 0; j < PER_WORD; ++j, from += step) {
            if (word * PER_WORD + j < have) bits |= E::load(t, from) << (j * 16);
        }
        reinterpret_cast<u32*>(to)[word] = bits;
    }
}

// The same for neighbours in aligned memory: one asynchronous copy.
template <class E> DEV void copy_chunk(const Tensor& t, char* to, i64 from, u32 have) {
    const char* p = element(t, have ? from : 0);
    const u32 bytes = have * E::BYTES;
    copy_async_16(to, p, range_in_bounds(t, p, bytes) ? bytes : 0);
}

// Offset (in elements) of the first element of row `row`, counted over all axes but the last.
DEV i64 row_offset(const Tensor& t, u32 row) {
    i64 offset = 0;
    for (i32 k = t.rank - 2; k > 0; --k) {
        const u32 quotient = row / static_cast<u32>(t.dims[k]);
        offset += static_cast<i64>(row - quotient * static_cast<u32>(t.dims[k])) * t.strides[k];
        row = quotient;
    }
    return offset + static_cast<i64>(row) * t.strides[0];
}

// ---- loading ----

// One operand's tiles: ROWS x DEPTH elements each, by all worker threads. Rows lie at equal distances, and so do elements
// of a row.
template <class E, u32 ROWS, u32 DEPTH> struct TileLoader {
    static constexpr u32 PER_CHUNK = CHUNK_BYTES / E::BYTES;
    static constexpr u32 COUNT = ROWS * DEPTH / PER_CHUNK / WORKER_THREADS;  // chunks per thread
    static_assert(COUNT * PER_CHUNK * WORKER_THREADS == ROWS * DEPTH, "every thread loads as many chunks");

    // Strides and dims are read again at each use: registers are dearer.
    const Tensor& t;
    i64 offset;  // of this thread's first chunk at depth 0
    u32 row_axis, depth_axis, rows, thread;
    bool deep, whole;

    // `count` rows from row `first` on; row 0 begins at element `base`.
    DEV TileLoader(const Tensor& tensor, i64 base, u32 axis_of_rows, u32 axis_of_depth, u32 first, u32 count, u32 worker)
        : t(tensor), row_axis(axis_of_rows), depth_axis(axis_of_depth), rows(count), thread(worker) {
        const i64 row_step = t.strides[row_axis], depth_step = t.strides[depth_axis];
        deep = (depth_step == 1 && (row_step != 1 || count == 1)) || (row_step != 1 && depth_step < row_step);
        whole = copies_whole<E>(t, along());
        offset = base + first * row_step + line(0) * t.strides[across()] + chunk() * PER_CHUNK * t.strides[along()];
    }

    DEV void load(char* tile, u32 first_depth) const {
        const u32 depth = t.dims[depth_axis] - first_depth;
        const u32 lines = deep ? rows : depth, length = deep ? depth : rows, at = chunk() * PER_CHUNK;
        const u32 left = at < length ? min(PER_CHUNK, length - at) : 0;
        const i64 round_step = WORKER_THREADS / per_line() * t.strides[across()];
        i64 from = offset + first_depth * t.strides[depth_axis];
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            const u32 have = line(i) < lines ? left : 0;
            char* to = tile + (line(i) * per_line() + E::permute(line(i), chunk(), per_line(), deep)) * CHUNK_BYTES;
            if (whole) copy_chunk<E>(t, to, from, have);
            else gather_chunk<E>(t, to, from, have, along());
            from += round_step;
        }
    }

  private:
    // Threads fill line after line; the chunk of a thread within its line is the same each time.
    DEV u32 per_line() const { return (deep ? DEPTH : ROWS) / PER_CHUNK; }
    DEV u32 line(u32 i) const { return deep ? thread / (DEPTH / PER_CHUNK) + i * (WORKER_THREADS / (DEPTH / PER_CHUNK))
                                            : thread / (ROWS / PER_CHUNK) + i * (WORKER_THREADS / (ROWS / PER_CHUNK)); }
    DEV u32 chunk() const { return deep ? thread % (DEPTH / PER_CHUNK) : thread % (ROWS / PER_CHUNK); }
    DEV u32 along() const { return deep ? depth_axis : row_axis; }   // a line
    DEV u32 across() const { return deep ? row_axis : depth_axis; }  // the lines
};

// ---- the pipeline ----

// Runs `compute(stage, depth left)` over tiles of DEPTH while loads run STAGES - 1 ahead. Ends with scratch free to use.
template <u32 STAGES, u32 A_BYTES, u32 B_BYTES, u32 DEPTH, class A, class B, class Compute>
DEV void pipeline(const A& a, const B& b, u32 depth, const Block& block, Compute compute) {
    constexpr u32 STAGE_BYTES = A_BYTES + B_BYTES;
    static_assert(STAGES * STAGE_BYTES <= SCRATCH_BYTES, "the stages fit");
    const u32 steps = (depth + DEPTH - 1) / DEPTH;
#pragma unroll 1
    for (i32 step = 1 - static_cast<i32>(STAGES); step < static_cast<i32>(steps); ++step) {
        if (step >= 0) {
            copy_async_wait<STAGES - 2>();
            block.sync();
        }
        const u32 ahead = step + STAGES - 1;
        if (ahead < steps) {
            char* stage = block.scratch() + ahead % STAGES * STAGE_BYTES;
            a.load(stage, ahead * DEPTH);
            b.load(stage + A_BYTES, ahead * DEPTH);
        }
        copy_async_commit();  // always, so that the number of groups in flight is known
        if (step >= 0) compute(block.scratch() + step % STAGES * STAGE_BYTES, depth - step * DEPTH);
    }
    copy_async_wait<0>();
    block.sync();
}

// ---- products ----

// 16 rows by 16 in depth of a tile, as mma fragments. For `a` the second 8x8 matrix holds the next rows; for `b`, which
// makes two column blocks, it holds the next depth.
template <u32 ROWS, u32 DEPTH> DEV void load_fragment(u32 (&r)[4], u32 tile, bool deep, bool is_a, u32 row, u32 depth, u32 lane) {
    const u32 row_octet = is_a ? lane >> 3 & 1 : lane >> 4;
    const u32 depth_octet = is_a ? lane >> 4 : lane >> 3 & 1;
    if (deep) {
        const u32 line = row + (lane & 7) + 8 * row_octet, chunk = depth / 8 + depth_octet;
        load_matrix_x4(r, tile + (line * (DEPTH / 8) + Bits16::permute(line, chunk, DEPTH / 8, true)) * CHUNK_BYTES);
    } else {
        const u32 line = depth + (lane & 7) + 8 * depth_octet, chunk = row / 8 + row_octet;
        load_matrix_x4_transposed(r, tile + (line * (ROWS / 8) + Bits16::permute(line, chunk, ROWS / 8, false)) * CHUNK_BYTES);
    }
}

// ROWS x COLUMNS on tensor cores by WARP_ROWS x WARP_COLUMNS x PARTS warps; PARTS of them share out the depth.
// The sums are left in scratch: f32 [PARTS][ROWS][PITCH].
template <class T, u32 ROWS_, u32 COLUMNS_, u32 DEPTH, u32 WARP_ROWS, u32 WARP_COLUMNS, u32 PARTS_, u32 STAGES> struct TensorCoreTile {
    using Element = Bits16;
    static constexpr u32 ROWS = ROWS_, COLUMNS = COLUMNS_, STEP = DEPTH, PARTS = PARTS_, PITCH = COLUMNS + 8;
    static constexpr u32 HIGH = ROWS / WARP_ROWS / 16, WIDE = COLUMNS / WARP_COLUMNS / 16;  // 16x16 blocks of a warp
    static_assert(WARP_ROWS * WARP_COLUMNS * PARTS == WORKER_WARPS, "every warp has a share");
    static_assert(PARTS * ROWS * PITCH * 4 <= SCRATCH_BYTES, "the sums fit");

    template <class A, class B> static DEV void multiply(const A& a, const B& b, u32 depth, const Block& block) {
        const u32 part = block.warp() % PARTS;
        const u32 row = block.warp() / PARTS % WARP_ROWS * (HIGH * 16), column = block.warp() / PARTS / WARP_ROWS * (WIDE * 16);
        f32 sums[HIGH][2 * WIDE][4];
#pragma unroll
        for (u32 i = 0; i < HIGH; ++i)
#pragma unroll
            for (u32 j = 0; j < 2 * WIDE; ++j)
#pragma unroll
                for (u32 k = 0; k < 4; ++k) sums[i][j][k] = 0.0f;
        pipeline<STAGES, ROWS * DEPTH * 2, COLUMNS * DEPTH * 2, DEPTH>(a, b, depth, block, [&](const char* stage, u32 left) {
            const u32 a_tile = shared_address(stage), b_tile = a_tile + ROWS * DEPTH * 2;
#pragma unroll
            for (u32 at = 0; at < DEPTH; at += 16 * PARTS) {
                const u32 d = at + 16 * part;
                if (d >= left) break;
                u32 af[HIGH][4], bf[WIDE][4];
#pragma unroll
                for (u32 i = 0; i < HIGH; ++i) load_fragment<ROWS, DEPTH>(af[i], a_tile, a.deep, true, row + 16 * i, d, block.lane());
#pragma unroll
                for (u32 j = 0; j < WIDE; ++j) load_fragment<COLUMNS, DEPTH>(bf[j], b_tile, b.deep, false, column + 16 * j, d, block.lane());
#pragma unroll
                for (u32 i = 0; i < HIGH; ++i)
#pragma unroll
                    for (u32 j = 0; j < 2 * WIDE; ++j) T::multiply(sums[i][j], af[i], bf[j / 2][j % 2 * 2], bf[j / 2][j % 2 * 2 + 1]);
            }
        });
        f32* corner = reinterpret_cast<f32*>(block.scratch()) + (part * ROWS + row + block.lane() / 4) * PITCH + column + block.lane() % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < HIGH; ++i)
#pragma unroll
            for (u32 j = 0; j < 2 * WIDE; ++j)
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    f32* to = corner + (16 * i + 8 * half) * PITCH + 8 * j;
                    *reinterpret_cast<float2*>(to) = make_float2(sums[i][j][2 * half], sums[i][j][2 * half + 1]);
                }
        block.sync();
    }
};

DEV void multiply_add(f32& sum, u32 a, u32 b) { sum = fmaf(__uint_as_float(a), __uint_as_float(b), sum); }
DEV void multiply_add(i32& sum, u32 a, u32 b) { sum = static_cast<i32>(static_cast<u32>(sum) + a * b); }

// ROWS x COLUMNS by multiply-add, 8 x 4 per thread; where that takes fewer threads than there are, PARTS share the depth.
// The sums are left in scratch: Sum [PARTS][ROWS][PITCH].
template <class Sum, class E, u32 ROWS_, u32 COLUMNS_, u32 DEPTH, u32 STAGES> struct ScalarTile {
    using Element = E;
    static constexpr u32 ROWS = ROWS_, COLUMNS = COLUMNS_, STEP = DEPTH, PITCH = COLUMNS + 8;
    static constexpr u32 ACROSS = COLUMNS / 4, THREADS = ACROSS * (ROWS / 8), PARTS = WORKER_THREADS / THREADS;
    static_assert(PARTS * THREADS == WORKER_THREADS, "every thread has a share");
    static_assert(PARTS * ROWS * PITCH * 4 <= SCRATCH_BYTES, "the sums fit");

    // The 4 in depth from `depth` on, of the 4 rows from `row` on: to[row][depth].
    template <u32 LINES> static DEV void fetch(u32 (&to)[4][4], const char* tile, bool deep, u32 row, u32 depth) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 line = (deep ? row : depth) + i, chunk = (deep ? depth : row) / 4, per_line = (deep ? DEPTH : LINES) / 4;
            const uint4 v = *reinterpret_cast<const uint4*>(tile + (line * per_line + E::permute(line, chunk, per_line, deep)) * CHUNK_BYTES);
            const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                if (deep) to[i][k] = words[k];
                else to[k][i] = words[k];
            }
        }
    }

    template <class A, class B> static DEV void multiply(const A& a, const B& b, u32 depth, const Block& block) {
        const u32 part = block.thread() / THREADS, row = block.thread() % THREADS / ACROSS * 4, column = block.thread() % ACROSS * 4;
        Sum sums[8][4];
#pragma unroll
        for (u32 i = 0; i < 8; ++i)
#pragma unroll
            for (u32 j = 0; j < 4; ++j) sums[i][j] = 0;
        pipeline<STAGES, ROWS * DEPTH * 4, COLUMNS * DEPTH * 4, DEPTH>(a, b, depth, block, [&](const char* stage, u32 left) {
            const char* b_tile = stage + ROWS * DEPTH * 4;
#pragma unroll 1
            for (u32 d = 4 * part; d < DEPTH && d < left; d += 4 * PARTS) {
                u32 bv[4][4];
                fetch<COLUMNS>(bv, b_tile, b.deep, column, d);
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    u32 av[4][4];
                    fetch<ROWS>(av, stage, a.deep, row + half * (ROWS / 2), d);
#pragma unroll
                    for (u32 k = 0; k < 4; ++k)
#pragma unroll
                        for (u32 i = 0; i < 4; ++i)
#pragma unroll
                            for (u32 j = 0; j < 4; ++j) multiply_add(sums[4 * half + i][j], av[i][k], bv[j][k]);
                }
            }
        });
        Sum* corner = reinterpret_cast<Sum*>(block.scratch()) + (part * ROWS + row) * PITCH + column;
#pragma unroll
        for (u32 i = 0; i < 8; ++i)
#pragma unroll
            for (u32 j = 0; j < 4; ++j) corner[(i / 4 * (ROWS / 2) + i % 4) * PITCH + j] = sums[i][j];
        block.sync();
    }
};

// ---- tilings ----

// Tile shapes, from large to small, for every kind of element.
template <class T> using LargeTile = TensorCoreTile<T, 128, 128, 64, 2, 4, 1, 4>;
template <class T> using TallTile = TensorCoreTile<T, 128, 64, 64, 4, 2, 1, 5>;  // convolutions: they gather, and need the registers
template <class T> using MediumTile = TensorCoreTile<T, 64, 64, 64, 2, 2, 2, 6>;
template <class T> using SmallTile = TensorCoreTile<T, 32, 32, 128, 1, 1, 8, 7>;
using LargeFloatTile = ScalarTile<f32, Bits32, 128, 64, 32, 4>;
using SmallFloatTile = ScalarTile<f32, Bits32, 32, 32, 64, 6>;
using IntegerTile = ScalarTile<i32, Widened, 32, 32, 64, 6>;

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

    // The tiling that takes least time; `wide` is the largest tile's columns. Costs are relative times per unit of depth,
    // larger tiles being more efficient.
    static DEV Tiling choose(u32 dtype, u32 batches, u32 m, u32 n, u32 wide) {
        const Tiling small(batches, m, n, 32, 32);
        if (dtype == DTYPE_F32) {
            const Tiling large(batches, m, n, LargeFloatTile::ROWS, LargeFloatTile::COLUMNS);
            return large.time(13) < small.time(2) ? large : small;
        }
        if (!is_float(dtype)) return small;
        const Tiling medium(batches, m, n, 64, 64), large(batches, m, n, 128, wide);
        const u32 best = medium.time(5) < small.time(2) ? medium.time(5) : small.time(2);
        if (large.time(wide == 128 ? 14 : 8) <= best) return large;
        return medium.time(5) == best ? medium : small;
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
