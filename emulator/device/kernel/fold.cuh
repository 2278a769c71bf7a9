// Folds of floats over one axis, in vectors: of elements that are neighbours (rows), or of results that are (columns).
#pragma once
#include "reduction.cuh"
#include "vectors.cuh"

// An element and where it was; of nothing yet, `index` is NOWHERE.
template <class T> struct Best {
    static constexpr u32 NOWHERE = 0xffffffffu;
    T value;
    u32 index;

    // The better of the two: NaN before all else, then the larger (or smaller), then the lower index.
    static DEV Best of(const Best& a, const Best& b, bool larger) {
        const bool first = a.index < b.index, a_nan = is_nan(a.value), b_nan = is_nan(b.value);
        const bool same = a_nan ? b_nan : a.value == b.value;
        const bool better = a_nan || (!b_nan && (a.value > b.value) == larger);
        const bool takes_a = b.index == NOWHERE || (a.index != NOWHERE && (same ? first : better));
        return {takes_a ? a.value : b.value, takes_a ? a.index : b.index};
    }
};

// Whether a fold gives one of its elements: that some are counted twice makes no difference.
template <class T> constexpr bool PICKS = false;
template <> constexpr bool PICKS<Best<f32>> = true;

constexpr u32 FOLD_DEPTH = 8;  // vectors that a thread has on their way
constexpr u32 FOLD_SCRATCH_BYTES = FOLD_DEPTH * 2 * LAYER;
constexpr u32 FOLD_AT_ONCE = 4;  // that it has in registers, where it has no more
constexpr u32 WAY_ROWS = 1, WAY_COLUMNS = 2;

// How the folds of a work are shared out. Each is folded by `parts` threads: of a row, each takes every so many vectors; of
// eight columns, every so many elements. A group is what a block folds at a time. Where groups are few, folds are split over
// blocks: each leaves its result in the workspace, and the last one folds these, in order.
struct __align__(16) Folds {
    u32 room;     // the host's: partial results of blocks that the workspace holds,
    u32 at[2];    // and where it is: counters, then partial results
    u32 splits;
    u32 parts;    // a power of two
    u32 groups;
    u32 count;    // of rows, or of vectors of columns
    u32 columns;  // vectors of columns that lie side by side
    u32 terms;    // of a fold: vectors of a row, or elements of a column
    u32 rest;     // elements of the only row behind its last whole vector
    i64 outer;    // bytes from one row, or from one set of columns, to the next
    i64 step;     // bytes from one term to the next
    u32 turns;    // terms of a thread, at most
    u32 way;      // WAY_ROWS, WAY_COLUMNS; 0 if vectors cannot be read

    DEV static const Folds& of(const Work& w) { return kept<Folds>(w); }

    // For folds of `length` elements, `apart` elements from one to the next: of `inner` neighbours each (1: those of a fold
    // are neighbours themselves), `outer_count` times, `outer_apart` elements from one time to the next.
    DEV void measure(const Tensor& x, i64 outer_count, i64 outer_apart, i64 length, i64 apart, i64 inner) {
        way = 0;
        const bool rows = inner == 1;
        const i64 line = rows ? length : inner;
        outer = outer_apart * x.item_bytes;
        step = (rows ? VECTOR : apart) * x.item_bytes;
        bool fits = is_float(x.dtype) && aligned_for_vectors(x) && line >= VECTOR && x.elements() >> 32 == 0;
        fits &= line % VECTOR == 0 || (rows && outer_count == 1);
        fits &= outer_count == 1 || outer % VECTOR_BYTES == 0;
        fits &= rows ? apart == 1 : length == 1 || step % VECTOR_BYTES == 0;
        if (!fits || outer_count == 0 || length == 0) return;
        rest = rows ? length % VECTOR : 0;
        terms = static_cast<u32>(rows ? length / VECTOR : length);
        columns = static_cast<u32>(rows ? 1 : inner / VECTOR);
        count = static_cast<u32>(outer_count) * columns;
        share(rows);
        way = rows ? WAY_ROWS : WAY_COLUMNS;
    }
    DEV u32 across() const { return WORKER_THREADS / parts; }  // rows, or vectors of columns, of a group
    DEV f32 size() const { return way == WAY_ROWS ? terms * VECTOR + rest : terms; }  // elements of a fold
    DEV u32 tiles() const { return shared_tiles(groups * splits); }
    DEV bool at_once() const { return turns <= FOLD_AT_ONCE && groups * splits <= gridDim.x; }
    DEV u32 scratch() const { return at_once() ? 0 : FOLD_SCRATCH_BYTES; }

  private:
    DEV void share(bool rows) {
        parts = 1;
        if (rows) {  // to a warp or less, unless rows are long and few
            while (parts < terms && parts < WARP) parts *= 2;
            // Of many short ones, to fewer threads with more each, which share what it costs to begin and end a row.
            while (parts > 2 && terms < 4 * parts && count >= gridDim.x * WORKER_THREADS / parts * 4) parts /= 2;
            if (terms > WARP && count < gridDim.x * WORKER_WARPS) parts = WORKER_THREADS;
        } else if (terms >= VECTOR && count < gridDim.x * WORKER_THREADS) {  // lanes read at least 128 neighbouring bytes
            parts = WORKER_WARPS;
            while (parts < WARP && parts * FOLD_AT_ONCE < terms && count * parts < gridDim.x * WORKER_THREADS) parts *= 2;
        }
        groups = (count + across() - 1) / across();
        splits = 1;
        const u32 most = min(room, gridDim.x), worth = parts * FOLD_AT_ONCE;  // terms that are worth a split
        const bool by_block = rows ? parts == WORKER_THREADS : parts > 1;
        if (by_block && groups * 2 <= most && terms >= 2 * worth) splits = min(most / groups, (terms + worth - 1) / worth);
        turns = (terms + splits * parts - 1) / (splits * parts);
    }
};

// What folds make of floats: T is f32, or Best<f32> for the place of the largest or smallest.
DEV f32 joined(u32 sub, f32 a, f32 b) {
    switch (sub) {
        case REDUCE_MAX: return maximum(a, b);
        case REDUCE_MIN: return minimum(a, b);
        case REDUCE_PROD: return a * b;
        default: return a + b;
    }
}
DEV Best<f32> joined(u32 sub, const Best<f32>& a, const Best<f32>& b) { return Best<f32>::of(a, b, sub == REDUCE_ARGMAX); }
DEV void clear(u32 sub, f32& v) {
    v = sub == REDUCE_MAX ? -infinity() : sub == REDUCE_MIN ? infinity() : sub == REDUCE_PROD ? 1.0f : 0.0f;
}
DEV void clear(u32, Best<f32>& v) { v = {0.0f, Best<f32>::NOWHERE}; }
DEV f32 from_lane(f32 v, u32 step) { return __shfl_xor_sync(0xffffffffu, v, step); }
DEV Best<f32> from_lane(const Best<f32>& v, u32 step) {
    return {from_lane(v.value, step), __shfl_xor_sync(0xffffffffu, v.index, step)};
}


// Joins what all lanes of a warp have, where there are instructions for it: by a number that is the larger the better an element
// is, NaN before all else, and 0 where there is none. Zeros are alike.
DEV bool join_warp(u32, f32&) { return false; }
DEV bool join_warp(u32 sub, Best<f32>& v) {
    const u32 bits = __float_as_uint(v.value + 0.0f), order = bits >> 31 ? ~bits : bits | 0x80000000u;
    const u32 rank = is_nan(v.value) ? ~0u : sub == REDUCE_ARGMAX ? order : ~order, own = v.index == Best<f32>::NOWHERE ? 0 : rank;
    const u32 best = __reduce_max_sync(0xffffffffu, own);
    const u32 index = __reduce_min_sync(0xffffffffu, own == best ? v.index : Best<f32>::NOWHERE);
    const u32 lanes = __ballot_sync(0xffffffffu, own == best && v.index == index);
    v = {__shfl_sync(0xffffffffu, v.value, __ffs(lanes) - 1), index};
    return true;
}

// Takes in the first `count` of N vectors; `first` is the place of the first element, from which elements are `apart`, and
// vectors `next`.
template <u32 N, class F> DEV void fold_all(f32 (&to)[VECTOR], const f32 (&v)[N][VECTOR], u32 count, F f) {
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        if (n >= count) break;
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) to[k] = f(to[k], v[n][k]);
    }
}
template <u32 N> DEV void take_in(u32 sub, f32 (&to)[VECTOR], const f32 (&v)[N][VECTOR], u32 count, u32, u32, u32) {
    switch (sub) {
        case REDUCE_MAX: fold_all(to, v, count, [](f32 a, f32 b) { return maximum(a, b); }); break;
        case REDUCE_MIN: fold_all(to, v, count, [](f32 a, f32 b) { return minimum(a, b); }); break;
        case REDUCE_PROD: fold_all(to, v, count, [](f32 a, f32 b) { return a * b; }); break;
        case REDUCE_L2: fold_all(to, v, count, [](f32 a, f32 b) { return fmaf(b, b, a); }); break;
        default: fold_all(to, v, count, [](f32 a, f32 b) { return a + b; });
    }
}
template <u32 N>
DEV void take_in(u32 sub, Best<f32> (&to)[VECTOR], const f32 (&v)[N][VECTOR], u32 count, u32 first, u32 apart, u32 next) {
    const u32 sign = sub == REDUCE_ARGMAX ? 0 : 0x80000000u;
#pragma unroll
    for (u32 n = 0; n < N; ++n, first += next) {
        if (n >= count) break;
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {  // elements come in order: one wins that is better, or the first that is NaN
            const f32 a = __uint_as_float(__float_as_uint(v[n][k]) ^ sign), b = __uint_as_float(__float_as_uint(to[k].value) ^ sign);
            if (to[k].index == Best<f32>::NOWHERE || !(a <= b || is_nan(b))) to[k] = {v[n][k], first + k * apart};
        }
    }
}
DEV void take_one(u32 sub, f32& to, f32 v, u32) { to = joined(sub, to, sub == REDUCE_L2 ? v * v : v); }
DEV void take_one(u32 sub, Best<f32>& to, f32 v, u32 at) { to = joined(sub, to, Best<f32>{v, at}); }

// The folds of one thread.
template <class T> struct Folder {
    const Folds& f;
    const Work& w;
    const Block& block;
    u32 sub;
    u32 place;  // which fold of the group, or which vector of columns, this thread works on
    u32 part;   // which of the threads that share it, this is

    DEV Folder(const Folds& folds, const Work& work, const Block& workers, u32 kind)
        : f(folds), w(work), block(workers), sub(kind) {
        const u32 across = f.across(), thread = block.thread();  // both are powers of two
        place = rows() ? thread / f.parts : thread & across - 1;
        part = rows() ? thread & f.parts - 1 : thread / across;
    }
    DEV const Tensor& out() const { return in_shared(w).operands[0]; }
    DEV const Tensor& x() const { return in_shared(w).operands[1]; }
    DEV bool rows() const { return anew(f.way) == WAY_ROWS; }

    // Where a thread is in its share.
    struct Cursor {
        u32 group, split;
        u32 turn, term, end;  // no term is left at the end
        const char* p;
    };
    DEV u32 result(const Cursor& c) const { return c.group * f.across() + place; }
    DEV Cursor enter(u32 item) const {
        Cursor c;
        c.group = f.splits == 1 ? item : item / f.splits;
        c.split = item - c.group * f.splits;
        const u32 each = f.turns * f.parts, column = result(c), set = rows() ? column : column / f.columns;
        c.turn = 0;
        c.term = c.split * each + part;
        c.end = column < f.count ? min(f.terms, (c.split + 1) * each) : 0;
        c.p = in_global(x().data) + set * f.outer + c.term * f.step;
        if (!rows()) c.p += (column - set * f.columns) * vector_bytes(x().dtype);
        return c;
    }
    DEV void advance(Cursor& c, i64 pitch) const {
        c.turn += 1;
        c.term += f.parts;
        c.p += pitch;
    }

    DEV void run(u32 tile) {
        if (f.at_once()) fold_at_once(tile);
        else stream(tile);
    }

  private:
    // Takes in what the thread has of N terms from `c` on.
    template <u32 N> DEV void take(const Cursor& c, const RawVector (&raw)[N], u32 dtype, T (&total)[VECTOR]) const {
        if (c.term >= c.end) return;
        f32 v[N][VECTOR];
        unpack_all(raw, dtype, v);
        const u32 unit = rows() ? VECTOR : 1, count = N == 1 ? 1 : (c.end - c.term + f.parts - 1) / f.parts;
        take_in(sub, total, v, count, c.term * unit, rows() ? 1 : 0, f.parts * unit);
    }
    DEV void begin(T (&total)[VECTOR]) const {
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) clear(sub, total[k]);
    }
    // The only item of a block, all of whose terms are on their way at a time.
    DEV void fold_at_once(u32 tile) {
        const u32 dtype = x().dtype;
        const i64 pitch = f.parts * f.step;
        const Cursor here = enter(tile);
        T total[VECTOR];
        begin(total);
        if (!block.begin()) return;
        RawVector raw[FOLD_AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < FOLD_AT_ONCE; ++k) {
            const char* const p = here.p + k * pitch;
            const bool exists = here.term + k * f.parts < here.end && holds_vector(x(), p);
            raw[k] = exists ? RawVector::load(p, dtype) : RawVector::none();
        }
        take(here, raw, dtype, total);
        finish(here, total);
    }
    DEV void stream(u32 tile) {
        const u32 items = f.groups * f.splits, tiles = f.tiles(), dtype = x().dtype;
        const i64 pitch = f.parts * f.step;
        constexpr u32 STAGE = 2 * LAYER, STAGES = FOLD_DEPTH * STAGE;
        char* const mine = block.scratch() + block.thread() * VECTOR_BYTES;
        Cursor ahead = enter(tile);
        u32 next = tile;
        const auto fetch = [&](u32 stage) {
            if (next < items) {
                if (ahead.term < ahead.end && holds_vector(x(), ahead.p)) fetch_vector(ahead.p, dtype, mine + stage, LAYER, false);
                advance(ahead, pitch);
                if (ahead.turn == f.turns) {
                    next += tiles;
                    ahead = enter(next);
                }
            }
            copy_async_commit();
        };
        if (!block.begin()) return;
#pragma unroll 1
        for (u32 stage = 0; stage < STAGES; stage += STAGE) fetch(stage);
        u32 stage = 0;
#pragma unroll 1
        for (u32 item = tile; item < items; item += tiles) {
            Cursor here = enter(item);
            T total[VECTOR];
            begin(total);
#pragma unroll 1
            for (; here.turn < f.turns; advance(here, pitch)) {
                copy_async_wait<FOLD_DEPTH - 1>();
                const RawVector raw[1] = {fetched_vector(mine + stage, LAYER, dtype)};
                take(here, raw, dtype, total);
                fetch(stage);
                stage = stage + STAGE < STAGES ? stage + STAGE : 0;
            }
            finish(here, total);
        }
        copy_async_wait<0>();
    }

    DEV void finish(const Cursor& c, T (&total)[VECTOR]) {
        if (rows()) {
            if (f.rest && result(c) == 0 && part == 0 && c.split == f.splits - 1) take_rest(total[0]);
#pragma unroll
            for (u32 half = VECTOR / 2; half > 0; half /= 2)
#pragma unroll
                for (u32 k = 0; k < half; ++k) total[k] = joined(sub, total[k], total[k + half]);
            finish_row(c, total[0]);
        } else if (!store_vector(c, total)) {
            finish_columns(c, total);
        }
    }
    DEV void take_rest(T& total) const {
#pragma unroll 1
        for (u32 i = f.terms * VECTOR; i < f.terms * VECTOR + f.rest; ++i) take_one(sub, total, load_f32(x(), i), i);
    }

    // What the threads of a row have becomes the row's result, in the first of them. The order is always the same.
    DEV void finish_row(const Cursor& c, T v) const {
        for (bool joins_splits = false;; joins_splits = true) {
            v = join_lanes(v, min(f.parts, WARP));
            if (f.parts > WARP && !(joins_splits && f.splits <= WARP)) v = join_warps(v);  // else one warp has them all
            if (f.splits == 1 || joins_splits) break;
            T* const all = partial(c.group, 1);
            if (part == 0) all[c.split] = v;
            if (!is_last(c.group)) return;
            clear(sub, v);
            if (part < f.splits) v = all[part];
        }
        if (part == 0 && result(c) < f.count) store(out().offset_of(result(c)), v);
    }
    DEV T join_lanes(T v, u32 lanes) const {
        if (lanes == WARP && join_warp(sub, v)) return v;
#pragma unroll 1
        for (u32 step = lanes / 2; step > 0; step /= 2) v = joined(sub, v, from_lane(v, step));
        return v;
    }
    DEV T join_warps(const T& v) const {
        T* const shared = reinterpret_cast<T*>(shared_memory + STAGING_AT);
        block.sync();  // what was there has been read
        if (block.lane() == 0) shared[block.warp()] = v;
        block.sync();
        return join_lanes(shared[block.lane() % WORKER_WARPS], PICKS<T> ? WARP : WORKER_WARPS);
    }

    // The same for columns: what threads have meets in shared memory, and each thread folds what belongs to one result.
    DEV void finish_columns(const Cursor& c, const T (&total)[VECTOR]) const {
        const u32 results = f.across() * VECTOR, first = c.group * results;
        T* const shared = reinterpret_cast<T*>(shared_memory + STAGING_AT);
        block.sync();  // what was there has been read
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) shared[(part * VECTOR + k) * f.across() + place] = total[k];
        block.sync();
        T* const all = partial(c.group, results);
        for (bool joins_splits = false;; joins_splits = true) {
            const T* const from = joins_splits ? all : shared;
            const u32 count = joins_splits ? f.splits : f.parts;
#pragma unroll 1
            for (u32 r = block.thread(); r < results; r += WORKER_THREADS) {
                T v = from[r];
#pragma unroll 1
                for (u32 i = 1; i < count; ++i) v = joined(sub, v, from[i * results + r]);
                const u32 to = first + (r & f.across() - 1) * VECTOR + r / f.across();
                if (f.splits > 1 && !joins_splits) all[c.split * results + r] = v;
                else if (to < f.count * VECTOR) store(to, v);
            }
            if (f.splits == 1 || joins_splits || !is_last(c.group)) return;
        }
    }
    // Columns of one thread each, of floats: stores what it has, without detours.
    DEV bool store_vector(const Cursor& c, f32 (&v)[VECTOR]) const {
        if (f.parts > 1 || !is_float(out().dtype)) return false;
        if (result(c) >= f.count) return true;
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) v[k] = finished(v[k]);
        RawVector::pack(out().dtype, v).store(out(), static_cast<i64>(result(c)) * VECTOR);
        return true;
    }
    DEV bool store_vector(const Cursor&, const Best<f32> (&)[VECTOR]) const { return false; }

    DEV f32 finished(f32 v) const { return sub == REDUCE_MEAN ? v / f.size() : sub == REDUCE_L2 ? sqrtf(v) : v; }
    DEV void store(i64 offset, f32 v) const { store_f32(out(), offset, finished(v)); }
    DEV void store(i64 offset, const Best<f32>& v) const { store_i64(out(), offset, v.index); }

    // Counters of the groups' finished splits, and the first of the results that the splits of a group leave.
    DEV u32* counters() const {
        return reinterpret_cast<u32*>(block.launch()->workspace + (static_cast<u64>(f.at[1]) << 32 | f.at[0]));
    }
    DEV T* partial(u32 group, u32 results) const {
        return reinterpret_cast<T*>(counters() + (f.room + 31) / 32 * 32) + group * f.splits * results;
    }
    // Whether this block is the last of the group's, which then sees what the others left.
    DEV bool is_last(u32 group) const {
        u32& last = *reinterpret_cast<u32*>(shared_memory + STAGING_AT);
        block.sync();
        if (block.thread() == 0) {
            last = fetch_add_acq_rel(counters() + group, 1) == f.splits - 1;
            if (last) store_relaxed(counters() + group, 0);  // for the next use
        }
        block.sync();
        return last;
    }
};

// A block's share of the folds of operand 1 to operand 0 by `sub`, a kind of REDUCE.
template <class T> DEV_CALL void fold_vectors(const Work& w, u32 sub, u32 tile, const Block& block) {
    const Folds f = Folds::of(w);
    Folder<T>(f, w, block, sub).run(tile);
}
