// Tensors of the same dims, as one sequence of units: so many neighbouring elements each, moved by loads of 16 bytes.
#pragma once
#include "numbers.cuh"

constexpr u32 VECTOR_BYTES = 16;  // of one load or store

DEV bool aligned_for_vectors(const Tensor& t) { return reinterpret_cast<u64>(t.data) % VECTOR_BYTES == 0; }

// Shared memory between the copies that a thread has on their way: each thread has its own 16 bytes there.
constexpr u32 LAYER = WORKER_THREADS * VECTOR_BYTES;

// Tiles of an instruction whose blocks each take every so many of `chunks`: no more than one for each block.
DEV u32 shared_tiles(i64 chunks) { return static_cast<u32>(chunks < gridDim.x ? chunks : gridDim.x); }

// N tensors of the same dims; the first is the output. Axes that follow one another in every tensor count as one. Then at
// most AXES are left, axis 0 being the row: along it, elements are neighbours, or (of an operand that is broadcast) all one.
// What a loop over units needs is copied here, so that it stays in registers.
template <u32 N> struct Merged {
    static constexpr u32 AXES = 4;

    // Where a unit lies: its index along each axis; along axis 0, in units.
    struct Place {
        u32 index[AXES];
    };

    const Tensor* tensors[N];
    char* data[N];
    u32 dtype[N];
    i32 bytes[N][AXES];  // from one unit, row, ... to the next
    u32 size[AXES];      // in units, rows, ...
    u32 width;           // elements of a unit
    u32 units;           // whole ones
    u32 singles;         // elements behind the last whole unit, if there is but one row
    bool fits;           // all this is so, units are aligned, and steps are below 2 GiB

    // `row_axes`: how many axes at the end may make the row; MAX_RANK for all.
    template <class... T> DEV explicit Merged(u32 unit, u32 row_axes, const T&... given) : tensors{&given...}, width(unit) {
        static_assert(sizeof...(T) == N, "one place for each tensor");
        i32 axis = tensors[0]->rank - 1;
        fits = true;
        const i64 length = take(0, axis, axis + 1 - static_cast<i32>(row_axes));
        i64 rows = 1;
#pragma unroll
        for (u32 a = 1; a < AXES; ++a) {
            const i64 taken = take(a, axis, 0);
            size[a] = static_cast<u32>(taken);
            rows *= taken;
        }
        size[0] = static_cast<u32>(length / width);
        units = static_cast<u32>(length / width * rows);
        singles = rows == 1 ? static_cast<u32>(length % width) : 0;
        fits &= axis < 0 && length / width * rows < 1ll << 30 && rows < 1ll << 30 && (rows == 1 || length % width == 0);
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
            const Tensor& t = *tensors[k];
            const bool vectors = bytes[k][0] == t.item_bytes;
            bool aligned = aligned_for_vectors(t);
#pragma unroll
            for (u32 a = 1; a < AXES; ++a) aligned &= bytes[k][a] % static_cast<i32>(VECTOR_BYTES) == 0;
            fits &= length == 1 || (vectors && aligned) || (k > 0 && bytes[k][0] == 0);
            data[k] = t.data;
            dtype[k] = t.dtype;
            bytes[k][0] *= width;
        }
    }
    DEV u32 count() const { return units + singles; }
    // No thread takes more than one unit.
    DEV bool few() const { return count() <= gridDim.x * WORKER_THREADS; }
    DEV u32 rows() const { return size[1] * size[2] * size[3]; }
    DEV bool neighbours(u32 k) const { return bytes[k][0] != 0; }
    DEV u32 tiles() const { return shared_tiles((count() + WORKER_THREADS - 1) / WORKER_THREADS); }

    // Where row `line` begins.
    DEV Place row(u32 line) const {
        Place p{0, line, 0, 0};
#pragma unroll
        for (u32 a = 2; a < AXES; ++a) {
            if (size[a] == 1) break;  // axes are taken in order
            p.index[a] = p.index[a - 1] / size[a - 1];
            p.index[a - 1] -= p.index[a] * size[a - 1];
        }
        return p;
    }
    // Where `unit` is. USED, here and below: the axes from there on have one element, and need no arithmetic.
    template <u32 USED> DEV Place place(u32 unit) const {
        if (USED == 1) return {unit, 0, 0, 0};
        const u32 line = unit / size[0];
        Place p = row(line);
        p.index[0] = unit - line * size[0];
        return p;
    }
    // The place that is `by` (a place, too) further on.
    template <u32 USED> DEV void move(Place& p, const Place& by) const {
        p.index[0] += by.index[0];
#pragma unroll
        for (u32 a = 0; a + 1 < USED; ++a) {
            const u32 carry = p.index[a] >= size[a];
            if (carry) p.index[a] -= size[a];
            p.index[a + 1] += by.index[a + 1] + carry;
        }
    }
    template <u32 USED> DEV char* at(u32 k, const Place& p) const {
        char* address = data[k];
#pragma unroll
        for (u32 a = 0; a < USED; ++a) address += static_cast<i64>(static_cast<i32>(p.index[a])) * bytes[k][a];
        return address;
    }
    // Offset, in elements, of the `single`-th element behind the last whole unit.
    DEV i64 single(u32 k, u32 single) const { return neighbours(k) ? static_cast<i64>(units) * width + single : 0; }
    // Whether all of the unit at `p` is inside tensor `k`.
    DEV bool holds(u32 k, const char* p, u32 unit_bytes) const {
        return in_bounds(*tensors[k], p) && in_bounds(*tensors[k], p + unit_bytes - tensors[k]->item_bytes);
    }

  private:
    // Makes the axes from `axis` downwards to `bottom` that are one axis `a`, and gives its size; `axis` moves on.
    DEV i64 take(u32 a, i32& axis, i32 bottom) {
        i64 total = 1, strides[N] = {};
        bool begun = false;
#pragma unroll 1
        for (; axis >= 0 && axis >= bottom; --axis) {
            const i64 dim = tensors[0]->dims[axis];
            if (dim == 1) continue;
            bool joins = true;
#pragma unroll
            for (u32 k = 0; k < N; ++k) {
                const i64 stride = tensors[k]->strides[axis] * tensors[k]->item_bytes;
                if (begun) joins &= stride == strides[k] * total;
                else strides[k] = stride;
            }
            if (!joins) break;
            total *= dim;
            begun = true;
        }
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
            bytes[k][a] = static_cast<i32>(strides[k]);
            fits &= bytes[k][a] == strides[k];
        }
        return total;
    }
};
