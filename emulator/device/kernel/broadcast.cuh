// BROADCAST of one rank: the root is the rank itself.
#pragma once
#include "collective.cuh"

struct BroadcastHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const BroadcastArgs& args) { return tiles_alone(args.work, 1); }
    static DEV_CALL void run(const BroadcastArgs& args, u32 tile, const Block& block) {
        run_alone(args.work, 1, tile, block);
    }
};
