// Products of f32 on wgmma, as tf32, whose b lies across. From shared memory, tensor cores take f32 only with neighbours along the
// depth; but the operand on the left may also come from registers, and so from wherever it lies. So b.T times a.T is worked
// out, whose sums are the result's, transposed, and nothing has to be turned around.
#pragma once
#ifdef HOPPER
#include "hopper/gemm.cuh"

// A warp's part of the left operand in a stage: 16 rows by 8 of the depth for each product, as mma.sync has it: depth lane % 4,
// and 4 more; rows 2 (lane / 4), and the next one, where mma.sync has lane / 4, and 8 more.
struct AcrossPart {
    static constexpr u32 PRODUCTS = SQUARE / 8;
    u32 words[PRODUCTS][4];

    // Where the lane's rows are in the squares of a stage, whose lines are swizzled. Of the four depths that lanes ask for at
    // once, two come from the upper half of the eight: so all are in different banks.
    DEV static u32 place(u32 warp, u32 lane) {
        const u32 row = warp % 4 * 16 + lane / 4 * 2, depth = lane % 4 + lane % 2 * 4;
        return row / SQUARE * SQUARE_BYTES + depth * LINE_BYTES + (row % SQUARE / 4 ^ depth) * 16 + row % 4 * 4;
    }
    // From `place` on; `other`: the same in the other half of the eight.
    DEV void fetch(u32 place, u32 other, bool odd) {
#pragma unroll
        for (u32 i = 0; i < PRODUCTS; ++i) {
            u32 v[2][2];
            load_shared_2(v[0], place + i * 8 * LINE_BYTES);
            load_shared_2(v[1], other + i * 8 * LINE_BYTES);
#pragma unroll
            for (u32 j = 0; j < 2; ++j) {
                words[i][j] = odd ? v[1][j] : v[0][j];
                words[i][2 + j] = odd ? v[0][j] : v[1][j];
            }
        }
    }
};
constexpr u32 TF32_TURN = FIRST_FREE_BARRIER;          // and one more: the warpgroup whose turn it is
static_assert(TF32_TURN % 2 == 0, "the other one's is turn ^ 1");
constexpr u32 OTHER_HALF = 4 * LINE_BYTES + 4 * 16;  // from depth d to d ^ 4, by XOR

// sums = a * b as `multiply` says, with rows as AcrossPart says. A warpgroup waits for its products before it fetches more, since
// a second set of registers would be too many for the kernel. Meanwhile the other one's are under way: they take turns at starting
// products, or both would fetch, and then multiply, at the same time.
template <u32 COLUMNS> DEV void multiply_across(f32 (&sums)[SUMS], const TileLayout& layout, u32 stages, Workers& me) {
    using Product = Wgmma<Tf32, COLUMNS, false, false>;
    clear(sums);
    const u32 place = AcrossPart::place(me.warp(), me.lane()), turn = TF32_TURN + me.warp() / 4;
    const bool odd = me.lane() % 2 != 0;
    if (turn != TF32_TURN) named_barrier_arrive(TF32_TURN, WORKER_THREADS);
#pragma unroll 1
    for (; stages != 0; --stages) {
        Stage stage;
        const u32 at = me.next(stage, layout.granules), a = at + layout.left_offset, b = descriptor_low(at + layout.right_offset, 0);
        me.wait(stage, layout.kind);
        AcrossPart part;
        part.fetch(a + place, a + (place ^ OTHER_HALF), odd);
        named_barrier(turn, WORKER_THREADS);
        warpgroup_fence();
#pragma unroll
        for (u32 i = 0; i < AcrossPart::PRODUCTS; ++i) Product::multiply(sums, part.words[i], matrix_descriptor(b + (i * 32 >> 4)));
        warpgroup_commit();
        if (turn == TF32_TURN || stages != 1) named_barrier_arrive(turn ^ 1, WORKER_THREADS);
        warpgroup_wait<0>();
        me.release(stage, layout.kind);
    }
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; ++i) pin(sums[i]);
}

// Products whose sums are the result's, transposed.
struct HopperTf32 {
    static DEV bool runs(const Work& w) { return HopperProducts(w).has(TRANSPOSED); }

    static DEV void run(Workers& me) {
        me.wait_placed();
        for (u32 item = me.work().first_tile; item < me.work().tiles; item = Kept::place().tile + gridDim.x) {
            __syncwarp();  // every lane has read which tile was the last one
            Kept::place().tile = item;
            f32 sums[SUMS];
            if (!multiply_item(sums, me)) return;
            const u32 pieces = WarpPart::width_of(HopperProducts(me.work()), me.warp()) / ROWS;
#pragma unroll
            for (u32 i = 0; i < SUMS / SOME; ++i) {
                if (i == pieces) break;
                SomeSums piece;
#pragma unroll
                for (u32 k = 0; k < SOME; ++k) piece.v[k] = sums[i * SOME + k];
                finish_piece(piece, i);
            }
        }
    }

  private:
    // What goes to the result at a time: 32 rows of 16 columns.
    static constexpr u32 SOME = 16, ROWS = 32;
    struct SomeSums {
        f32 v[SOME];
    };

    // False if the run is over.
    static DEV bool multiply_item(f32 (&sums)[SUMS], Workers& me) {
        const HopperProducts p(me.work());
        const ProductTiles tiles = p.tiles();
        const ProductItem at = p.item(Kept::place().tile);
        const WarpPart part(p, at, me.warp());
        const TileLayout layout = p.layout(me.warp() / 4);
        keep_place(tiles, at, part);
        if (Kept::place().tile == p.work.first_tile && !me.wait_ready()) return false;
        switch (part.width) {
            case 64: multiply_across<64>(sums, layout, at.stages, me); break;
            case 128: multiply_across<128>(sums, layout, at.stages, me); break;
            default: multiply_across<256>(sums, layout, at.stages, me); break;
        }
        return true;
    }

    // Takes piece `index` of the warp's part of the tile to the result. A call, as HopperGemm has one; its own, because a call takes
    // no register that any of its callers keeps something in.
    static DEV_CALL void finish_piece(SomeSums sums, u32 index) {
        const Workers me;
        const HopperProducts p(me.work());
        const ProductArgs args(p.work);
        const u32 lane = me.lane();
        const volatile auto& kept = Kept::place().product;
        const u32 batch = kept.batch, rows = kept.columns, row = kept.column + index * ROWS + 2 * (lane % 4);
        const Piece<true> at{batch * rows + row, (batch + 1) * rows, kept.row + 2 * (lane / 4), kept.rows};
        const f32 alpha = args.alpha();
        f32 v[SOME];
#pragma unroll
        for (u32 k = 0; k < SOME; ++k) v[k] = alpha * sums.v[k / 4 * 4 + k % 2 * 2 + k / 2 % 2];
        if (args.has_c()) combine_piece(v, args.c(), at, false, args.beta());
        finish_steps(v, args, at, 0);
        store_piece_32(v, args.out(), at);
    }
};
#endif
