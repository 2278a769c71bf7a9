// COPY: moves equal types bit for bit, converts the others.
#pragma once
#include "transpose.cuh"
#include "vectors.cuh"
#include "views.cuh"

constexpr u32 MOVES_IN_FLIGHT = 2 * IN_FLIGHT;  // units that a thread has on their way

// Moves 16 bytes at a time between tensors of one type whose neighbours are the same: a block's share. What a thread moves
// is on its way to shared memory long before it is stored.
template <u32 USED> DEV void move_units(const Merged<2>& all, u32 tile, const Block& block) {
    constexpr u32 DEPTH = MOVES_IN_FLIGHT, STAGES = DEPTH * LAYER;
    const u32 step = all.tiles() * WORKER_THREADS, first = tile * WORKER_THREADS + block.thread(), count = all.count();
    const auto by = all.place<USED>(step);
    auto here = all.place<USED>(first), there = here;
    char* const mine = block.scratch() + block.thread() * VECTOR_BYTES;
    u32 ahead = first;
    const auto fetch = [&](u32 stage) {
        if (ahead < all.units) {
            const char* p = all.at<USED>(1, there);
            if (all.holds(1, p, VECTOR_BYTES)) copy_async_16(mine + stage, p, VECTOR_BYTES);
        }
        copy_async_commit();
        ahead += step;
        all.move<USED>(there, by);
    };
#pragma unroll 1
    for (u32 stage = 0; stage < STAGES; stage += LAYER) fetch(stage);
    u32 stage = 0;
#pragma unroll 1
    for (u32 unit = first; unit < count; unit += step) {
        copy_async_wait<DEPTH - 1>();
        if (unit < all.units) {
            char* p = all.at<USED>(0, here);
            if (all.holds(0, p, VECTOR_BYTES)) *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(mine + stage);
        } else {
            const u32 single = unit - all.units;
            move_element(*all.tensors[0], all.single(0, single), *all.tensors[1], all.single(1, single));
        }
        all.move<USED>(here, by);
        fetch(stage);
        stage = stage + LAYER < STAGES ? stage + LAYER : 0;
    }
    copy_async_wait<0>();
}

struct CopyHandler {
    static constexpr u32 SCRATCH = SCRATCH_BYTES;
    static DEV u32 scratch(const CopyArgs& args) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        if (out.dtype != x.dtype) return vector_scratch(Merged<2>(VECTOR, MAX_RANK, out, x));
        const Merged<2> units(VECTOR_BYTES / out.item_bytes, MAX_RANK, out, x);
        if (moves(units)) return units.few() ? LAYER : MOVES_IN_FLIGHT * LAYER;
        const Planes planes(out, x);
        return planes.fits ? planes.scratch() : 0;
    }
    static DEV u32 tiles(const CopyArgs& args) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        if (out.dtype == x.dtype) {
            const Merged<2> units(VECTOR_BYTES / out.item_bytes, MAX_RANK, out, x);
            if (moves(units)) return units.tiles();
            const Planes planes(out, x);
            if (planes.fits) return planes.tiles();
        } else {
            const Merged<2> vectors(VECTOR, MAX_RANK, out, x);
            if (takes_vectors(vectors)) return vectors.tiles();
        }
        return elementwise_tiles(out.elements());
    }

    static DEV_CALL void run(const CopyArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        if (out.dtype == x.dtype) {
            const Merged<2> units(VECTOR_BYTES / out.item_bytes, MAX_RANK, out, x);
            if (moves(units) && units.rows() == 1) return move_units<1>(units, tile, block);
            if (moves(units)) return move_units<Merged<2>::AXES>(units, tile, block);
            const Planes planes(out, x);
            if (planes.fits) return turn(planes, tile, block);
        } else {
            const Merged<2> vectors(VECTOR, MAX_RANK, out, x);
            if (takes_vectors(vectors)) return map_vectors(vectors, tile, block, [](f32 (&)[1][VECTOR]) {});
        }
        const bool same = out.dtype == x.dtype;
        const bool through_f32 = is_float(x.dtype);
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const i64 to = out.offset_of(i), from = x.offset_of(i);
            if (same) move_element(out, to, x, from);
            else if (through_f32) store_f32(out, to, load_f32(x, from));
            else store_i64(out, to, load_i64(x, from));
        });
    }

  private:
    static DEV bool moves(const Merged<2>& units) { return units.fits && (units.neighbours(1) || (units.units == 0 && units.singles == 1)); }

    static DEV void turn(const Planes& planes, u32 tile, const Block& block) {
        switch (planes.out.item_bytes) {
            case 1: turn_planes<1>(planes, tile, block); break;
            case 2: turn_planes<2>(planes, tile, block); break;
            case 4: turn_planes<4>(planes, tile, block); break;
            default: turn_planes<8>(planes, tile, block);
        }
    }
};
