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
static_assert(BOX_BYTES * WORKER_WARPS == STAGING_BYTES, "a warp's staging is a box");
static_assert(BOX_PIECES == 2 * BOXES_AT_ONCE, "finish has two turns");
// Barriers, one for each warpgroup: its products are done, which its own warps wait for, and the other ones; and it knows that the
// other one's are. Without the last, a warpgroup that waits for nothing, after a trap, would arrive twice before the other one looks.
constexpr u32 GROUP_MULTIPLIED = FIRST_FREE_BARRIER, MULTIPLIED = FIRST_FREE_BARRIER + 2, HAS_MET = FIRST_FREE_BARRIER + 4;

// Whether `w` goes in such tiles. Other results that leave in boxes are those of tall tiles (tall.cuh).
DEV bool in_wide_boxes(const Work& w) {
    return HopperProducts(w).has(OUT_IN_BOXES) && HopperProducts(w).schedule().tile_rows == BOX_ROWS;
}

// Starts the copies of one operand's part of the stages of a tile: OperandLoader, for what there is here. One box brings all of
// it, or each 64 of the inner dim are a box.
struct BoxOperand {
    const void* map;
    u32 offset;   // bytes from a stage's start to where the copies go
    u32 skipped;  // rows of the operand in front of the half that this block brings
    u32 boxes, flags;
    bool halved;
    i32 inner, outer, last;                 // coordinates in the map
    i32 inner_step, outer_step, last_step;  // from stage to stage

    DEV BoxOperand(const HopperProducts& p, bool right) : flags(p.schedule().flags), halved(p.has(right ? B_SHARED : A_SHARED)) {
        const bool across = p.has(right ? B_ACROSS : A_ACROSS), whole = p.has(right ? B_WHOLE : A_WHOLE);
        const u32 bytes = (right ? BOX_COLUMNS : BOX_ROWS) * LINE_BYTES >> halved, mine = halved ? blockIdx.x % PAIR * bytes : 0;
        map = p.map(right ? p.schedule().b_map : p.schedule().a_map);
        offset = (right ? BOX_ROWS * LINE_BYTES : 0) + mine;
        skipped = mine / LINE_BYTES;
        boxes = across && !whole ? bytes / GRANULE_BYTES : 1;
        inner_step = across || whole ? 0 : DEPTH;
        outer_step = across ? DEPTH : 0;
        last_step = across || !whole ? 0 : 1;
    }
    // To the first stage of the tile whose part begins at `row`.
    DEV void begin(bool right, u32 row) {
        const bool across = anew(flags) & (right ? B_ACROSS : A_ACROSS), whole = anew(flags) & (right ? B_WHOLE : A_WHOLE);
        row += skipped;
        outer = across ? 0 : row;
        inner = across && !whole ? row : 0;
        last = across && whole ? row / DEPTH : 0;
    }
    // For one stage; then goes to the next.
    DEV void load(u32 stage, u64* full) {
        i32 at = inner;
        u32 to = stage + offset;
#pragma unroll 1
        for (u32 left = boxes;;) {
            if (halved) tensor_share_3d(to, map, full, at, outer, last);
            else tensor_load_3d(to, map, full, at, outer, last);
            if (--left == 0) break;
            at += DEPTH;
            to += GRANULE_BYTES;
        }
        inner += inner_step;
        outer += outer_step;
        last += last_step;
    }
};

// What the loader does for all tiles of this block. Nothing that depends on the work alone is asked ahead of the loop: answers are
// kept in predicates, of which there are seven. What finds no room there has one place in all of the kernel, which has to be among a
// control warp's registers as soon as one of these needs it; there is none, and functions of the workers use local memory, too.
DEV_CALL void load_boxes(const Work& w) {
    Loader loader;
    const HopperProducts p(w);
    BoxOperand a(p, false), b(p, true);
    bool ready = false;
#pragma unroll 1
    for (u32 item = w.first_tile; item < w.tiles; item += gridDim.x) {
        const ProductItem at = p.item(item);
        a.begin(false, at.row);
        b.begin(true, at.column);
        loader.tell(at.row, at.column);
        if (!ready && !p.has(B_CONSTANT)) {
            loader.wait_ready();
            ready = true;
        }
        const bool filled = loader.fill_ahead(
            p.schedule().stages, BOX_GRANULES, BOX_GRANULES * GRANULE_BYTES, ready, [&](u32 stage, u64* full) { b.load(stage, full); },
            [&](u32 stage, u64* full) { a.load(stage, full); }, AHEAD_GRANULES);
        if (!filled) break;
        ready = true;
    }
    if (p.shares_operand()) loader.wait_full();
    loader.keep();
}

// Where a warp puts the pieces of a tile whose last stage is the one before the next: the first one in its staging, the second one
// where its warpgroup's part of a was, the others where b was.
struct BoxPlaces {
    u32 staging, left, right;

    DEV BoxPlaces(const RingPlace& place, u32 warp) {
        const u32 base = shared_address(shared_memory), stage = base + (place.granule - BOX_GRANULES) * GRANULE_BYTES;
        staging = base + STAGING_AT + warp * BOX_BYTES;
        left = stage + warp * BOX_BYTES;
        right = stage + BOX_ROWS * LINE_BYTES + warp * 2 * BOX_BYTES;
    }
};

// Where a tile goes.
struct BoxTarget {
    const void* map;
    u32 row, column;

    DEV explicit BoxTarget(const Workers& me) {
        const volatile auto& kept = Kept::place().product;
        row = kept.row;
        column = kept.column;
        map = HopperProducts(me.work()).map(HopperProducts(me.work()).schedule().out_map);
    }
    // Piece `index` of a warp's, from `from`.
    DEV void store(u32 from, u32 index, u32 warp) const { tensor_store_2d(map, from, column + index * PIECE_COLUMNS, row + warp * PIECE_ROWS); }
};

struct HopperBoxes {
    static DEV bool runs(const Work& w) { return in_wide_boxes(w); }

    static DEV void run(Workers& me) {
        me.wait_placed();
        // Of each a loop of its own: if the sums were changed on one way and not on the other, products would wait for each other.
        if (HopperProducts(me.work()).schedule().what & (Lines::BIAS | Lines::ACT)) run_tiles<false>(me);
        else run_tiles<true>(me);
    }

  private:
    // PLAIN: neither bias nor activation.
    template <bool PLAIN> static DEV void run_tiles(Workers& me) {
        const ProductSchedule& s = HopperProducts(me.work()).schedule();
        const u32 kind = HopperProducts(me.work()).shares_operand() ? SHARED_STAGES : OWN_STAGES, what = s.what, flags = s.flags, stages = s.stages;
        f32 sums[SUMS];
        clear<BOX_COLUMNS>(sums);
        EarlyBias bias{};
        if (!me.wait_ready()) return;
        Kept::place().tiles = me.work().tiles - me.work().first_tile;  // of all blocks, from the present one on
        for (bool kept = false;; kept = true) {
            multiply_any<PLAIN>(sums, flags, stages, kind, kept, me, [&] {
                const ProductCorner corner = Kept::shared().corners[(me.place.sequence - 1) % CORNERS];
                volatile auto& at = Kept::place().product;
                at.row = corner.row();
                at.column = corner.column();
                const ProductArgs args(me.work());
                if (!PLAIN && (what & Lines::BIAS)) bias.fetch(args.bias(), corner.column(), args.columns(), me.lane());
            });
            if (PLAIN) finish_plain(sums, what, me);
            else finish_halves(sums, bias, what, me);
            const u32 left = Kept::place().tiles;
            __syncwarp();  // every lane has read it
            if (left <= gridDim.x) break;
            Kept::place().tiles = left - gridDim.x;
        }
        bulk_wait();
        me.release(Stage{me.place.sequence - 1, 0}, kind);
    }

    template <bool PLAIN, class Meanwhile>
    static DEV void multiply_any(f32 (&sums)[SUMS], u32 flags, u32 stages, u32 kind, bool kept, Workers& me, Meanwhile meanwhile) {
        switch (flags & (A_ACROSS | B_ACROSS | HALF_FLOATS)) {
            case 0: multiply<PLAIN, Bf16, false, false>(sums, stages, kind, kept, me, meanwhile); break;
            case B_ACROSS: multiply<PLAIN, Bf16, false, true>(sums, stages, kind, kept, me, meanwhile); break;
            case A_ACROSS: multiply<PLAIN, Bf16, true, false>(sums, stages, kind, kept, me, meanwhile); break;
            case A_ACROSS | B_ACROSS: multiply<PLAIN, Bf16, true, true>(sums, stages, kind, kept, me, meanwhile); break;
            case HALF_FLOATS: multiply<PLAIN, F16, false, false>(sums, stages, kind, kept, me, meanwhile); break;
            case HALF_FLOATS | B_ACROSS: multiply<PLAIN, F16, false, true>(sums, stages, kind, kept, me, meanwhile); break;
            case HALF_FLOATS | A_ACROSS: multiply<PLAIN, F16, true, false>(sums, stages, kind, kept, me, meanwhile); break;
            default: multiply<PLAIN, F16, true, true>(sums, stages, kind, kept, me, meanwhile); break;
        }
    }

    // sums = a * b. The last stage is not released: the result is put there. `kept`: so is that of the tile before still, in front
    // of these. `meanwhile()` is done while the first products are under way.
    template <bool PLAIN, class T, bool A_ACROSS, bool B_ACROSS, class Meanwhile>
    static DEV void multiply(f32 (&sums)[SUMS], u32 stages, u32 kind, bool kept, Workers& me, Meanwhile meanwhile) {
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
            if (i == 0) {
                meanwhile();
                continue;
            }
            if (i == 1 && kept) release_kept<PLAIN>(me.place.sequence - 3, kind, me);
            me.release(Stage{me.place.sequence - 2, 0}, kind);
        }
        if (stages == 1 && kept) release_kept<PLAIN>(me.place.sequence - 2, kind, me);
        warpgroup_wait<0>();
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) pin(sums[i]);
    }

    template <bool PLAIN> static DEV void release_kept(u32 sequence, u32 kind, const Workers& me) {
        if (PLAIN) named_barrier(HAS_MET + (me.warp() / 4 ^ 1), WORKER_THREADS);
        bulk_wait_read();
        me.release(Stage{sequence, 0}, kind);
    }

    // Takes the sums to where copies to the result start from, and starts these. The second piece has to wait until the warpgroup's own
    // products are done, the others until all are. So the warpgroup that is ahead by half a stage, as one always is, begins its next
    // tile while the other one finishes.
    static DEV void finish_plain(f32 (&sums)[SUMS], u32 what, const Workers& me) {
        const u32 warp = me.warp(), group = warp / 4, lane = me.lane();
        const BoxPlaces places(me.place, warp);
        named_barrier_arrive(MULTIPLIED + group, WORKER_THREADS);
        const BoxTarget target(me);  // there before it is needed
        if (what & Lines::HALF) pack_all<true>(sums, places, group, lane);
        else pack_all<false>(sums, places, group, lane);
        if (Kept::place().tiles > gridDim.x) named_barrier_arrive(HAS_MET + group, WORKER_THREADS);
        fence_proxy_shared();
        __syncwarp();
        if (elect_one()) {
            target.store(places.staging, 0, warp);
            target.store(places.left, 1, warp);
            target.store(places.right, 2, warp);
            target.store(places.right + BOX_BYTES, 3, warp);
            bulk_commit();
        }
    }
    template <bool HALF> static DEV void pack_all(f32 (&sums)[SUMS], const BoxPlaces& to, u32 group, u32 lane) {
        pack_piece<HALF>(piece_of(sums, 0), to.staging, lane);
        named_barrier(GROUP_MULTIPLIED + group, WORKER_THREADS / 2);
        pack_piece<HALF>(piece_of(sums, 1), to.left, lane);
        named_barrier(MULTIPLIED + (group ^ 1), WORKER_THREADS);
        pack_piece<HALF>(piece_of(sums, 2), to.right, lane);
        pack_piece<HALF>(piece_of(sums, 3), to.right + BOX_BYTES, lane);
    }

    // The same with bias and activation, half of the sums at a time: the less code, the less comes from memory when it is first needed,
    // and the first half is on its way while the second one is made. That takes so long that warpgroups gain nothing by being apart.
    static DEV void finish_halves(f32 (&sums)[SUMS], EarlyBias& bias, u32 what, const Workers& me) {
        const u32 granule = me.place.granule - BOX_GRANULES;
        u32 first = me.staging(), second = shared_address(shared_memory) + granule * GRANULE_BYTES + me.warp() * (BOX_PIECES - 1) * BOX_BYTES;
#pragma unroll 1
        for (u32 turn = 0; turn < BOX_PIECES / BOXES_AT_ONCE; ++turn) {
            if (what & Lines::BIAS) {
#pragma unroll
                for (u32 i = 0; i < BOXES_AT_ONCE; ++i) bias.add(piece_of(sums, i), i, what & Lines::HALF ? DTYPE_F16 : DTYPE_BF16, me.lane());
            }
            if (what & Lines::HALF) {
                if (what & Lines::ACT) activate(sums, what & Lines::ACT, [](u32 kind) { return gelu_fit_f16(kind); });
                pack_half<true>(sums, first, second, turn == 0, me);
            } else {
                if (what & Lines::ACT) activate(sums, what & Lines::ACT, [](u32 kind) { return gelu_fit_bf16(kind); });
                pack_half<false>(sums, first, second, turn == 0, me);
            }
            fence_proxy_shared();
            __syncwarp();
            if (elect_one()) {
                const BoxTarget target(me);
                const u32 warp = Kept::warp();
                target.store(first, turn * BOXES_AT_ONCE, warp);
                target.store(second, turn * BOXES_AT_ONCE + 1, warp);
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
    // `meet`: the workers are to be done with all products before the second piece.
    template <bool HALF> static DEV void pack_half(f32 (&sums)[SUMS], u32 first, u32 second, bool meet, const Workers& me) {
        const u32 lane = me.lane();
        pack_piece<HALF>(piece_of(sums, 0), first, lane);
        if (meet) me.sync();
        pack_piece<HALF>(piece_of(sums, 1), second, lane);
    }

    template <class Fit> static DEV void activate(f32 (&sums)[SUMS], u32 kind, Fit fit) {
        if (kind == ACT_RELU) {
#pragma unroll
            for (u32 k = 0; k < BOXES_AT_ONCE * PIECE_SUMS; ++k) sums[k] = sums[k] <= 0.0f ? 0.0f : sums[k];  // NaN stays
        } else {
            const auto gelu = fit(kind);
#pragma unroll
            for (u32 k = 0; k < BOXES_AT_ONCE * PIECE_SUMS; ++k) sums[k] = gelu(sums[k]);
        }
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
