// Depth split over blocks: each writes its partial sums to the workspace, and finishes a share of the tile, for which it adds
// up those of all of them, in the order of the splits.
#pragma once
#ifdef HOPPER
#include "hopper/product_args.cuh"
#include "hopper/store.cuh"

constexpr u32 GROUP_COLUMNS = 8;  // a group: what a warp has of 16 rows and so many columns, four sums in a lane
constexpr u32 GROUP_FLOATS = 4 * WARP;

// Partial sums of one tile: f32 [splits][groups][lane][4], the groups of a warp one behind the other. They need no flags: a word
// is 0 until its number is there, and whoever has read it sets it back.
struct SplitTile {
    f32* sums;
    u32 splits, groups;
    u32 first, end;                 // the groups that this block finishes
    u32 per_warp;                   // groups, of each warp that has any: two to that
    u32 second_row, second_column;  // of the tile, where the second warpgroup's part begins

    DEV SplitTile(char* at, u32 count, u32 split, u32 all, u32 width, bool beside)
        : sums(reinterpret_cast<f32*>(at)), splits(count), groups(all), per_warp(31 - __clz(width / GROUP_COLUMNS)),
          second_row(beside ? 0 : BLOCK_ROWS), second_column(beside ? width : 0) {
        const u32 share = (all + count - 1) / count;
        first = min(all, split * share);
        end = min(all, first + share);
    }

    // Two above the number's bits, with one NaN taken for another, so that no number is 0.
    DEV static u32 shown(f32 v) {
        pin(v);  // else it would be worked out within the main loop, which then waits for every product
        return max(__float_as_uint(v) + 2, 1u);
    }
    DEV static f32 seen(u32 word) { return __uint_as_float(word - 2); }

    DEV f32* group(u32 of, u32 index, u32 lane) const {
        return sums + static_cast<u64>(of * groups + index) * GROUP_FLOATS + lane * 4;
    }
    // Where a group begins in the tile.
    DEV u32 row(u32 index) const {
        const u32 warp = index >> per_warp;
        return warp / 4 * second_row + warp % 4 * PIECE_ROWS;
    }
    DEV u32 column(u32 index) const {
        return (index >> per_warp) / 4 * second_column + (index & ((1u << per_warp) - 1)) * GROUP_COLUMNS;
    }

    // Writes the sums of `count` groups of a warp, one behind the other from `to` on.
    DEV static void publish(const f32 (&v)[SUMS], f32* to, u32 count) {
        constexpr u32 PIECE = PIECE_COLUMNS / GROUP_COLUMNS;
#pragma unroll
        for (u32 i = 0; i < SUMS / 4; i += PIECE) {
            if (i >= count) break;
#pragma unroll
            for (u32 j = i; j < i + PIECE; ++j) {
                const f32* const x = &v[j * 4];
                store_relaxed_16(to + j * GROUP_FLOATS, make_uint4(shown(x[0]), shown(x[1]), shown(x[2]), shown(x[3])));
            }
        }
    }

    // The whole sums of a group, as soon as all splits have written theirs: all are asked for together. False after a trap. Blocks
    // take the items of a work in order, so that the others of a tile are running or done.
    DEV bool gather(f32 (&total)[4], u32 index, u32 lane) const {
        const Launch* const launch = shared_state().launch;
        uint4 words[MAX_SPLITS];
        const bool ok = spin(
            launch,
            [&] {
#pragma unroll
                for (u32 i = 0; i < MAX_SPLITS; ++i) words[i] = load_relaxed_16(group(min(i, splits - 1), index, lane));
                u32 least = ~0u;
#pragma unroll
                for (u32 i = 0; i < MAX_SPLITS; ++i) least = min(least, min(min(words[i].x, words[i].y), min(words[i].z, words[i].w)));
                return least != 0;
            },
            [&] { raise(launch, TRAP_TIMEOUT, present_instruction(), WAITED_FOR_COUNTER, splits); });
        // Without a branch, also after a trap: else the sums lie in local memory.
#pragma unroll
        for (u32 k = 0; k < 4; ++k) total[k] = 0.0f;
#pragma unroll
        for (u32 i = 0; i < MAX_SPLITS; ++i) {
            store_relaxed_16(group(min(anew(i), splits - 1), index, lane), make_uint4(0, 0, 0, 0));
            total[0] += i < splits ? seen(words[i].x) : 0.0f;
            total[1] += i < splits ? seen(words[i].y) : 0.0f;
            total[2] += i < splits ? seen(words[i].z) : 0.0f;
            total[3] += i < splits ? seen(words[i].w) : 0.0f;
        }
        return __all_sync(0xffffffffu, ok);
    }
};

// What happens to the sums of a tile that were put together from several blocks, and where they go: as Lines says it of a
// warp's part, but lanes have four neighbours in a row at a time.
struct SplitResult {
    char* to;           // the tile's corner
    u32 pitch;          // bytes from row to row
    u32 rows, columns;  // of sums, that are left from the corner on
    const char* bias;   // of the tile's first column; null where there is none
    i64 residual;       // bytes from the result to it
    bool residual_first, residual_last, glu;
    u32 act, dtype;
    f32 alpha;

    DEV SplitResult(const ProductArgs& args, char* corner, u32 distance, u32 r, u32 column, u32 c)
        : to(corner), pitch(distance), rows(r), columns(c), bias(nullptr), residual(0), residual_first(false),
          residual_last(false), glu(args.is_glu()), act(glu ? args.unit() : ACT_IDENTITY), dtype(args.out().dtype), alpha(args.alpha()) {
#pragma unroll 1
        for (u32 i = 0; i < 4 && !glu; ++i) {
            const u32 step = args.steps(i);
            if (step == STEP_BIAS) bias = element(args.bias(), column);
            if (step == STEP_RESIDUAL) {
                residual = args.residual().data - args.out().data;
                residual_first = act == ACT_IDENTITY;
                residual_last = !residual_first;
            }
            if (step == STEP_ACT) act = args.act();
        }
    }
};

// Four neighbours in a row of a split tile's result: what is added to the sums is fetched while these are waited for.
struct SplitQuad {
    char* to;
    bool exists;
    uint2 bias, residual;

    DEV SplitQuad() : to(nullptr), exists(false), bias(make_uint2(0, 0)), residual(make_uint2(0, 0)) {}
    // Of a lane, once neighbouring lanes have exchanged what they have of the group that begins at (row, column) of the tile.
    DEV SplitQuad(const SplitResult& r, u32 row, u32 column, u32 lane) : SplitQuad() {
        row += lane / 4 + lane % 2 * HALF_ROWS;
        column += lane / 2 % 2 * 4;
        exists = row < r.rows && column < r.columns;
        if (!exists) return;
        to = r.to + static_cast<u64>(row) * r.pitch + (r.glu ? column : 2 * column);
        if (r.bias) {
            const char* const p = r.bias + 2 * column;  // pairs are aligned
            const u32* const words = reinterpret_cast<const u32*>(p);
            if (is_in_bias(p, 8)) bias = make_uint2(words[0], words[1]);
        }
        if (r.residual_first || r.residual_last) {
            const char* const p = to + r.residual;
            if (is_in_residual(p, 8)) residual = *reinterpret_cast<const uint2*>(p);
        }
        exists = is_in_result(to, r.glu ? 4 : 8);
    }

    // A lane has two neighbours in each of two rows, and gets the other two in one of them.
    DEV static void exchange(f32 (&v)[4], u32 lane) {
        const bool odd = lane % 2;
        const f32 first = __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[2], 1);
        const f32 second = __shfl_xor_sync(0xffffffffu, odd ? v[1] : v[3], 1);
        v[2] = odd ? v[2] : first;
        v[3] = odd ? v[3] : second;
        v[0] = odd ? first : v[0];
        v[1] = odd ? second : v[1];
    }
    // Takes the sums to the result.
    DEV void finish(const SplitResult& r, f32 (&v)[4]) const {
#pragma unroll
        for (u32 k = 0; k < 4; ++k) v[k] *= r.alpha;
        if (r.glu) {
            f32 units[2] = {v[0], v[2]};
            fast_activate(units, r.act);
            if (exists) *reinterpret_cast<u32*>(to) = pack_pair(r.dtype, units[0] * v[1], units[1] * v[3]);
            return;
        }
        add(v, bias, r.dtype);
        if (r.residual_first) add(v, residual, r.dtype);
        fast_activate(v, r.act);
        if (r.residual_last) add(v, residual, r.dtype);
        if (exists) *reinterpret_cast<uint2*>(to) = make_uint2(pack_pair(r.dtype, v[0], v[1]), pack_pair(r.dtype, v[2], v[3]));
    }

  private:
    DEV static void add(f32 (&v)[4], const uint2& words, u32 dtype) {
        v[0] += low_half(words.x, dtype);
        v[1] += high_half(words.x, dtype);
        v[2] += low_half(words.y, dtype);
        v[3] += high_half(words.y, dtype);
    }
};

// All that it takes to finish a share. It is worked out before the main loop, since behind it everybody waits, and kept in
// the staging of each warp, which is not used for anything else here.
struct Split {
    SplitTile tile;
    SplitResult result;

    DEV static Split& kept(u32 warp) {
        return *reinterpret_cast<Split*>(shared_memory_anew() + STAGING_AT + warp * (STAGING_BYTES / WORKER_WARPS));
    }

    // Finishes this warp's part of the block's share; false after a trap. A call, and one in it: registers are few, as those of the
    // main loop's sums are not there for this.
    static DEV_CALL bool finish() {
        const Workers me;
        const u32 warp = me.warp(), lane = me.lane();
        const Split& split = kept(warp);
#pragma unroll 1
        for (u32 index = split.tile.first + warp; index < split.tile.end; index += WORKER_WARPS) {
            const SplitQuad quad(split.result, split.tile.row(index), split.tile.column(index), lane);
            Sums sums = gather(index);
            if (!sums.all) return false;
            SplitQuad::exchange(sums.v, lane);
            quad.finish(split.result, sums.v);
        }
        return true;
    }

  private:
    struct Sums {
        f32 v[4];
        bool all;  // false after a trap
    };

    static DEV_CALL Sums gather(u32 index) {
        const Workers me;
        Sums sums;
        sums.all = kept(me.warp()).tile.gather(sums.v, index, me.lane());
        return sums;
    }
};
#endif
