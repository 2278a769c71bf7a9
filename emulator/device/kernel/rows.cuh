// Rows of neighbouring floats, each read once: a team (a warp, or all workers) holds a row in registers.
#pragma once
#include "vectors.cuh"

constexpr u32 ROWS_SCRATCH_BYTES = 3 * 4 * 2 * LAYER;  // rows on their way
static_assert(2 * WORKER_WARPS * sizeof(f32) <= STAGING_BYTES, "two places for what warps exchange are in the staging");

// Rows along the last axis of x, and the rows of out that they become. The way of the work is the number of vectors that a
// thread of a team holds: 1, 2 or MOST; 0 where the rows are not for this.
struct Rows : Streams<2> {
    u32 count;
    u32 vectors;  // of a row
    bool by_warp;
    bool direct;  // no team takes more than one row: there is nothing to fetch ahead

#ifdef HOPPER
    static constexpr u32 MOST = 4;  // vectors that a thread holds
#else
    static constexpr u32 MOST = 2;  // registers for more are missing
#endif

    DEV explicit Rows(const Work& w)
        : Streams<2>(w), count(rows()), vectors(size[0]), by_warp(warps_take(*this)), direct(at_once(*this)) {}

    DEV static void measure(Merged<2>& all, const Work& w) {
        all.way = 0;
        if (!take_vectors(all, w, 1) || all.size[0] == 0 || all.singles > 0) return;
        if (!all.neighbours(0) || !all.neighbours(1)) return;
        const u32 team = warps_take(all) ? WARP : WORKER_THREADS;
        const u32 each = (all.size[0] + team - 1) / team;
        all.way = each <= 2 ? each : each <= MOST ? MOST : 0;
    }
    // Where there is a block for each row, a short one is shared by the block's warps as well.
    DEV static bool warps_take(const Merged<2>& all) {
        return all.size[0] <= WARP || (all.size[0] <= WARP * MOST && all.rows() > gridDim.x);
    }
    DEV static bool at_once(const Merged<2>& all) { return all.rows() <= gridDim.x * (warps_take(all) ? WORKER_WARPS : 1); }
    DEV static u32 scratch(const Merged<2>& all) { return at_once(all) ? 0 : ROWS_SCRATCH_BYTES; }
    DEV static u32 row_tiles(const Merged<2>& all) { return shared_tiles(all.rows()); }
};

// Folds eight values, pair by pair: a chain of three steps.
template <class Fold> DEV f32 fold_tree(f32 (&v)[8], Fold fold) {
#pragma unroll
    for (u32 half = 4; half > 0; half /= 2)
#pragma unroll
        for (u32 k = 0; k < half; ++k) v[k] = fold(v[k], v[k + half]);
    return v[0];
}
static_assert(VECTOR == 8 && WORKER_WARPS == 8, "both are folded so");

// One thread's part of the row at hand: N vectors of which those with held(n) exist.
template <u32 N> struct RowPart {
    const Rows& rows;
    const Block& block;
    u32 part;          // which thread of the team this is
    u32 exchange = 0;  // which of the two places for exchanged values is next

    DEV RowPart(const Rows& given, const Block& workers)
        : rows(given), block(workers), part(given.by_warp ? workers.lane() : workers.thread()) {}
    DEV u32 team() const { return rows.by_warp ? WARP : WORKER_THREADS; }
    DEV u32 vector(u32 n) const { return n * team() + part; }
    DEV bool held(u32 n) const { return vector(n) < rows.vectors; }

    // Folds the team's values in the same order every time; every thread gets the result.
    template <class Fold> DEV f32 combine(f32 value, Fold fold) {
#pragma unroll
        for (u32 step = WARP / 2; step > 0; step /= 2) value = fold(value, __shfl_xor_sync(0xffffffffu, value, step));
        if (rows.by_warp) return value;
        // Two places in turn: who writes to one again has passed the barrier of the other, so it has been read.
        f32* shared = reinterpret_cast<f32*>(shared_memory + STAGING_AT) + exchange * WORKER_WARPS;
        exchange ^= 1;
        if (block.lane() == 0) shared[block.warp()] = value;
        block.sync();
        f32 all[WORKER_WARPS];
#pragma unroll
        for (u32 w = 0; w < WORKER_WARPS; ++w) all[w] = shared[w];
        return fold_tree(all, fold);
    }
    // The sum of the row's elements, or of their squares; vectors that do not exist are 0.
    template <bool SQUARES> DEV f32 sum(const f32 (&v)[N][VECTOR]) {
        const auto add = [](f32 a, f32 b) { return a + b; };
        f32 total[VECTOR];
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {
            total[k] = SQUARES ? v[0][k] * v[0][k] : v[0][k];
#pragma unroll
            for (u32 n = 1; n < N; ++n) total[k] = SQUARES ? fmaf(v[n][k], v[n][k], total[k]) : total[k] + v[n][k];
        }
        return combine(fold_tree(total, add), add);
    }
};

// Calls f(v, part) for each row of the tile: f replaces the elements v by the results. Later rows are on their way to shared
// memory meanwhile; out may be x.
template <u32 N, class F> DEV void map_rows(const Rows& rows, u32 tile, const Block& block, F f) {
    constexpr u32 DEPTH = N <= 2 ? 4 : 3, AXES = Rows::AXES;
    constexpr u32 STAGE = N * 2 * LAYER, STAGES = DEPTH * STAGE;
    static_assert(STAGES <= ROWS_SCRATCH_BYTES, "they fit in scratch");
    RowPart<N> part(rows, block);
    const u32 tiles = Rows::row_tiles(rows);
    const u32 first = rows.by_warp ? tile + block.warp() * tiles : tile;
    const u32 step = tiles * (rows.by_warp ? WORKER_WARPS : 1);
    char* const mine = block.scratch() + block.thread() * VECTOR_BYTES;
    const u32 dtype = rows.dtype[1], apart = vector_bytes(dtype) * part.team(), skipped = vector_bytes(dtype) * part.part;
    const auto source = [&](u32 row) { return rows.template at<AXES>(1, rows.row(row)) + skipped; };
    const auto fetch = [&](u32 row, u32 stage) {
        if (row < rows.count) {
            const char* p = source(row);
#pragma unroll
            for (u32 n = 0; n < N; ++n)
                if (part.held(n) && rows.holds(1, p + n * apart, vector_bytes(dtype)))
                    fetch_vector(p + n * apart, dtype, mine + stage + n * LAYER, N * LAYER, false);
        }
        copy_async_commit();
    };
    u32 ahead = first;
    if (!rows.direct) {
#pragma unroll 1
        for (u32 stage = 0; stage < STAGES; stage += STAGE, ahead += step) fetch(ahead, stage);
    }
    u32 stage = 0;
#pragma unroll 1
    for (u32 row = first; row < rows.count; row += step, ahead += step) {
        RawVector raw[N];
        if (rows.direct) {
            const char* p = source(row);
#pragma unroll
            for (u32 n = 0; n < N; ++n)
                raw[n] = part.held(n) ? RawVector::load_inside(rows.tensors[1], p + n * apart) : RawVector::none();
        } else {
            copy_async_wait<DEPTH - 1>();
#pragma unroll
            for (u32 n = 0; n < N; ++n)
                raw[n] = part.held(n) ? fetched_vector(mine + stage + n * LAYER, N * LAYER, dtype) : RawVector::none();
        }
        f32 v[N][VECTOR];
#pragma unroll
        for (u32 n = 0; n < N; ++n) raw[n].unpack(dtype, v[n]);
        f(v, part);
        const u32 to_bytes = vector_bytes(rows.dtype[0]);
        char* p = rows.template at<AXES>(0, rows.row(row)) + to_bytes * part.part;
#pragma unroll
        for (u32 n = 0; n < N; ++n, p += to_bytes * part.team())
            if (part.held(n) && rows.holds(0, p, to_bytes)) RawVector::pack(rows.dtype[0], v[n]).store(p, rows.dtype[0]);
        if (rows.direct) return;
        fetch(ahead, stage);
        stage = stage + STAGE < STAGES ? stage + STAGE : 0;
    }
    if (!rows.direct) copy_async_wait<0>();
}
