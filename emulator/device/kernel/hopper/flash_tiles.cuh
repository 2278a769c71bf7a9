// Which tiles attention on wgmma has, and in which order a block takes them.
#pragma once
#ifdef HOPPER
#include "attention_shape.cuh"

constexpr u32 FLASH_QUERIES = 128, FLASH_KEYS = 128;  // of a tile, and of one of its steps

// Some queries of one head, and the keys that any of them sees.
struct FlashTile {
    u32 query, head, sample;
    u32 begin, end;
    u32 first_block;  // `begin`, down to a multiple of FLASH_KEYS

    DEV void see(const AttentionShape& s) {
        begin = s.first_key(query);
        end = s.end_key(min(query + FLASH_QUERIES, s.queries) - 1);
        first_block = begin / FLASH_KEYS * FLASH_KEYS;
    }
};

// Without a causal mask all tiles cost the same, and tiles of one head follow one another: they share its keys in the L2
// cache. Under one, the last queries have most keys. Where the keys of all heads fit in the cache, the heaviest tiles of all
// heads go first, and the blocks take them back and forth, so that each gets its share of heavy ones. Where they do not, an
// item is a heavy and a light tile of the same head, and all items cost the same.
struct FlashTiles {
    static constexpr u64 CACHED_BYTES = 32 << 20;  // of keys and values
    u32 down, heads, per_head, items;              // tiles of a head; heads of all samples; items of a head, and of all
    bool paired, sorted;

    DEV explicit FlashTiles(const AttentionArgs& args) {
        const Tensor& q = args.q();
        const Tensor& v = args.v();
        const u32 samples = q.dims[0], columns = q.dims[3] + v.dims[3];
        down = (q.dims[2] + FLASH_QUERIES - 1) / FLASH_QUERIES;
        heads = samples * q.dims[1];
        const u64 bytes = static_cast<u64>(samples * v.dims[1]) * v.dims[2] * columns * 2;
        paired = args.causal() && bytes > CACHED_BYTES;
        sorted = args.causal() && !paired;
        per_head = paired ? (down + 1) / 2 : down;
        items = heads * per_head;
    }
};

// The tiles of this block, one after the other: what the loader and the workers both go through.
struct FlashWalk {
    const Work& work;
    u32 step = 0;

    // Which queries are next; not yet which keys they see. It takes as little as possible: a short instruction waits for it.
    DEV bool next(FlashTile& t) {
        const AttentionArgs& args = AttentionArgs::of(work);
        const FlashTiles tiles(args);
        for (;; ++step) {
            const u32 round = tiles.paired ? step / 2 : step;
            if (round * gridDim.x >= tiles.items) return false;
            const u32 place = tiles.sorted && round % 2 != 0 ? gridDim.x - 1 - work.first_tile : work.first_tile;
            const u32 item = round * gridDim.x + place;
            if (item >= tiles.items) continue;
            u32 head, tile;
            if (tiles.sorted) {
                const u32 lighter = item < tiles.heads ? 0 : item / tiles.heads;
                tile = tiles.down - 1 - lighter;
                head = item - lighter * tiles.heads;
            } else {
                head = tiles.per_head == 1 ? item : item / tiles.per_head;
                tile = item - head * tiles.per_head;
                const u32 other = tiles.down - 1 - tile;
                if (tiles.paired && step % 2 != 0 && tile == other) continue;  // the one in the middle has no partner
                if (tiles.paired && step % 2 == 0) tile = other;
            }
            step += 1;
            t.query = tile * FLASH_QUERIES;
            const u32 heads = args.q().dims[1];
            t.sample = head < heads ? 0 : head / heads;
            t.head = head - t.sample * heads;
            return true;
        }
    }
};
#endif
