// What collectives have in common: each rank of a group brings x, and gets a result made of what all of them bring. Where x or
// out has parts, its first axis is that of the group's ranks. The build for several ranks sends (cards.cuh, direct.cuh); in the others this
// machine is the only rank of its world, and each gets what it brings, bit for bit: a fold of one tensor is that tensor, and the
// one pair that PERMUTE can have is [0, 0].
#pragma once
#include "vectors.cuh"
#include "views.cuh"

constexpr u32 X_IN_PARTS = 1, OUT_IN_PARTS = 2, FOLDS = 4;  // what a collective is like

#ifdef DLA_RANKS
#include "cards.cuh"
#include "direct.cuh"
#endif

// How many parts there are to be, one for each rank of the group; where a dim that a register holds differs, it traps.
DEV u32 parties_of(const Work& w) {
#ifdef DLA_RANKS
    return Party(w).count();
#else
    return 1;
#endif
}
template <u32 KIND> DEV i64 wrong_parts(const Work& w) {
    const i64 parts = parties_of(w);
    const i64 of_x = KIND & X_IN_PARTS ? in_shared(w.operands[1]).dims[0] : parts;
    const i64 of_out = KIND & OUT_IN_PARTS ? in_shared(w.operands[0]).dims[0] : parts;
    return of_x != parts ? of_x : of_out != parts ? of_out : -1;
}

#ifndef DLA_RANKS
DEV_CALL void get_back(const Work& w, u32 tile, const Block& block) {
    const Tensor& out = in_shared(w.operands[0]);
    const Tensor& x = in_shared(w.operands[1]);
    for_each_element(block, tile, out.elements(), [&](i64 i) { move_element(out, out.offset_of(i), x, x.offset_of(i)); });
}
#endif

// The first operand is the result, the second x. `sub`: of a fold.
template <u32 KIND> struct Collective {
    static constexpr u32 SCRATCH = 0;
#ifdef DLA_RANKS
    static constexpr bool BEGINS = true;
#endif
    template <class Args> static DEV u32 tiles(const Args& args) {
        const Work& w = args.work;
        if (wrong_parts<KIND>(w) >= 0) return 1;
#ifdef DLA_RANKS
        return is_direct(w, KIND) ? gridDim.x : Cards(part_of(w, KIND), in_shared(w.operands[1]).item_bytes).first;
#else
        return elementwise_tiles(in_shared(w.operands[0]).elements());
#endif
    }
    static DEV void run_as(const Work& w, u32 tile, const Block& block, u32 sub) {
        const i64 wrong = wrong_parts<KIND>(w);
        if (wrong >= 0) {
#ifdef DLA_RANKS
            if (!block.begin()) return;
#endif
            if (block.thread() == 0) trap(block, TRAP_EXTENT, static_cast<u32>(wrong));
            return;
        }
#ifdef DLA_RANKS
        if (is_direct(w, KIND)) exchange_directly(w, tile, block, KIND, sub);
        else exchange_cards(w, tile, block, KIND, sub);
#else
        get_back(w, tile, block);
#endif
    }
};
