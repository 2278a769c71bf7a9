// ATTENTION of many queries in tiles of 16 rows, where that makes no more tiles than there are blocks, and all keys fit the registers of
// one block's warps. What a network waits for then is a warp's instructions from the wait to the end: so there are few, and what
// does not depend on operands comes before the wait.
#pragma once
#include "attention_held.cuh"

template <class T, u32 WIDTH> struct RowsAttention {
    using Products = HeldProducts<T, WIDTH>;
    using Deep = typename Products::Deep;
    using Values = typename Products::Values;
    using Sums = typename Products::Sums;
    static constexpr u32 COLUMNS = Products::COLUMNS, SIDES = WIDTH / COLUMNS;  // a warp has 16 keys, and so many columns
    static constexpr u32 PARTS = WORKER_WARPS / SIDES;
    static constexpr u32 QUADS = WIDTH / 4, LANE_QUADS = Products::PART / 2;     // fours of columns: of a row; of a lane
    static constexpr u32 ROW_THREADS = WORKER_THREADS / FEW_ROWS, OWN = WIDTH / ROW_THREADS;  // that finish a row; columns of each
    static constexpr u32 SUMS_BYTES = PARTS * FEW_ROWS * WIDTH * 4, SCRATCH = SUMS_BYTES + FEW_ROWS * PARTS * sizeof(float2);
    static_assert(SCRATCH > STAGING_BYTES, "it is in the ring: LastScratch releases a stage");

    // Of the present work and its only tile of this block, which are read anew: passed on, they would be in local memory while keys
    // take all registers.
    static DEV_CALL void run() {
        const Block block;
        const Work& work = Kept::shared().works[Kept::taken() % WORKS];
        const AttentionArgs& args = AttentionArgs::of(work);
        const FewQueries& few = FewQueries::of(work);
        const FewQueriesTile tile(few, Kept::place().tile, args.q().dims[2], WIDTH, WIDTH);
        const u32 lane = block.lane(), g = lane / 4, t = lane % 4, part = block.warp() / SIDES, side = block.warp() % SIDES;
        const u32 keys = args.k().dims[2], key = part * STEP_KEYS;
        const HeldLines deep(args.k(), tile.base(args.k(), tile.key_head), t), queries(args.q(), tile.base(args.q(), tile.head), t);
        const HeldLines values(args.v(), tile.base(args.v(), tile.key_head) + side * COLUMNS + g * Products::PART, 0);
        const HeldRows rows(args, few, tile, g);
        const char* query_at[2] = {queries.base + rows.query[0], queries.base + rows.query[1]};
        // Lines past the last key are that key once more: their scores are hidden.
        const char *key_at[2], *value_at[4];
#pragma unroll
        for (u32 j = 0; j < 2; ++j) key_at[j] = deep.at(min(key + g + 8 * j, keys - 1));
#pragma unroll
        for (u32 j = 0; j < 4; ++j) value_at[j] = values.at(min(key + 2 * t + j % 2 + j / 2 * 8, keys - 1));
        f32 limits[2][4];  // of scores: below all of them where a key is hidden
#pragma unroll
        for (u32 j = 0; j < 2; ++j)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const i32 at = static_cast<i32>(key + 2 * t + 8 * j + e % 2);
                limits[j][e] = at >= rows.first[e / 2] && at < rows.behind[e / 2] ? infinity() : -infinity();
            }
        const f32 scale = few.scale * LOG2_E;
        const Finish finish(args, few, tile, block);
        const LastScratch last;
        hold_all(query_at, key_at, value_at, limits, finish.to, last.done, last.empty);
        if (!block.begin()) return;
        Deep q, k;
        Values v;
#pragma unroll
        for (u32 j = 0; j < 2; ++j)
#pragma unroll
            for (u32 i = 0; i < WIDTH / 32; ++i) {
                q[j][i] = queries.load(query_at[j], 4 * i);
                k[j][i] = deep.load(key_at[j], 4 * i);
            }
#pragma unroll
        for (u32 j = 0; j < 4; ++j) v[j] = COLUMNS == 64 ? values.load(value_at[j], 0) : values.load_half(value_at[j]);
        f32 scores[2][4] = {};
        Products::multiply_keys(scores, q, k);
        f32 top[2], total[2];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 j = 0; j < 2; ++j)
#pragma unroll
                for (u32 e = 2 * half; e < 2 * half + 2; ++e) scores[j][e] = fminf(scores[j][e] * scale, limits[j][e]);
            top[half] = fmaxf(fmaxf(scores[0][2 * half], scores[0][2 * half + 1]), fmaxf(scores[1][2 * half], scores[1][2 * half + 1]));
        }
        fold(top, [](f32 a, f32 b) { return fmaxf(a, b); });
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const f32 base = above_none(top[half]);
#pragma unroll
            for (u32 j = 0; j < 2; ++j)
#pragma unroll
                for (u32 e = 2 * half; e < 2 * half + 2; ++e) scores[j][e] = fast_exp2(scores[j][e] - base);
            total[half] = (scores[0][2 * half] + scores[0][2 * half + 1]) + (scores[1][2 * half] + scores[1][2 * half + 1]);
        }
        fold(total, [](f32 a, f32 b) { return a + b; });
        Sums sums = {};
        Products::multiply_values(sums, scores, v);
        keep(block.scratch(), sums, top, total, part, side, g, t);
        block.sync();
        finish.run(block.scratch());
        last.end();
    }

  private:
    // Over the four lanes that have a row.
    template <class F> static DEV void fold(f32 (&v)[2], F f) {
#pragma unroll
        for (u32 step = 1; step < 4; step *= 2)
#pragma unroll
            for (u32 half = 0; half < 2; ++half) v[half] = f(v[half], __shfl_xor_sync(0xffffffffu, v[half], step));
    }
    // No score at all counts as a top of 0.
    static DEV f32 above_none(f32 top) { return top == -infinity() ? 0.0f : top; }
    // Where four columns of a row of a part lie: in whatever order warps write and read them, not in the same banks.
    static DEV u32 place(u32 part, u32 row, u32 quad) {
        return ((part * FEW_ROWS + row) * QUADS + (quad ^ ((quad / LANE_QUADS ^ row) & (LANE_QUADS - 1)))) * 16;
    }
    static DEV float2* tails(char* scratch, u32 row) { return reinterpret_cast<float2*>(scratch + SUMS_BYTES) + row * PARTS; }

    // A warp's results: sums, and each row's maximum and denominator.
    static DEV void keep(char* scratch, const Sums& sums, const f32 (&top)[2], const f32 (&total)[2], u32 part, u32 side, u32 g, u32 t) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = g + 8 * half;
            if (t == 0 && side == 0) tails(scratch, row)[part] = make_float2(top[half], total[half]);
#pragma unroll
            for (u32 i = 0; i < LANE_QUADS; ++i) {
                const u32 n = 2 * half + i * 4 / Products::PART, j = i * 4 % Products::PART;
                *reinterpret_cast<float4*>(scratch + place(part, row, side * (COLUMNS / 4) + t * LANE_QUADS + i)) =
                    make_float4(sums[j][n], sums[j + 1][n], sums[j + 2][n], sums[j + 3][n]);
            }
        }
    }

    // What a thread finishes of a tile: OWN neighbouring columns of a row. Where they go is known before they are.
    struct Finish {
        char* to;  // null: there is no such row
        u32 row, column;
        bool lse;

        DEV Finish(const AttentionArgs& args, const FewQueries& few, const FewQueriesTile& tile, const Block& block)
            : row(block.thread() / ROW_THREADS), column(block.thread() % ROW_THREADS * OWN) {
            const Tensor& out = args.out();
            const FewQueriesRow at(few, tile.row + row, out.dims[2]);
            char* const p = element(out, tile.base(out, tile.head + at.head) + at.query * out.strides[2] + column);
            to = row < tile.rows && range_in_bounds(out, p, OWN * 2) ? p : nullptr;
            lse = args.has_lse() && column == 0 && row < tile.rows;
        }
        // In the order of the keys.
        DEV void run(char* scratch) const {
            f32 top = -infinity(), total = 0.0f, v[OWN] = {}, weights[PARTS];
            float2 tail[PARTS];
#pragma unroll
            for (u32 p = 0; p < PARTS; ++p) tail[p] = tails(scratch, row)[p];
#pragma unroll
            for (u32 p = 0; p < PARTS; ++p) top = fmaxf(top, tail[p].x);
            const f32 base = above_none(top);
#pragma unroll
            for (u32 p = 0; p < PARTS; ++p) {
                weights[p] = fast_exp2(tail[p].x - base);
                total = fmaf(tail[p].y, weights[p], total);
                const f32* const from = reinterpret_cast<const f32*>(scratch + place(p, row, column / 4)) + column % 4;
                if constexpr (OWN == 2) {
                    const float2 pair = *reinterpret_cast<const float2*>(from);
                    v[0] = fmaf(pair.x, weights[p], v[0]);
                    v[1] = fmaf(pair.y, weights[p], v[1]);
                } else {
#pragma unroll
                    for (u32 i = 0; i < OWN; i += 4) {
                        const float4 four = *reinterpret_cast<const float4*>(scratch + place(p, row, (column + i) / 4));
                        v[i] = fmaf(four.x, weights[p], v[i]);
                        v[i + 1] = fmaf(four.y, weights[p], v[i + 1]);
                        v[i + 2] = fmaf(four.z, weights[p], v[i + 2]);
                        v[i + 3] = fmaf(four.w, weights[p], v[i + 3]);
                    }
                }
            }
            const f32 inverse = total == 0.0f ? 0.0f : fast_reciprocal(total);
            u32 words[OWN / 2];
#pragma unroll
            for (u32 i = 0; i < OWN; i += 2) words[i / 2] = T::pack(v[i] * inverse, v[i + 1] * inverse);
            if (to) {
                if constexpr (OWN == 2) *reinterpret_cast<u32*>(to) = words[0];
                else if constexpr (OWN == 4) *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
                else *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
            }
            if (lse) keep_lse(top * (1.0f / LOG2_E), total);
        }
        // Looked up anew: few instructions have it.
        DEV_CALL void keep_lse(f32 top, f32 total) const {
            const Work& work = Kept::shared().works[Kept::taken() % WORKS];
            const AttentionArgs& args = AttentionArgs::of(work);
            const FewQueriesTile tile(FewQueries::of(work), Kept::place().tile, args.q().dims[2], WIDTH, WIDTH);
            const FewQueriesRow at(FewQueries::of(work), tile.row + row, args.q().dims[2]);
            const Tensor& lse = args.lse();
            store_lse(lse, tile.base(lse, tile.head + at.head) + at.query * lse.strides[2], top, total);
        }
    };
};
