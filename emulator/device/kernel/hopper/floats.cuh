// Products of f32 as they are, by multiply-add, over the stages that products on wgmma have. Their sums go through scratch
// memory, from where the epilogue gets them as it wants them.
#pragma once
#ifdef HOPPER
#include "hopper/gemm.cuh"

// A lane's share of a product of 16 rows, which a warp has, and COLUMNS: two fours of rows, 8 apart, by fours of columns, 64
// apart. Lanes are two down and 16 across. Both operands lie across, in squares, so that a four is one access, and all fours
// of a line are in different banks. A sum is sums[four of columns][row][column].
//
// Of a line of both operands, as for all of the depth, there are two sets: while one is multiplied, the other is on its way.
template <u32 COLUMNS> struct FloatShare {
    static constexpr u32 FOURS = COLUMNS / PIECE_COLUMNS;  // of columns
    using Four = f32[4];

    Four left[2][2], right[2][FOURS];

    DEV static void fetch(Four& to, u32 from) {
        const uint4 v = load_shared_16(from);
        to[0] = __uint_as_float(v.x);
        to[1] = __uint_as_float(v.y);
        to[2] = __uint_as_float(v.z);
        to[3] = __uint_as_float(v.w);
    }
    DEV void fetch_line(u32 set, u32 a, u32 b) {
#pragma unroll
        for (u32 q = 0; q < FOURS; ++q) fetch(right[set][q], b + q * (PIECE_COLUMNS / SQUARE * SQUARE_BYTES));
        fetch(left[set][0], a);
        fetch(left[set][1], a + HALF_ROWS * 4);
    }
    // Adds the products of a line, row by row, to and fro, so that one factor stays for the next multiplication.
    DEV void multiply(f32 (&sums)[SUMS], u32 set) const {
#pragma unroll
        for (u32 i = 0; i < 8; ++i)
#pragma unroll
            for (u32 n = 0; n < 4 * FOURS; ++n) {
                const u32 j = i % 2 ? 4 * FOURS - 1 - n : n;
                f32& sum = sums[j / 4 * PIECE_SUMS + i * 4 + j % 4];
                sum = fmaf(left[set][i / 4][i % 4], right[set][j / 4][j % 4], sum);
            }
    }
};

// Writes a warp's sums to shared memory, rows `pitch` f32 apart. A four of sums has to lie in registers in the order in which
// it is written, and a factor's as it is read. If both were the same order, each multiply-add would ask one bank of registers
// for two of them; so sums are written in another order, and put right there.
template <u32 COLUMNS> DEV void put_fours(const f32 (&sums)[SUMS], u32 corner, u32 pitch, u32 lane) {
    const auto place = [&](u32 k) {
        const u32 i = k % PIECE_SUMS / 4, row = i / 4 * HALF_ROWS + lane / 16 * 4 + i % 4;
        return corner + (row * pitch + k / PIECE_SUMS * PIECE_COLUMNS + lane % 16 * 4) * 4;
    };
#pragma unroll
    for (u32 k = 0; k < COLUMNS / PIECE_COLUMNS * PIECE_SUMS; k += 4) {
        store_shared(place(k), make_uint4(__float_as_uint(sums[k + 1]), __float_as_uint(sums[k + 2]), __float_as_uint(sums[k + 3]),
                                          __float_as_uint(sums[k])));
    }
#pragma unroll 1
    for (u32 k = 0; k < COLUMNS / PIECE_COLUMNS * PIECE_SUMS; k += 4) {
        const uint4 v = load_shared_16(place(k));
        store_shared(place(k), make_uint4(v.w, v.x, v.y, v.z));
    }
}

// The stages of a tile. Where they are is kept in shared memory: sums and factors take most registers.
struct FloatStages {
    // The next stage, once its operands are there, and this warp's share of it turned to lie across.
    DEV static void arrive() {
        Workers me;
        volatile WorkerPlace& kept = Kept::place();
        me.place = RingPlace{kept.sequence, kept.granule};
        const HopperProducts p(me.work());
        Stage stage;
        const u32 at = me.next(stage, p.granules());
        me.wait(stage);
        turn_across(p.turned(), at, me);
        fence_proxy_shared();  // copies follow where the warp has written
        __syncwarp();
        kept.sequence = me.place.sequence;
        kept.granule = me.place.granule;
    }
    // Where the last one that arrived lies.
    DEV static u32 last() {
        const Workers me;
        return shared_address(shared_memory) + (Kept::place().granule - HopperProducts(me.work()).granules()) * GRANULE_BYTES;
    }
};

// sums = a * b over `stages` stages, as FloatShare says.
template <u32 COLUMNS> DEV void multiply_floats(f32 (&sums)[SUMS], u32 stages, Workers& me) {
    constexpr u32 AT_ONCE = 2;  // lines, in one piece of code: more take more registers
    Kept::place().sequence = me.place.sequence;
    Kept::place().granule = me.place.granule;
    Kept::place().floats.stages = stages;
    clear(sums);
    FloatStages::arrive();
    me.sync();
    for (;;) {
        Kept::place().floats.at = FloatStages::last();
        if (Kept::place().floats.stages > 1) FloatStages::arrive();
        const TileLayout layout = HopperProducts(me.work()).layout(me.warp() / 4);
        const u32 lane = me.lane(), row = me.warp() % 4 * PIECE_ROWS + lane / 16 * 4, at = Kept::place().floats.at;
        u32 a = at + layout.left_offset + row / SQUARE * SQUARE_BYTES + row % SQUARE * 4;
        u32 b = at + layout.right_offset + lane % 16 / 8 * SQUARE_BYTES + lane % 8 * 16;
        FloatShare<COLUMNS> share;
        share.fetch_line(0, a, b);
#pragma unroll 1
        for (u32 line = AT_ONCE; line <= SQUARE; line += AT_ONCE) {
            // Behind the last line there is nothing to ask for; an answer from anywhere costs less than a branch.
            const u32 more = line == SQUARE ? 0 : AT_ONCE * LINE_BYTES;
#pragma unroll
            for (u32 k = 1; k <= AT_ONCE; ++k) {
                share.fetch_line(k % 2, k == AT_ONCE ? a + more : a + k * LINE_BYTES, k == AT_ONCE ? b + more : b + k * LINE_BYTES);
                share.multiply(sums, (k - 1) % 2);
            }
            a += more;
            b += more;
        }
        const u32 left = Kept::place().floats.stages - 1;
        me.release(Stage{Kept::place().sequence - (left ? 2 : 1), 0});
        if (left == 0) break;
        me.sync();  // all have turned their share of the next stage
        Kept::place().floats.stages = left;
    }
    me.place = RingPlace{Kept::place().sequence, Kept::place().granule};
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
