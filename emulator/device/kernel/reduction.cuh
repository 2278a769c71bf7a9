// Folds over axes: where the elements of a fold lie, and how the threads of a block combine theirs in a fixed order.
#pragma once
#include "arithmetic.cuh"

// The combinations of some axes of a tensor (bit k: axis k), in row-major order.
struct Walk {
    const Tensor& tensor;
    u32 axes;
    i64 count = 1;
    i64 stride = 0;    // of the innermost of the axes with more than one element
    bool even = true;  // every combination lies `stride` behind the one before

    DEV Walk(const Tensor& t, u32 chosen) : tensor(t), axes(chosen) {
        i64 next = 0;
        bool innermost = true;
#pragma unroll 1
        for (i32 k = t.rank - 1; k >= 0; --k) {
            if (!(axes >> k & 1)) continue;
            count *= t.dims[k];
            if (t.dims[k] == 1) continue;
            if (innermost) stride = t.strides[k];
            else even &= t.strides[k] == next;
            innermost = false;
            next = t.strides[k] * t.dims[k];
        }
    }
    // Element offset of the `linear`-th combination.
    DEV i64 offset(i64 linear) const { return even ? linear * stride : tensor.offset_over(axes, linear); }
};

// All axes of `t` but the last `k`.
DEV u32 leading_axes(const Tensor& t, u32 k) { return (1u << (t.rank - k)) - 1; }

constexpr u32 ENOUGH_THREADS = 1 << 16;  // beyond this many, threads take whole folds rather than share them

// How the threads of a block share the folds of a tile: teams of `parts` threads (a power of two), one fold each.
struct Teams {
    u32 parts;
    u32 row;   // which fold of the tile this thread works on
    u32 part;  // which share of it

    // `terms`: elements that a thread should have before a fold is shared by more threads. `neighbours`: the elements
    // of a fold are neighbours in memory, so threads that are neighbours should read the same fold.
    static DEV u32 parts_for(i64 folds, i64 elements, u32 terms, bool neighbours) {
        u32 parts = 1;
        while (parts < WORKER_THREADS && static_cast<i64>(parts) * terms < elements &&
               (folds * parts < ENOUGH_THREADS || (neighbours && parts < WARP)))
            parts *= 2;
        return parts;
    }
    static DEV u32 tiles_for(i64 folds, u32 parts) {
        const u32 rows = WORKER_THREADS / parts;
        return static_cast<u32>((folds + rows - 1) / rows);
    }
    DEV Teams(const Block& block, u32 threads, bool neighbours) : parts(threads) {
        const u32 rows = WORKER_THREADS / parts;
        row = neighbours ? block.thread() / parts : block.thread() % rows;
        part = neighbours ? block.thread() % parts : block.thread() / rows;
    }
    DEV u32 rows() const { return WORKER_THREADS / parts; }
    DEV u32 slot() const { return row * parts + part; }

    // Folds the values of each team's threads, in the same order every time; every thread of the team gets the result.
    template <class T, class Fold> DEV T combine(const Block& block, T value, Fold fold) const {
        if (anew(parts) == 1) return value;
        T* shared = reinterpret_cast<T*>(block.scratch());
        shared[slot()] = value;
        block.sync();
#pragma unroll 1
        for (u32 step = parts / 2; step > 0; step /= 2) {
            if (part < step) shared[slot()] = fold(shared[slot()], shared[slot() + step]);
            block.sync();
        }
        const T result = shared[row * parts];
        block.sync();
        return result;
    }
};
static_assert((WORKER_THREADS & (WORKER_THREADS - 1)) == 0, "teams divide a block into powers of two");
