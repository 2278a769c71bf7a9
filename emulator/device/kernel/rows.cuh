// Rows of neighbouring floats, each read from memory once, by a team of 1, 2, 4 or 8 warps. Where no team takes a second row,
// a short row stays in registers. Otherwise rows pass through shared memory: a team reads one there as often as it has to,
// while the next ones are on their way, and nobody waits for other teams.
#pragma once
#include "reduction.cuh"
#include "vectors.cuh"

// Places of 16 bytes that each thread has for rows: 24 KB and more are under way while others are worked on.
#ifdef HOPPER
constexpr u32 ROW_LAYERS = 32;
#else
constexpr u32 ROW_LAYERS = 24;
#endif
constexpr u32 MOST_HELD = 2;   // vectors that a thread holds in registers
constexpr u32 WAY_HELD = 1, WAY_STREAMED = 2;  // 0: the rows are not for this
static_assert(2 * WORKER_WARPS * sizeof(f32) <= STAGING_BYTES, "two places for what warps exchange are in the staging");

// Rows along the last axis of x, and the rows of out that they become. What is needed once for a row stays in shared memory.
struct Rows {
    const Merged<2>& all;
    const Tensor* tensors;
    u32 dtype[2];
    u32 count;
    u32 vectors;  // of a row
    u32 threads;  // of a team

    DEV explicit Rows(const Work& w)
        : all(Merged<2>::of(w)), tensors(in_shared(w).operands), dtype{tensors[0].dtype, tensors[1].dtype}, count(all.rows()),
          vectors(all.size[0]), threads(threads_of(all)) {}

    // Where row `line` of out (k = 0) or of x begins.
    DEV char* begin(u32 k, u32 line) const {
        const Merged<2>::Place p = all.row(line);
        char* address = in_global(tensors[k].data) + static_cast<i64>(static_cast<i32>(p.index[1])) * all.bytes[k][0];
        if (all.size[2] == 1) return address;  // axes are taken in order
#pragma unroll
        for (u32 a = 2; a < Merged<2>::AXES; ++a)
            address += static_cast<i64>(static_cast<i32>(p.index[a])) * all.bytes[k][a - 1];
        return address;
    }
    DEV static void measure(Merged<2>& all, const Work& w) {
        all.way = 0;
        if (!take_vectors(all, w, 1) || all.size[0] == 0 || all.singles > 0) return;
        if (!all.neighbours(0) || !all.neighbours(1)) return;
        // More warps share a row where two of them would not fit, or where warps would be left without one.
        all.team = 0;
        while (threads_of(all) < WORKER_THREADS && all.size[0] > threads_of(all) &&
               (2 * layers_of(all, w) > ROW_LAYERS || all.rows() <= teams(all) / 2))
            ++all.team;
        if (all.rows() <= teams(all) && all.size[0] <= MOST_HELD * threads_of(all)) all.way = WAY_HELD;
        else if (layers_of(all, w) <= ROW_LAYERS) all.way = WAY_STREAMED;
    }
    DEV static u32 scratch(const Merged<2>& all, const Work& w) {
        // Streamed rows lie in the ring: warps exchange values in the staging.
        return all.way == WAY_STREAMED ? max(depth_of(all, w) * layers_of(all, w) * LAYER, STAGING_BYTES + GRANULE_BYTES) : 0;
    }
    DEV static u32 row_tiles(const Merged<2>& all) { return shared_tiles(all.rows()); }
    DEV static u32 threads_of(const Merged<2>& all) { return WARP << all.team; }
    DEV static u32 teams(const Merged<2>& all) { return gridDim.x * WORKER_WARPS >> all.team; }
    DEV static u32 layers_of(const Merged<2>& all, const Work& w) {
        const u32 each = (all.size[0] + threads_of(all) - 1) / threads_of(all);
        return in_shared(w).operands[1].dtype == DTYPE_F32 ? 2 * each : each;
    }
    DEV static u32 depth_of(const Merged<2>& all, const Work& w) {
        const u32 layers = layers_of(all, w);
        u32 depth = 1;
        while (depth < MOST_GROUPS && 2 * depth * layers <= ROW_LAYERS && depth * teams(all) < all.rows()) depth *= 2;
        return depth;
    }
};

// Folds eight values, pair by pair: a chain of three steps.
template <class Fold> DEV f32 fold_tree(f32 (&v)[VECTOR], Fold fold) {
#pragma unroll
    for (u32 half = VECTOR / 2; half > 0; half /= 2)
#pragma unroll
        for (u32 k = 0; k < half; ++k) v[k] = fold(v[k], v[k + half]);
    return v[0];
}

static_assert(VECTOR == WORKER_WARPS, "both are folded so");

// One thread of a team.
struct RowThread {
    const Rows& rows;
    const Block& block;
    u32 threads;       // of the team
    u32 part;          // which of them this is
    u32 row;           // the row at hand
    u32 step;          // from one row of the team to the next
    u32 exchange = 0;  // which of the two places for exchanged values is next

    DEV RowThread(const Rows& given, u32 tile, const Block& workers)
        : rows(given), block(workers), threads(given.threads), part(workers.thread() & (threads - 1)),
          row(tile + (workers.warp() >> given.all.team) * Rows::row_tiles(given.all)),
          step(Rows::row_tiles(given.all) * (WORKER_WARPS >> given.all.team)) {}

    // This thread's first vector of a row of x, or of out.
    DEV char* first(u32 k, u32 line) const { return rows.begin(k, line) + part * vector_bytes(rows.dtype[k]); }
    DEV u32 warps() const { return threads / WARP; }
    // From a vector of this thread to its next one, in bytes.
    DEV u32 apart(u32 k) const { return threads * vector_bytes(rows.dtype[k]); }

    // Folds the team's values in the same order every time; every thread gets the result.
    template <class Fold> DEV f32 combine(f32 value, Fold fold) {
#pragma unroll
        for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) value = fold(value, __shfl_xor_sync(0xffffffffu, value, lanes));
        if (anew(threads) == WARP) return value;
        // Two places in turn: who writes to one again has passed the barrier of the other, so it has been read.
        f32* shared = reinterpret_cast<f32*>(shared_memory + STAGING_AT) + exchange * WORKER_WARPS;
        exchange ^= 1;
        if (block.lane() == 0) shared[block.warp()] = value;
        named_barrier(FIRST_FREE_BARRIER + (block.warp() >> rows.all.team), threads);
        if (anew(threads) == WORKER_THREADS) {
            f32 all[WORKER_WARPS];
#pragma unroll
            for (u32 w = 0; w < WORKER_WARPS; ++w) all[w] = shared[w];
            return fold_tree(all, fold);
        }
        const u32 others = warps() - 1;
        value = shared[(block.warp() & ~others) + (block.lane() & others)];
#pragma unroll 1
        for (u32 lanes = warps() / 2; lanes > 0; lanes /= 2) value = fold(value, __shfl_xor_sync(0xffffffffu, value, lanes));
        return value;
    }
};

// Vectors of a row that are rewritten together.
struct Rewritten {
    u32 vector;  // the first one's index in the row,
    u32 apart;   // from there to the next,
    u32 mine;    // and how many of this thread's own come before it, where the row is held
};

// A row in registers. each(f) calls f(v) for the vectors of this thread, v being the elements of one; rewrite(f) calls
// f(v, which) for those of one or more, and writes to out what it leaves in v.
struct HeldRow : RowThread {
    RawVector raw[MOST_HELD];

    DEV HeldRow(const Rows& given, u32 tile, const Block& workers) : RowThread(given, tile, workers) {
        // What a thread does not hold, it reads from elsewhere: no branch is in the way.
        const char* const p = rows.begin(1, min(row, rows.count - 1));
        const u32 bytes = vector_bytes(rows.dtype[1]);
#pragma unroll
        for (u32 n = 0; n < MOST_HELD; ++n)
            raw[n] = RawVector::load_inside(rows.tensors[1], p + (held(n) ? (n * threads + part) * bytes : 0));
    }
    DEV bool held(u32 n) const { return n * threads + part < rows.vectors; }

    template <class F> DEV void each(F f) const {
#pragma unroll
        for (u32 n = 0; n < MOST_HELD; ++n) {
            if (!held(n)) break;
            f32 v[VECTOR];
            raw[n].unpack(rows.dtype[1], v);
            f(v);
        }
    }
    template <class F> DEV void rewrite(F f) const {
        char* p = first(0, row);
#pragma unroll
        for (u32 n = 0; n < MOST_HELD; ++n, p += apart(0)) {
            if (!held(n)) break;
            f32 v[1][VECTOR];
            raw[n].unpack(rows.dtype[1], v[0]);
            f(v, Rewritten{n * threads + part, threads, n});
            if (holds_vector(rows.tensors[0], p)) RawVector::pack(rows.dtype[0], v[0]).store(p, rows.dtype[0]);
        }
    }
};

// Rows in shared memory, where each thread reads back only what it fetched itself: there is no barrier.
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
            f(v, Rewritten{i, threads, 0});
            write(to, v);
            if (ahead < rows.count) fetch<DTYPE, 2>(from, place);
            place += 2 * PLACE_BYTES<DTYPE>;
            from += 2 * apart(1);
            to += 2 * apart(0);
        }
        if (i < rows.vectors) {
            f32 v[1][VECTOR];
            read_fetched_as<DTYPE>(place, v);
            f(v, Rewritten{i, threads, 0});
            write(to, v);
            if (ahead < rows.count) fetch<DTYPE, 1>(from, place);
        }
    }
    template <u32 N> DEV void write(char* to, const f32 (&v)[N][VECTOR]) const {
        write_vectors(rows.tensors[0], rows.dtype[0], to, apart(0), N, v);
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

// Calls f(row) for each row of the tile, in one of two ways. out may be x.
template <class F> DEV void map_held(const Work& w, u32 tile, const Block& block, F f) {
    const Rows rows(w);
    HeldRow row(rows, tile, block);
    if (row.row < rows.count) f(row);
}
// begin() is called once the first rows are on their way, and seen by all before the first f.
template <class Begin, class F> DEV void map_streamed(const Work& w, u32 tile, const Block& block, Begin begin, const F& f) {
    const Rows rows(w);
    StreamedRow row(rows, w, tile, block);
    begin();
    block.sync();
#pragma unroll 1
    for (; row.wait(); row.advance()) f(row);
    copy_async_wait<0>();
}
