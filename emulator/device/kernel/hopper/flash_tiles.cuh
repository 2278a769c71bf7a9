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
};

// Without a causal mask all tiles cost the same, and tiles of one head follow one another: they share its keys in the L2
// cache. Under one, the last queries have most keys. Where the keys of all heads fit in the cache, the heaviest tiles of all
// heads go first, and the blocks take them back and forth, so that each gets its share of heavy ones. Where they do not, an
// item is a heavy and a light tile of the same head, and all items cost the same.
struct FlashTiles {
    static constexpr u64 CACHED_BYTES = 32 << 20;  // of keys and values
    u32 down, heads, items;                        // tiles of a head; heads of all samples
    bool paired, sorted;

    DEV FlashTiles(const AttentionShape& s, u32 samples) {
        down = (s.queries + FLASH_QUERIES - 1) / FLASH_QUERIES;
        heads = samples * s.heads;
        const u64 bytes = static_cast<u64>(heads / s.heads_per_key) * s.keys * (s.depth + s.columns) * 2;
        paired = s.causal && bytes > CACHED_BYTES;
        sorted = s.causal && !paired;
        items = heads * (paired ? (down + 1) / 2 : down);
    }
};

// The tiles of this block, one after the other: what the loader and the workers both go through.
struct FlashWalk {
    const Work& work;
    u32 step = 0;

    DEV bool next(const AttentionShape& s, FlashTile& t) {
        const FlashTiles tiles(s, work.operands[0].dims[0]);
        for (;; ++step) {
            const u32 round = tiles.paired ? step / 2 : step;
            if (round * gridDim.x >= tiles.items) return false;
            const u32 place = tiles.sorted && round % 2 != 0 ? gridDim.x - 1 - work.first_tile : work.first_tile;
            const u32 item = round * gridDim.x + place;
            if (item >= tiles.items) continue;
            u32 head, tile;
            if (tiles.sorted) {
                tile = tiles.down - 1 - item / tiles.heads;
                head = item % tiles.heads;
            } else {
                const u32 per_head = tiles.items / tiles.heads;
                head = item / per_head;
                tile = item - head * per_head;
                const u32 other = tiles.down - 1 - tile;
                if (tiles.paired && step % 2 != 0 && tile == other) continue;  // the one in the middle has no partner
                if (tiles.paired && step % 2 == 0) tile = other;
            }
            step += 1;
            t.query = tile * FLASH_QUERIES;
            t.sample = head / s.heads;
            t.head = head - t.sample * s.heads;
            t.begin = s.first_key(t.query);
            t.end = s.end_key(min(t.query + FLASH_QUERIES, s.queries) - 1);
            t.first_block = t.begin / FLASH_KEYS * FLASH_KEYS;
            return true;
        }
    }
};
#endif
