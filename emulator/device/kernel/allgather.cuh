// ALLGATHER: x of all ranks, one after the other.
#pragma once
#include "collective.cuh"

struct AllgatherHandler : Collective<OUT_IN_PARTS> {
    static DEV_CALL void run(const AllgatherArgs& args, u32 tile, const Block& block) { run_as(args.work, tile, block, 0); }
};
