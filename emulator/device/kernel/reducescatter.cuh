// REDUCESCATTER: this rank's part of x of all ranks, folded.
#pragma once
#include "collective.cuh"

struct ReducescatterHandler : Collective<X_IN_PARTS | FOLDS> {
    static DEV_CALL void run(const ReducescatterArgs& args, u32 tile, const Block& block) { run_as(args.work, tile, block, args.sub()); }
};
