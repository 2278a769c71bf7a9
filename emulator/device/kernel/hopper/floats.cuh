// Products of f32 as they are, by multiply-add, over the stages that products on wgmma have. Their sums go through scratch
// memory, from where the epilogue gets them as it wants them.
#pragma once
#ifdef HOPPER
#include "hopper/gemm.cuh"

// A lane's share of a product of 16 rows, which a warp has, and COLUMNS: two fours of rows, 8 apart, by fours of columns, 64
// apart. Lanes are two down and 16 across. Both operands lie across, in squares, so that a four is one access, and all fours
// of a line are in different banks. A sum is sums[four of columns][row][column].
template <u32 COLUMNS> struct FloatShare {
    static constexpr u32 FOURS = COLUMNS / PIECE_COLUMNS;  // of columns
    using Four = f32[4];

    Four left[2][2], right[FOURS];

    DEV static void fetch(Four& to, u32 from) {
        const uint4 v = load_shared_16(from);
        to[0] = __uint_as_float(v.x);
        to[1] = __uint_as_float(v.y);
        to[2] = __uint_as_float(v.z);
        to[3] = __uint_as_float(v.w);
    }
    DEV void fetch_left(u32 set, u32 a) {
        fetch(left[set][0], a);
        fetch(left[set][1], a + HALF_ROWS * 4);
    }
    DEV void fetch_right(u32 q, u32 b) { fetch(right[q], b + q * (PIECE_COLUMNS / SQUARE * SQUARE_BYTES)); }
    // Adds the products of a four of columns, to and fro, so that one factor stays for the next multiplication.
    DEV void multiply(f32 (&sums)[SUMS], u32 set, u32 q) const {
#pragma unroll
        for (u32 i = 0; i < 8; ++i)
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                const u32 j = i % 2 ? 3 - n : n;
                f32& sum = sums[q * PIECE_SUMS + i * 4 + j];
                sum = fmaf(left[set][i / 4][i % 4], right[q][j], sum);
            }
    }
    // Goes on to the next line, whose fours take the place of those that are used up; at the last line, `more` is false.
    DEV void step(f32 (&sums)[SUMS], u32 set, u32 a, u32 b, bool more) {
        if (more) fetch_left(set ^ 1, a);
#pragma unroll
        for (u32 q = 0; q < FOURS; ++q) {
            multiply(sums, set, q);
            if (more) fetch_right(q, b);
        }
    }
};

// Writes a warp's sums to shared memory, rows `pitch` f32 apart.
template <u32 COLUMNS> DEV void put_fours(const f32 (&sums)[SUMS], u32 corner, u32 pitch, u32 lane) {
#pragma unroll
    for (u32 k = 0; k < COLUMNS / PIECE_COLUMNS * PIECE_SUMS; k += 4) {
        const u32 i = k % PIECE_SUMS / 4, row = i / 4 * HALF_ROWS + lane / 16 * 4 + i % 4;
        const u32 to = corner + (row * pitch + k / PIECE_SUMS * PIECE_COLUMNS + lane % 16 * 4) * 4;
        store_shared(to, make_uint4(__float_as_uint(sums[k]), __float_as_uint(sums[k + 1]), __float_as_uint(sums[k + 2]),
                                    __float_as_uint(sums[k + 3])));
    }
}

// sums = a * b over `stages` stages, as FloatShare says. What is not needed inside of a stage is worked out
// anew for each: sums and factors take most registers.
template <u32 COLUMNS> DEV void multiply_floats(f32 (&sums)[SUMS], u32 stages, Workers& me) {
    // The next stage, once its operands are there, and this warp's share of it turned to lie across.
    const auto arrive = [&]() {
        const HopperProducts p(me.work());
        Stage stage;
        const u32 at = me.next(stage, p.granules());
        me.wait(stage);
        turn_squares<false>(p.turned(), at, me.warp(), me.lane());
        fence_proxy_shared();  // copies follow where the warp has written
        return at;
    };
#pragma unroll
    for (u32 i = 0; i < SUMS; ++i) sums[i] = 0.0f;
    u32 at = arrive();
    me.sync();
#pragma unroll 1
    do {
        const u32 present = me.place.sequence - 1, next = stages > 1 ? arrive() : at;
        const TileLayout layout = HopperProducts(me.work()).layout(me.warp() / 4);
        const u32 lane = me.lane(), row = me.warp() % 4 * PIECE_ROWS + lane / 16 * 4;
        u32 a = at + layout.left_offset + row / SQUARE * SQUARE_BYTES + row % SQUARE * 4;
        u32 b = at + layout.right_offset + lane % 16 / 8 * SQUARE_BYTES + lane % 8 * 16;
        FloatShare<COLUMNS> share;
        share.fetch_left(0, a);
#pragma unroll
        for (u32 q = 0; q < share.FOURS; ++q) share.fetch_right(q, b);
#pragma unroll 1
        for (u32 k = 2; k <= SQUARE; k += 2) {
            share.step(sums, 0, a + LINE_BYTES, b + LINE_BYTES, true);
            a += 2 * LINE_BYTES;
            b += 2 * LINE_BYTES;
            share.step(sums, 1, a, b, k != SQUARE);
        }
        me.release(Stage{present, 0});
        me.sync();  // all have turned their share of the next stage
        at = next;
    } while (--stages != 0);
}

struct HopperFloats {
    static DEV bool runs(const Work& w) { return HopperProducts(w).has(EXACT); }

    // A call: next to sums that wgmma writes in the background, no others can be in the registers.
    static DEV_CALL void run() {
        Workers me;
        me.wait_placed();
        if (!me.wait_ready()) return;
        for (u32 item = me.work().first_tile; item < me.work().tiles; item = Kept::place().tile + gridDim.x) {
            __syncwarp();  // every lane has read which tile was the last one
            Kept::place().tile = item;
            const HopperProducts p(me.work());
            if (p.beside() || p.schedule().tile_columns == 128) run_tile_of<128>(p.schedule().stages, me);
            else run_tile_of<256>(p.schedule().stages, me);
        }
    }

  private:
    template <u32 COLUMNS> static DEV void run_tile_of(u32 stages, Workers& me) {
        f32 sums[SUMS];
        multiply_floats<COLUMNS>(sums, stages, me);
        const auto put = [&](u32 corner, u32 pitch, u32) { put_fours<COLUMNS>(sums, corner, pitch, me.lane()); };
        if (HopperProducts(me.work()).has(BY_PIECES)) finish_by_pieces(me, put);
        else finish_in_scratch(me, put);
    }

    // Each warp its own part of the tile: nobody else is waited for.
    template <class Put> static DEV void finish_by_pieces(Workers& me, Put put) {
        const ScratchPart scratch(me);
        put(scratch.corner, scratch.pitch, scratch.part.width);
        keep_place(HopperProducts(me.work()).tiles(), scratch.at, scratch.part);
        __syncwarp();
        const u32 lane = me.lane(), from = scratch.corner + (lane / 4 * scratch.pitch + lane % 4 * 2) * 4;
#pragma unroll 1
        for (u32 i = 0; i < scratch.part.width / PIECE_COLUMNS; ++i) {
            PieceSums sums;
#pragma unroll
            for (u32 j = 0; j < PIECE_SUMS / 2; ++j) {
                const u32 row = j % 2 * HALF_ROWS, column = i * PIECE_COLUMNS + j / 2 * 8;
                f32 pair[2];
                load_shared_2(pair, from + (row * scratch.pitch + column) * 4);
                sums.v[2 * j] = pair[0];
                sums.v[2 * j + 1] = pair[1];
            }
            HopperGemm::finish_piece(sums, i);
        }
        me.release(scratch.stage);
    }
};
#endif
