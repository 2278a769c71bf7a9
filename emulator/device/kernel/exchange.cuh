// Small results that one instruction leaves and the next takes as they come, besides the ordinary way
// (emulator/device/exchange.py). A word of two neighbours is all ones until they are there, which no result is: conversions give
// another NaN. Nobody else writes it, it is written once until it is all ones again, and says nothing of other words; so neither
// side orders anything.
#pragma once
#include "path_workers.cuh"

#ifdef HOPPER
constexpr bool EXCHANGES = true;
#else
constexpr bool EXCHANGES = false;  // products give, and they need the copy engine
#endif
constexpr u32 NOT_THERE = ~0u;

// A place of `w`, in 16 bytes, plus 1; 0 is none.
DEV char* exchange_at(const Work& w, u32 place) {
    return place ? Kept::shared().launch->exchange + (in_shared(w).exchange + (place - 1) * CHUNK_BYTES) : nullptr;
}
DEV u32 most_of(const uint4& v) { return max(max(v.x, v.y), max(v.z, v.w)); }
