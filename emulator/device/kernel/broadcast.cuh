// BROADCAST: x of one rank.
#pragma once
#include "collective.cuh"

struct BroadcastHandler : Collective<0> {
    static DEV_CALL void run(const BroadcastArgs& args, u32 tile, const Block& block) { run_as(args.work, tile, block, 0); }
};
