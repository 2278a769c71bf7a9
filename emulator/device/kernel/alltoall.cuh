// ALLTOALL: from each rank the part that is for this one.
#pragma once
#include "collective.cuh"

struct AlltoallHandler : Collective<X_IN_PARTS | OUT_IN_PARTS> {
    static DEV_CALL void run(const AlltoallArgs& args, u32 tile, const Block& block) { run_as(args.work, tile, block, 0); }
};
