// Which tiles attention on wgmma has, and in which order a block takes them.
#pragma once
#ifdef HOPPER
#include "attention_shape.cuh"
#include "path_workers.cuh"

constexpr u32 FLASH_TURN = FIRST_FREE_BARRIER;         // and one more: the warpgroup whose turn it is
constexpr u32 FLASH_QUERIES = 128, FLASH_KEYS = 128;  // of a tile, most often, and of one of its steps

// Some queries of one head, and the keys that any of them sees.
struct FlashTile {
    u32 query, head, sample;
    u32 queries;  // of a tile
    u32 begin, end;
    u32 first_block;  // `begin`, down to a multiple of FLASH_KEYS

    DEV void see(const AttentionShape& s) {
        begin = s.first_key(query);
        end = s.end_key(min(query + queries, s.queries) - 1);
        first_block = begin / FLASH_KEYS * FLASH_KEYS;
    }
};

// Without a causal mask all tiles cost the same, and tiles of one head follow one another: they share its keys in the L2
// cache. Under one, the last queries have most keys. Where the keys of all heads fit in the cache, the heaviest tiles of all
// heads go first, and the blocks take them back and forth, so that each gets its share of heavy ones. Where they do not, the
// tiles of the first heads go in pairs, a heavy and a light one of the same head, all of which cost the same; the heads behind
// them, whose keys do fit, go as above, so that blocks end at the same time.
struct FlashTiles {
    u32 queries;        // of a tile
    u32 down, heads;    // tiles of a head; heads of all samples
    u32 paired, pairs;  // of these, how many go in pairs of tiles; and the pairs of each

    DEV explicit FlashTiles(const Work& w) {
        const Tensor& q = AttentionArgs::of(w).q();
        queries = in_halves(w) ? FLASH_QUERIES / 2 : FLASH_QUERIES;
        down = (q.dims[2] + queries - 1) / queries;
        heads = q.dims[0] * q.dims[1];
        paired = min(planned(w), heads - 1);  // it was planned for the bounds
        pairs = (down + 1) / 2;
    }
    DEV static const FlashSchedule& schedule(const Work& w) { return *reinterpret_cast<const FlashSchedule*>(w.detail); }
    DEV static u32 planned(const Work& w) { return schedule(w).paired_heads; }
    // Tiles are one warpgroup's: there are so few that the other one would only keep blocks from being at work.
    DEV static bool in_halves(const Work& w) { return schedule(w).flags & FLASH_HALVES; }
};

// The tiles of this block, one after the other: what the loader and the workers both go through.
struct FlashWalk {
    const Work& work;
    u32 step = 0;

    // Of few tiles, there is one for each block: so much is known at once.
    DEV bool is_over() const { return FlashTiles::planned(work) == 0 && step * gridDim.x >= work.tiles; }
    // Which queries are next; not yet which keys they see. It takes as little as possible: a short instruction waits for it.
    DEV bool next(FlashTile& t) {
        if (is_over()) return false;
        const AttentionArgs& args = AttentionArgs::of(work);
        const FlashTiles tiles(work);
        const u32 own = work.first_tile, pairs = tiles.paired * tiles.pairs;
        const u32 rounds = pairs == 0 ? 0 : pairs / gridDim.x, own_pairs = rounds + (own < pairs - rounds * gridDim.x ? 1 : 0);
        u32 head, tile;
        for (;; ++step) {
            if (step < 2 * own_pairs) {
                const u32 pair = step / 2 * gridDim.x + own;
                head = pair / tiles.pairs;
                tile = pair - head * tiles.pairs;
                const u32 other = tiles.down - 1 - tile;
                if (step % 2 != 0 && tile == other) continue;  // the one in the middle has no partner
                if (step % 2 == 0) tile = other;
            } else {
                const u32 round = step - own_pairs, first = tiles.paired;
                const bool causal = args.causal(), back = causal && (round - rounds) % 2 != 0;
                const u32 item = round * gridDim.x + (back ? gridDim.x - 1 - own : own) - pairs;
                const u32 line = causal ? tiles.heads - first : tiles.down, across = item < line ? 0 : item / line;
                if (across >= (causal ? tiles.down : tiles.heads)) return false;
                tile = causal ? tiles.down - 1 - across : item - across * line;
                head = causal ? first + item - across * line : across;
            }
            break;
        }
        step += 1;
        t.queries = tiles.queries;
        t.query = tile * tiles.queries;
        const u32 heads = args.q().dims[1];
        t.sample = head < heads ? 0 : head / heads;
        t.head = head - t.sample * heads;
        return true;
    }
};

// The warpgroups take turns at starting products, or both would wait for the same unit at the same time.
DEV void wait_turn(u32 group) { named_barrier(FLASH_TURN + anew(group), WORKER_THREADS); }
DEV void pass_turn(u32 group) { named_barrier_arrive(FLASH_TURN + (anew(group) ^ 1), WORKER_THREADS); }

// What warpgroup 1 does of a tile that is the other one's, of `blocks` of keys: all free stages, and turns are passed on. `granules`: of
// a stage.
DEV_CALL RingPlace follow_flash_tile(RingPlace place, u32 granules, u32 blocks) {
    Workers me{place};
    const auto pass = [&] {
        Stage stage;
        me.next(stage, granules);
        me.wait(stage);
        me.release(stage);
    };
    pass();
#pragma unroll 1
    for (u32 i = 0; i < blocks; ++i) {
        pass();
        wait_turn(1);
        pass_turn(1);
        pass();
    }
    return me.place;
}
#endif
