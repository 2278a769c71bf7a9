// Tiles whose depth the blocks of a pair share: each multiplies half of the stages. Then each warp gives the warp of the same number
// in the other block half of its sums, 8 of 16 lines, and finishes the other half. They go right to the staging of that warp: about as
// far as the second-level cache, but once, and without a poll.
#pragma once
#ifdef HOPPER
#include "hopper/small.cuh"

// Of a lane, in 8 lines of a piece: of each 8 columns, two neighbours.
struct HalfSums {
    f32 v[HALF_SUMS];

    DEV HalfSums(const f32 (&sums)[PIECE_SUMS], bool lower) {
#pragma unroll
        for (u32 k = 0; k < HALF_SUMS; ++k) v[k] = lower ? sums[k / 2 * 4 + 2 + k % 2] : sums[k / 2 * 4 + k % 2];
    }
};

// What a warp does in front of the main loop; and behind it, in calls, which need no registers of that. By then the lines of this
// block's half of the warp's part have been kept. All barriers have a phase for each such tile.
struct Together {
    // Lets the other block's warp use the staging, in which nothing is wanted any longer. False if the run is over: then the phases of a
    // tile before may never have ended.
    static DEV bool begin(const Workers& me) {
        const u32 warp = Kept::warp();
        if (__any_sync(0xffffffffu, stopped(shared_state()))) return false;  // all are here, and have read what was in the staging
        if (me.lane() == 0) {
            Kept::place().met += 1;
            mbarrier_arrive_expect(&shared_state().given[warp], WARP * sizeof(HalfSums));
            mbarrier_arrive_there(&shared_state().taking[warp]);
        }
        __syncwarp();
        return true;
    }

    // Gives the other block what it finishes. False if the run is over.
    static DEV_CALL bool give(HalfSums sums) {
        const u32 warp = Kept::warp();
        const u32 to = address_there(shared_memory_anew() + place(warp)), given = address_there(&shared_state().given[warp]);
        if (!hears_of(&shared_state().taking[warp])) return false;
#pragma unroll
        for (u32 k = 0; k < VECTORS; ++k) store_there(to + k * WARP * CHUNK_BYTES, words(&sums.v[4 * k]), given);
        return true;
    }

    // Finishes this block's half: with the other block's sums, as soon as they are there. What else is added is asked for before, or, of
    // the bias, has been (EarlyBias). False if the run is over.
    static DEV_CALL bool finish(HalfSums sums, u32 bias) {
        const Workers me;
        const Lines lines = Lines::kept();
        HalfExtras extras;
        extras.fetch_residual(ProductArgs(me.work()), lines, me.lane());
        extras.take(bias, me.lane());
        const u32 warp = Kept::warp(), from = shared_address(shared_memory_anew() + place(warp));
        if (!hears_of(&shared_state().given[warp])) return false;
#pragma unroll
        for (u32 k = 0; k < VECTORS; ++k) {
            const uint4 more = load_shared_16(from + k * WARP * CHUNK_BYTES);
            sums.v[4 * k] += __uint_as_float(more.x);
            sums.v[4 * k + 1] += __uint_as_float(more.y);
            sums.v[4 * k + 2] += __uint_as_float(more.z);
            sums.v[4 * k + 3] += __uint_as_float(more.w);
        }
        __syncwarp();  // all have read what was in the staging
        finish_half(sums.v, extras, lines, me);
        return true;
    }

  private:
    static constexpr u32 VECTORS = HALF_SUMS / 4;
    static_assert(WARP * sizeof(HalfSums) == STAGING_BYTES / WORKER_WARPS, "all of a warp's staging");

    // Where a lane's first vector is, from the start of shared memory, in either block.
    static DEV u32 place(u32 warp) { return STAGING_AT + warp * (STAGING_BYTES / WORKER_WARPS) + thread_index_anew() % WARP * CHUNK_BYTES; }
    static DEV uint4 words(const f32* v) {
        return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
    }
    // Waits for the present phase; false if the run is over.
    static DEV bool hears_of(u64* barrier) {
        return __all_sync(0xffffffffu, wait_or_stop(barrier, Kept::place().met % 2 ^ 1));
    }
};
#endif
