// The epilogue of products on wgmma whose results are stored in whole lines: what networks do most, in few instructions that
// lie together. A warp takes about five clocks for each, and longer where it has to jump over what is not needed.
//
// Rows of the result lie at one distance, and are made of whole chunks of 16 bytes. Bias has been added; what may follow is
// an activation, and a residual that lies as the result does. The host says so: paths/epilogue.py.
#pragma once
#ifdef HOPPER
#include "hopper/product_args.cuh"
#include "hopper/store.cuh"

// How a warp takes its part of a tile to the result. What networks do most has code of its own, in which there is nothing to jump over:
// each jump to code that was not executed a moment ago takes a warp a hundred clocks or more. The rest is CALLS.
enum class Ending : u32 { CALLS, PLAIN, GELU, RESIDUAL, ANYWHERE, PARTIAL, TOGETHER };

// Where a piece goes, and what happens to it before. It is worked out before the main loop, while nothing else can be done, and
// kept where a warp keeps what is its own: all of it is read at once behind the loop, which needs the registers.
struct Lines {
    char* to;   // its first line
    u32 pitch;  // bytes from line to line
    u32 what;   // the activation's code, and the fields below; never 0

    static constexpr u32 ACT = 0x1f, ENDING_AT = 5, ENDING = 7 << ENDING_AT;
    static_assert(ACT_SILU <= ACT, "the largest code of those that the host allows here");
    static constexpr u32 PRESENT = 0x100, HALF = 0x200, SCALED = 0x400, RESIDUAL_FIRST = 0x800, RESIDUAL_LAST = 0x1000, GLU = 0x2000;
    static constexpr u32 ROWS_AT = 14, COLUMNS_AT = 19;  // how many are left: 5 and 9 bits
    static constexpr u32 ANYWHERE = 0x10000000;            // lines are no whole, aligned chunks
    static constexpr u32 BIAS = 1u << 29;
    static constexpr u32 RESIDUAL = RESIDUAL_FIRST | RESIDUAL_LAST;

    // What happens to all of a result, and how much there is of a part of it.
    DEV static u32 what_of(const ProductArgs& args, bool in_chunks) {
        u32 what = PRESENT | (in_chunks ? 0 : ANYWHERE);
        if (args.alpha() != 1.0f) what |= SCALED;
        if (args.out().dtype == DTYPE_F16) what |= HALF;
        if (args.is_glu()) return what | GLU | args.unit();  // by calls
#pragma unroll 1
        for (u32 i = 0; i < 4; ++i) {
            const u32 step = args.steps(i);
            if (step == STEP_BIAS) what |= BIAS;
            if (step == STEP_RESIDUAL) what |= what & ACT ? RESIDUAL_LAST : RESIDUAL_FIRST;
            if (step == STEP_ACT) what |= args.act();
        }
        return ending_as(what, ending_of(what));
    }
    DEV static constexpr u32 ending_as(u32 what, Ending ending) { return what & ~ENDING | static_cast<u32>(ending) << ENDING_AT; }
    DEV Lines ending_as(Ending ending) const { return Lines{to, pitch, ending_as(what, ending)}; }
    DEV static u32 size_of(u32 rows, u32 columns) { return min(rows, PIECE_ROWS) << ROWS_AT | columns << COLUMNS_AT; }
    // Anew: an answer that waits for its use behind a piece takes one of seven predicates.
    DEV bool has(u32 flags) const { return (anew(what) & flags) != 0; }
    DEV void keep() const {
        volatile auto& kept = Kept::place().lines;
        const u64 address = reinterpret_cast<u64>(to);
        kept.to_low = static_cast<u32>(address);
        kept.to_high = static_cast<u32>(address >> 32);
        kept.pitch = pitch;
        kept.what = what;
    }
    DEV static Lines kept() {
        const volatile auto& kept = Kept::place().lines;
        const u32 low = kept.to_low, high = kept.to_high, pitch = kept.pitch, what = kept.what;
        return Lines{reinterpret_cast<char*>(static_cast<u64>(high) << 32 | low), pitch, what};
    }
    DEV Ending ending() const { return static_cast<Ending>(what >> ENDING_AT & ENDING >> ENDING_AT); }
    DEV u32 act() const { return anew(what) & ACT; }
    DEV u32 dtype() const { return what & HALF ? DTYPE_F16 : DTYPE_BF16; }
    DEV u32 rows() const { return what >> ROWS_AT & 31; }
    DEV u32 columns() const { return what >> COLUMNS_AT & 511; }
    DEV u32 pieces() const { return ((columns() << (what & GLU ? 1 : 0)) + PIECE_COLUMNS - 1) / PIECE_COLUMNS; }

    // Those of a piece further to the right.
    DEV Lines across(u32 pieces) const {
        const u32 skipped = pieces * (what & GLU ? PIECE_COLUMNS / 2 : PIECE_COLUMNS);
        return Lines{to + skipped * 2, pitch, what - (min(columns(), skipped) << COLUMNS_AT)};
    }
    DEV void down(u32 skipped) {
        to += static_cast<u64>(skipped) * pitch;
        what -= min(rows(), skipped) << ROWS_AT;
    }

  private:
    DEV static Ending ending_of(u32 what) {
        const u32 act = what & ACT;
        if (what & (SCALED | RESIDUAL_LAST) || (what & ANYWHERE && what & RESIDUAL)) return Ending::CALLS;
        if (act == ACT_GELU || act == ACT_GELU_TANH) return what & (ANYWHERE | RESIDUAL) ? Ending::CALLS : Ending::GELU;
        if (act != ACT_IDENTITY && act != ACT_RELU) return Ending::CALLS;
        return what & ANYWHERE ? Ending::ANYWHERE : what & RESIDUAL ? Ending::RESIDUAL : Ending::PLAIN;
    }
};

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

// The same where lines may begin anywhere. Lane l of 8 stores the l-th whole chunk of memory of a line, and single elements before
// the first and after the last.
DEV_CALL void store_lines_anywhere(Lines lines, u32 shared) {
    constexpr u32 PER_CHUNK = CHUNK_BYTES / 2, AT_ONCE = WARP / 8;
    const u32 lane = thread_index_anew() % WARP, part = lane % 8, columns = min(lines.columns(), PIECE_COLUMNS);
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < HALF_ROWS; i += AT_ONCE) {
        const u32 line = i + lane / 8, from = shared + line * LINE_BYTES;
        char* p = lines.to + static_cast<u64>(line) * lines.pitch;
        const u32 front = (0u - static_cast<u32>(reinterpret_cast<u64>(p) / 2)) % PER_CHUNK, first = front + part * PER_CHUNK;
        const u32 whole = columns < front ? 0 : (columns - front) / PER_CHUNK, behind = front + whole * PER_CHUNK + part;
        const auto pair = [&](u32 column) { return load_shared(from + ((column * 2 ^ line * CHUNK_BYTES) & LINE_BYTES - 4)); };
        u32 pairs[5];
#pragma unroll
        for (u32 k = 0; k < 5; ++k) pairs[k] = pair(first + 2 * k);
        const u32 before = pair(part) >> part % 2 * 16, after = pair(behind) >> behind % 2 * 16, shift = front % 2 * 16;
        const uint4 chunk = make_uint4(__funnelshift_r(pairs[0], pairs[1], shift), __funnelshift_r(pairs[1], pairs[2], shift),
                                       __funnelshift_r(pairs[2], pairs[3], shift), __funnelshift_r(pairs[3], pairs[4], shift));
        const bool exists = line < lines.rows();
        if (exists && part < whole && is_in_result(p + first * 2, CHUNK_BYTES)) *reinterpret_cast<uint4*>(p + first * 2) = chunk;
        if (exists && part < min(front, columns) && is_in_result(p + part * 2, 2)) *reinterpret_cast<u16*>(p + part * 2) = static_cast<u16>(before);
        if (exists && columns >= front && behind < columns && is_in_result(p + behind * 2, 2)) *reinterpret_cast<u16*>(p + behind * 2) = static_cast<u16>(after);
    }
}

// A piece of the residual, which lies as the result's does, on its way from memory: whole lines, 8 lanes each.
struct ComingResidual {
    uint4 words[4];

    DEV void fetch(const Lines& lines, u32 lane) {
        const ProductArgs args = args_at_work();
        const i64 moved = args.residual().data - args.out().data;
        const u32 chunk = lane % 8;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 line = i * 4 + lane / 8;
            const char* p = lines.to + moved + static_cast<u64>(line) * lines.pitch + chunk * CHUNK_BYTES;
            const bool exists = line < lines.rows() && chunk * (CHUNK_BYTES / 2) < lines.columns() && is_in_residual(p, CHUNK_BYTES);
            words[i] = exists ? *reinterpret_cast<const uint4*>(p) : make_uint4(0, 0, 0, 0);
        }
    }
    // Adds it to the sums, through the staging.
    DEV void add(f32 (&v)[PIECE_SUMS], u32 dtype, u32 staging, u32 lane) const {
        const u32 chunk = lane % 8, row = lane % 8;
        __syncwarp();  // all have stored what was in the staging
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 line = i * 4 + lane / 8;
            store_shared(staging + line * LINE_BYTES + ((chunk ^ line % 8) * CHUNK_BYTES), words[i]);
        }
        __syncwarp();
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 j = 0; j < 8; j += 4) {
                u32 pairs[4];
                load_matrix_x4(pairs, staging + half * HALF_BYTES + row * LINE_BYTES + (((j + lane / 8) ^ row) * CHUNK_BYTES));
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    v[(j + i) * 4 + half * 2] += low_half(pairs[i], dtype);
                    v[(j + i) * 4 + half * 2 + 1] += high_half(pairs[i], dtype);
                }
            }
        }
    }
};

DEV void scale_piece(f32 (&v)[PIECE_SUMS], const Lines& lines) {
    if (!lines.has(Lines::SCALED)) return;
    const f32 alpha = args_at_work().alpha();
#pragma unroll
    for (u32 k = 0; k < PIECE_SUMS; ++k) v[k] *= alpha;
}

// Takes a piece, with all that was to be done to it, to the result.
template <bool ANYWHERE> DEV void put_lines(const f32 (&v)[PIECE_SUMS], Lines lines, u32 dtype, u32 staging, u32 lane) {
    __syncwarp();  // all have stored, or read, what was in the staging
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 shared = staging + half * HALF_BYTES;
        stage_half(v, half, dtype, shared, lane);
        if (ANYWHERE) store_lines_anywhere(lines, shared);
        else store_lines<PIECE_COLUMNS>(lines, shared, lane);
        lines.down(HALF_ROWS);
    }
}
DEV void finish_lines(f32 (&v)[PIECE_SUMS], const Lines& lines, u32 staging, u32 lane) {
    ComingResidual residual{};
    if (lines.has(Lines::RESIDUAL)) residual.fetch(lines, lane);
    scale_piece(v, lines);
#pragma unroll 1
    for (u32 turn = 0; turn < 2; ++turn) {
        if (lines.has(turn == 0 ? Lines::RESIDUAL_FIRST : Lines::RESIDUAL_LAST)) residual.add(v, lines.dtype(), staging, lane);
        if (turn == 0) fast_activate(v, lines.act());
    }
    if (lines.has(Lines::ANYWHERE)) put_lines<true>(v, lines, lines.dtype(), staging, lane);
    else put_lines<false>(v, lines, lines.dtype(), staging, lane);
}

// relu, or nothing: what is less becomes this, and NaN stays.
DEV f32 bottom_of(u32 act) { return act != ACT_IDENTITY ? 0.0f : __uint_as_float(0xff800000u); }

// Takes all of a warp's part of a tile to the result, where it is. A piece of the residual is asked for while the one before is
// finished. HALF: of f16; what is not GELU asks.
template <Ending KIND, bool HALF = false> DEV void finish_direct(f32 (&sums)[SUMS], const EarlyBias& bias, const Lines& all, u32 staging, u32 lane) {
    const u32 pieces = all.pieces();
    const auto gelu = gelu_fit_of<HALF>(all.act());
    const f32 bottom = bottom_of(all.act());
    const u32 dtype = KIND == Ending::GELU ? HALF ? DTYPE_F16 : DTYPE_BF16 : all.dtype();
    ComingResidual residual{};
    if (KIND == Ending::RESIDUAL) residual.fetch(all, lane);
#pragma unroll
    for (u32 i = 0; i < SUMS / PIECE_SUMS; ++i) {
        if (i == pieces) break;
        f32(&v)[PIECE_SUMS] = piece_of(sums, i);
        if (KIND == Ending::RESIDUAL) {
            // Registers and predicates are dear. What follows from the lane is not kept, nor are answers: without a bias, it is 0.
            lane = thread_index_anew() % WARP;
            bias.add(v, i, dtype, lane);
            residual.add(v, dtype, staging, lane);
            if (i + 1 < SUMS / PIECE_SUMS) residual.fetch(all.across(i + 1), lane);
        } else if (KIND == Ending::GELU || all.has(Lines::BIAS)) {
            bias.add(v, i, dtype, lane);
        }
#pragma unroll
        for (u32 k = 0; k < PIECE_SUMS; ++k) v[k] = KIND == Ending::GELU ? gelu(v[k]) : max_nan(v[k], bottom);
        put_lines<KIND == Ending::ANYWHERE>(v, all.across(i), dtype, staging, lane);
    }
}

// Takes a piece of a gated linear unit to the result.
DEV void finish_lines_glu(f32 (&v)[PIECE_SUMS], Lines lines, u32 staging, u32 lane) {
    f32 products[PIECE_SUMS / 2];
    __syncwarp();
    scale_piece(v, lines);
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
