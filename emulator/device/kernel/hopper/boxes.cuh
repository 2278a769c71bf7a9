// Products of tiles of 128 x 256 whose results the copy engine takes to memory. A warp's leave in pieces, one after the other, by way of
// its own staging: the first ones as soon as they are made, the last ones from registers, behind the starts of the next tile's first stages.
// So no stage is kept back from the loader, and no warp waits for another. What tensor cores wait for is what lies between two main
// loops, at about five clocks for each instruction: so all here is of one shape, and where the tile lies the loader has worked out
// already. In the main loop registers are few: what is seldom needed is asked for there.
//
// A stage has one slice. Rows of the result lie at one distance and are made of whole chunks of 16 bytes; a bias of 16 bits, and relu
// or gelu behind it, are all that may happen to sums. The host says so: in_boxes in paths/tilings.py, is_in_boxes in paths/epilogue.py.
#pragma once
#ifdef HOPPER
#include "hopper/gemm.cuh"

constexpr u32 BOX_ROWS = 128, BOX_COLUMNS = 256;  // of a tile
constexpr u32 BOX_GRANULES = (BOX_ROWS + BOX_COLUMNS) * LINE_BYTES / GRANULE_BYTES;  // of a stage
constexpr u32 BOX_PIECES = SUMS / PIECE_SUMS;  // of a warp
constexpr u32 BOX_BYTES = PIECE_ROWS * LINE_BYTES;
static_assert(BOX_BYTES * WORKER_WARPS == STAGING_BYTES, "a warp's staging is a box");
static_assert(BOX_GRANULES + CORNERS - 2 > GRANULES, "while a tile's second stage is in use, its corner is still there");

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

// Where the tile goes whose results are on their way: in a main loop that is the one before, until what is left of it has left.
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
    DEV void store(u32 from, u32 index, u32 warp) const {
        tensor_store_2d(map, from, column + index * PIECE_COLUMNS, row + warp * PIECE_ROWS);
        bulk_commit();
    }
};

// A warp's walk over the stages of a tile: what Workers have for stages of any size, in few instructions. All that is executed beside
// products takes power that tensor cores would have: with 64 instructions more for each stage, 4096^3 takes 6 % longer. So addresses and
// descriptors are carried on from stage to stage.
template <class T, bool A_ACROSS, bool B_ACROSS> struct BoxStages {
    DEV BoxStages(const Workers& me, u32 kind)
        : barriers(shared_address(shared_state().stages[kind].full)), next(me.place.sequence * BARRIER), full(0),
          stopped_at(shared_address(&shared_state().stop)), releases(me.lane() < ARRIVING_LANES), releases_there(releases && kind == SHARED_STAGES) {
        const u32 ring = shared_address(shared_memory);
        lowest = descriptor_low(ring + me.warp() / 4 * GRANULE_BYTES, GRANULE_BYTES);
        highest = lowest + (GRANULES - 2 * BOX_GRANULES) * GRANULE;
        place = lowest + me.place.granule * GRANULE - STAGE;  // of a stage that would lie in front of the first one: maybe below the ring
        const u32 right = descriptor_low(ring + BOX_ROWS * LINE_BYTES, GRANULE_BYTES) + (place - lowest);
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) {
            a[i] = matrix_descriptor(place + i * A_STEP);
            b[i] = matrix_descriptor(right + i * B_STEP);
        }
    }
    // Starts the products of the next stage, once it is there: they set the sums, or are added to them.
    template <bool SET> DEV void multiply(f32 (&sums)[SUMS]) {
        using Product = Wgmma<T, BOX_COLUMNS, A_ACROSS, B_ACROSS>;
        full = barriers + next % (RING_BARRIERS * BARRIER);
        while (!mbarrier_test_at(full, next / (RING_BARRIERS * BARRIER) % 2)) {
            if (load_shared(stopped_at)) break;  // the bytes may be missing then
        }
        next += BARRIER;
        const u32 to = static_cast<i32>(place) > static_cast<i32>(highest) ? lowest : place + STAGE, by = to - place;
        place = to;
        warpgroup_fence();
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) {
            move_descriptor(a[i], by);
            move_descriptor(b[i], by);
            if (SET && i == 0) Product::start(sums, a[i], b[i]);
            else Product::multiply(sums, a[i], b[i]);
        }
        warpgroup_commit();
    }
    // The same of a stage that is not a tile's first one; the one before is released, once its products are done.
    DEV void multiply_more(f32 (&sums)[SUMS]) {
        const u32 before = full;
        multiply<false>(sums);
        warpgroup_wait<1>();
        release(before);
    }
    // Behind a tile's last products: releases its last stage, and gives the place behind that, whose number is `sequence`.
    DEV RingPlace end(u32 sequence) const {
        release(full);
        return RingPlace{sequence, (place - lowest) / GRANULE + BOX_GRANULES};
    }

  private:
    static constexpr u32 STEPS = DEPTH / STEP_DEPTH, BARRIER = sizeof(u64);
    // In descriptors, which count by 16 bytes.
    static constexpr u32 GRANULE = GRANULE_BYTES >> 4, STAGE = BOX_GRANULES * GRANULE;
    static constexpr u32 A_STEP = (A_ACROSS ? STEP_DEPTH * LINE_BYTES : STEP_DEPTH * 2) >> 4;
    static constexpr u32 B_STEP = (B_ACROSS ? STEP_DEPTH * LINE_BYTES : STEP_DEPTH * 2) >> 4;
    static_assert(GRANULES >= 2 * BOX_GRANULES, "`highest` lies in the ring");

    u32 barriers;    // where they begin, in the shared window
    u32 next;        // number of the next stage, in bytes of barriers
    u32 full;        // where the present one's barrier lies
    u32 stopped_at;  // where the word lies that ends all waits: to work that out takes three instructions
    // Lower halves of descriptors of a, in the ring: of a stage at its start; behind stages above this the next one lies there; of the present stage.
    u32 lowest, highest, place;
    u64 a[STEPS], b[STEPS];         // of the present stage, for each product
    bool releases, releases_there;  // whether this lane releases its own block's stages; the other block's

    // Lanes need not meet for it: since they last looked at a corner, they have met at products, which are whole warps'.
    DEV void release(u32 barrier) const {
        if (releases) mbarrier_arrive_at<RingBarriers::TO_EMPTY>(barrier);
        if (releases_there) mbarrier_arrive_there_at<RingBarriers::TO_EMPTY>(barrier);
    }
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
    static constexpr u32 WORDS = PIECE_SUMS / 2;  // of a piece, in a lane
    static constexpr u32 EACH = BOX_PIECES / 2;   // pieces that leave as soon as they are made; and that leave later
    static_assert(EACH == 2, "multiply_tile and finish name them");

    // PLAIN: neither bias nor activation.
    template <bool PLAIN> static DEV void run_tiles(Workers& me) {
        const u32 what = HopperProducts(me.work()).schedule().what;
        f32 sums[SUMS];
        clear(sums);
        u32 later[EACH][WORDS] = {};
        if (!me.wait_ready()) return;
        Kept::place().tiles = me.work().tiles - me.work().first_tile;  // of all blocks, from the present one on
        for (bool has_before = false;; has_before = true) {
            EarlyBias bias{};
            multiply_any(sums, later, has_before, me, [&](const ProductCorner& corner) {
                if (PLAIN || !(what & Lines::BIAS)) return;
                const ProductArgs args(me.work());
                bias.fetch(args.bias(), corner.column(), args.columns(), me.lane());
            });
            if (what & Lines::HALF) finish<PLAIN, F16>(sums, later, bias, what, me);
            else finish<PLAIN, Bf16>(sums, later, bias, what, me);
            const u32 left = Kept::place().tiles;
            __syncwarp();  // every lane has read it
            if (left <= gridDim.x) break;
            Kept::place().tiles = left - gridDim.x;
        }
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) store_later(later[i], EACH + i, me);
        bulk_wait();
    }

    template <class Meanwhile>
    static DEV void multiply_any(f32 (&sums)[SUMS], const u32 (&later)[EACH][WORDS], bool has_before, Workers& me, Meanwhile meanwhile) {
        switch (HopperProducts(me.work()).schedule().flags & (A_ACROSS | B_ACROSS | HALF_FLOATS)) {
            case 0: multiply_tile<Bf16, false, false>(sums, later, has_before, me, meanwhile); break;
            case B_ACROSS: multiply_tile<Bf16, false, true>(sums, later, has_before, me, meanwhile); break;
            case A_ACROSS: multiply_tile<Bf16, true, false>(sums, later, has_before, me, meanwhile); break;
            case A_ACROSS | B_ACROSS: multiply_tile<Bf16, true, true>(sums, later, has_before, me, meanwhile); break;
            case HALF_FLOATS: multiply_tile<F16, false, false>(sums, later, has_before, me, meanwhile); break;
            case HALF_FLOATS | B_ACROSS: multiply_tile<F16, false, true>(sums, later, has_before, me, meanwhile); break;
            case HALF_FLOATS | A_ACROSS: multiply_tile<F16, true, false>(sums, later, has_before, me, meanwhile); break;
            default: multiply_tile<F16, true, true>(sums, later, has_before, me, meanwhile); break;
        }
    }

    // sums = a * b. What is left of the tile before, if there is one, leaves behind the starts of the first stages; then meanwhile(corner).
    template <class T, bool A_ACROSS, bool B_ACROSS, class Meanwhile>
    static DEV void multiply_tile(f32 (&sums)[SUMS], const u32 (&later)[EACH][WORDS], bool has_before, Workers& me, Meanwhile meanwhile) {
        const u32 first = me.place.sequence;
        BoxStages<T, A_ACROSS, B_ACROSS> walk(me, HopperProducts(me.work()).shares_operand() ? SHARED_STAGES : OWN_STAGES);
        walk.template multiply<true>(sums);
        if (has_before) store_later(later[0], EACH, me);
        const u32 stages = HopperProducts(me.work()).schedule().stages;
        if (stages > 1) walk.multiply_more(sums);
        if (has_before) store_later(later[1], EACH + 1, me);
        const ProductCorner corner = Kept::shared().corners[first % CORNERS];
        volatile auto& at = Kept::place().product;
        at.row = corner.row();
        at.column = corner.column();
        meanwhile(corner);
#pragma unroll 1
        for (u32 i = 2; i < stages; ++i) walk.multiply_more(sums);
        warpgroup_wait<0>();
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) pin(sums[i]);
        me.place = walk.end(first + stages);
    }

    // Makes results of type T of the sums.
    template <bool PLAIN, class T>
    static DEV void finish(f32 (&sums)[SUMS], u32 (&later)[EACH][WORDS], EarlyBias& bias, u32 what, const Workers& me) {
        if constexpr (PLAIN) {
            u32 words[WORDS];
            pack<T>(words, piece_of(sums, 0));
            store(words, 0, me);
#pragma unroll
            for (u32 i = 0; i < EACH; ++i) pack<T>(later[i], piece_of(sums, EACH + i));  // while the first piece is read from the staging
            pack<T>(words, piece_of(sums, 1));
            store(words, 1, me);
        } else {
            // Half of the sums at a time: the less code, the less comes from memory when it is first needed.
#pragma unroll 1
            for (u32 turn = 0;; ++turn) {
#pragma unroll
                for (u32 i = 0; i < EACH; ++i) {
                    f32(&v)[PIECE_SUMS] = piece_of(sums, i);
                    if (what & Lines::BIAS) bias.add(v, i, T::HALF_FLOATS ? DTYPE_F16 : DTYPE_BF16, me.lane());
                    activate<T::HALF_FLOATS>(v, what & Lines::ACT);
                    pack<T>(later[i], v);
                    if (turn == 0) store(later[i], i, me);
                }
                if (turn == 1) break;
#pragma unroll
                for (u32 k = 0; k < SUMS / 2; ++k) sums[k] = sums[k + SUMS / 2];
#pragma unroll
                for (u32 i = 0; i < EACH; ++i) bias.words[i] = bias.words[i + EACH];
            }
        }
    }
    template <bool HALF> static DEV void activate(f32 (&v)[PIECE_SUMS], u32 kind) {
        if (kind == ACT_RELU) {
#pragma unroll
            for (u32 k = 0; k < PIECE_SUMS; ++k) v[k] = v[k] <= 0.0f ? 0.0f : v[k];  // NaN stays
        } else if (kind) {
            const auto gelu = gelu_fit_of<HALF>(kind);
#pragma unroll
            for (u32 k = 0; k < PIECE_SUMS; ++k) v[k] = gelu(v[k]);
        }
    }

    // A piece's results, in the order in which `put` stores them.
    template <class T> static DEV void pack(u32 (&words)[WORDS], const f32 (&v)[PIECE_SUMS]) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 j = 0; j < 8; ++j) words[half * 8 + j] = T::pack(v[j * 4 + half * 2], v[j * 4 + half * 2 + 1]);
        }
    }
    // Has the copy engine take a piece to memory, between two main loops: where it goes is known before that is needed.
    static DEV void store(const u32 (&words)[WORDS], u32 index, const Workers& me) {
        const BoxTarget target(me);
        const u32 from = put(words, me);
        if (elect_one()) target.store(from, index, Kept::warp());
    }
    // The same in the next main loop, or behind the last one.
    static DEV void store_later(const u32 (&words)[WORDS], u32 index, const Workers& me) {
        const u32 from = put(words, me);
        if (elect_one()) BoxTarget(me).store(from, index, Kept::warp());
        __syncwarp();  // from here on the place may be another tile's
    }
    // Takes a piece to the warp's staging, as soon as the one before has been read there: 16 lines of 128 bytes, whose chunks are permuted by
    // the line. Where that is.
    static DEV u32 put(const u32 (&words)[WORDS], const Workers& me) {
        const u32 staging = shared_address(shared_memory_anew()) + STAGING_AT + me.warp() * BOX_BYTES;  // anew: it takes no register between
        const u32 lane = me.lane(), line = lane % 8, mine = staging + line * LINE_BYTES + ((lane / 8 ^ line) * CHUNK_BYTES);
        bulk_wait_read();
        __syncwarp();
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 j = 0; j < 8; j += 4) {
                const u32* const w = &words[half * 8 + j];
                store_matrix_x4((mine ^ j * CHUNK_BYTES) + half * HALF_BYTES, w[0], w[1], w[2], w[3]);
            }
        }
        fence_proxy_shared();
        __syncwarp();
        return staging;
    }
};
#endif
