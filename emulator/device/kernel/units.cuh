// A block's share of the units of some tensors: what a thread reads is on its way to shared memory long before it is used.
#pragma once
#include "padding.cuh"
#include "vectors.cuh"

// A call, so that the loops that may need it stay short.
DEV_CALL void trap_index(i64 index, const Block& block) {
    trap(block, TRAP_INDEX, static_cast<u32>(index));
    pad_layout();
}

// Units of each block lie together, so that what neighbouring units read twice is found in the first-level cache.
DEV u32 share_of(u32 units, u32 tiles) {
    const u32 turns = (units + tiles * WORKER_THREADS - 1) / (tiles * WORKER_THREADS);
    return turns * WORKER_THREADS;
}

// Calls use(place) for the unit of this thread, where none has more than one: see Merged::few, and for USED as well.
template <u32 USED, u32 N, class Use> DEV void one_unit(const Streams<N>& all, u32 tile, const Block& block, Use use) {
    const u32 unit = tile * WORKER_THREADS + block.thread();
    if (unit < all.units) use(all.template place<USED>(unit));
}

// The same for handlers that begin themselves: locate(place, exists) is what can be known before that, and use takes it up.
template <u32 USED, u32 N, class Locate, class Use>
DEV void one_unit_located(const Streams<N>& all, u32 tile, const Block& block, Locate locate, Use use) {
    const u32 unit = tile * WORKER_THREADS + block.thread_in_turn();
    const bool exists = unit < all.units;
    const auto known = locate(all.template place<USED>(unit), exists);
    if (block.begin() && exists) use(known);
    block.end();
}

// Calls use(place) for every unit of this thread.
template <u32 USED, u32 N, class Use> DEV void walk_units(const Streams<N>& all, u32 tile, const Block& block, Use use) {
    const u32 share = share_of(all.units, all.tiles()), end = min(all.units, (tile + 1) * share);
    u32 unit = tile * share + block.thread();
    auto here = all.template place<USED>(unit);
    const auto by = all.template place<USED>(WORKER_THREADS);
#pragma unroll 1
    for (; unit < end; unit += WORKER_THREADS, all.template move<USED>(here, by)) use(here);
}

// The same for many units: calls use(place, slot) DEPTH units after fetch(place, slot) has started its copies to `slot`, the
// first of PIECES places of 16 bytes, LAYER apart. Threads read back only what they fetched themselves: there is no barrier.
template <u32 USED, u32 DEPTH, u32 PIECES, u32 N, class Fetch, class Use>
DEV void fetch_units(const Streams<N>& all, u32 tile, const Block& block, Fetch fetch, Use use) {
    constexpr u32 STAGE = PIECES * LAYER, STAGES = DEPTH * STAGE;
    static_assert(STAGES <= SCRATCH_BYTES, "they fit in scratch");
    const u32 share = share_of(all.units, all.tiles());
    const u32 first = tile * share + block.thread(), end = min(all.units, (tile + 1) * share);
    const auto by = all.template place<USED>(WORKER_THREADS);
    auto here = all.template place<USED>(first), there = here;
    char* const mine = block.scratch() + block.thread() * VECTOR_BYTES;
    u32 ahead = first;
    const auto begin = [&](u32 stage) {
        if (ahead < end) fetch(there, mine + stage);
        copy_async_commit();
        ahead += WORKER_THREADS;
        all.template move<USED>(there, by);
    };
#pragma unroll 1
    for (u32 stage = 0; stage < STAGES; stage += STAGE) begin(stage);
    u32 stage = 0;
#pragma unroll 1
    for (u32 unit = first; unit < end; unit += WORKER_THREADS) {
        copy_async_wait<DEPTH - 1>();
        use(here, mine + stage);
        all.template move<USED>(here, by);
        begin(stage);
        stage = stage + STAGE < STAGES ? stage + STAGE : 0;
    }
    copy_async_wait<0>();
}
