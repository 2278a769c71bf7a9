// Depth split over blocks: partial sums in the workspace, added up in the order of the splits by whoever finishes a piece.
#pragma once
#ifdef HOPPER
#include "hopper/finish.cuh"
#include "hopper/tiles.cuh"

// Partial sums of one tile: f32 [splits][worker warps][pieces][8 groups][lanes][4], as lanes hold them. Split s finishes the
// pieces s, s + splits, ... of every warp; warps of different blocks meet each other alone. flags: u32 [tiles][worker
// warps][finisher][split], 1 once that split's sums are there for that finisher, who sets it back.
static_assert(MAX_FINISHERS >= SUMS / PIECE_SUMS, "flags for each");

constexpr u32 WARP_PIECE_BYTES = PIECE_SUMS * WARP * sizeof(f32);
struct SplitTile {
    f32* sums;
    u32* flags;  // of this warp and tile: [finisher][MAX_SPLITS]
    u32 splits, split, warp, pieces;

    DEV u32 finishers() const { return min(splits, pieces); }
    DEV bool finishes(u32 index) const { return index % splits == split; }
    DEV u32 mine() const {
        u32 bits = 0;
        for (u32 i = split; i < pieces; i += splits) bits |= 1u << i;
        return bits;
    }

    DEV f32* piece(u32 of, u32 index) const {
        return sums + static_cast<u64>((of * WORKER_WARPS + warp) * pieces + index) * (PIECE_SUMS * WARP);
    }

    // Writes this block's partial sums of the pieces that others finish.
    DEV void publish(const f32 (&v)[SUMS], u32 lane) const {
#pragma unroll
        for (u32 i = 0; i < SUMS / PIECE_SUMS; ++i) {
            if (i == pieces) break;
            if (finishes(i)) continue;
            float4* to = reinterpret_cast<float4*>(piece(split, i)) + lane;
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                const u32 k = i * PIECE_SUMS + j * 4;
                to[j * WARP] = make_float4(v[k], v[k + 1], v[k + 2], v[k + 3]);
            }
        }
        __syncwarp();
        if (lane < finishers() && lane != split) store_release(flags + lane * MAX_SPLITS + split, 1);
    }
    // Waits for the partial sums of all splits; false after a trap. Blocks take the items of a work in order, so that the
    // others of a tile are running or done.
    DEV bool wait(const Launch& launch, u32 instruction, u32 lane) const {
        u32* flag = flags + split * MAX_SPLITS + lane;
        const bool waits = lane < splits && lane != split;
        const bool ok = !waits || spin(
            &launch, [&] { return load_acquire(flag) != 0; },
            [&] { raise(&launch, TRAP_TIMEOUT, instruction, WAITED_FOR_COUNTER, lane, load_relaxed(flag), 1); });
        if (waits) store_relaxed(flag, 0);
        __syncwarp();  // what this lane has acquired, the others may read
        if (!ok) stop(shared_state());
        return __all_sync(0xffffffffu, ok);
    }
    // Turns this block's sums of piece `index` into whole ones: added up in the order of the splits, of which four are read
    // at a time.
    DEV void gather(f32 (&v)[PIECE_SUMS], u32 index, u32 lane) const {
        constexpr u32 AT_ONCE = 4, GROUPS = 2;  // registers are dear
#pragma unroll
        for (u32 first = 0; first < PIECE_SUMS / 4; first += GROUPS) {
            float4 total[GROUPS];
#pragma unroll
            for (u32 j = 0; j < GROUPS; ++j) total[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
            for (u32 next = 0; next < splits; next += AT_ONCE) {
                float4 x[AT_ONCE][GROUPS];
#pragma unroll
                for (u32 i = 0; i < AT_ONCE; ++i) {
                    const float4* from = reinterpret_cast<const float4*>(piece(next + i, index)) + lane + first * WARP;
#pragma unroll
                    for (u32 j = 0; j < GROUPS; ++j) {
                        const u32 k = (first + j) * 4;
                        x[i][j] = make_float4(v[k], v[k + 1], v[k + 2], v[k + 3]);
                        if (next + i < splits && next + i != split) x[i][j] = __ldcg(from + j * WARP);
                    }
                }
#pragma unroll
                for (u32 i = 0; i < AT_ONCE; ++i) {
#pragma unroll
                    for (u32 j = 0; j < GROUPS; ++j) {
                        if (next + i >= splits) continue;
                        total[j] = make_float4(total[j].x + x[i][j].x, total[j].y + x[i][j].y, total[j].z + x[i][j].z, total[j].w + x[i][j].w);
                    }
                }
            }
#pragma unroll
            for (u32 j = 0; j < GROUPS; ++j) {
                const u32 k = (first + j) * 4;
                v[k] = total[j].x;
                v[k + 1] = total[j].y;
                v[k + 2] = total[j].z;
                v[k + 3] = total[j].w;
            }
        }
    }
};
#endif
