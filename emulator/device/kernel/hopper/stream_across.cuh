// Streamed products where b lies across: neighbours in memory are columns.
//
// A unit is 16 or 32 neighbouring columns. A stage is a unit by 1024 or 512 of the depth, [depth][columns], chunks of 16
// bytes permuted as tensor maps do; each warp has an eighth of its depth. It has two stages at once, or one of many rows.
#pragma once
#ifdef HOPPER
#include "path_workers.cuh"
#include "hopper/stream_operands.cuh"

constexpr u32 ACROSS_GRANULES = 4;  // of a stage; a box of the map fills each

// Rows of a: two groups of 8, or the first of them. Lane l has 8 neighbours in depth of row l / 4 of either. In
// multiplication i of such a step, the column l / 4 of the right operand has in its words the lane's words (l ^ 2 i) % 4 and
// (l ^ 2 i ^ 1) % 4, so that the eight lines of b that a matrix is made of are different ones modulo 8: they lie in
// different banks.
template <u32 GROUPS> struct AcrossRows {
    struct Chunk {
        u32 words[GROUPS][4];
    };
    StreamRow low, high;
    u32 turned;

    DEV AcrossRows(const StreamRows& rows, u32 depth, u32 lane)
        : low(rows, lane >> 2, depth), high(rows, (lane >> 2) + 8, depth), turned(lane & 3) {}
    DEV Chunk load(u32 depth) const {
        Chunk c;
#pragma unroll
        for (u32 group = 0; group < GROUPS; ++group) {
            choose(c.words[group], (group ? high : low).load(depth), turned);
        }
        return c;
    }
    // Of a single group, in two steps: what is read again and again until it is there is chosen from once.
    static DEV Chunk read(const uint4& v, u32) { return {{{v.x, v.y, v.z, v.w}}}; }
    // Only chunks that are not there yet are read again: all blocks read the same few lines, and each line is read by one block after
    // the other.
    static constexpr bool AGAIN = true;
    static DEV void begin(Chunk& c, bool exists) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) c.words[0][i] = exists ? NOT_THERE : 0;
    }
    static DEV void read_again(Chunk& c, const f32* p, bool, u32) {
        uint4 v = make_uint4(c.words[0][0], c.words[0][1], c.words[0][2], c.words[0][3]);
        load_relaxed_16_if(v, p, most_of(v) == NOT_THERE);
        c = read(v, 0);
    }
    static DEV void choose(Chunk& c, u32 turned) {
        const u32 (&w)[4] = c.words[0];
        choose(c.words[0], make_uint4(w[0], w[1], w[2], w[3]), turned);
    }
    // Of a lane: the row of a group whose chunks it reads, and what it chooses by.
    static DEV u32 row_of(u32 lane) { return lane >> 2; }
    static DEV u32 turned_of(u32 lane) { return lane & 3; }

  private:
    static DEV void choose(u32 (&words)[4], const uint4& v, u32 turned) {
        const bool one = turned & 1, two = turned & 2;
        const u32 w[4] = {one ? v.y : v.x, one ? v.x : v.y, one ? v.w : v.z, one ? v.z : v.w};
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[i] = two ? w[i ^ 2] : w[i];
    }
};

template <u32 WIDTH, u32 GROUPS> struct AcrossStream {
    static constexpr u32 LINE = WIDTH * 2;  // bytes: as wide as its swizzle
    static constexpr u32 UNIT = WIDTH, UNITS = 1, SPAN = ACROSS_GRANULES * GRANULE_BYTES / LINE, SPANS = 2 / GROUPS;
    static constexpr u32 STEPS = SPAN / WORKER_WARPS / 32, TILES = WIDTH / 16, PANELS = TILES * GROUPS, MOST_PANELS = PANELS;
    static constexpr bool SPREAD = true, EARLY = true;
    static_assert(WIDTH * GROUPS * 8 <= WORKER_THREADS, "each thread finishes one sum");
    using Rows = AcrossRows<GROUPS>;
    using Sums = f32[2][TILES][GROUPS][4];           // [half of a step]
    using Weights = u32[SPANS][STEPS][TILES][2][4];  // [stage][step][tile of 16 columns][half of the step]: left operands
    using Chunks = typename Rows::Chunk[SPANS][STEPS];
    u32 at, stages;
    bool half_floats;

    static DEV u32 swizzled(u32 offset) { return offset ^ (offset >> 7 & (LINE / 16 - 1)) << 4; }

    // What a lane points at in the first half of a step: of matrix lane / 8 the line lane % 8.
    DEV AcrossStream(const StreamSchedule& s, u32 warp, u32 lane) : stages(s.panels), half_floats(s.half_floats) {
        const u32 chunk = lane >> 1 & 3, line = chunk * 8 + (chunk ^ lane >> 4) * 2 + (lane & 1);
        at = warp * (STEPS * 32 * LINE) + swizzled(line * LINE + (lane >> 3 & 1) * 16);
    }
    static DEV u32 differs(const StreamSchedule&) { return 0; }
    DEV u32 panels(const StreamSchedule&) const { return (stages + SPANS - 1) / SPANS; }
    DEV bool two(u32, u32 panel) const { return SPANS == 2 && 2 * panel + 1 < stages; }

    DEV void load(Weights& b, Workers& me, bool two) const {
        Stage stage[SPANS];
        u32 from = 0;
#pragma unroll
        for (u32 i = 0; i < SPANS; ++i) {
            if (i == 0 || two) {
                from = me.next(stage[i], ACROSS_GRANULES) + at;
                me.wait(stage[i]);
            }
            // Without a second stage, the first one again: nothing is undefined, and no branch parts the loads.
#pragma unroll
            for (u32 step = 0; step < STEPS; ++step)
#pragma unroll
                for (u32 tile = 0; tile < TILES; ++tile)
#pragma unroll
                    for (u32 half = 0; half < 2; ++half)
                        load_matrix_x4_transposed(b[i][step][tile][half], (from ^ half * swizzled(4 * LINE) ^ tile * 32) + step * (32 * LINE));
        }
        me.release(stage[0]);
        if (two) me.release(stage[SPANS - 1]);
    }
    DEV void multiply(Sums& sums, const Weights& b, const Chunks& a, bool two) const {
        if (half_floats) multiply_as<F16>(sums, b, a, two);
        else multiply_as<Bf16>(sums, b, a, two);
    }
    // A lane's place in the sums of a unit, [columns][rows], and what it leaves from there on.
    static DEV u32 place(u32 rows, u32 lane) { return lane / 4 * rows + lane % 4 * 2; }
    static DEV void store(f32* to, const Sums& sums, u32 rows, u32, u32 lane) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (u32 group = 0; group < GROUPS; ++group)
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    const u32 columns = tile * 16 + i / 2 * 8, down = group * 8 + i % 2;
                    if (down + lane % 4 * 2 < rows) to[columns * rows + down] = sums[0][tile][group][i] + sums[1][tile][group][i];
                }
    }

  private:
    template <class T> static DEV void multiply_as(Sums& sums, const Weights& b, const Chunks& a, bool two) {
#pragma unroll
        for (u32 i = 0; i < SPANS; ++i) {
            if (i == 1 && !two) break;
#pragma unroll
            for (u32 step = 0; step < STEPS; ++step)
#pragma unroll
                for (u32 tile = 0; tile < TILES; ++tile)
#pragma unroll
                    for (u32 group = 0; group < GROUPS; ++group)
#pragma unroll
                        for (u32 half = 0; half < 2; ++half) {
                            const u32 (&right)[4] = a[i][step].words[group];
                            T::multiply(sums[half][tile][group], b[i][step][tile][half], right[2 * half], right[2 * half + 1]);
                        }
        }
    }
};
#endif
