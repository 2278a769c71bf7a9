// PERMUTE: x of the rank that sends to this one, or zeros.
#pragma once
#include "collective.cuh"

struct PermuteHandler : Collective<0> {
    static DEV_CALL void run(const PermuteArgs& args, u32 tile, const Block& block) { run_as(args.work, tile, block, 0); }
};
