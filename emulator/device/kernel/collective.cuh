// What collectives have in common on this machine, which is the only rank of its world: each gets what it brings, bit for
// bit. A fold of one tensor is that tensor, and the one pair that PERMUTE can have is [0, 0].
#pragma once
#include "numbers.cuh"
#include "views.cuh"

// The first operand gets the second. `parts` is how many parts there are, one for each rank of the group: 1, or a dim that
// a register holds is wrong.
DEV u32 tiles_alone(const Work& w, i64 parts) {
    return parts == 1 ? elementwise_tiles(in_shared(w.operands[0]).elements()) : 1;
}
DEV_CALL void run_alone(const Work& w, i64 parts, u32 tile, const Block& block) {
    if (parts != 1) {
        if (block.thread() == 0) trap(block, TRAP_EXTENT, static_cast<u32>(parts));
        return;
    }
    const Tensor& out = in_shared(w.operands[0]);
    const Tensor& x = in_shared(w.operands[1]);
    for_each_element(block, tile, out.elements(), [&](i64 i) { move_element(out, out.offset_of(i), x, x.offset_of(i)); });
}
