// Tensors of the same dims, as one sequence of units: so many neighbouring elements each, moved by loads of 16 bytes.
#pragma once
#include "numbers.cuh"

constexpr u32 VECTOR_BYTES = 16;  // of one load or store

DEV bool aligned_for_vectors(const Tensor& t) { return reinterpret_cast<u64>(t.data) % VECTOR_BYTES == 0; }

// Shared memory between the copies that a thread has on their way: each thread has its own 16 bytes there.
constexpr u32 LAYER = WORKER_THREADS * VECTOR_BYTES;

// Tiles of an instruction whose blocks each take every so many of `chunks`: no more than one for each block.
DEV u32 shared_tiles(i64 chunks) { return static_cast<u32>(chunks < gridDim.x ? chunks : gridDim.x); }

// The detail of a work whose handler chooses between ways: the last word is the way; 0 is the one that always does.
template <class Kept> DEV const Kept& kept(const Work& w) {
    static_assert(sizeof(Kept) == sizeof(w.detail), "the handler's own words, and the way");
    return reinterpret_cast<const Kept&>(in_shared(w).detail);
}

// The first operands of a work, as Merged measures them: tensors of the same dims. A handler whose operands lie differently
// gives a description of its own.
struct SameDims {
    static constexpr bool APART = false;  // whether every axis counts on its own
    const Tensor* tensors;

    DEV explicit SameDims(const Work& w) : tensors(in_shared(w).operands) {}
    DEV i32 rank() const { return tensors[0].rank; }
    DEV i64 dim(i32 axis) const { return tensors[0].dims[axis]; }
    DEV i64 stride(u32 k, i32 axis) const { return tensors[k].strides[axis] * tensors[k].item_bytes; }  // bytes
};

// N tensors of the same dims, the first N operands; the first is the output. Axes that follow one another in every tensor
// count as one. Then at most AXES are left, axis 0 being the row: along it, elements are neighbours, or (of an operand that
// is broadcast) all one. Measured before the tiles are counted, and kept in the detail of the work.
template <u32 N> struct __align__(16) Merged {
    static constexpr u32 AXES = 4;

    // Where a unit lies: its index along each axis; along axis 0, in units.
    struct Place {
        u32 index[AXES];
    };

    u32 size[AXES];          // in units, rows, ...
    u32 units;               // whole ones
    i32 bytes[3][AXES - 1];  // of each tensor, from one row, plane, ... to the next; steps are below 2 GiB. See Claims::of
    u8 width;                // elements of a unit
    u8 singles;              // elements behind the last whole unit, if there is but one row
    u8 dense;                // a bit for each tensor: its units are neighbouring elements, not one element
    u8 team;                 // where teams take a row each: log2 of their warps
    u32 way;

    DEV static const Merged& of(const Work& w) { return kept<Merged>(w); }

    // Measures the operands of `w` in units of so many elements. `row_axes`: how many axes at the end may make the row;
    // MAX_RANK for all. Whether all this is so, and units are aligned.
    DEV_CALL bool measure(const Work& w, u32 unit, u32 row_axes) { return measure_as(SameDims(w), unit, row_axes); }
    template <class Shape> DEV bool measure_as(const Shape& shape, u32 unit, u32 row_axes) {
        const Tensor* const tensors = shape.tensors;
        i32 axis = shape.rank() - 1;
        i64 strides[N];
        const i64 length = take(shape, axis, axis + 1 - static_cast<i32>(row_axes), strides);
        bool fits = true;
        dense = 0;
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
            if (strides[k] != 0) dense |= 1u << k;
            const bool vectors = strides[k] == tensors[k].item_bytes && aligned_for_vectors(tensors[k]);
            fits &= length == 1 || vectors || (k > 0 && strides[k] == 0);
        }
        i64 rows = 1;
#pragma unroll
        for (u32 a = 1; a < AXES; ++a) {
            const i64 taken = take(shape, axis, 0, strides);
            size[a] = static_cast<u32>(taken);
            rows *= taken;
#pragma unroll
            for (u32 k = 0; k < N; ++k) {
                bytes[k][a - 1] = static_cast<i32>(strides[k]);
                fits &= bytes[k][a - 1] == strides[k] && (!(dense >> k & 1) || strides[k] % VECTOR_BYTES == 0);
            }
        }
        width = static_cast<u8>(unit);
        size[0] = static_cast<u32>(length / unit);
        units = static_cast<u32>(length / unit * rows);
        singles = static_cast<u8>(rows == 1 ? length % unit : 0);
        fits &= length / unit * rows < 1ll << 30 && rows < 1ll << 30;
        return fits && axis < 0 && (rows == 1 || length % unit == 0);
    }
    DEV u32 count() const { return units + singles; }
    // No thread takes more than one unit.
    DEV bool few() const { return count() <= gridDim.x * WORKER_THREADS; }
    // Units, where that is so; else 0.
    DEV u32 one_each() const { return few() ? count() : 0; }
    DEV u32 rows() const { return size[1] * size[2] * size[3]; }
    DEV bool neighbours(u32 k) const { return dense >> k & 1; }
    DEV u32 tiles() const { return shared_tiles((count() + WORKER_THREADS - 1) / WORKER_THREADS); }

    // Where row `line` begins.
    DEV Place row(u32 line) const {
        Place p{0, line, 0, 0};
#pragma unroll
        for (u32 a = 2; a < AXES; ++a) {
            if (p.index[a - 1] < size[a - 1]) break;
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
    // Offset, in elements, of the `single`-th element behind the last whole unit.
    DEV i64 single(u32 k, u32 single) const { return neighbours(k) ? static_cast<i64>(units) * width + single : 0; }

  private:
    // Makes the axes from `axis` downwards to `bottom` that are one axis, and gives its size and its strides in bytes;
    // `axis` moves on.
    template <class Shape> DEV static i64 take(const Shape& shape, i32& axis, i32 bottom, i64 (&strides)[N]) {
        i64 total = 1;
        bool begun = false;
#pragma unroll
        for (u32 k = 0; k < N; ++k) strides[k] = 0;
#pragma unroll 1
        for (; axis >= 0 && axis >= bottom; --axis) {
            const i64 dim = shape.dim(axis);
            if (Shape::APART && begun) break;
            if (dim == 1 && !Shape::APART) continue;
            bool joins = true;
#pragma unroll
            for (u32 k = 0; k < N; ++k) {
                const i64 stride = dim == 1 ? 0 : shape.stride(k, axis);
                if (begun) joins &= stride == strides[k] * total;
                else strides[k] = stride;
            }
            if (!joins) break;
            total *= dim;
            begun = true;
        }
        return total;
    }
};

// The tensors of a work as they were measured: what a loop over units needs, copied here so that it stays in registers.
template <u32 N> struct Streams : Merged<N> {
    using Place = typename Merged<N>::Place;

    const Tensor* tensors;
    char* data[N];
    u32 dtype[N];
    u32 unit_bytes[N];  // 0 of one element

    DEV explicit Streams(const Work& w) : Merged<N>(Merged<N>::of(w)), tensors(in_shared(w).operands) {
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
            data[k] = in_global(tensors[k].data);
            dtype[k] = tensors[k].dtype;
            unit_bytes[k] = this->neighbours(k) ? this->width * tensors[k].item_bytes : 0;
        }
    }
    template <u32 USED> DEV char* at(u32 k, const Place& p) const {
        char* address = data[k] + static_cast<u64>(p.index[0]) * unit_bytes[k];
#pragma unroll
        for (u32 a = 1; a < USED; ++a) address += static_cast<i64>(static_cast<i32>(p.index[a])) * this->bytes[k][a - 1];
        return address;
    }
    // Whether so many bytes of tensor `k` from `p` on are inside it.
    DEV bool holds(u32 k, const char* p, u32 length) const {
        return in_bounds(tensors[k], p) && in_bounds(tensors[k], p + length - tensors[k].item_bytes);
    }
};
