// Tiles of matrix products: operands of any strides to shared memory, in a pipeline with what is made of them
// (tensor_tile.cuh, scalar_tile.cuh).
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
    return bytes == 0 || (p >= t.low && p + bytes <= t.high) || out_of_bounds();
#else
    return true;
#endif
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

// f32 for tensor cores, which read the upper 19 bits alone: no rounding, as rows allow (isa/math_mode.py).
struct Truncated {
    static constexpr u32 BYTES = 4;
    static constexpr bool VECTORS = true;
    static DEV u32 load(const Tensor& t, i64 offset) { return Bits32::load(t, offset); }
    static DEV u32 permute(u32 line, u32 chunk, u32, bool deep) { return chunk ^ (deep ? line & 7 : (line & 3) << 1); }
};

// What tensor cores multiply, and how much of the depth at a time.
struct Bf16 {
    using Element = Bits16;
    static constexpr bool HALF_FLOATS = false;
    static constexpr u32 DEPTH = 16;
    static DEV void multiply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_bf16(d, a, b0, b1); }
    static DEV u32 pack(f32 low, f32 high) { return pack_bf16(low, high); }
    static DEV float2 unpack(u32 word) { return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)); }
};
struct F16 {
    using Element = Bits16;
    static constexpr bool HALF_FLOATS = true;
    static constexpr u32 DEPTH = 16;
    static DEV void multiply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_f16(d, a, b0, b1); }
    static DEV u32 pack(f32 low, f32 high) { return pack_f16(low, high); }
    static DEV float2 unpack(u32 word) { return make_float2(f32_from_f16(static_cast<u16>(word)), f32_from_f16(static_cast<u16>(word >> 16))); }
};
struct Tf32 {
    using Element = Truncated;
    static constexpr u32 DEPTH = 8;
    static DEV void multiply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_tf32(d, a, b0, b1); }
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
        whole = copies_whole<E>(t, along(deep));
        const u32 line = thread / per_line(deep), at = thread % per_line(deep) * PER_CHUNK;
        offset = base + first * row_step + line * t.strides[along(!deep)] + at * t.strides[along(deep)];
    }

    // `is_deep` is `deep`; where the caller has a branch for either, it is a constant, and most of this is.
    DEV void load(char* tile, u32 first_depth, bool is_deep) const {
        const u32 line = thread / per_line(is_deep), chunk = thread % per_line(is_deep), at = chunk * PER_CHUNK;
        const u32 depth = t.dims[depth_axis] - first_depth, lines_at_once = WORKER_THREADS / per_line(is_deep);
        const u32 lines = is_deep ? rows : depth, length = is_deep ? depth : rows;
        const i64 round_step = lines_at_once * t.strides[along(!is_deep)];
        i64 from = offset + first_depth * t.strides[depth_axis];
        const auto place = [&](u32 i) {
            const u32 to = line + i * lines_at_once;
            return tile + (to * per_line(is_deep) + E::permute(to, chunk, per_line(is_deep), is_deep)) * CHUNK_BYTES;
        };
        if (whole && rows == ROWS && depth >= DEPTH) {
#pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                copy_chunk<E>(t, place(i), from, PER_CHUNK);
                from += round_step;
            }
            return;
        }
        const u32 left = at < length ? min(PER_CHUNK, length - at) : 0;
#pragma unroll 1
        for (u32 i = 0; i < COUNT; ++i) {
            const u32 have = line + i * lines_at_once < lines ? left : 0;
            if (whole) copy_chunk<E>(t, place(i), from, have);
            else gather_chunk<E>(t, place(i), from, have, along(is_deep));
            from += round_step;
        }
    }

  private:
    // Threads fill line after line; the chunk of a thread within its line is the same each time.
    static DEV u32 per_line(bool is_deep) { return (is_deep ? DEPTH : ROWS) / PER_CHUNK; }
    DEV u32 along(bool is_deep) const { return is_deep ? depth_axis : row_axis; }  // the axis of a line's elements
};

// ---- the pipeline ----

// Stages of scratch memory, each a tile of either operand, DEPTH deep; loads run STAGES - 1 ahead.
template <u32 STAGES, u32 A_BYTES, u32 B_BYTES, u32 DEPTH, class A, class B> struct Pipeline {
    static constexpr u32 STAGE_BYTES = A_BYTES + B_BYTES;
    static_assert(STAGES * STAGE_BYTES <= SCRATCH_BYTES, "the stages fit");
    const A& a;
    const B& b;
    const Block& block;
    u32 steps;

    DEV Pipeline(const A& left, const B& right, u32 depth, const Block& all)
        : a(left), b(right), block(all), steps((depth + DEPTH - 1) / DEPTH) {}

    DEV char* stage(u32 step) const { return block.scratch() + step % STAGES * STAGE_BYTES; }
    // Starts the loads of a step, if there is one. For each step, so that the number of groups in flight is known.
    DEV void load(u32 step, bool a_deep, bool b_deep) const {
        if (step < steps) {
            a.load(stage(step), step * DEPTH, a_deep);
            b.load(stage(step) + A_BYTES, step * DEPTH, b_deep);
        }
        copy_async_commit();
    }
    DEV void fill(bool a_deep, bool b_deep) const {
#pragma unroll 1
        for (u32 step = 0; step < STAGES - 1; ++step) load(step, a_deep, b_deep);
    }
    // Waits for the oldest step in flight; nobody reads the one before it any longer.
    DEV void wait() const {
        copy_async_wait<STAGES - 2>();
        block.sync();
    }
    // Ends with scratch free to use.
    DEV void drain() const {
        copy_async_wait<0>();
        block.sync();
    }
};

// Calls f(a_deep, b_deep) from a branch of its own for each case, so that they are constants there.
template <class F> DEV void for_layouts(bool a_deep, bool b_deep, F f) {
    if (a_deep) {
        if (b_deep) f(true, true);
        else f(true, false);
    } else {
        if (b_deep) f(false, true);
        else f(false, false);
    }
}
