// Streamed products where columns of b are packed along the depth.
//
// A unit is 8 neighbouring columns. A stage is a unit by up to 2048 of the depth, [depth / 64][8 columns][64], chunks of 16
// bytes permuted as tensor maps do; each warp has its part of either span of it. Units go in pairs, so that two of them
// share what a warp reads of a.
#pragma once
#ifdef HOPPER
#include "path_workers.cuh"
#include "hopper/stream_operands.cuh"

constexpr u32 PACKED_UNIT = 8;
constexpr u32 PACKED_SPAN = 1024;                       // what the warps share out at once: a stage is one span or two
constexpr u32 PACKED_BOX_BYTES = PACKED_UNIT * 128;     // 64 of the depth
constexpr u32 PACKED_SPAN_BYTES = PACKED_SPAN / 64 * PACKED_BOX_BYTES;

// ---- the two ways to multiply ----
//
// A lane reads chunks of 16 bytes: 8 neighbours in depth of one column of b, and of one row of a. Which of the depth's
// elements meet in one multiplication does not matter, as long as both sides agree. Lane l reads column stream_column(l)
// of the unit, which spreads eight neighbouring lanes over all banks.
DEV u32 stream_column(u32 lane) { return (lane >> 3) | (lane >> 2 & 1) << 2; }

// Up to 4 rows of a. b is the left operand: a lane's chunk is its fragment, of which words 0 and 2 count as row g, words 1
// and 3 as row g + 8. Row m of a stands in column 2 m with words 0 and 2, and in column 2 m + 1 with words 1 and 3.
template <class T> struct FewRows {
    static constexpr u32 PANELS = 2, MOST_PANELS = 4;  // of a, that PlainStream keeps
    static constexpr bool HALF_FLOATS = T::HALF_FLOATS;
    static constexpr bool EARLY = true;
    struct Chunk {
        u32 words[2];
    };
    StreamRow row;
    bool odd;

    DEV FewRows(const StreamRows& rows, u32 depth, u32 lane) : row(rows, lane >> 3, depth), odd(lane >> 2 & 1) {}
    DEV Chunk load(u32 depth) const { return read(row.load(depth), odd); }
    // What is kept of a chunk is chosen as it is read: PlainStream has no registers for all of it.
    static DEV Chunk read(const uint4& v, u32 turned) { return {turned & 1 ? v.y : v.x, turned & 1 ? v.w : v.z}; }
    static constexpr bool AGAIN = false;  // all of them are read each time: what has arrived has been chosen from
    static DEV void begin(Chunk&, bool) {}
    static DEV void read_again(Chunk& c, const f32* p, bool exists, u32 turned) {
        c = read(exists ? load_relaxed_16(p) : make_uint4(0, 0, 0, 0), turned);
    }
    static DEV void choose(Chunk&, u32) {}
    // Of a lane: the row whose chunks it reads, and what it chooses by.
    static DEV u32 row_of(u32 lane) { return lane >> 3; }
    static DEV u32 turned_of(u32 lane) { return lane >> 2 & 1; }
    static DEV void multiply(f32 (&sums)[2][4], const uint4& b, const Chunk& a, u32 step) {
        const u32 left[4] = {b.x, b.y, b.z, b.w};
        T::multiply(sums[step & 1], left, a.words[0], a.words[1]);
    }
    // Leaves a unit's sums as [8 columns][rows]; `to`: this lane's place there.
    static DEV u32 place(u32 rows, u32 lane) { return stream_column(lane) * rows + lane % 4; }
    static DEV void store(f32* to, const f32 (&s)[2][4], u32 rows, u32 lane) {
        if (lane % 4 < rows) *to = (s[0][0] + s[1][0]) + (s[0][3] + s[1][3]);
    }
};

// Up to 16. b is the right operand: a lane's chunk is its fragment of two multiplications.
template <class T> struct ManyRows {
    static constexpr u32 PANELS = 1, MOST_PANELS = 1;
    static constexpr bool EARLY = false;
    struct Chunk {
        uint4 low, high;
    };
    StreamRow low, high;

    DEV ManyRows(const StreamRows& rows, u32 depth, u32 lane) : low(rows, lane >> 2, depth), high(rows, (lane >> 2) + 8, depth) {}
    DEV Chunk load(u32 depth) const { return {low.load(depth), high.load(depth)}; }
    static DEV void multiply(f32 (&sums)[2][4], const uint4& b, const Chunk& a, u32) {
        const u32 first[4] = {a.low.x, a.high.x, a.low.y, a.high.y}, second[4] = {a.low.z, a.high.z, a.low.w, a.high.w};
        T::multiply(sums[0], first, b.x, b.y);
        T::multiply(sums[0], second, b.z, b.w);  // and not sums[1]: registers are dear
    }
    static DEV u32 place(u32 rows, u32 lane) { return stream_column(lane % 4 * 8) * rows + lane / 4; }
    static DEV void store(f32* to, const f32 (&s)[2][4], u32 rows, u32 lane) {
        const u32 to_next = (stream_column(4) - stream_column(0)) * rows;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            if (lane / 4 + 8 * half < rows) {
                to[8 * half] = s[0][2 * half];
                to[8 * half + to_next] = s[0][2 * half + 1];
            }
        }
    }
};

// ---- a lane's part ----

// ONE: a single panel, as most have. Then there is little that has to be defined without being used, and to decide.
template <class R, bool ONE = false> struct PackedStream {
    static constexpr u32 UNIT = PACKED_UNIT, UNITS = 2, SPAN = PACKED_SPAN, SPANS = 2, PANELS = R::PANELS, MOST_PANELS = ONE ? 1 : R::MOST_PANELS;
    static constexpr u32 STEPS = SPAN / WORKER_WARPS / 32;  // one chunk each
    static constexpr bool SPREAD = false, EARLY = R::EARLY;
    using Rows = R;
    using Sums = f32[2][2][4];            // [unit]
    using Weights = uint4[2][2][STEPS];   // [unit][span][step]
    using Chunks = typename R::Chunk[2][STEPS];
    u32 at, granules;
    bool wide;  // a stage is two spans

    DEV PackedStream(const StreamSchedule& s, u32 warp, u32 lane) : granules(s.granules), wide(granules * GRANULE_BYTES > PACKED_SPAN_BYTES) {
        const u32 column = stream_column(lane);
        at = warp * (STEPS / 2 * PACKED_BOX_BYTES) + column * 128 + (((lane & 3) ^ column) << 4);
    }
    // Whether a plain product of packed columns cannot go this way: 0, or not.
    static DEV u32 differs(const StreamSchedule& s) { return (s.half_floats ^ R::HALF_FLOATS) | (ONE ? s.panels ^ 1 : 0); }
    DEV u32 panels(const StreamSchedule& s) const { return s.panels; }
    // Whether there are two stages to load at once, where so many units are left.
    DEV bool two(u32 units, u32) const { return units > 1; }

    // This warp's part of one stage of each of two units, from shared memory.
    DEV void load(Weights& b, Workers& me, bool two) const {
        Stage stage[2];
        if (ONE && wide && two) {  // most of them
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u32 from = me.next(stage[i], granules) + at;
                me.wait(stage[i]);
#pragma unroll
                for (u32 span = 0; span < 2; ++span)
#pragma unroll
                    for (u32 step = 0; step < STEPS; ++step) b[i][span][step] = chunk(from, span, step);
            }
            me.release(stage[0]);
            me.release(stage[1]);
            return;
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const bool exists = i == 0 || two;
            u32 from = 0;
            if (exists) {
                from = me.next(stage[i], granules) + at;
                me.wait(stage[i]);
            }
#pragma unroll
            for (u32 span = 0; span < 2; ++span)
#pragma unroll
                for (u32 step = 0; step < STEPS; ++step) {
                    // Never undefined: what may be is alive from the start of the kernel on, in registers of its own.
                    b[i][span][step] = make_uint4(0, 0, 0, 0);
                    if (exists && (span == 0 || wide)) b[i][span][step] = chunk(from, span, step);
                }
        }
        me.release(stage[0]);
        if (two) me.release(stage[1]);
    }
    DEV void multiply(Sums& sums, const Weights& b, const Chunks& a, bool two) const {
        if (ONE && wide && two) {
#pragma unroll
            for (u32 step = 0; step < 2 * STEPS; ++step)
#pragma unroll
                for (u32 i = 0; i < 2; ++i) Rows::multiply(sums[i], b[i][step / STEPS][step % STEPS], a[step / STEPS][step % STEPS], step);
            return;
        }
#pragma unroll
        for (u32 span = 0; span < 2; ++span) {
            if (span == 1 && !wide) break;
#pragma unroll
            for (u32 step = 0; step < STEPS; ++step) {
                Rows::multiply(sums[0], b[0][span][step], a[span][step], step);
                if (two) Rows::multiply(sums[1], b[1][span][step], a[span][step], step);
            }
        }
    }
    // A lane's place in the sums of a unit, and what it leaves from there on.
    static DEV u32 place(u32 rows, u32 lane) { return Rows::place(rows, lane); }
    static DEV void store(f32* to, const Sums& sums, u32 rows, u32 units, u32 lane) {
        Rows::store(to, sums[0], rows, lane);
        if (units > 1) Rows::store(to + UNIT * rows, sums[1], rows, lane);
    }

  private:
    // Of the stage in which this lane's part begins at `from`.
    static DEV uint4 chunk(u32 from, u32 span, u32 step) {
        return load_shared_16((step & 1 ? from ^ 64 : from) + step / 2 * PACKED_BOX_BYTES + span * PACKED_SPAN_BYTES);
    }
};
#endif
