// GEMM of few results, of f32 as it is. Such a product takes as long as a thread takes from the wait for its operands to the end, one
// instruction after the other: so they do not pass through shared memory, what a thread multiplies in a turn is asked for all at
// once, and where it lies, and where the result goes, is known before the wait.
#pragma once
#include "epilogue_one.cuh"
#include "gemm_shape.cuh"

// The rows of a, or the columns of b, that a thread multiplies. Lines behind the last one are the last one: nobody has their sums.
template <u32 LINES> struct FewLines {
    static constexpr u32 DEPTH = FewShape::DEPTH;
    const Tensor& t;
    const u32 depth;
    const i64 step;         // bytes from an element to the next in depth
    const char* at[LINES];  // where each line begins

    // `count` lines along `axis`, of which this is `first`, of matrix `batch`.
    DEV FewLines(const Tensor& tensor, u32 batch, u32 axis, u32 depth_axis, u32 first, u32 count)
        : t(tensor), depth(t.dims[depth_axis]), step(t.strides[depth_axis] * 4) {
        const i64 base = batch_offset(t, batch);
        first = min(first, (count - 1) / LINES * LINES);
#pragma unroll
        for (u32 i = 0; i < LINES; ++i) at[i] = element(t, base + min(first + i, count - 1) * t.strides[axis]);
    }
    // Of each line, elements from `from` on, and zeros behind the last one. `in_fours`: neighbours, which are there by four.
    DEV void load(f32 (&v)[LINES][DEPTH], u32 from, bool in_fours) const {
#pragma unroll
        for (u32 i = 0; i < LINES; ++i) {
            const char* p = at[i] + from * step;
            if (in_fours) {
#pragma unroll
                for (u32 k = 0; k < DEPTH; k += 4) put_four(&v[i][k], p + k * 4, from + k);
            } else {
#pragma unroll
                for (u32 k = 0; k < DEPTH; ++k, p += step) v[i][k] = from + k < depth && in_bounds(t, p) ? *reinterpret_cast<const f32*>(p) : 0.0f;
            }
        }
    }
    // Four columns side by side.
    DEV void load_across(f32 (&v)[DEPTH][LINES], u32 from) const {
        static_assert(LINES == 4, "one access");
        const char* p = at[0] + from * step;
#pragma unroll
        for (u32 k = 0; k < DEPTH; ++k, p += step) put_four(v[k], p, from + k);
    }

  private:
    DEV void put_four(f32* to, const char* p, u32 from) const {
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (from < depth && range_in_bounds(t, p, 16)) four = *reinterpret_cast<const float4*>(p);
        to[0] = four.x;
        to[1] = four.y;
        to[2] = four.z;
        to[3] = four.w;
    }
};

// The sums of a thread, over its share of the depth. Two pieces of code: what lies across has other registers side by side.
template <bool ACROSS>
DEV void multiply_few(f32 (&sums)[FewShape::ROWS][FewShape::COLUMNS], const FewLines<FewShape::ROWS>& a, const FewLines<FewShape::COLUMNS>& b,
                      const FewShape& few, u32 first, u32 turn) {
#pragma unroll 1
    for (u32 from = first; from < a.depth; from += turn) {
        f32 left[FewShape::ROWS][FewShape::DEPTH], right[FewShape::COLUMNS][FewShape::DEPTH], lines[FewShape::DEPTH][FewShape::COLUMNS];
        if (ACROSS) b.load_across(lines, from);
        else b.load(right, from, few.b_deep);
        a.load(left, from, few.a_deep);
#pragma unroll
        for (u32 k = 0; k < FewShape::DEPTH; ++k)
#pragma unroll
            for (u32 i = 0; i < FewShape::ROWS; ++i)
#pragma unroll
                for (u32 j = 0; j < FewShape::COLUMNS; ++j) sums[i][j] = fmaf(left[i][k], ACROSS ? lines[k][j] : right[j][k], sums[i][j]);
    }
}

// The sums of a tile in the staging, of each part of the depth, and who puts them together: so many neighbouring lanes for each
// result, 8 parts each.
struct FewSums {
    static constexpr u32 EACH = FewShape::ROWS * FewShape::COLUMNS;
    const u32 lanes;  // log2 of the threads to a tile

    DEV u32 results() const { return EACH << lanes; }
    // Between parts. Neighbouring lanes read neighbouring parts, in different banks.
    DEV u32 pitch() const { return results() + max(results() / 8, 4); }
    DEV u32 helpers() const { return WARP >> lanes; }
    DEV u32 index_of(u32 thread) const { return thread >> 5 - lanes; }
    // The sum of result `index`, in every lane that has a part in it, and in an order of its own.
    DEV f32 add(const f32* sums, u32 index, u32 helper) const {
        const f32* p = sums + helper * pitch() + index;
        f32 parts[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) parts[i] = p[i * helpers() * pitch()];
        f32 sum = parts[0];
#pragma unroll
        for (u32 i = 1; i < EACH; ++i) sum += parts[i];
#pragma unroll 1
        for (u32 apart = 1; apart < helpers(); apart *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
        return sum;
    }
};
// With the smallest tile a part is 16 + 4 sums, and there are as many parts as pairs of threads.
static_assert(WORKER_THREADS / 2 * 20 * 4 <= STAGING_BYTES, "the sums fit");

// Row by row: a tile is the only one of its block, and there is nothing to share with a next one.
DEV Tiling::Place place_few(const Tiling& tiling, u32 tile) {
    const u32 row = tile / tiling.across, batch = row < tiling.down ? 0 : row / tiling.down;
    return {batch, (row - batch * tiling.down) * tiling.rows, (tile - row * tiling.across) * tiling.columns};
}

DEV_CALL void few_results(const GemmArgs& args, u32 tile, const Block& block) {
    const GemmShape& shape = GemmShape::of(args.work);
    const Tiling::Place at = place_few(shape.tiling, tile);
    const Products& p = shape.products;
    const FewShape few = shape.few;
    const FewSums all{few.lanes};
    const u32 axis = args.a().rank - 1, wide = FewShape::COLUMNS << few.across, thread = block.thread();
    const u32 lane = thread & few.threads() - 1, part = thread >> few.lanes;
    const u32 row = (lane >> few.across) * FewShape::ROWS, column = (lane & (1u << few.across) - 1) * FewShape::COLUMNS;
    const FewLines<FewShape::ROWS> a(args.a(), at.batch, p.row_axis, axis, at.row + row, p.m);
    const FewLines<FewShape::COLUMNS> b(args.b(), at.batch, axis, axis - 1, at.column + column, p.n);
    // And what it puts together.
    const u32 helper = thread & all.helpers() - 1, index = all.index_of(thread);
    const u32 own_row = at.row + (index >> few.across + 2), own_column = at.column + (index & wide - 1);
    const bool glu = args.sub() == GEMM_GLU;
    const bool exists = helper == 0 && own_row < p.m && own_column < p.n && !(glu && own_column % 2);
    const auto find = [&] { return ResultPlace{at.batch * p.m + own_row, glu ? own_column / 2 : own_column}; };
    const auto rest = [&] { return gemm_epilogue(args); };
    const Epilogue e = rest();
    OneResult result(e, find(), exists);
    f32* const sums = reinterpret_cast<f32*>(block.scratch());
    f32* const own = sums + part * all.pitch() + row * wide + column;
    if (!block.begin()) return;
    result.fetch(e);
    f32 v[FewShape::ROWS][FewShape::COLUMNS] = {};
    const u32 turn = FewShape::DEPTH * WORKER_THREADS >> few.lanes;
    if (few.b_across) multiply_few<true>(v, a, b, few, part * FewShape::DEPTH, turn);
    else multiply_few<false>(v, a, b, few, part * FewShape::DEPTH, turn);
#pragma unroll
    for (u32 i = 0; i < FewShape::ROWS; ++i) *reinterpret_cast<float4*>(own + i * wide) = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
    block.sync();
    f32 sum = e.alpha * all.add(sums, index, helper);
    if (glu) {
        const f32 second = __shfl_down_sync(0xffffffffu, sum, all.helpers());
        sum = activate(args.unit(), sum, 0.0f) * second;
    }
    if (exists) result.store(sum, e.steps, rest, find);
    block.end();
}
