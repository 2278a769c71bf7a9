// Products of tiles of 128 x 256 whose results the copy engine takes to memory, while the next tile's products are under way. What
// tensor cores wait for is what lies between two main loops, at about five clocks for each instruction: so all here is of one
// shape, what does not depend on the tile is in registers, and where the tile lies the loader has worked out already.
//
// A stage has one slice. Rows of the result lie at one distance and are made of whole chunks of 16 bytes; a bias of 16 bits, and relu
// or gelu behind it, are all that may happen to sums. The host says so: in_boxes in paths/tilings.py, is_in_boxes in paths/epilogue.py.
#pragma once
#ifdef HOPPER
#include "hopper/gemm.cuh"

constexpr u32 BOX_ROWS = 128, BOX_COLUMNS = 256;  // of a tile
constexpr u32 BOX_GRANULES = (BOX_ROWS + BOX_COLUMNS) * LINE_BYTES / GRANULE_BYTES;  // of a stage
constexpr u32 BOX_PIECES = SUMS / PIECE_SUMS, BOXES_AT_ONCE = 2;  // of a warp
constexpr u32 BOX_BYTES = PIECE_ROWS * LINE_BYTES;
static_assert(BOX_PIECES == 2 * BOXES_AT_ONCE, "finish has two turns");

struct HopperBoxes {
    static DEV bool runs(const Work& w) { return HopperProducts(w).has(OUT_IN_BOXES); }

    static DEV void run(Workers& me) {
        me.wait_placed();
        if (me.work().first_tile >= me.work().tiles) return;
        const u32 kind = HopperProducts(me.work()).in_pairs() ? SHARED_STAGES : OWN_STAGES, what = HopperProducts(me.work()).schedule().what;
        u32 left = (me.work().tiles - me.work().first_tile - 1) / gridDim.x;  // tiles behind the present one
        f32 sums[SUMS];
        clear<BOX_COLUMNS>(sums);
        EarlyBias bias{};
        for (bool first = true;; first = false) {
            if (first && !me.wait_ready()) return;
            const ProductCorner corner = me.corner(BOX_GRANULES, kind);
            const ProductArgs args(me.work());
            if (what & Lines::BIAS) bias.fetch(args.bias(), corner.column(), args.columns(), me.lane());
            multiply_any(sums, kind, !first, me);
            finish(sums, bias, what, corner, me);
            if (left == 0) break;
            left -= 1;
        }
        bulk_wait();
        me.release(Stage{me.place.sequence - 1, 0}, kind);
    }

  private:
    static DEV void multiply_any(f32 (&sums)[SUMS], u32 kind, bool kept, Workers& me) {
        const ProductSchedule& s = HopperProducts(me.work()).schedule();
        const u32 stages = s.stages;
        switch (s.flags & (A_ACROSS | B_ACROSS | HALF_FLOATS)) {
            case 0: multiply<Bf16, false, false>(sums, stages, kind, kept, me); break;
            case B_ACROSS: multiply<Bf16, false, true>(sums, stages, kind, kept, me); break;
            case A_ACROSS: multiply<Bf16, true, false>(sums, stages, kind, kept, me); break;
            case A_ACROSS | B_ACROSS: multiply<Bf16, true, true>(sums, stages, kind, kept, me); break;
            case HALF_FLOATS: multiply<F16, false, false>(sums, stages, kind, kept, me); break;
            case HALF_FLOATS | B_ACROSS: multiply<F16, false, true>(sums, stages, kind, kept, me); break;
            case HALF_FLOATS | A_ACROSS: multiply<F16, true, false>(sums, stages, kind, kept, me); break;
            default: multiply<F16, true, true>(sums, stages, kind, kept, me); break;
        }
    }

    // sums = a * b. The last stage is not released: the result is put there. `kept`: so is that of the tile before still, in front
    // of these.
    template <class T, bool A_ACROSS, bool B_ACROSS> static DEV void multiply(f32 (&sums)[SUMS], u32 stages, u32 kind, bool kept, Workers& me) {
        constexpr u32 A_STEP = (A_ACROSS ? STEP_DEPTH * LINE_BYTES : STEP_DEPTH * 2) >> 4;  // in 16 bytes
        constexpr u32 B_STEP = (B_ACROSS ? STEP_DEPTH * LINE_BYTES : STEP_DEPTH * 2) >> 4;
        using Product = Wgmma<T, BOX_COLUMNS, A_ACROSS, B_ACROSS>;
        const u32 left = me.warp() / 4 * GRANULE_BYTES;
#pragma unroll 1
        for (u32 i = 0; i < stages; ++i) {
            Stage stage;
            const u32 address = me.next(stage, BOX_GRANULES);
            const u32 a = descriptor_low(address + left, GRANULE_BYTES), b = descriptor_low(address + BOX_ROWS * LINE_BYTES, GRANULE_BYTES);
            me.wait(stage, kind);
            warpgroup_fence();
            Product::multiply_if(sums, matrix_descriptor(a), matrix_descriptor(b), i);
#pragma unroll
            for (u32 step = 1; step < DEPTH / STEP_DEPTH; ++step)
                Product::multiply(sums, matrix_descriptor(a + step * A_STEP), matrix_descriptor(b + step * B_STEP));
            warpgroup_commit();
            warpgroup_wait<1>();
            if (i == 0) continue;
            if (i == 1 && kept) {
                bulk_wait_read();
                me.release(Stage{me.place.sequence - 3, 0}, kind);
            }
            me.release(Stage{me.place.sequence - 2, 0}, kind);
        }
        if (stages == 1 && kept) {
            bulk_wait_read();
            me.release(Stage{me.place.sequence - 2, 0}, kind);
        }
        warpgroup_wait<0>();
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) pin(sums[i]);
    }

    // Takes the sums to the result, half of them at a time: the less code, the less comes from memory when it is first needed. The
    // first piece leaves from the warp's staging, the others from the tile's last stage, once all products are done with it.
    static DEV void finish(f32 (&sums)[SUMS], EarlyBias& bias, u32 what, const ProductCorner& corner, const Workers& me) {
        const u32 row = corner.row() + me.warp() * PIECE_ROWS, granule = me.place.granule - BOX_GRANULES;
        u32 first = me.staging(), second = shared_address(shared_memory) + granule * GRANULE_BYTES + me.warp() * (BOX_PIECES - 1) * BOX_BYTES;
#pragma unroll 1
        for (u32 turn = 0; turn < BOX_PIECES / BOXES_AT_ONCE; ++turn) {
            if (what & Lines::BIAS) {
#pragma unroll
                for (u32 i = 0; i < BOXES_AT_ONCE; ++i) bias.add(piece_of(sums, i), i, what & Lines::HALF ? DTYPE_F16 : DTYPE_BF16, me.lane());
            }
            if (what & Lines::ACT) activate(sums, what & Lines::ACT);
            if (what & Lines::HALF) pack<true>(sums, first, second, turn == 0, me);
            else pack<false>(sums, first, second, turn == 0, me);
            fence_proxy_shared();
            __syncwarp();
            if (elect_one()) {
                const void* const map = HopperProducts(me.work()).map(HopperProducts(me.work()).schedule().out_map);
                const u32 column = corner.column() + turn * BOXES_AT_ONCE * PIECE_COLUMNS;
                tensor_store_2d(map, first, column, row);
                tensor_store_2d(map, second, column + PIECE_COLUMNS, row);
                bulk_commit();
            }
            first = second + BOX_BYTES;
            second = first + BOX_BYTES;
#pragma unroll
            for (u32 k = 0; k < SUMS / 2; ++k) sums[k] = sums[k + SUMS / 2];
#pragma unroll
            for (u32 i = 0; i < BOXES_AT_ONCE; ++i) bias.words[i] = bias.words[i + BOXES_AT_ONCE];
        }
    }

    static DEV void activate(f32 (&sums)[SUMS], u32 kind) {
        if (kind == ACT_RELU) {
#pragma unroll
            for (u32 k = 0; k < BOXES_AT_ONCE * PIECE_SUMS; ++k) sums[k] = sums[k] <= 0.0f ? 0.0f : sums[k];  // NaN stays
        } else {
            const GeluFit gelu = gelu_fit(kind);
#pragma unroll
            for (u32 k = 0; k < BOXES_AT_ONCE * PIECE_SUMS; ++k) sums[k] = gelu(sums[k]);
        }
    }

    // The first two pieces of `sums`. `meet`: the workers are to be done with all products before the second.
    template <bool HALF> static DEV void pack(f32 (&sums)[SUMS], u32 first, u32 second, bool meet, const Workers& me) {
        const u32 lane = me.lane();
        pack_piece<HALF>(piece_of(sums, 0), first, lane);
        if (meet) me.sync();
        pack_piece<HALF>(piece_of(sums, 1), second, lane);
    }

    // 16 lines of 128 bytes, whose chunks are permuted by the line, from `to` on.
    template <bool HALF> static DEV void pack_piece(const f32 (&v)[PIECE_SUMS], u32 to, u32 lane) {
        const u32 line = lane % 8, mine = to + line * LINE_BYTES + ((lane / 8 ^ line) * CHUNK_BYTES);
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 j = 0; j < 8; j += 4) {
                u32 words[4];
#pragma unroll
                for (u32 k = 0; k < 4; ++k) {
                    const f32 low = v[(j + k) * 4 + half * 2], high = v[(j + k) * 4 + half * 2 + 1];
                    words[k] = HALF ? pack_f16(low, high) : pack_bf16(low, high);
                }
                store_matrix_x4((mine ^ j * CHUNK_BYTES) + half * HALF_BYTES, words[0], words[1], words[2], words[3]);
            }
        }
    }
};
#endif
