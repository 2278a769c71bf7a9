// ATTENTION with few queries and many keys: as in attention_held.cuh, but each warp has the copy engine bring the keys and values
// of its next steps to shared memory. (Threads that copy 16 bytes each did not get beyond 3.4 TB/s.) Warps do not wait for each other.
#pragma once
#include "attention_held.cuh"

// A warp has 16 keys at a time, and all columns. Of each of its stages, keys and values are a slot, which is filled again as
// soon as its contents are in registers.
template <class T, u32 WIDTH> struct StreamedAttention {
    static constexpr u32 SIDES = WIDTH / 64, KEYS = WORKER_WARPS * STEP_KEYS, LINE = WIDTH * 2, SLOT = STEP_KEYS * LINE;
    static constexpr u32 STAGES = 128 / WIDTH, SLOTS = 2 * STAGES;  // 64 KB of a block
    using Warp = WarpAttention<T, STEP_KEYS, WIDTH>;
    using Results = FewResults<WIDTH, WORKER_WARPS>;
    using Products = HeldProducts<T, WIDTH>;
    // Slots, in whose place results are left, and the barriers that the copies to each of them arrive at.
    static constexpr u32 SLOT_BYTES = WORKER_WARPS * SLOTS * SLOT, RESULT_BYTES = WORKER_WARPS * FEW_ROWS * Results::PITCH * sizeof(f32);
    static constexpr u32 BARRIERS_AT = SLOT_BYTES > RESULT_BYTES ? SLOT_BYTES : RESULT_BYTES;
    static constexpr u32 SCRATCH = BARRIERS_AT + WORKER_WARPS * SLOTS * sizeof(u64);
    static_assert(SCRATCH <= SCRATCH_BYTES && BARRIERS_AT % sizeof(u64) == 0, "all fits");

    // Of the present work and tile, which are read anew, as in HeldAttention.
    static DEV_CALL void run() {
        const Block block;
        const FewQueries& few = FewQueries::of(args().work);
        const FewQueriesTile tile(few, Kept::place().tile, args().q().dims[2], WIDTH, WIDTH);
        if (!attend(args(), few, tile, block)) return;
        block.sync();
        const AttentionArgs& again = args();
        const FewQueries& same = FewQueries::of(again.work);
        Results::finish(again, same, tile, Results::place(same, Kept::place().tile, block.launch()->workspace),
                        reinterpret_cast<f32*>(block.scratch()), WORKER_WARPS, block);
    }

  private:
    static DEV const AttentionArgs& args() { return AttentionArgs::of(Kept::shared().works[Kept::taken() % WORKS]); }

    // A warp's slots.
    struct Slots {
        char* first;
        u64* full;

        DEV explicit Slots(const Block& block)
            : first(block.scratch() + block.warp() * (SLOTS * SLOT)),
              full(reinterpret_cast<u64*>(block.scratch() + BARRIERS_AT) + block.warp() * SLOTS) {}
        DEV void begin(u32 lane) const {
            if (lane == 0) {
#pragma unroll
                for (u32 i = 0; i < SLOTS; ++i) mbarrier_init(full + i, 1);
            }
            fence_barrier_init();
            fence_proxy_shared();  // what was here before was written by threads
            __syncwarp();
        }
        DEV void end(u32 lane) const {
            if (lane != 0) return;
#pragma unroll
            for (u32 i = 0; i < SLOTS; ++i) mbarrier_end(full + i);
        }
        // Fills a slot with the lines from `key` on, if there are any. Called by the whole warp, whose lanes have read what was there.
        DEV void fetch(u32 slot, const HeldLines& lines, u32 key, u32 end, u32 lane) const {
            if (key >= end) return;
            const u32 have = min(STEP_KEYS, end - key);
            const char* const from = lines.base + key * lines.pitch;
            const bool exist = range_in_bounds(lines.t, from, LINE) && range_in_bounds(lines.t, from + (have - 1) * lines.pitch, LINE);
            const u32 to = shared_address(first + slot * SLOT);
            if (lane == 0) mbarrier_arrive_expect(full + slot, exist ? have * LINE : 0);
            if (!exist) return;
            if (lines.pitch == LINE) {
                if (lane == 0) bulk_load(to, from, have * LINE, full + slot);
            } else {
                __syncwarp();  // the barrier expects them
                if (lane < have) bulk_load(to + lane * LINE, from + lane * lines.pitch, LINE, full + slot);
            }
        }
        DEV uint4 read(u32 slot, u32 line, u32 chunk) const {
            return *reinterpret_cast<const uint4*>(first + slot * SLOT + line * LINE + chunk * CHUNK_BYTES);
        }
    };

    // False if the run is over.
    static DEV bool attend(const AttentionArgs& args, const FewQueries& few, const FewQueriesTile& tile, const Block& block) {
        const u32 lane = block.lane(), g = lane / 4, t = lane % 4, end = tile.end, halves = tile.rows > 8 ? 2 : 1;
        const HeldLines keys(args.k(), tile.base(args.k(), tile.key_head), 0), values(args.v(), tile.base(args.v(), tile.key_head), 0);
        const HeldLines queries(args.q(), tile.base(args.q(), tile.head), t);
        const HeldRows rows(args, few, tile, g);
        const Slots slots(block);
        u32 key = tile.begin + block.warp() * STEP_KEYS, stage = 0, parity = 0;
        if (!block.begin()) return false;
        typename Products::Deep q;  // asked for first: what is under way would be in front of it
#pragma unroll
        for (u32 half = 0; half < 2; ++half)
#pragma unroll
            for (u32 i = 0; i < WIDTH / 32; ++i) q[half][i] = queries.load(queries.base + rows.query[half], 4 * i);
        slots.begin(lane);
#pragma unroll
        for (u32 i = 0; i < STAGES; ++i) {
            slots.fetch(2 * i, keys, key + i * KEYS, end, lane);
            slots.fetch(2 * i + 1, values, key + i * KEYS, end, lane);
        }
        typename Warp::Running r;
        r.clear();
#pragma unroll 1
        for (; key < end; key += KEYS) {
            typename Products::Deep k;
            typename Products::Values v[SIDES];
            f32 scores[2][4] = {};
            wait_phase(slots.full + 2 * stage, parity);
#pragma unroll
            for (u32 j = 0; j < 2; ++j)
#pragma unroll
                for (u32 i = 0; i < WIDTH / 32; ++i) k[j][i] = slots.read(2 * stage, g + 8 * j, t + 4 * i);
            __syncwarp();
            slots.fetch(2 * stage, keys, key + STAGES * KEYS, end, lane);
            Products::multiply_keys(scores, q, k);
            rows.hide(scores, key + 2 * t, few.scale);
            Warp::soften(scores, r, halves);
            wait_phase(slots.full + 2 * stage + 1, parity);
#pragma unroll
            for (u32 side = 0; side < SIDES; ++side)
#pragma unroll
                for (u32 j = 0; j < 4; ++j) v[side][j] = slots.read(2 * stage + 1, 2 * t + j % 2 + j / 2 * 8, g + 8 * side);
            __syncwarp();
            slots.fetch(2 * stage + 1, values, key + STAGES * KEYS, end, lane);
            if (key + STEP_KEYS > end) clear_past(v, end - key, t);
#pragma unroll
            for (u32 side = 0; side < SIDES; ++side) Products::multiply_values(sums_of(r, side), scores, v[side]);
            stage = stage + 1 < STAGES ? stage + 1 : 0;
            parity ^= stage == 0;
        }
        block.sync();  // results take the place of keys
        slots.end(lane);
        keep(r, reinterpret_cast<f32*>(block.scratch()), tile.rows, block);
        return true;
    }
    // Behind the last key, values may be anything, and nothing times a NaN is no 0.
    static DEV void clear_past(typename Products::Values (&v)[SIDES], u32 have, u32 t) {
#pragma unroll
        for (u32 side = 0; side < SIDES; ++side)
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const bool exists = 2 * t + j % 2 + j / 2 * 8 < have;
                uint4& to = v[side][j];
                to = make_uint4(exists ? to.x : 0, exists ? to.y : 0, exists ? to.z : 0, exists ? to.w : 0);
            }
    }
    static DEV typename Products::Sums& sums_of(typename Warp::Running& r, u32 side) {
        return *reinterpret_cast<typename Products::Sums*>(&r.sums[8 * side]);
    }

    // A warp's results, of the rows that exist.
    static DEV void keep(typename Warp::Running& r, f32* parts, u32 rows, const Block& block) {
        const u32 g = block.lane() / 4, t = block.lane() % 4;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            f32 total = r.total[half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            if (g + 8 * half >= rows) continue;
            f32* const to = Results::line(parts, block.warp(), rows, g + 8 * half);
            if (t == 0) *reinterpret_cast<float2*>(to + WIDTH) = make_float2(r.top[half], total);
#pragma unroll
            for (u32 side = 0; side < SIDES; ++side) Products::keep(to + side * 64, sums_of(r, side), half, t);
        }
    }
};
