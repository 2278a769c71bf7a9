// COPY: moves equal types bit for bit, converts the others.
#pragma once
#include "few.cuh"
#include "transpose.cuh"
#include "views.cuh"

constexpr u32 MOVES_IN_FLIGHT = 6;  // units that a thread has on their way: see VECTORS_AT_ONCE

// Moves 16 bytes at a time between tensors of one type whose neighbours are the same: a block's share. What a thread moves
// is on its way to shared memory long before it is stored.
template <u32 USED> DEV void move_units(const Work& w, u32 tile, const Block& block) {
    constexpr u32 DEPTH = MOVES_IN_FLIGHT, STAGES = DEPTH * LAYER;
    const Streams<2> all(w);
    const u32 step = all.tiles() * WORKER_THREADS, first = tile * WORKER_THREADS + block.thread(), count = all.count();
    const bool direct = all.few();  // there is nothing to fetch ahead
    auto here = all.place<USED>(first), there = here, by = here;
    char* mine = nullptr;
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
    if (!direct) {
        by = all.place<USED>(step);
        mine = block.scratch() + block.thread() * VECTOR_BYTES;
#pragma unroll 1
        for (u32 stage = 0; stage < STAGES; stage += LAYER) fetch(stage);
    }
    u32 stage = 0;
#pragma unroll 1
    for (u32 unit = first; unit < count; unit += step) {
        if (!direct) copy_async_wait<DEPTH - 1>();
        if (unit < all.units) {
            uint4 raw = make_uint4(0, 0, 0, 0);
            const char* from = all.at<USED>(1, here);
            if (!direct) raw = *reinterpret_cast<const uint4*>(mine + stage);
            else if (all.holds(1, from, VECTOR_BYTES)) raw = *reinterpret_cast<const uint4*>(from);
            char* p = all.at<USED>(0, here);
            if (all.holds(0, p, VECTOR_BYTES)) *reinterpret_cast<uint4*>(p) = raw;
        } else {
            const u32 single = unit - all.units;
            move_element(all.tensors[0], all.single(0, single), all.tensors[1], all.single(1, single));
        }
        if (direct) return;
        all.move<USED>(here, by);
        fetch(stage);
        stage = stage + LAYER < STAGES ? stage + LAYER : 0;
    }
    if (!direct) copy_async_wait<0>();
}

constexpr u32 WAY_UNITS = 2, WAY_PLANES = 3;  // besides WAY_VECTORS, which converts

struct AsTheyAre {
    template <u32 C> DEV void operator()(f32 (&)[1][C][VECTOR]) const {}
};

struct CopyHandler {
    static constexpr bool BEGINS = true;
    static constexpr u32 SCRATCH = SCRATCH_BYTES;
    using Kept = Merged<2>;
    static DEV void prepare(const CopyArgs& args, Kept& all) {
        const Tensor& out = args.out();
        if (out.dtype != args.x().dtype) {
            all.way = take_vectors(all, args.work, MAX_RANK) ? WAY_VECTORS : 0;
        } else if (all.measure(args.work, VECTOR_BYTES / out.item_bytes, MAX_RANK) && moves(all)) {
            all.way = WAY_UNITS;
        } else {
            all.way = reinterpret_cast<Planes&>(all).measure(out, args.x()) ? WAY_PLANES : 0;
        }
    }
    static DEV u32 scratch(const CopyArgs& args) {
        const Kept& all = Kept::of(args.work);
        switch (all.way) {
            case WAY_VECTORS: return vector_scratch(all);
            case WAY_UNITS: return all.few() ? 0 : MOVES_IN_FLIGHT * LAYER;
            case WAY_PLANES: return Planes::of(args.work).scratch(args.out().item_bytes);
            default: return 0;
        }
    }
    static DEV u32 units(const CopyArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way == WAY_VECTORS ? all.one_each() : 0;
    }
    static DEV u32 tiles(const CopyArgs& args) {
        const Kept& all = Kept::of(args.work);
        switch (all.way) {
            case WAY_VECTORS:
            case WAY_UNITS: return all.tiles();
            case WAY_PLANES: return Planes::of(args.work).tiles();
            default: return elementwise_tiles(args.out().elements());
        }
    }

    static DEV_CALL void run(const CopyArgs& args, u32 tile, const Block& block) {
        const u32 way = Kept::of(args.work).way;
        if (way == WAY_VECTORS) return map_vectors<2>(args.work, tile, block, AsTheyAre{});
        if (!block.begin()) return;
        switch (way) {
            case WAY_UNITS: return move(args, tile, block);
            case WAY_PLANES: return turn(args, tile, block);
            default: break;
        }
        const Tensor& out = args.out();
        const Tensor& x = args.x();
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
    static DEV bool moves(const Kept& units) { return units.neighbours(1) || (units.units == 0 && units.singles == 1); }

    static DEV void move(const CopyArgs& args, u32 tile, const Block& block) {
        if (Kept::of(args.work).rows() == 1) move_units<1>(args.work, tile, block);
        else move_units<Kept::AXES>(args.work, tile, block);
    }
    static DEV void turn(const CopyArgs& args, u32 tile, const Block& block) {
        switch (args.out().item_bytes) {
            case 1: turn_planes<1>(args.work, tile, block); break;
            case 2: turn_planes<2>(args.work, tile, block); break;
            case 4: turn_planes<4>(args.work, tile, block); break;
            default: turn_planes<8>(args.work, tile, block);
        }
    }
};
