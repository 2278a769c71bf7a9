// Tall tiles: of convolutions, 256 positions by 64 or 128 outputs, or 192 by 128; of products, 136 rows by 128 columns. The copy engine
// takes their results to memory, from the staging and from the tile's last stage, which the workers keep until it has read them. Layers with
// few outputs have many positions: the more of them a tile has, the fewer tiles begin and end. And where a product has a few rows more than so many tiles
// of 128, 136 need no further ones. As tensor cores take 64 rows, and any 8 columns up to 256, outputs are the rows: of 128, each
// warpgroup has 64, of 64 both have the same, and half of the positions. The sums are those of the tile, transposed, and are turned on
// their way to shared memory.
//
// A stage has one slice. What may happen to sums is as in boxes.cuh, and the host asks for it at the same places.
#pragma once
#ifdef HOPPER
#include "hopper/boxes.cuh"

constexpr u32 TALL_BOX_ROWS = 64, TALL_BOX_BYTES = TALL_BOX_ROWS * LINE_BYTES;  // of the result, 64 columns wide: what one copy stores

// Bias of the two outputs that a lane has sums of, and activation, of the first COUNT of `sums`.
template <u32 COUNT, u32 SIZE> DEV void finish_turned(f32 (&sums)[SIZE], const f32 (&bias)[2], u32 what) {
    const u32 kind = what & Lines::ACT;
    if (what & Lines::BIAS) {
#pragma unroll
        for (u32 k = 0; k < COUNT; ++k) sums[k] += bias[k / 2 % 2];
    }
    if (kind == ACT_RELU) {
#pragma unroll
        for (u32 k = 0; k < COUNT; ++k) sums[k] = sums[k] <= 0.0f ? 0.0f : sums[k];  // NaN stays
    } else if (kind) {
        const GeluFit gelu = gelu_fit(kind);
#pragma unroll
        for (u32 k = 0; k < COUNT; ++k) sums[k] = gelu(sums[k]);
    }
}
// COUNT of `sums`, from FROM on: a warp's 16 outputs of 2 COUNT positions, each of which becomes a line of 128 bytes that has the outputs of
// all four warps, chunks permuted by the line.
template <class T, u32 FROM, u32 COUNT, u32 SIZE> DEV void pack_turned(const f32 (&sums)[SIZE], u32 to, const Workers& me) {
    const u32 lane = me.lane(), line = lane % 8, chunk = me.warp() % 4 * 2 + lane / 8 % 2;
    to += (lane / 16 * 8 + line) * LINE_BYTES + (chunk ^ line) * CHUNK_BYTES;
#pragma unroll
    for (u32 k = 0; k < COUNT; k += 8) {
        const f32* const v = sums + FROM + k;
        store_matrix_x4_transposed(to + k * 2 * LINE_BYTES, T::pack(v[0], v[1]), T::pack(v[2], v[3]), T::pack(v[4], v[5]), T::pack(v[6], v[7]));
    }
}
// The bias of a lane's two outputs, of a warpgroup's 64 from `column` on.
DEV void fetch_turned(f32 (&bias)[2], u32 dtype, u32 column, const Workers& me) {
    const ProductArgs args(me.work());
    column += me.warp() % 4 * 16 + me.lane() / 4;
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
        const char* const p = element(args.bias(), column + h * 8);
        if (column + h * 8 < args.columns() && is_in_bias(p, 2)) bias[h] = low_half(*reinterpret_cast<const u16*>(p), dtype);
    }
}
DEV void meet_in_group(const Workers& me) { named_barrier(FIRST_FREE_BARRIER + me.warp() / 4, WORKER_THREADS / 2); }

// 16-bit floats of type T. ACROSS: b, with its outputs, lies across.
template <class T, u32 ROWS, u32 COLUMNS, bool ACROSS = false> struct TallTiles {
    static constexpr u32 WIDTH = ROWS * COLUMNS / 128;  // positions that a warpgroup multiplies
    static constexpr u32 WINDOWS_BYTES = ROWS * LINE_BYTES, STAGE_GRANULES = HopperProducts::granules_of((ROWS + COLUMNS) * LINE_BYTES);
    static constexpr u32 BOXES = (WIDTH + TALL_BOX_ROWS - 1) / TALL_BOX_ROWS, BOXES_AT_ONCE = 2, BOX_SUMS = TALL_BOX_ROWS / 2;
    static constexpr u32 SUMS_AT_ONCE = BOXES_AT_ONCE * BOX_SUMS;
    static constexpr bool OVERLAP = WIDTH % TALL_BOX_ROWS != 0;  // boxes do: the last one has positions of the one before, too

    static DEV void run(Workers& me) {
        const u32 what = HopperProducts(me.work()).schedule().what;
        f32 sums[WIDTH / 2];
#pragma unroll
        for (u32 i = 0; i < WIDTH / 2; ++i) sums[i] = 0.0f;
        if (!me.wait_ready()) return;
        u32 left = me.work().tiles - me.work().first_tile;  // tiles of all blocks, from the present one on
        for (bool kept = false;; kept = true) {
            ProductCorner corner{};
            f32 bias[2] = {0.0f, 0.0f};
            multiply(sums, HopperProducts(me.work()).schedule().stages, kept, me, [&] {
                corner = Kept::shared().corners[(me.place.sequence - 1) % CORNERS];
                if (what & Lines::BIAS) fetch_turned(bias, what & Lines::HALF ? DTYPE_F16 : DTYPE_BF16, column_of(corner, me), me);
            });
            finish(sums, bias, what, corner, me);
            if (left <= gridDim.x) break;
            left -= gridDim.x;
        }
        bulk_wait();
        me.release(Stage{me.place.sequence - 1, 0});
    }

  private:
    static DEV u32 group(const Workers& me) { return me.warp() / 4; }
    static DEV u32 column_of(const ProductCorner& corner, const Workers& me) { return corner.column() + (COLUMNS == 64 ? 0 : group(me) * 64); }

    // The last stage is not released: the result is put there. `kept`: so is that of the tile before still, in front of these.
    // `meanwhile()` is done while the first products are under way.
    template <class Meanwhile> static DEV void multiply(f32 (&sums)[WIDTH / 2], u32 stages, bool kept, Workers& me, Meanwhile meanwhile) {
        using Product = Wgmma<T, WIDTH, ACROSS, false>;
        constexpr u32 STEP = STEP_DEPTH * 2 >> 4, OUTPUTS_STEP = ACROSS ? STEP_DEPTH * LINE_BYTES >> 4 : STEP;  // in 16 bytes
        const u32 outputs = WINDOWS_BYTES + (COLUMNS == 64 ? 0 : group(me) * 64 * LINE_BYTES);
        const u32 windows = COLUMNS == 64 ? group(me) * WIDTH * LINE_BYTES : 0;
#pragma unroll 1
        for (u32 i = 0; i < stages; ++i) {
            Stage stage;
            const u32 address = me.next(stage, STAGE_GRANULES);
            const u32 a = descriptor_low(address + outputs, ACROSS ? GRANULE_BYTES : 0), b = descriptor_low(address + windows, 0);
            me.wait(stage);
            warpgroup_fence();
            Product::multiply_if(sums, matrix_descriptor(a), matrix_descriptor(b), i);
#pragma unroll
            for (u32 step = 1; step < DEPTH / STEP_DEPTH; ++step)
                Product::multiply(sums, matrix_descriptor(a + step * OUTPUTS_STEP), matrix_descriptor(b + step * STEP));
            warpgroup_commit();
            warpgroup_wait<1>();
            if (i == 0) {
                meanwhile();
                continue;
            }
            if (i == 1 && kept) release_kept(3, me);
            me.release(Stage{me.place.sequence - 2, 0});
        }
        if (stages == 1 && kept) release_kept(2, me);
        warpgroup_wait<0>();
#pragma unroll
        for (u32 i = 0; i < WIDTH / 2; ++i) pin(sums[i]);
    }
    // The stage, so many before the next one, that results were put into: once the copy engine has read them.
    static DEV void release_kept(u32 before, const Workers& me) {
        bulk_wait_read();
        me.release(Stage{me.place.sequence - before, 0});
    }

    // Takes the sums to the result, two boxes of a warpgroup at a time, or all where these overlap. The first box leaves from its
    // staging, the others from the tile's last stage.
    static DEV void finish(f32 (&sums)[WIDTH / 2], const f32 (&bias)[2], u32 what, const ProductCorner& corner, const Workers& me) {
        const u32 granule = me.place.granule - STAGE_GRANULES, memory = shared_address(shared_memory);
        u32 first = memory + STAGING_AT + group(me) * TALL_BOX_BYTES;
        u32 second = memory + granule * GRANULE_BYTES + group(me) * (BOXES - 1) * TALL_BOX_BYTES;
        const u32 column = column_of(corner, me);
        u32 row = corner.row() + (COLUMNS == 64 ? group(me) * WIDTH : 0);
        me.sync();  // all are done with the products, and whoever stored what was in the staging has seen it read
        if constexpr (OVERLAP) {
            const u32 third = second + TALL_BOX_BYTES;
            finish_turned<WIDTH / 2>(sums, bias, what);
            pack_turned<T, 0, BOX_SUMS>(sums, first, me);
            pack_turned<T, BOX_SUMS, BOX_SUMS>(sums, second, me);
            pack_turned<T, WIDTH / 2 - BOX_SUMS, BOX_SUMS>(sums, third, me);
            leave(me, [&](const void* map) {
                tensor_store_2d(map, first, column, row);
                tensor_store_2d(map, second, column, row + TALL_BOX_ROWS);
                tensor_store_2d(map, third, column, row + WIDTH - TALL_BOX_ROWS);
            });
        } else {
#pragma unroll 1
            for (u32 box = 0; box < BOXES; box += BOXES_AT_ONCE) {
                const bool both = BOXES % BOXES_AT_ONCE == 0 || box + 1 < BOXES;
                finish_turned<SUMS_AT_ONCE>(sums, bias, what);
                pack_turned<T, 0, BOX_SUMS>(sums, first, me);
                if (both) pack_turned<T, BOX_SUMS, BOX_SUMS>(sums, second, me);
                leave(me, [&](const void* map) {
                    tensor_store_2d(map, first, column, row);
                    if (both) tensor_store_2d(map, second, column, row + TALL_BOX_ROWS);
                });
                if (BOXES == BOXES_AT_ONCE) break;
                first = second + TALL_BOX_BYTES;
                second = first + TALL_BOX_BYTES;
                row += BOXES_AT_ONCE * TALL_BOX_ROWS;
#pragma unroll
                for (u32 k = SUMS_AT_ONCE; k < WIDTH / 2; ++k) sums[k - SUMS_AT_ONCE] = sums[k];
            }
        }
    }
    // Once the warpgroup has packed its boxes, one lane has the copy engine take them: store(map).
    template <class Store> static DEV void leave(const Workers& me, Store store) {
        fence_proxy_shared();
        meet_in_group(me);
        if (me.warp() % 4 == 0 && elect_one()) {
            store(HopperProducts(me.work()).map(HopperProducts(me.work()).schedule().out_map));
            bulk_commit();
        }
    }
};

struct HopperTall {
    static DEV bool runs(const Work& w) { return HopperProducts(w).has(OUT_IN_BOXES) && HopperProducts(w).schedule().tile_rows > BOX_ROWS; }

    static DEV void run(Workers& me) {
        me.wait_placed();
        const ProductSchedule& s = HopperProducts(me.work()).schedule();
        if (s.flags & HALF_FLOATS) run_tiles<F16>(s, me);
        else run_tiles<Bf16>(s, me);
    }

  private:
    template <class T> static DEV void run_tiles(const ProductSchedule& s, Workers& me) {
        if (s.tile_columns == 64) TallTiles<T, 256, 64>::run(me);
        else if (s.tile_rows == 256) TallTiles<T, 256, 128>::run(me);
        else if (s.tile_rows == 192) TallTiles<T, 192, 128>::run(me);
        else if (s.flags & B_ACROSS) TallTiles<T, 136, 128, true>::run(me);
        else TallTiles<T, 136, 128>::run(me);
    }
};
#endif
