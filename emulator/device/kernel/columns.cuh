// Statistics along an axis whose elements are not neighbours, of columns that are: SOFTMAX over such an axis, NORM.group.
// A block takes some neighbouring columns. A thread has eight of them at a time, and every so many of their elements, which
// it reads as often as it needs them: from memory first, then from the caches.
#pragma once
#include "reduction.cuh"
#include "vectors.cuh"

constexpr u32 WAY_SETS = 4;  // besides those of rows and of channels

// How columns are shared out. A set is columns that lie side by side; sets lie `outer` bytes apart, elements of a column
// `step` bytes, in out [0] and in x [1].
struct __align__(16) ColumnSets {
    static constexpr u32 DEPTH = 8;  // vectors that a thread has on their way

    u32 sets;
    u32 columns;  // vectors of a set
    u32 terms;    // elements of a column
    u32 across;   // vectors of columns that a block takes
    u32 parts;    // threads that share a vector of columns
    u32 spare;
    i64 outer[2];
    i64 step[2];
    u32 none;
    u32 way;

    DEV static const ColumnSets& of(const Work& w) { return kept<ColumnSets>(w); }

    // For elements along `along`, `count` sets along `others`, and the last axis as columns; `together`: columns that no two
    // blocks may share. False if vectors cannot be read.
    DEV bool measure(const Work& w, u32 others, u32 along, u32 inner, u32 together) {
        way = 0;
        if (together == 0) return false;  // no channels
        bool fits = true;
        u32 unit = together;  // vectors that stay together
        while (unit % VECTOR != 0) unit += together;
        unit /= VECTOR;
#pragma unroll
        for (u32 k = 0; k < 2; ++k) {
            const Tensor& t = w.operands[k];
            const Walk set(t, others), term(t, along), column(t, inner);
            fits &= is_float(t.dtype) && aligned_for_vectors(t) && set.even && term.even && column.even && column.stride == 1;
            outer[k] = set.stride * t.item_bytes;
            step[k] = term.stride * t.item_bytes;
            fits &= outer[k] % VECTOR_BYTES == 0 && step[k] % VECTOR_BYTES == 0;
            fits &= column.count % (unit * VECTOR) == 0 && t.elements() != 0 && t.elements() >> 32 == 0;
            sets = static_cast<u32>(set.count);
            terms = static_cast<u32>(term.count);
            columns = static_cast<u32>(column.count / VECTOR);
        }
        if (!fits || unit > WORKER_THREADS) return false;
        across = unit;
        while (across < 4 && across + unit <= columns) across += unit;  // 64 neighbouring bytes and more
        while (across < WARP && across < columns && sets * (columns / across) > 4 * gridDim.x) across *= 2;
        parts = min(WORKER_THREADS / across, terms);
        way = WAY_SETS;
        return true;
    }
    DEV u32 across_set() const { return (columns + across - 1) / across; }
    DEV u32 tiles() const { return sets * across_set(); }
    DEV bool at_once() const { return terms <= 2 * parts; }  // few enough to be read when they are needed
    DEV u32 scratch() const { return at_once() ? STAGING_BYTES : DEPTH * 2 * LAYER; }
};

// One thread's share of a tile.
struct ColumnThread {
    const ColumnSets& sets;
    const Tensor* tensors;
    const Block& block;
    u32 column;   // its vector, counted from the tile's first
    u32 part;     // which of the threads that share it, this is
    u32 channel;  // the first of its columns in the set
    bool present;
    char* at[2];  // its first element in out and x

    DEV ColumnThread(const Work& w, u32 tile, const Block& workers)
        : sets(ColumnSets::of(w)), tensors(in_shared(w).operands), block(workers) {
        const u32 per_set = sets.across_set(), set = tile / per_set, first = (tile - set * per_set) * sets.across;
        part = block.thread() / sets.across;
        column = block.thread() - part * sets.across;
        present = part < sets.parts && first + column < sets.columns;
        channel = (first + column) * VECTOR;
#pragma unroll
        for (u32 k = 0; k < 2; ++k)
            at[k] = in_global(tensors[k].data) + set * sets.outer[k] + part * sets.step[k] + channel * tensors[k].item_bytes;
    }

    // Calls f(v, turn) for each of its vectors: those of x at its first element and at every `parts`-th behind it.
    template <class F> DEV void each(F f) const {
        if (!present) return;
        const u32 dtype = tensors[1].dtype, turns = (sets.terms - part + sets.parts - 1) / sets.parts;
        const i64 apart = sets.parts * sets.step[1];
        const bool direct = sets.at_once();
        constexpr u32 STAGE = 2 * LAYER, STAGES = ColumnSets::DEPTH * STAGE;
        char* const mine = direct ? nullptr : block.scratch() + block.thread() * VECTOR_BYTES;
        const char* ahead = at[1];
        u32 fetched = 0;
        const auto fetch = [&](u32 stage) {
            if (fetched < turns && holds_vector(tensors[1], ahead)) fetch_vector(ahead, dtype, mine + stage, LAYER, true);
            copy_async_commit();
            fetched += 1;
            ahead += apart;
        };
        if (!direct) {
#pragma unroll 1
            for (u32 stage = 0; stage < STAGES; stage += STAGE) fetch(stage);
        }
        u32 stage = 0;
#pragma unroll 1
        for (u32 turn = 0; turn < turns; ++turn) {
            if (!direct) copy_async_wait<ColumnSets::DEPTH - 1>();
            const RawVector raw = direct ? RawVector::load_inside(tensors[1], at[1] + turn * apart)
                                         : fetched_vector(mine + stage, LAYER, dtype);
            f32 v[VECTOR];
            raw.unpack(dtype, v);
            f(v, turn);
            if (direct) continue;
            fetch(stage);
            stage = stage + STAGE < STAGES ? stage + STAGE : 0;
        }
        if (!direct) copy_async_wait<0>();
    }
    // Writes what f(v) leaves in v.
    template <class F> DEV void rewrite(F f) const {
        const u32 dtype = tensors[0].dtype;
        const i64 apart = sets.parts * sets.step[0];
        each([&](f32 (&v)[VECTOR], u32 turn) {
            f(v);
            char* p = at[0] + turn * apart;
            if (holds_vector(tensors[0], p)) RawVector::pack(dtype, v).store(p, dtype);
        });
    }
    // Folds the values of all threads of a column, and of `together` neighbouring columns, in the same order every time;
    // every thread gets the results for its columns.
    template <class Fold> DEV void combine(f32 (&v)[VECTOR], u32 together, Fold fold) const {
        f32* const shares = reinterpret_cast<f32*>(shared_memory + STAGING_AT);  // [parts][columns]
        const u32 columns = sets.across * VECTOR, all = WORKER_THREADS * VECTOR;
        f32* const totals = shares + all;  // [columns]
        if (part < sets.parts)
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) shares[part * columns + column * VECTOR + k] = v[k];
        block.sync();
#pragma unroll 1
        for (u32 c = block.thread(); c < columns; c += WORKER_THREADS) {
            f32 total = shares[c];
#pragma unroll 4
            for (u32 p = 1; p < sets.parts; ++p) total = fold(total, shares[p * columns + c]);
            totals[c] = total;
        }
        block.sync();
        u32 group = ~0u;
        f32 total = 0.0f;
        if (part < sets.parts)
#pragma unroll 1
            for (u32 k = 0; k < VECTOR; ++k) {
                const u32 c = column * VECTOR + k;
                if (c / together != group) {
                    group = c / together;
                    total = totals[group * together];
#pragma unroll 1
                    for (u32 i = 1; i < together; ++i) total = fold(total, totals[group * together + i]);
                }
                shares[part * columns + c] = total;
            }
        // A thread reads back what it wrote itself.
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) v[k] = part < sets.parts ? shares[part * columns + column * VECTOR + k] : 0.0f;
        block.sync();  // the next values may come
    }
};
static_assert(2 * WORKER_THREADS * VECTOR * sizeof(f32) <= STAGING_BYTES, "shares and totals fit");
