// Tiles whose depth the blocks of a pair share: each multiplies half of the stages. Then each warp gives the warp of the same number
// in the other block half of its sums, and adds what that one gives to the other half. They go right to the staging of that warp: about
// as far as the second-level cache, but once, and without a poll.
#pragma once
#ifdef HOPPER
#include "hopper/halves.cuh"

// What a warp does in front of the main loop, and behind it. All barriers but `parting` have a phase for each such tile.
struct Together {
    // Lets the other block's warp use the staging, in which nothing is wanted any longer, for N sums of each lane. False where this
    // warp has parted from the other block, or `other` has, with which it shares the depth: the phases of a tile before may never have ended.
    template <u32 N> static DEV bool begin(u32 warp, u32 other) {
        __syncwarp();  // all have read what was in the staging
        const bool parted = has_parted(warp) || has_parted(other);
        if (other != warp) meet_for_halves(warp);  // both have asked before one may part: they have one answer
        if (parted) return false;
        if (Kept::lane() == 0) {
            Kept::place().met += 1;
            mbarrier_arrive_expect(&shared_state().given[warp], WARP * N * sizeof(f32));
            mbarrier_arrive_there(&shared_state().taking[warp]);
        }
        __syncwarp();
        return true;
    }

    // Gives the other block what it finishes. False if the run is over.
    template <u32 N> static DEV bool give(const f32 (&sums)[N]) {
        const u32 warp = Kept::warp();
        const u32 to = address_there(shared_memory_anew() + place(warp)), given = address_there(&shared_state().given[warp]);
        if (!hears_of(&shared_state().taking[warp])) return part();
#pragma unroll
        for (u32 k = 0; k < N / 4; ++k) store_there(to + k * VECTORS, vector(sums, k), given);
        return true;
    }
    // Adds what the other block has given, as soon as it is there. False if the run is over.
    template <u32 N> static DEV bool add_given(f32 (&sums)[N]) {
        const u32 warp = Kept::warp();
        if (!hears_of(&shared_state().given[warp])) return part();
        add(sums, shared_address(shared_memory_anew() + place(warp)));
        return true;
    }
    // Where the warpgroups share the depth, too: the first one gets the sums of both. False in the second one, and if the run is over.
    template <u32 N> static DEV bool join(f32 (&mine)[N], const f32 (&theirs)[N]) {
        const u32 warp = Kept::warp(), here = shared_address(shared_memory_anew() + place(warp));
        const bool first = warp < WORKER_WARPS / 2, ok = give(theirs) && add_given(mine);
        if (!first) {
#pragma unroll
            for (u32 k = 0; k < N / 4; ++k) store_shared(here + k * VECTORS, vector(mine, k));
        }
        meet_for_halves(warp);
        if (first) add(mine, here + STAGING_BYTES / 2);
        meet_for_halves(warp);
        return first && ok;
    }

    // Parts from the other block's warp, as the run is over: once that one has given what it gives, or has parted as well. What came
    // later would be found in the staging by whatever works there then. False.
    static DEV_CALL bool part() {
        const u32 warp = Kept::warp();
        if (Kept::lane() == 0) {
            Kept::place().parted = 1;
            mbarrier_arrive_there(&shared_state().parting[warp]);
        }
        while (!mbarrier_test(&shared_state().given[warp], parity()) && !mbarrier_test(&shared_state().parting[warp], 0)) {
        }
        // What it gave in front of that may still be on its way.
        for (const u64 end = nanoseconds() + LANDING_NS; !mbarrier_test(&shared_state().given[warp], parity()) && nanoseconds() <= end;) {
        }
        __syncwarp();
        return false;
    }

    // Giving and finishing in calls, which need no registers of the main loop. By then the lines of this block's half of the warp's part
    // have been kept. What else is added is asked for before the other block's sums are there or, of the bias, has been (EarlyBias).
    static DEV_CALL bool give_half(HalfSums sums) { return give(sums.v); }
    static DEV_CALL bool finish(HalfSums sums, u32 bias) {
        const Workers me;
        const Lines lines = Lines::kept();
        const auto& schedule = *reinterpret_cast<const ProductSchedule*>(me.work().detail);
        HalfExtras extras;
        extras.fetch_residual(ProductArgs(me.work()), lines, me.lane());
        extras.take(bias, me.lane());
        if (!add_given(sums.v)) return false;
        __syncwarp();  // all have read what was in the staging
        finish_half(sums.v, extras, lines, Lines{nullptr, 0, schedule.what}.ending(), me);
        return true;
    }

    // Called where a launch ends: the other block's warp is not to wait for more.
    static DEV void end() {
        if (Kept::lane() == 0 && !has_parted(Kept::warp())) mbarrier_arrive_there(&shared_state().parting[Kept::warp()]);
    }

  private:
    static constexpr u32 VECTORS = WARP * CHUNK_BYTES;  // of all lanes
    static_assert(WARP * sizeof(HalfSums) == STAGING_BYTES / WORKER_WARPS, "all of a warp's staging");

    // Where a lane's first vector is, from the start of shared memory, in either block.
    static DEV u32 place(u32 warp) { return STAGING_AT + warp * (STAGING_BYTES / WORKER_WARPS) + Kept::lane() * CHUNK_BYTES; }
    template <u32 N> static DEV uint4 vector(const f32 (&v)[N], u32 k) {
        return make_uint4(__float_as_uint(v[4 * k]), __float_as_uint(v[4 * k + 1]), __float_as_uint(v[4 * k + 2]), __float_as_uint(v[4 * k + 3]));
    }
    template <u32 N> static DEV void add(f32 (&sums)[N], u32 from) {
#pragma unroll
        for (u32 k = 0; k < N / 4; ++k) {
            const uint4 more = load_shared_16(from + k * VECTORS);
            sums[4 * k] += __uint_as_float(more.x);
            sums[4 * k + 1] += __uint_as_float(more.y);
            sums[4 * k + 2] += __uint_as_float(more.z);
            sums[4 * k + 3] += __uint_as_float(more.w);
        }
    }
    static DEV bool has_parted(u32 warp) { return static_cast<volatile WorkerPlace&>(shared_state().workers[warp]).parted; }
    static DEV u32 parity() { return Kept::place().met % 2 ^ 1; }  // of the present phase
    // Waits for it; false if the run is over. It acquires at the scope of the block: what st.async brings is in the memory of this one.
    static DEV bool hears_of(u64* barrier) { return __all_sync(0xffffffffu, wait_or_stop(barrier, parity())); }
};
#endif
