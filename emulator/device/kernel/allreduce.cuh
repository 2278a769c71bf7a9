// ALLREDUCE: x of all ranks, folded.
#pragma once
#include "collective.cuh"

struct AllreduceHandler : Collective<FOLDS> {
    static DEV_CALL void run(const AllreduceArgs& args, u32 tile, const Block& block) { run_as(args.work, tile, block, args.sub()); }
};
