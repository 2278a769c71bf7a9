// Moves between tensors whose neighbours lie along different axes: squares of 16-byte loads, turned in registers.
#pragma once
#include "merged.cuh"

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
    u32 wide;            // warps of a block side by side along `down`
    u32 tiles_down, tiles_across;  // of a plane: what a block moves at a time, a patch for each warp
    u32 count;           // of tiles, in all planes
    u32 spare[6];
    u32 way;

    static constexpr u32 LINES = 4, COLUMNS = 8;  // squares of a patch: out is written 8 x 16 = 128 bytes at a time, x read 64
    // Tiles that follow each other along `across`, before those beside them. So what all blocks move at a time is about as
    // long as it is wide, 2 to 4 KB: neither side asks for little of many places of memory.
    static constexpr u32 GROUP = 16;

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
        const u32 patches_down = (lines + LINES - 1) / LINES, patches_across = (columns + COLUMNS - 1) / COLUMNS;
        wide = patches_across == 1 ? WORKER_WARPS : patches_down >= 3 ? 4 : patches_down;
        const u32 high = WORKER_WARPS / wide;
        tiles_down = (patches_down + wide - 1) / wide;
        tiles_across = (patches_across + high - 1) / high;
        const i64 tiles = planes * tiles_down * tiles_across;
        count = static_cast<u32>(tiles);
        return tiles < 1ll << 30;
    }
    // What a lane moves of a tile.
    struct Place {
        u32 plane;
        i64 line, column;  // of its square
        bool inside;
    };
    DEV Place place(u32 tile, u32 warp, u32 lane) const {
        const u32 plane = tile / (tiles_down * tiles_across), within = tile - plane * (tiles_down * tiles_across);
        const u32 first = within / (GROUP * tiles_down) * GROUP, length = min(GROUP, tiles_across - first);
        const u32 of_group = within - first * tiles_down, beside = of_group / length;
        const u32 behind = first + of_group - beside * length;
        const u32 line = (beside * wide + warp % wide) * LINES + lane % LINES;
        const u32 column = (behind * (WORKER_WARPS / wide) + warp / wide) * COLUMNS + lane / LINES;
        return {plane, line, column, tile < count && line < lines && column < columns};
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
    // Squares that a thread has on their way.
    DEV static constexpr u32 depth(u32 item_bytes) { return item_bytes == 1 ? 2 : item_bytes == 2 ? 3 : 2 * item_bytes; }
    DEV u32 scratch(u32 item_bytes) const {
        return LAYER * (VECTOR_BYTES / item_bytes) * (count <= gridDim.x ? 1 : depth(item_bytes));
    }
    DEV u32 tiles() const { return shared_tiles(count); }
};

// A block's share of the planes. The lines of a thread's next squares are on their way to shared memory while it turns one.
template <u32 BYTES> DEV void turn_planes(const Work& w, u32 tile, const Block& block) {
    const Planes p = Planes::of(w);
    const Tensor& out = in_shared(w).operands[0];
    const Tensor& x = in_shared(w).operands[1];
    constexpr u32 SIDE = Square<BYTES>::SIDE;
    constexpr u32 DEPTH = Planes::depth(BYTES), STAGE = SIDE * LAYER, STAGES = DEPTH * STAGE;
    static_assert(STAGES <= SCRATCH_BYTES, "they fit in scratch");
    const u32 step = p.tiles();
    const i64 x_step = x.strides[p.across] * BYTES, out_step = out.strides[p.down] * BYTES;
    char* const mine = block.scratch() + block.thread() * VECTOR_BYTES;
    const auto fetch = [&](u32 patches, u32 stage) {
        const Planes::Place place = p.place(patches, block.warp(), block.lane());
        if (place.inside) {
            const char* from = x.data + p.plane_offset(x, place.plane) + place.column * SIDE * x_step;
            from += place.line * VECTOR_BYTES;
#pragma unroll
            for (u32 i = 0; i < SIDE; ++i, from += x_step)
                if (in_bounds(x, from) && in_bounds(x, from + VECTOR_BYTES - BYTES))
                    copy_async_16(mine + stage + i * LAYER, from, VECTOR_BYTES);
        }
        copy_async_commit();
    };
    u32 patches = tile, ahead = tile;
#pragma unroll 1
    for (u32 stage = 0; stage < STAGES; stage += STAGE, ahead += step) fetch(ahead, stage);
    u32 stage = 0;
#pragma unroll 1
    for (; patches < p.count; patches += step, ahead += step) {
        copy_async_wait<DEPTH - 1>();
        const Planes::Place place = p.place(patches, block.warp(), block.lane());
        if (place.inside) {
            Square<BYTES> square;
#pragma unroll
            for (u32 i = 0; i < SIDE; ++i) square.load(i, mine + stage + i * LAYER);
            square.turn();
            char* to = in_global(out.data) + p.plane_offset(out, place.plane) + place.line * SIDE * out_step;
            to += place.column * VECTOR_BYTES;
#pragma unroll
            for (u32 i = 0; i < SIDE; ++i, to += out_step)
                if (in_bounds(out, to) && in_bounds(out, to + VECTOR_BYTES - BYTES)) square.store(i, to);
        }
        fetch(ahead, stage);
        stage = stage + STAGE < STAGES ? stage + STAGE : 0;
    }
    copy_async_wait<0>();
}
