// GEMM of 16-bit floats, and of f32 as tf32, on wgmma.
#pragma once
#ifdef HOPPER
#include "hopper/low.cuh"
#include "hopper/products.cuh"
#include "hopper/small.cuh"
#include "hopper/split.cuh"
#include "hopper/together.cuh"

// For f32, of which wgmma takes no operand in shared memory that lies across. What there is to do is looked up for each stage: the sums take
// most registers.
struct TurnedToDepth {
    DEV void arrange(u32 stage, Workers& me) const {
        const Squares squares = HopperProducts(me.work()).turned();
        if (squares.count == 0) return;
        turn_to_depth(squares, stage, me.warp(), me.lane());
        fence_proxy_shared();
        me.sync();
    }
};

// Starts the copies of one operand's part of the stages of a tile, stage after stage: one box with all of it or, where no map
// has lines of the inner dim for one dim, a box for each line. Of a shared operand each block of the pair brings half, to
// both.
template <bool BATCHES> struct OperandLoader {
    const void* map;
    u32 offset;                             // bytes from a stage's start to where the copies go
    u32 boxes, box_bytes;                   // how many, and from one to the next
    u32 skipped;                            // rows of the operand in front of the half that this block brings
    bool halved;
    i32 inner, outer, last;                 // coordinates in the map: the first two, and the last one
    i32 inner_step, outer_step, last_step;  // from stage to stage
    i32 batch[3];

    // For operand 0 (a) or 1 (b) of all tiles of a block.
    DEV OperandLoader(const HopperProducts& p, u32 operand, u32 block = blockIdx.x) : skipped(0), batch{0, 0, 0} {
        const bool right = operand == 1, across = p.has(right ? B_ACROSS : A_ACROSS), whole = p.has(right ? B_WHOLE : A_WHOLE);
        const i32 slices = p.schedule().slices, line = p.line();
        u32 lines = right ? p.right_lines() : p.left_lines();
        map = p.map(right ? p.schedule().b_map : p.schedule().a_map);
        offset = right ? p.left_bytes() : 0;
        halved = p.has(right ? B_SHARED : A_SHARED);
        if (halved) {
            lines /= 2;
            skipped = block % PAIR * lines;
            offset += skipped * slices * LINE_BYTES;
        }
        boxes = whole ? 1 : across ? ProductTiles::shifted(lines, line) : slices;
        box_bytes = (across ? slices * line : lines) * LINE_BYTES;
        inner_step = across || whole ? 0 : slices * line;
        outer_step = across ? slices * line : 0;
        last_step = across || !whole ? 0 : slices;
    }
    // To the first stage of `item`.
    DEV void begin(const HopperProducts& p, u32 operand, const ProductItem& item) {
        const bool right = operand == 1, across = p.has(right ? B_ACROSS : A_ACROSS), whole = p.has(right ? B_WHOLE : A_WHOLE);
        const i32 depth = item.first_stage * p.schedule().slices * p.line(), row = (right ? item.column : item.row) + skipped;
        if (BATCHES) p.coordinates(item.batch, operand, batch);
        inner = across ? row : depth;
        outer = across ? depth : row;
        last = whole ? ProductTiles::shifted(inner, p.line()) : batch[2];
        if (whole) inner = 0;
    }
    // For one stage; then goes to the next.
    DEV void load(const HopperProducts& p, u32 stage, u64* full) {
        i32 at = inner;
        u32 to = stage + offset;
#pragma unroll 1
        for (u32 left = boxes;;) {
            if (BATCHES && halved) tensor_share_5d(to, map, full, at, outer, batch[0], batch[1], last);
            else if (BATCHES) tensor_load_5d(to, map, full, at, outer, batch[0], batch[1], last);
            else if (halved) tensor_share_3d(to, map, full, at, outer, last);
            else tensor_load_3d(to, map, full, at, outer, last);
            if (--left == 0) break;
            at += p.line();
            to += box_bytes;
        }
        inner += inner_step;
        outer += outer_step;
        last += last_step;
    }
};

constexpr u32 SCRATCH_PITCH = 8;  // f32 between the rows of a tile in scratch memory, so that they begin in different banks

// Scratch memory for the sums of the tile at work, and a warp's part of it.
struct ScratchPart {
    ProductItem at;
    WarpPart part;
    u32 pitch, corner;  // f32 from row to row; where the part begins, in the shared window
    Stage stage;

    DEV explicit ScratchPart(Workers& me) : ScratchPart(me, HopperProducts(me.work()), HopperProducts(me.work()).tiles()) {}

  private:
    DEV ScratchPart(Workers& me, const HopperProducts& p, const ProductTiles& tiles)
        : at(p.item(Kept::place().tile)), part(p, at, me.warp()),
          pitch(tiles.tile_columns + SCRATCH_PITCH) {
        const u32 base = me.next(stage, p.schedule().scratch);
        me.wait(stage);
        corner = base + ((part.row - at.row) * pitch + part.column - at.column) * 4;
    }
};

// The portable epilogue, which knows every step and operand, for the tile at work, whose sums lie in scratch memory. A call,
// because it needs no registers of a main loop.
DEV_CALL void finish_from_scratch() {
    const HopperProducts p(Workers().work());
    const ProductTiles tiles = p.tiles();
    const ProductItem at = p.item(Kept::place().tile);
    const Epilogue e = ProductArgs(p.work).epilogue();
    TileExtent extent{at.batch * tiles.rows + at.row, at.column, min(tiles.tile_rows, tiles.rows - at.row),
                      min(tiles.tile_columns, tiles.columns - at.column)};
    if (e.glu) {
        extent.column /= 2;
        extent.columns /= 2;
    }
    store_tile(e, extent, 1, tiles.tile_rows, tiles.tile_columns + SCRATCH_PITCH, Block());
}

// Finishes a tile by that: put(corner, pitch, width) writes the warp's sums, `width` columns of them, to shared memory, rows
// `pitch` f32 apart.
template <class Put> DEV void finish_in_scratch(Workers& me, Put put) {
    const ScratchPart scratch(me);
    put(scratch.corner, scratch.pitch, scratch.part.width);
    Kept::place().scratch = scratch.stage.offset();
    Kept::place().sequence = me.place.sequence;
    Kept::place().granule = me.place.granule;
    me.sync();
    finish_from_scratch();
    me.place = RingPlace{Kept::place().sequence, Kept::place().granule};
    me.release(Stage{me.place.sequence - 1, 0});  // the scratch memory
}

struct HopperGemm {
    static DEV bool shares_operand(const Work& w) { return HopperProducts(w).shares_operand(); }

    static DEV_CALL void prepare(Work& w) { HopperProducts::prepare(w); }
    static DEV_CALL u32 tiles(const Work& w) { return HopperProducts(w).tiles().items(); }

    static DEV void load(const Work& w, Loader& loader) {
        const HopperProducts p(w);
        if (p.has(BATCHED)) load_items<true>(p, loader);
        else load_items<false>(p, loader);
    }

    using Halves = TileHalves<HopperProducts, WarpPart>;

    // All tiles of this block.
    static DEV void run(Workers& me) {
        me.wait_placed();
        u32 item = me.work().first_tile;
        for (Kept::place().tiles = me.work().tiles; item < Kept::place().tiles; item = Kept::place().tile + gridDim.x) {
            __syncwarp();  // every lane has read which tile was the last one
            Kept::place().tile = item;
            f32 sums[SUMS];
            EarlyBias bias{};
            if (!multiply_item(sums, bias, me)) return;
            if (!finish(sums, bias, Lines::kept(), me)) return;
            if (Kept::place().tile + gridDim.x >= Kept::place().tiles) return say_done();
        }
    }
    // Whether this warp has told the others that it is done with the present work.
    static DEV bool has_said() { return Kept::place().tiles == SAID; }

    // Takes piece `index` of the warp's part of the tile to the result. A call: it has registers of its own, and what it is given
    // stays in registers. Where it is was worked out before the main loop.
    static DEV_CALL void finish_piece(PieceSums sums, u32 index) {
        const Workers me;
        const HopperProducts p(me.work());
        const ProductArgs args(p.work);
        f32(&v)[PIECE_SUMS] = sums.v;
        const u32 lane = me.lane();
        const volatile auto& kept = Kept::place().product;
        const u32 batch = kept.batch, row = kept.row, rows = kept.rows;
        const Piece<false> at{batch * rows + row + lane / 4, (batch + 1) * rows, kept.column + index * PIECE_COLUMNS + 2 * (lane % 4), kept.columns};
        const f32 alpha = args.alpha();
        if (alpha != 1.0f) {
#pragma unroll
            for (u32 k = 0; k < PIECE_SUMS; ++k) v[k] *= alpha;
        }
        if (args.is_glu()) {
            store_piece_glu(v, args.unit(), args.out(), at, me.staging(), lane);
            return;
        }
        if (args.has_c()) combine_piece(v, args.c(), at, false, args.beta());
        finish_steps(v, args, at, p.has(BIAS_EARLY) ? 1 : 0);
        if (args.out().dtype == DTYPE_F32) store_piece_32(v, args.out(), at);
        else store_piece_16(v, args.out(), at, me.staging(), lane);
    }

    // The same in whole lines, where that is all it takes.
    static DEV_CALL void finish_in_lines(PieceSums sums, Lines lines) { finish_lines(sums.v, lines, Workers().staging(), Workers().lane()); }
    static DEV_CALL void finish_glu_in_lines(PieceSums sums, Lines lines) { finish_lines_glu(sums.v, lines, Workers().staging(), Workers().lane()); }

  private:
    static constexpr u32 SAID = ~0u;  // instead of a number of tiles
    // Behind a warp's last tile, at once: on its way back to the loop over works it reads local memory.
    static DEV void say_done() {
        warp_arrive(&Kept::shared().done[Kept::taken() % WORKS]);
        Kept::place().tiles = SAID;
    }
    template <bool BATCHES> static DEV void load_items(const HopperProducts& p, Loader& loader) {
        prefetch_map(p.map(p.schedule().a_map));
        prefetch_map(p.map(p.schedule().b_map));
        OperandLoader<BATCHES> a(p, 0), b(p, 1);
#pragma unroll 1
        for (u32 item = p.work.first_tile; item < p.work.tiles; item += blocks_anew()) {
            const ProductItem at = p.item(item);
            a.begin(p, 0, at);
            b.begin(p, 1, at);
            loader.tell(at.row, at.column);
            if (!load_item(p, at.stages, a, b, loader, item != p.work.first_tile)) return;
        }
        if (p.shares_operand()) loader.wait_full();
    }

    // False if the run is over.
    template <bool BATCHES>
    static DEV bool load_item(const HopperProducts& p, u32 stages, OperandLoader<BATCHES>& a, OperandLoader<BATCHES>& b, Loader& loader, bool ready) {
        const u32 granules = p.granules(), bytes = p.copied_bytes();
        if (!ready && !p.has(B_CONSTANT)) {
            loader.wait_ready();
            ready = true;
        }
        const bool filled = loader.fill_ahead(
            stages, granules, bytes, ready, [&](u32 stage, u64* full) { b.load(p, stage, full); },
            [&](u32 stage, u64* full) { a.load(p, stage, full); }, p.low() || stages * granules <= GRANULES ? GRANULES : AHEAD_GRANULES);
        Stage scratch;
        return filled && (p.schedule().scratch == 0 || loader.claim(scratch, p.schedule().scratch, 0));
    }

    // What the main loop is given for a tile.
    struct MainLoop {
        TileLayout layout;
        u32 stages, width, flags;
        u32 column, columns;  // of the warp's part of the tile, and of the sums
        bool first;           // it is the work's first tile
    };

    // A tile behind a work's first one, whose results are stored in lines: the loader has found out where it lies, which would take
    // the workers longer than many a tile's products.
    static DEV void begin_next(MainLoop& loop, Workers& me) {
        const HopperProducts p(me.work());
        const u32 warp = me.warp(), flags = p.schedule().flags, rows = p.schedule().rows, columns = ProductArgs(p.work).columns();
        const TileLayout layout = p.layout(warp / 4);
        const ProductCorner corner = me.corner(layout.granules, layout.kind);
        const u32 row = min(corner.row(), last_row(p.schedule(), rows)), column = min(corner.column(), last_column(p.schedule(), columns));
        const ProductItem at{0, 0, 0, row, column, 0, p.schedule().stages};
        const WarpPart part(p, at, warp);
        loop = MainLoop{layout, at.stages, part.width, flags, part.column, columns, false};
        lines_of(p, rows, columns, at, part).keep();
    }

    // False if the run is over. What does not depend on operands is worked out before they are waited for.
    static DEV bool begin_item(MainLoop& loop, Workers& me) {
        const HopperProducts p(me.work());
        if (Kept::place().tile != p.work.first_tile && (p.schedule().flags & (OUT_IN_LINES | BATCHED)) == OUT_IN_LINES && p.schedule().splits == 1) {
            begin_next(loop, me);
            return true;
        }
        const bool together = p.has(DEPTH_SHARED);
        if (p.schedule().splits > 1 && !together) partial_lines().keep();  // first: what is known by then has to be kept over a call
        const ProductTiles tiles = p.tiles();
        const ProductItem at = p.item(Kept::place().tile);
        const u32 warp = me.warp(), flags = p.schedule().flags;
        WarpPart part(p, at, warp);
        loop = MainLoop{p.layout(warp / 4), at.stages, part.width, flags, part.column, tiles.columns, Kept::place().tile == p.work.first_tile};
        if (together) {
            if (!Together::begin<HALF_SUMS>(warp, warp)) return false;
            part.row += at.split * HALF_ROWS;
        }
        if (!(flags & OUT_IN_LINES)) keep_place(tiles, at, part);
        else if (together) lines_of(p, tiles, at, part).ending_as(Ending::TOGETHER).keep();
        else if (tiles.splits == 1) lines_of(p, tiles, at, part).keep();
        return true;
    }

    // False if the run is over.
    static DEV bool multiply_item(f32 (&sums)[SUMS], EarlyBias& bias, Workers& me) {
        MainLoop loop{};
        if (!begin_item(loop, me)) return false;
        const bool multiplied = multiply_by(sums, loop, me, [&] {
            if (loop.first && !me.wait_ready()) return false;
            if (loop.flags & BIAS_EARLY) bias.fetch(ProductArgs(me.work()).bias(), loop.column, loop.columns, me.lane());
            return true;
        });
        return multiplied || (loop.flags & DEPTH_SHARED && Together::part());
    }

    template <class Before> static DEV bool multiply_by(f32 (&sums)[SUMS], const MainLoop& loop, Workers& me, const Before& before) {
        if (loop.flags & FLOATS) {
            const TurnedToDepth turned;
            switch (loop.width) {
                case 64: return multiply<Tf32, 64, false, false>(sums, loop.layout, loop.stages, me, turned, before);
                case 128: return multiply<Tf32, 128, false, false>(sums, loop.layout, loop.stages, me, turned, before);
                default: return multiply<Tf32, 256, false, false>(sums, loop.layout, loop.stages, me, turned, before);
            }
        }
        switch (loop.width) {
            case 0: return pass_by(sums, loop.layout, loop.stages, me, before);
            case 64: return multiply_any<true, 64>(sums, loop, me, before);
            case 128: return multiply_any<true, 128>(sums, loop, me, before);
            case 192: return multiply_any<false, 192>(sums, loop, me, before);
            default: return multiply_any<true, 256>(sums, loop, me, before);
        }
    }

    // EITHER_A: a may lie across, too.
    template <bool EITHER_A, u32 COLUMNS, class Before>
    static DEV bool multiply_any(f32 (&sums)[SUMS], const MainLoop& loop, Workers& me, const Before& before) {
        const TileLayout& layout = loop.layout;
        switch (loop.flags & (EITHER_A * A_ACROSS | B_ACROSS | HALF_FLOATS)) {
            case 0: return multiply<Bf16, COLUMNS, false, false>(sums, layout, loop.stages, me, AsLoaded(), before);
            case B_ACROSS: return multiply<Bf16, COLUMNS, false, true>(sums, layout, loop.stages, me, AsLoaded(), before);
            case A_ACROSS: return multiply<Bf16, COLUMNS, EITHER_A, false>(sums, layout, loop.stages, me, AsLoaded(), before);
            case A_ACROSS | B_ACROSS: return multiply<Bf16, COLUMNS, EITHER_A, true>(sums, layout, loop.stages, me, AsLoaded(), before);
            case HALF_FLOATS: return multiply<F16, COLUMNS, false, false>(sums, layout, loop.stages, me, AsLoaded(), before);
            case HALF_FLOATS | B_ACROSS: return multiply<F16, COLUMNS, false, true>(sums, layout, loop.stages, me, AsLoaded(), before);
            case HALF_FLOATS | A_ACROSS: return multiply<F16, COLUMNS, EITHER_A, false>(sums, layout, loop.stages, me, AsLoaded(), before);
            default: return multiply<F16, COLUMNS, EITHER_A, true>(sums, layout, loop.stages, me, AsLoaded(), before);
        }
    }

    // In registers, piece by piece, or in scratch memory. False after a trap.
    static DEV bool finish(f32 (&sums)[SUMS], const EarlyBias& bias, const Lines& lines, Workers& me) {
        switch (lines.ending()) {
            case Ending::PLAIN: finish_direct<Ending::PLAIN>(sums, bias, lines, me.staging(), me.lane()); return true;
            case Ending::GELU:
                if (lines.has(Lines::HALF)) finish_direct<Ending::GELU, true>(sums, bias, lines, me.staging(), me.lane());
                else finish_direct<Ending::GELU, false>(sums, bias, lines, me.staging(), me.lane());
                return true;
            case Ending::RESIDUAL: finish_direct<Ending::RESIDUAL>(sums, bias, lines, me.staging(), me.lane()); return true;
            case Ending::ANYWHERE: finish_direct<Ending::ANYWHERE>(sums, bias, lines, me.staging(), me.lane()); return true;
            case Ending::PARTIAL:
                SplitTile::publish(sums, reinterpret_cast<f32*>(lines.to) + me.lane() * 4, lines.pitch);
                return Split::finish() || stopped_here();
            case Ending::TOGETHER: {
                const bool lower = blockIdx.x % PAIR;  // as of neighbouring items, the second is an odd block's
                const bool ok = Together::give_half(HalfSums(piece_of(sums, 0), !lower)) && Together::finish(HalfSums(piece_of(sums, 0), lower), bias.words[0]);
                return ok || stopped_here();
            }
            default: finish_by_calls(sums, bias, lines, me); return true;
        }
    }
    // False: the run is over.
    static DEV bool stopped_here() {
        stop(shared_state());
        return false;
    }
    static DEV void finish_by_calls(f32 (&sums)[SUMS], const EarlyBias& bias, const Lines& lines, Workers& me) {
        const HopperProducts p(me.work());
        if (lines.what == 0 && p.schedule().scratch) {
            finish_in_scratch(me, [&](u32 corner, u32 pitch, u32 width) { put_pairs(sums, corner, pitch, width, me.lane()); });
            return;
        }
        const u32 pieces = WarpPart::width_of(p, me.warp()) / PIECE_COLUMNS;
        const bool biased = p.has(BIAS_EARLY);
#pragma unroll
        for (u32 i = 0; i < SUMS / PIECE_SUMS; ++i) {
            if (i == pieces) break;
            PieceSums piece;
#pragma unroll
            for (u32 k = 0; k < PIECE_SUMS; ++k) piece.v[k] = sums[i * PIECE_SUMS + k];
            if (biased) bias.add(piece.v, i, ProductArgs(p.work).bias().dtype, me.lane());
            if (anew(lines.what) == 0) finish_piece(piece, i);
            else if (lines.has(Lines::GLU)) finish_glu_in_lines(piece, lines.across(i));
            else finish_in_lines(piece, lines.across(i));
        }
    }

    // Where the partial sums of a warp's part of the tile at work go: `pitch` groups of them. Keeps what finishing a share takes. A
    // call: the registers of the main loop are not there for this.
    static DEV_CALL Lines partial_lines() {
        const Workers me;
        const HopperProducts p(me.work());
        const ProductTiles tiles = p.tiles();
        const ProductItem at = p.item(Kept::place().tile);
        const ProductArgs args(p.work);
        const Tensor& out = args.out();
        const u32 warp = me.warp(), width = WarpPart::width_of(p, 0), count = WarpPart::width_of(p, warp) / GROUP_COLUMNS;
        const u32 groups = tiles.tile_rows * tiles.tile_columns / (PIECE_ROWS * GROUP_COLUMNS), pitch = p.schedule().pitch;
        const u64 sums = p.schedule().sums * 1024ull + static_cast<u64>(at.tile) * tiles.splits * groups * GROUP_FLOATS * sizeof(f32);
        char* const row = p.has(BATCHED) ? element(out, row_offset(out, at.batch * tiles.rows + at.row)) : out.data + static_cast<u64>(at.row) * pitch;
        const SplitTile tile(shared_state().launch->workspace + sums, tiles.splits, at.split, groups, width, p.beside());
        const SplitResult result(args, row + (at.column >> args.is_glu()) * 2, pitch, tiles.rows - min(tiles.rows, at.row), at.column,
                                 tiles.columns - min(tiles.columns, at.column));
        Split::kept(warp) = Split{tile, result};
        return Lines{reinterpret_cast<char*>(tile.group(at.split, warp * count, 0)), count, Lines::ending_as(0, Ending::PARTIAL)};
    }

    // Writes a warp's sums to shared memory.
    static DEV void put_pairs(const f32 (&sums)[SUMS], u32 corner, u32 pitch, u32 width, u32 lane) {
        corner += (lane / 4 * pitch + 2 * (lane % 4)) * 4;
#pragma unroll
        for (u32 j = 0; j < 16; ++j) {
            if (j * 8 >= width) break;
            store_shared(corner + j * 32, make_float2(sums[j * 4], sums[j * 4 + 1]));
            store_shared(corner + (HALF_ROWS * pitch + j * 8) * 4, make_float2(sums[j * 4 + 2], sums[j * 4 + 3]));
        }
    }
};
#endif
