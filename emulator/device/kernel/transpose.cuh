// Moves between tensors whose neighbours lie along different axes: squares of 16-byte loads, turned in registers.
#pragma once
#include "claims.cuh"

// A square of vectors: word[i] are the 16 bytes of line i, SIDE elements of BYTES each.
template <u32 BYTES> struct Square {
    static constexpr u32 SIDE = VECTOR_BYTES / BYTES;
    u32 word[SIDE][4];

    DEV void load(u32 i, const char* p) {
        const uint4 v = *reinterpret_cast<const uint4*>(p);
        word[i][0] = v.x, word[i][1] = v.y, word[i][2] = v.z, word[i][3] = v.w;
    }
    DEV void store(u32 i, char* p) const {
        *reinterpret_cast<uint4*>(p) = make_uint4(word[i][0], word[i][1], word[i][2], word[i][3]);
    }
    // Makes lines columns, by halves: swaps the corners of every square of 2, then 4, ... elements.
    DEV void turn() {
        if constexpr (BYTES <= 1) turn_bytes();
        if constexpr (BYTES <= 2) turn_halves();
        if constexpr (BYTES <= 4) swap_words<4 / BYTES, 1>();
        swap_words<8 / BYTES, 2>();
    }

  private:
    DEV void turn_bytes() {
#pragma unroll
        for (u32 i = 0; i < SIDE; i += 2)
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const u32 a = word[i][j], b = word[i + 1][j];
                word[i][j] = __byte_perm(a, b, 0x6240);
                word[i + 1][j] = __byte_perm(a, b, 0x7351);
            }
    }
    DEV void turn_halves() {
        constexpr u32 APART = 2 / BYTES;
#pragma unroll
        for (u32 i = 0; i < SIDE; ++i)
            if (i % (2 * APART) < APART)
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    const u32 a = word[i][j], b = word[i + APART][j];
                    word[i][j] = __byte_perm(a, b, 0x5410);
                    word[i + APART][j] = __byte_perm(a, b, 0x7632);
                }
    }
    // Lines `LINES` apart exchange words `WORDS` apart.
    template <u32 LINES, u32 WORDS> DEV void swap_words() {
#pragma unroll
        for (u32 i = 0; i < SIDE; ++i)
            if (i % (2 * LINES) < LINES)
#pragma unroll
                for (u32 j = 0; j < 4; ++j)
                    if (j % (2 * WORDS) < WORDS) {
                        const u32 a = word[i][j + WORDS];
                        word[i][j + WORDS] = word[i + LINES][j];
                        word[i + LINES][j] = a;
                    }
    }
};

// The move, seen as planes: along `across` the elements of out are neighbours, along `down` those of x; the other axes
// count planes.
struct __align__(16) Planes {
    u32 down, across;    // axes
    u32 others;          // the other axes, a bit each
    u32 lines, columns;  // squares along `down` and along `across`
    u32 shape;           // log2 of a tile's squares along `down`
    u32 tiles_down, tiles_across;  // of a plane
    u32 count;                     // of tiles, in all planes
    u32 spare[6];  // see Claims::of
    u32 way;

    // What a block moves at a time: a square for each thread. Usually 16 x 16: both tensors are read and written in pieces of
    // 256 bytes, two for each warp and step.
    static constexpr u32 SQUARES = WORKER_THREADS, USUAL_SHAPE = 4;
    static_assert(SQUARES == 1u << 2 * USUAL_SHAPE, "as long as it is wide");

    DEV static const Planes& of(const Work& w) { return kept<Planes>(w); }

    // Measures the move of x to out, which are of one type; false where it is not of this kind.
    DEV bool measure(const Tensor& out, const Tensor& x) {
        const u32 side = VECTOR_BYTES / out.item_bytes;  // of a square, in elements
        down = across = out.rank;
        i64 planes = 1;
        bool apart = aligned_for_vectors(out) && aligned_for_vectors(x);
#pragma unroll 1
        for (u32 k = 0; k < out.rank; ++k) {
            if (out.dims[k] == 1) continue;
            if (out.strides[k] == 1) across = k;
            else apart &= out.strides[k] % side == 0;
            if (x.strides[k] == 1) down = k;
            else apart &= x.strides[k] % side == 0;
            planes *= out.dims[k];
        }
        if (!apart || down == across || down == out.rank || across == out.rank || planes == 0) return false;
        if (out.dims[down] % side || out.dims[across] % side) return false;
        others = ~(1u << down | 1u << across);
        lines = out.dims[down] / side;
        columns = out.dims[across] / side;
        planes /= static_cast<i64>(out.dims[down]) * out.dims[across];
        shape = USUAL_SHAPE;
        while (2 * columns <= SQUARES >> shape && lines > 1u << shape) ++shape;
        while (2 * lines <= 1u << shape && columns > SQUARES >> shape) --shape;
        tiles_down = (lines - 1 >> shape) + 1;
        tiles_across = (columns - 1) / (SQUARES >> shape) + 1;
        const i64 tiles = planes * tiles_down * tiles_across;
        count = static_cast<u32>(tiles);
        return tiles < 1ll << 30;
    }
    // A square: one of a plane, or one of a tile.
    struct Place {
        u32 plane;
        u32 line, column;
    };
    // The first square of a tile. Tiles that follow each other are neighbours along `across`.
    DEV Place corner(u32 tile) const {
        const u32 row = tile / tiles_across, plane = row / tiles_down;
        return {plane, row - plane * tiles_down << shape, (tile - row * tiles_across) * (SQUARES >> shape)};
    }
    // The square of a tile that a thread fetches, such that threads that are neighbours read neighbours in x; and the one that
    // it turns, such that they write neighbours in out.
    DEV Place fetched(u32 thread) const { return {0, thread & (1u << shape) - 1, thread >> shape}; }
    DEV Place turned(u32 thread) const {
        const u32 line = thread / (SQUARES >> shape);
        return {0, line, thread - line * (SQUARES >> shape)};
    }
    // Where a square of a tile lies in shared memory, in units of 16 bytes: each eight that are fetched by neighbours, and each
    // eight that are turned by neighbours, are in different banks (unless a tile has less than eight in that direction).
    DEV u32 slot(const Place& p) const {
        const u32 mixed = shape >= 3 ? p.column & 7 : p.column >> 3 - shape & (1u << shape) - 1;
        return (p.column << shape) + (p.line ^ mixed);
    }
    DEV bool holds(const Place& corner, const Place& p) const {
        return corner.line + p.line < lines && corner.column + p.column < columns;
    }
    // Where a plane begins, in bytes.
    DEV i64 plane_offset(const Tensor& t, u32 plane) const {
        i64 offset = 0;
#pragma unroll 1
        for (i32 k = t.rank - 1; plane != 0 && k >= 0; --k) {
            if (!(others >> k & 1)) continue;
            const u32 size = t.dims[k], rest = plane / size;
            offset += (plane - rest * size) * t.strides[k];
            plane = rest;
        }
        return offset * t.item_bytes;
    }
    // Tiles that a block has in shared memory: one is turned, the others are on their way.
    DEV static constexpr u32 depth(u32 item_bytes) { return item_bytes == 1 ? 2 : item_bytes == 2 ? 4 : 8; }
    DEV u32 scratch(u32 item_bytes) const {
        return LAYER * (VECTOR_BYTES / item_bytes) * (count <= gridDim.x ? 1 : depth(item_bytes));
    }
    DEV u32 tiles() const { return shared_tiles(count); }
};

// A block's share of the planes. Tiles are on their way to shared memory while one is turned: each thread turns a square that
// others fetched.
template <u32 BYTES> DEV void turn_planes(const Work& w, u32 tile, const Block& block) {
    const Planes p = Planes::of(w);
    const Tensor& out = in_shared(w).operands[0];
    const Tensor& x = in_shared(w).operands[1];
    constexpr u32 SIDE = Square<BYTES>::SIDE;
    constexpr u32 DEPTH = Planes::depth(BYTES), STAGE = SIDE * LAYER, STAGES = DEPTH * STAGE;
    static_assert(STAGES <= SCRATCH_BYTES, "they fit in scratch");
    Claims claims(Claims::of(w), p.count, tile, p.tiles(), 0, DEPTH - 1);
    claims.begin(block, block.thread() == 0);
    const i64 x_step = x.strides[p.across] * BYTES, out_step = out.strides[p.down] * BYTES;
    const Planes::Place fetched = p.fetched(block.thread()), turned = p.turned(block.thread());
    char* const fetched_to = block.scratch() + p.slot(fetched) * VECTOR_BYTES;
    const char* const turned_from = block.scratch() + p.slot(turned) * VECTOR_BYTES;
    const auto fetch = [&](u32 ahead, u32 stage) {
        const Planes::Place corner = p.corner(ahead);
        if (ahead < p.count && p.holds(corner, fetched)) {
            const char* from = x.data + p.plane_offset(x, corner.plane);
            from += static_cast<i64>(corner.column + fetched.column) * SIDE * x_step;
            from += (corner.line + fetched.line) * VECTOR_BYTES;
#pragma unroll
            for (u32 i = 0; i < SIDE; ++i, from += x_step)
                if (in_bounds(x, from) && in_bounds(x, from + VECTOR_BYTES - BYTES))
                    copy_async_16(fetched_to + stage + i * LAYER, from, VECTOR_BYTES);
        }
        copy_async_commit();
    };
#pragma unroll 1
    for (u32 n = 0; n + 1 < DEPTH; ++n) fetch(claims.at(n), n * STAGE);
    u32 stage = 0;
#pragma unroll 1
    for (u32 turn = 0; tile < p.count; tile = claims.at(++turn)) {
        copy_async_wait<DEPTH - 2>();
        block.sync();  // all have fetched, and all have read the tile before this one
        claims.claim(turn, block.thread() == 0);
        fetch(claims.at(turn + DEPTH - 1), stage == 0 ? STAGES - STAGE : stage - STAGE);
        const Planes::Place corner = p.corner(tile);
        if (p.holds(corner, turned)) {
            Square<BYTES> square;
#pragma unroll
            for (u32 i = 0; i < SIDE; ++i) square.load(i, turned_from + stage + i * LAYER);
            square.turn();
            char* to = in_global(out.data) + p.plane_offset(out, corner.plane);
            to += static_cast<i64>(corner.line + turned.line) * SIDE * out_step;
            to += static_cast<i64>(corner.column + turned.column) * VECTOR_BYTES;
#pragma unroll
            for (u32 i = 0; i < SIDE; ++i, to += out_step)
                if (in_bounds(out, to) && in_bounds(out, to + VECTOR_BYTES - BYTES)) square.store(i, to);
        }
        stage = stage + STAGE < STAGES ? stage + STAGE : 0;
    }
    copy_async_wait<0>();
}
