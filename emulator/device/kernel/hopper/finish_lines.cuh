// The epilogue of products on wgmma whose results are stored in whole lines: what networks do most.
//
// Rows of the result lie at one distance. Bias, an activation, and a residual that lies as the result does are what may
// follow. The host says so: paths/epilogue.py.
//
// A warp's part of a tile goes through its staging in steps of 8 rows by 64 columns. Sums lie there as f32, so that a lane
// can take 8 neighbours of a row: from then on, what there is to do is the same few instructions for every step. That matters
// more than the way through shared memory: instructions that are executed once have to be fetched, and wait for that.
#pragma once
#ifdef HOPPER
#include "hopper/product_args.cuh"
#include "hopper/store.cuh"

constexpr u32 STEP_ROWS = HALF_ROWS, STEPS_PER_PIECE = PIECE_ROWS / STEP_ROWS;
constexpr u32 LANE_COLUMNS = 8;                              // neighbours that a lane takes of a row,
constexpr u32 LANE_ROWS = STEP_ROWS * PIECE_COLUMNS / LANE_COLUMNS / WARP;  // of so many rows
constexpr u32 ROWS_APART = STEP_ROWS / LANE_ROWS;            // between them

// Where a warp's part of a tile goes, and what happens to it before. It is worked out before the main loop, while nothing else
// can be done, and stays in registers: after it, every word looked up would be waited for.
struct Lines {
    char* to;   // its first line
    u32 pitch;  // bytes from line to line
    u32 what;   // the activation's code, and the fields below; never 0

    static constexpr u32 PRESENT = 0x100, HALF = 0x200, SCALED = 0x400, RESIDUAL_FIRST = 0x800, RESIDUAL_LAST = 0x1000, GLU = 0x2000;
    static constexpr u32 RESIDUAL = RESIDUAL_FIRST | RESIDUAL_LAST;
    static constexpr u32 ROWS_AT = 14, COLUMNS_AT = 19;  // how many are left: 5 and 9 bits
    static constexpr u32 ANYWHERE = 1u << 28;            // lines are no whole, aligned chunks
    static constexpr u32 BIAS = 1u << 29, PIECES_AT = 30;  // 2 bits: 0, 1, 2 or 4 pieces

    DEV static u32 what_of(const ProductArgs& args, u32 rows, u32 columns, u32 pieces) {
        u32 what = PRESENT | min(pieces, 3) << PIECES_AT | min(rows, PIECE_ROWS) << ROWS_AT | min(columns, MAX_COLUMNS) << COLUMNS_AT;
        if (args.alpha() != 1.0f) what |= SCALED;
        if (args.out().dtype == DTYPE_F16) what |= HALF;
        if (args.is_glu()) return what | GLU | args.unit();
#pragma unroll 1
        for (u32 i = 0; i < 4; ++i) {
            const u32 step = args.steps(i);
            if (step == STEP_BIAS) what |= BIAS;
            if (step == STEP_RESIDUAL) what |= what & 0xff ? RESIDUAL_LAST : RESIDUAL_FIRST;
            if (step == STEP_ACT) what |= args.act();
        }
        return what;
    }
    DEV bool has(u32 flags) const { return (what & flags) != 0; }
    DEV u32 act() const { return what & 0xff; }
    DEV u32 dtype() const { return what & HALF ? DTYPE_F16 : DTYPE_BF16; }
    DEV u32 rows() const { return what >> ROWS_AT & 31; }
    DEV u32 pieces() const { return (what >> PIECES_AT) + (what >> PIECES_AT == 3); }
    DEV u32 columns() const { return what >> COLUMNS_AT & 511; }

    // Those of a gated linear unit's piece further to the right.
    DEV Lines across(u32 pieces) const {
        const u32 skipped = pieces * PIECE_COLUMNS / 2;
        return Lines{to + skipped * 2, pitch, what - (min(columns(), skipped) << COLUMNS_AT)};
    }
    DEV void down(u32 skipped) {
        to += static_cast<u64>(skipped) * pitch;
        what -= min(rows(), skipped) << ROWS_AT;
    }

  private:
    static constexpr u32 MAX_COLUMNS = SUMS / PIECE_SUMS * PIECE_COLUMNS;
};

// The instruction at work, for what is rarely needed.
DEV ProductArgs args_at_work() { return ProductArgs(Workers().work()); }

// Always, but in the checked build.
DEV bool is_in_result(const char* p, u32 bytes) {
#ifdef DLA_CHECKED
    return range_in_bounds(args_at_work().out(), p, bytes);
#else
    return true;
#endif
}

// What a lane has of a step: LANE_COLUMNS neighbours in each of LANE_ROWS rows.
struct LanePlace {
    u32 row, column;       // the first, within the warp's part
    u64 offset;            // bytes from the part's first element
    u32 rows, columns;     // how many there are from there on, of which neither may be left

    DEV LanePlace(const Lines& lines, u32 step, u32 lane)
        : row(step % STEPS_PER_PIECE * STEP_ROWS + lane / 8), column(step / STEPS_PER_PIECE * PIECE_COLUMNS + lane % 8 * LANE_COLUMNS),
          offset(static_cast<u64>(row) * lines.pitch + column * 2), rows(lines.rows() - min(lines.rows(), row)),
          columns(lines.columns() - min(lines.columns(), column)) {}
    DEV bool exists(u32 i) const { return i * ROWS_APART < rows && columns != 0; }
    DEV u64 at(const Lines& lines, u32 i) const { return offset + static_cast<u64>(i * ROWS_APART) * lines.pitch; }
};

// The residual of a step on its way from memory: it is asked for a step ahead.
struct ComingResidual {
    uint4 chunks[LANE_ROWS];

    DEV void fetch(const Lines& lines, u32 step, u32 lane) {
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) fetch(lines, LanePlace(lines, step, lane), i);
    }
    // Row i of it. Where the residual lies is looked up again: registers are dear.
    DEV void fetch(const Lines& lines, const LanePlace& place, u32 i) {
        const ProductArgs args = args_at_work();
        const char* p = lines.to + (args.residual().data - args.out().data) + place.at(lines, i);
        chunks[i] = place.exists(i) && is_in_residual(p) ? *reinterpret_cast<const uint4*>(p) : make_uint4(0, 0, 0, 0);
    }
    DEV void add(f32 (&v)[LANE_COLUMNS], u32 i, u32 dtype) const {
        const u32 words[4] = {chunks[i].x, chunks[i].y, chunks[i].z, chunks[i].w};
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            v[2 * k] += low_half(words[k], dtype);
            v[2 * k + 1] += high_half(words[k], dtype);
        }
    }

  private:
    DEV static bool is_in_residual(const char* p) {
#ifdef DLA_CHECKED
        return range_in_bounds(args_at_work().residual(), p, CHUNK_BYTES);
#else
        return true;
#endif
    }
};

// Sums of a step in the staging: row after row of 64 f32. Of a row's 16 chunks of 4, the even ones come first, and are permuted by
// the row: pairs are written, and chunks are read, without two lanes meeting in a bank.
struct StagedSums {
    u32 put, got;

    DEV StagedSums(u32 staging, u32 lane)
        : put(staging + lane / 4 * 256 + (lane >> 1 & 1) * 128 + (lane & 1) * 8 + ((lane / 4 ^ (lane & 2) * 2) << 4)),
          got(staging + lane / 8 * 256 + ((lane % 8 ^ lane / 8) << 4)) {}

    // Rows `half` of a piece: 8 of them.
    template <u32 COUNT> DEV void write(const f32 (&sums)[COUNT], u32 piece, u32 half) const {
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            const u32 k = piece * PIECE_SUMS + j * 4 + half * 2;
            store_shared(put ^ j << 4, make_float2(sums[k], sums[k + 1]));
        }
    }
    // The i-th row of this lane.
    DEV void read(f32 (&v)[LANE_COLUMNS], u32 i) const {
#pragma unroll
        for (u32 odd = 0; odd < 2; ++odd) {
            const uint4 x = load_shared_16((got ^ (i ^ odd) << 6) + i * (ROWS_APART * 256) + odd * 128);
            v[odd * 4] = __uint_as_float(x.x);
            v[odd * 4 + 1] = __uint_as_float(x.y);
            v[odd * 4 + 2] = __uint_as_float(x.z);
            v[odd * 4 + 3] = __uint_as_float(x.w);
        }
    }
};

// Adds what EarlyBias fetched of the step's columns, of which lane l has two, 2 l and the next: `word`.
DEV void add_bias(f32 (&v)[LANE_COLUMNS], u32 word, u32 dtype, u32 lane) {
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        const u32 pair = __shfl_sync(0xffffffffu, word, lane % 8 * 4 + k);
        v[2 * k] += low_half(pair, dtype);
        v[2 * k + 1] += high_half(pair, dtype);
    }
}

// Stores a row of 64 columns, of which there are `columns`, from the words that begin at `shared`: where `p` lies does not matter.
// Lane l of 8 stores the l-th whole chunk of memory, and single elements in front of the first and behind the last.
DEV void store_anywhere(char* p, u32 shared, u32 columns, u32 lane) {
    const u32 front = (CHUNK_BYTES - reinterpret_cast<u64>(p) % CHUNK_BYTES) % CHUNK_BYTES / 2;
    const u32 whole = columns < front ? 0 : (columns - front) / LANE_COLUMNS, behind = front + whole * LANE_COLUMNS;
    const auto store_one = [&](u32 column) {
        if (is_in_result(p + column * 2, 2)) *reinterpret_cast<u16*>(p + column * 2) = static_cast<u16>(load_shared(shared + column / 2 * 4) >> column % 2 * 16);
    };
    if (lane < min(front, columns)) store_one(lane);
    if (columns >= front && behind + lane < columns) store_one(behind + lane);
    const u32 first = front + lane * LANE_COLUMNS;
    if (lane >= whole || !is_in_result(p + first * 2, CHUNK_BYTES)) return;
    u32 words[5];
#pragma unroll
    for (u32 k = 0; k < 5; ++k) words[k] = load_shared(shared + (first / 2 + k) * 4);
    const u32 shift = front % 2 * 16;
    *reinterpret_cast<uint4*>(p + first * 2) =
        make_uint4(__funnelshift_r(words[0], words[1], shift), __funnelshift_r(words[1], words[2], shift),
                   __funnelshift_r(words[2], words[3], shift), __funnelshift_r(words[3], words[4], shift));
}

// Takes a step's results, packed in pairs, to memory.
DEV void store_step(const Lines& lines, const uint4 (&chunks)[LANE_ROWS], u32 step, u32 staging, u32 lane) {
    const LanePlace place(lines, step, lane);
    if (!lines.has(Lines::ANYWHERE)) {
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            char* p = lines.to + place.at(lines, i);
            if (place.exists(i) && is_in_result(p, CHUNK_BYTES)) *reinterpret_cast<uint4*>(p) = chunks[i];
        }
        return;
    }
    constexpr u32 PITCH = PIECE_COLUMNS * 2 + 4;  // a word more than a row: neighbouring rows lie in different banks
    const u32 skipped = step / STEPS_PER_PIECE * PIECE_COLUMNS, columns = min(lines.columns() - min(lines.columns(), skipped), PIECE_COLUMNS);
    __syncwarp();  // all have read the sums
#pragma unroll
    for (u32 i = 0; i < LANE_ROWS; ++i) {
        const u32 to = staging + (i * ROWS_APART + lane / 8) * PITCH + lane % 8 * CHUNK_BYTES;
        store_shared(to, chunks[i].x);
        store_shared(to + 4, chunks[i].y);
        store_shared(to + 8, chunks[i].z);
        store_shared(to + 12, chunks[i].w);
    }
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < LANE_ROWS; ++i) {
        if (i * ROWS_APART >= place.rows) continue;
        store_anywhere(lines.to + place.at(lines, i) - lane % 8 * CHUNK_BYTES, staging + (i * ROWS_APART + lane / 8) * PITCH, columns, lane % 8);
    }
}

template <u32 N> DEV void scale_by_alpha(f32 (&v)[N]) {
    const f32 alpha = args_at_work().alpha();
#pragma unroll
    for (u32 k = 0; k < N; ++k) v[k] *= alpha;
}

// Takes pieces of a warp's part of a tile to the result, of which `piece` is the first.
template <u32 COUNT> DEV void finish_in_lines(const f32 (&sums)[COUNT], const u32 (&bias)[COUNT / PIECE_SUMS], const Lines& lines, u32 piece) {
    ComingResidual residual{};
    if (lines.has(Lines::RESIDUAL)) residual.fetch(lines, piece * STEPS_PER_PIECE, Workers().lane());
    const u32 end = min(lines.pieces(), piece + COUNT / PIECE_SUMS) * STEPS_PER_PIECE;
#pragma unroll 1
    for (u32 step = piece * STEPS_PER_PIECE; step < end; ++step) {
        const u32 lane = Workers().lane(), staging = Workers().staging();  // anew: registers are dear
        const StagedSums staged(staging, lane);
        u32 word = 0;
        __syncwarp();  // all have read what was in the staging
#pragma unroll
        for (u32 k = 0; k < COUNT / PIECE_SUMS * STEPS_PER_PIECE; ++k) {
            if (k != step - piece * STEPS_PER_PIECE) continue;
            staged.write(sums, k / STEPS_PER_PIECE, k % STEPS_PER_PIECE);
            word = bias[k / STEPS_PER_PIECE];
        }
        __syncwarp();
        uint4 chunks[LANE_ROWS];
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            f32 v[LANE_COLUMNS];
            staged.read(v, i);
            if (lines.has(Lines::BIAS)) add_bias(v, word, lines.dtype(), lane);
            if (lines.has(Lines::SCALED)) scale_by_alpha(v);
            if (lines.has(Lines::RESIDUAL_FIRST)) residual.add(v, i, lines.dtype());
            fast_activate(v, lines.act());
            if (lines.has(Lines::RESIDUAL_LAST)) residual.add(v, i, lines.dtype());
            if (lines.has(Lines::RESIDUAL) && step + 1 < end) residual.fetch(lines, LanePlace(lines, step + 1, lane), i);
            chunks[i] = make_uint4(pack_pair(lines.dtype(), v[0], v[1]), pack_pair(lines.dtype(), v[2], v[3]),
                                   pack_pair(lines.dtype(), v[4], v[5]), pack_pair(lines.dtype(), v[6], v[7]));
        }
        store_step(lines, chunks, step, staging, lane);
    }
}

// Stores half of a piece from the staging: 8 lines of WIDTH columns, chunks permuted by the line. Neighbouring lanes store
// neighbouring chunks.
template <u32 WIDTH> DEV void store_lines(const Lines& lines, u32 shared, u32 lane) {
    constexpr u32 CHUNKS = WIDTH * 2 / CHUNK_BYTES, AT_ONCE = WARP / CHUNKS;
    const u32 chunk = lane % CHUNKS;
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < HALF_ROWS; i += AT_ONCE) {
        const u32 line = i + lane / CHUNKS, swizzle = WIDTH == 64 ? line : line / 2;
        char* p = lines.to + static_cast<u64>(line) * lines.pitch + chunk * CHUNK_BYTES;
        const uint4 v = load_shared_16(shared + line * WIDTH * 2 + ((chunk ^ swizzle) * CHUNK_BYTES));
        if (line < lines.rows() && chunk * (CHUNK_BYTES / 2) < lines.columns() && is_in_result(p, CHUNK_BYTES)) {
            *reinterpret_cast<uint4*>(p) = v;
        }
    }
}

// Takes a piece of a gated linear unit to the result.
DEV void finish_lines_glu(f32 (&v)[PIECE_SUMS], Lines lines, u32 staging, u32 lane) {
    f32 products[PIECE_SUMS / 2];
    __syncwarp();
    if (lines.has(Lines::SCALED)) scale_by_alpha(v);
    fast_glu(products, v, lines.act());
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 shared = staging + half * HALF_BYTES;
        stage_half_glu(products, half, lines.dtype(), shared, lane);
        store_lines<PIECE_COLUMNS / 2>(lines, shared, lane);
        lines.down(HALF_ROWS);
    }
}
#endif
