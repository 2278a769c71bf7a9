// Rows of neighbouring floats, each read from memory once, by a team of 1, 2, 4 or 8 warps. Rows pass through shared memory:
// a team reads one there as often as it has to, while the next ones are on their way, and nobody waits for other teams. Rows
// that are short enough stay in registers meanwhile: see held_rows.cuh.
#pragma once
#include "claims.cuh"
#include "reduction.cuh"
#include "vectors.cuh"

// Places of 16 bytes that each thread has for rows: 24 KB and more are under way while others are worked on. And vectors
// that a thread holds in registers, of which Hopper's workers have more: there, two teams share a block's work on rows of
// 16 KB, so one is busy while the other folds.
#ifdef HOPPER
constexpr u32 ROW_LAYERS = 32, MOST_HELD = 8;
#else
constexpr u32 ROW_LAYERS = 24, MOST_HELD = 3;
#endif
constexpr u32 FEW_ROWS_BLOCKS = 4;  // with so many blocks for each row, all warps that can have a part in it are to have one
constexpr u32 WAY_HELD = 1, WAY_STREAMED = 2;  // 0: the rows are not for this

// Rows along the last axis of x, and the rows of out that they become. What every row needs is read here, once.
struct Rows {
    const Merged<2>& all;
    const Tensor* tensors;
    char* data[2];
    u32 dtype[2];
    i32 pitch[2];  // bytes from a row to the next, where they lie along one axis
    bool even;     // they do
    u32 count;
    u32 vectors;  // of a row
    u32 team;     // log2 of a team's warps
    u32 threads;  // of a team
    u32 claims;   // see Claims::of

    DEV explicit Rows(const Work& w)
        : all(Merged<2>::of(w)), tensors(in_shared(w).operands), data{in_global(tensors[0].data), in_global(tensors[1].data)},
          dtype{tensors[0].dtype, tensors[1].dtype}, pitch{all.bytes[0][0], all.bytes[1][0]}, even(all.size[2] == 1),
          count(all.rows()), vectors(all.size[0]), team(all.team), threads(WARP << team), claims(Claims::of(w)) {}

    // Where row `line` of out (k = 0) or of x begins. Axes are taken in order: one at most, if the second has one element.
    DEV char* begin(u32 k, u32 line) const {
        if (!even) return data[k] + offset_over_axes(all, k, line);
        return data[k] + static_cast<i64>(static_cast<i32>(line)) * pitch[k];
    }
    DEV_CALL static i64 offset_over_axes(const Merged<2>& all, u32 k, u32 line) {
        const Merged<2>::Place p = all.row(line);
        i64 offset = 0;
#pragma unroll
        for (u32 a = 1; a < Merged<2>::AXES; ++a)
            offset += static_cast<i64>(static_cast<i32>(p.index[a])) * all.bytes[k][a - 1];
        return offset;
    }
    // `most`: vectors that a thread may hold; 0 where not all that is read along a row has the type of x.
    DEV static void measure(Merged<2>& all, const Work& w, u32 most) {
        all.way = 0;
        if (!take_vectors(all, w, 1) || all.size[0] == 0 || all.singles > 0) return;
        if (!all.neighbours(0) || !all.neighbours(1)) return;
        const Tensor* const tensors = in_shared(w).operands;
        if (most > 0 && tensors[0].dtype == tensors[1].dtype && shared_by(all, most)) all.way = WAY_HELD;
        else if (shared_by(all, ROW_LAYERS / 2 / layers(tensors[1].dtype)) || layers_of(all, w) <= ROW_LAYERS)
            all.way = WAY_STREAMED;
    }
    // Chooses teams: more warps share a row where a thread would have more than `most` vectors, or where warps would be left
    // without a row, unless they are soon done with it. Whether no thread has more than `most`.
    DEV static bool shared_by(Merged<2>& all, u32 most) {
        const bool few = all.rows() <= gridDim.x / FEW_ROWS_BLOCKS;
        all.team = 0;
        while (threads_of(all) < WORKER_THREADS) {
            const u32 soon = !few ? 4 : all.team ? 1 : 2;  // vectors of a thread
            const bool idle = all.rows() <= teams(all) / 2 && all.size[0] > soon * threads_of(all);
            if (all.size[0] <= most * threads_of(all) && !idle) break;
            ++all.team;
        }
        return each_of(all) <= most;
    }
    DEV static u32 scratch(const Merged<2>& all, const Work& w) {
        // Rows lie in the ring: warps exchange values in the staging.
        const u32 row = layers_of(all, w) * LAYER, type = in_shared(w).operands[1].dtype;
        if (all.way == WAY_HELD) return all.rows() <= teams(all) ? 0 : held_scratch(all, type);
        return all.way == WAY_STREAMED ? max(depth_of(all, w) * row, STAGING_BYTES + GRANULE_BYTES) : 0;
    }
    // Rows on their way to where `held` vectors of each stay in registers: 64 KB of a block's, or a little less.
    DEV static constexpr u32 held_depth(u32 held, u32 layers) {
        const u32 most = 16 / (held * layers);
        return most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
    }
    // The vectors that code is made for, where a thread has `each`.
    DEV static constexpr u32 held(u32 each) { return each > 4 ? MOST_HELD : each; }
    DEV static u32 held_scratch(const Merged<2>& all, u32 dtype) {
        const u32 count = held(each_of(all));
        return held_depth(count, layers(dtype)) * count * layers(dtype) * LAYER;
    }
    // Of few rows, as many as fill half of a block's teams: then the others go through the code ahead (map_held_as), there are fewer
    // signals to wait for, and more blocks without a part in it, or in what it waits for.
    DEV static u32 row_tiles(const Merged<2>& all) {
        const u32 rows = max(1u, (WORKER_WARPS >> all.team) / 2);
        return shared_tiles((all.rows() + rows - 1) / rows);
    }
    DEV static u32 threads_of(const Merged<2>& all) { return WARP << all.team; }
    DEV static u32 teams(const Merged<2>& all) { return gridDim.x * WORKER_WARPS >> all.team; }
    DEV static u32 layers(u32 dtype) { return dtype == DTYPE_F32 ? 2 : 1; }  // places of a vector
    DEV static u32 each_of(const Merged<2>& all) { return (all.size[0] + threads_of(all) - 1) >> (5 + all.team); }
    DEV static u32 layers_of(const Merged<2>& all, const Work& w) {
        return each_of(all) * layers(in_shared(w).operands[1].dtype);
    }
    DEV static u32 depth_of(const Merged<2>& all, const Work& w) {
        const u32 layers = layers_of(all, w);
        u32 depth = 1;
        while (depth < MOST_GROUPS && 2 * depth * layers <= ROW_LAYERS && depth * teams(all) < all.rows()) depth *= 2;
        return depth;
    }
};

// What rows are folded by.
struct Sum {
    DEV static f32 of(f32 a, f32 b) { return a + b; }
};
struct Largest {
    DEV static f32 of(f32 a, f32 b) { return maximum(a, b); }
};

// Folds eight values, pair by pair: a chain of three steps.
template <class Fold> DEV f32 fold_tree(f32 (&v)[VECTOR]) {
#pragma unroll
    for (u32 half = VECTOR / 2; half > 0; half /= 2)
#pragma unroll
        for (u32 k = 0; k < half; ++k) v[k] = Fold::of(v[k], v[k + half]);
    return v[0];
}

template <class Fold> DEV f32 fold_warp(f32 value) {
#pragma unroll
    for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) value = Fold::of(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    return value;
}

// The same of what the warps of a team left in shared memory, and as many lanes have read: in the order that fold_team has.
template <class Fold> DEV f32 fold_warps(f32 value) {
#pragma unroll
    for (u32 lanes = 1; lanes < WORKER_WARPS; lanes *= 2) value = Fold::of(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    return value;
}

// One of two places for what warps exchange, up to 16 bytes each. Who writes to one again has passed the barrier of the other, so
// it has been read.
template <class T> DEV T* exchange_place(u32 place) {
    static_assert(sizeof(T) <= VECTOR_BYTES, "each has as much");
    return reinterpret_cast<T*>(shared_memory_anew() + STAGING_AT + place * WORKER_WARPS * VECTOR_BYTES);
}

static_assert(WORKER_WARPS == 8, "as many are folded");

// Folds the values of a team of 2^team warps in the same order every time; every thread gets the result. `thread`: of the
// workers. `place`: which place they exchange them in, 0 and 1 in turns.
template <class Fold> DEV_CALL f32 fold_team(f32 value, u32 thread, u32 team, u32 place) {
    const u32 warp = thread / WARP, lane = thread % WARP;
    f32* const shared = exchange_place<f32>(place);
    value = fold_warp<Fold>(value);
    if (team == 0) return value;
    if (lane == 0) shared[warp] = value;
    named_barrier(FIRST_FREE_BARRIER + (warp >> team), WARP << team);
    if (team == 1) {
        const float2 pair = *reinterpret_cast<const float2*>(shared + (warp & ~1u));
        return Fold::of(pair.x, pair.y);
    }
    const auto four = [&](u32 first) {
        const float4 v = *reinterpret_cast<const float4*>(shared + first);
        return Fold::of(Fold::of(v.x, v.y), Fold::of(v.z, v.w));
    };
    return team == 2 ? four(warp & ~3u) : Fold::of(four(0), four(4));
}

// One thread of a team.
struct RowThread {
    const Rows& rows;
    const Block& block;
    u32 threads;       // of the team
    u32 part;          // which of them this is
    u32 row;           // the row at hand
    u32 step;          // from one row of the team to the next
    u32 exchange = 0;  // see fold_team: which place is next

    DEV RowThread(const Rows& given, u32 tile, const Block& workers)
        : rows(given), block(workers), threads(given.threads), part(workers.thread() & (threads - 1)),
          row(tile + (workers.warp() >> given.team) * Rows::row_tiles(given.all)),
          step(Rows::row_tiles(given.all) * (WORKER_WARPS >> given.team)) {}

    // This thread's first vector of a row of x, or of out.
    DEV char* first(u32 k, u32 line) const { return rows.begin(k, line) + part * vector_bytes(rows.dtype[k]); }
    DEV u32 warps() const { return threads / WARP; }
    // From a vector of this thread to its next one, in bytes.
    DEV u32 apart(u32 k) const { return threads * vector_bytes(rows.dtype[k]); }

    // Where N vectors of this thread are in out, the first of them at `to`.
    template <u32 N> DEV void spread(char* to, char* (&all)[N]) const {
#pragma unroll
        for (u32 n = 0; n < N; ++n) all[n] = to + n * apart(0);
    }
    template <class Fold> DEV f32 combine(f32 value) {
        exchange ^= 1;
        return fold_team<Fold>(value, block.thread(), rows.team, exchange);
    }
};

// Vectors of a row that are rewritten together.
struct Rewritten {
    u32 vector;  // the first one's index in the row,
    u32 apart;   // and from there to the next
};

// Rows in shared memory, where each thread reads back only what it fetched itself: there is no barrier. each(f) calls f(v) for
// the vectors of this thread, v being the elements of one; rewrite(f) calls f(v, which) for those of one or more, and writes
// to out what it leaves in v.
struct StreamedRow : RowThread {
    char* places;   // of this thread, LAYER apart
    u32 depth;      // rows on their way
    u32 row_bytes;  // of places
    u32 stage = 0;  // bytes to the places of the row at hand
    u32 ahead;      // the next row to fetch

    DEV StreamedRow(const Rows& given, const Work& w, u32 tile, const Block& workers)
        : RowThread(given, tile, workers), places(workers.scratch() + workers.thread() * VECTOR_BYTES),
          depth(Rows::depth_of(given.all, w)), row_bytes(Rows::layers_of(given.all, w) * LAYER), ahead(row) {
#pragma unroll 1
        for (u32 to = 0; to < depth * row_bytes; to += row_bytes, ahead += step) {
            if (ahead < rows.count) {
                if (rows.dtype[1] == DTYPE_F32) fetch_row<DTYPE_F32>(to);
                else fetch_row<DTYPE_BF16>(to);  // or f16
            }
            copy_async_commit();
        }
    }
    // Whether there is a row at hand, and not all are done; waits until it is there.
    DEV bool wait() const {
        wait_for_oldest(depth);
        return row < rows.count;
    }
    DEV void advance() {
        copy_async_commit();
        row += step;
        ahead += step;
        stage = stage + row_bytes < depth * row_bytes ? stage + row_bytes : 0;
    }
    // The type is chosen once for all vectors: then nothing stands between them.
    template <class F> DEV void each(F f) const {
        const u32 dtype = anew(rows.dtype[1]);
        if (dtype == DTYPE_F32) each_as<DTYPE_F32>(f);
        else if (dtype == DTYPE_BF16) each_as<DTYPE_BF16>(f);
        else each_as<DTYPE_F16>(f);
    }
    template <class F> DEV void rewrite(F f) const {
        const u32 dtype = anew(rows.dtype[1]);
        if (dtype == DTYPE_F32) rewrite_as<DTYPE_F32>(f);
        else if (dtype == DTYPE_BF16) rewrite_as<DTYPE_BF16>(f);
        else rewrite_as<DTYPE_F16>(f);
    }

  private:
    template <u32 DTYPE, class F> DEV void each_as(F f) const {
        const char* place = places + stage;
        u32 i = part;
#pragma unroll 1
        for (; i + threads < rows.vectors; i += 2 * threads, place += 2 * PLACE_BYTES<DTYPE>) {
            f32 v[2][VECTOR];
            read_fetched_as<DTYPE>(place, v);
            f(v[0]);
            f(v[1]);
        }
        if (i < rows.vectors) {
            f32 v[1][VECTOR];
            read_fetched_as<DTYPE>(place, v);
            f(v[0]);
        }
    }
    // Each vector's place then is for that of a later row.
    template <u32 DTYPE, class F> DEV void rewrite_as(F f) const {
        char* place = places + stage;
        const char* from = first(1, ahead < rows.count ? ahead : row);
        char* to = first(0, row);
        u32 i = part;
#pragma unroll 1
        for (; i + threads < rows.vectors; i += 2 * threads) {
            f32 v[2][VECTOR];
            read_fetched_as<DTYPE>(place, v);
            f(v, Rewritten{i, threads});
            write(to, v);
            if (ahead < rows.count) fetch<DTYPE, 2>(from, place);
            place += 2 * PLACE_BYTES<DTYPE>;
            from += 2 * apart(1);
            to += 2 * apart(0);
        }
        if (i < rows.vectors) {
            f32 v[1][VECTOR];
            read_fetched_as<DTYPE>(place, v);
            f(v, Rewritten{i, threads});
            write(to, v);
            if (ahead < rows.count) fetch<DTYPE, 1>(from, place);
        }
    }
    template <u32 N> DEV void write(char* to, const f32 (&v)[N][VECTOR]) const {
        char* all[N];
        spread(to, all);
        write_vectors(rows.tensors[0], rows.dtype[0], all, N, v);
    }
    template <u32 DTYPE, u32 N> DEV void fetch(const char* from, char* place) const {
#pragma unroll
        for (u32 n = 0; n < N; ++n, from += apart(1), place += PLACE_BYTES<DTYPE>)
            if (holds_vector(rows.tensors[1], from)) fetch_vector(from, DTYPE, place, LAYER, false);
    }
    template <u32 DTYPE> DEV void fetch_row(u32 to) const {
        const char* from = first(1, ahead);
        char* place = places + to;
#pragma unroll 1
        for (u32 i = part; i < rows.vectors; i += threads, from += apart(1), place += PLACE_BYTES<DTYPE>)
            fetch<DTYPE, 1>(from, place);
    }
};

// Calls f(row) for each row of the tile. out may be x. begin() is called once the first rows are on their way,
// and seen by all before the first f.
template <class Begin, class F> DEV void map_streamed(const Work& w, u32 tile, const Block& block, Begin begin, const F& f) {
    const Rows rows(w);
    StreamedRow row(rows, w, tile, block);
    begin();
    block.sync();
#pragma unroll 1
    for (; row.wait(); row.advance()) f(row);
    copy_async_wait<0>();
}
