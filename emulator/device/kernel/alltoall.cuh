// ALLTOALL of one rank: its only part, which it sends to itself.
#pragma once
#include "collective.cuh"

struct AlltoallHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const AlltoallArgs& args) { return tiles_alone(args.work, args.out().dims[0]); }
    static DEV_CALL void run(const AlltoallArgs& args, u32 tile, const Block& block) {
        run_alone(args.work, args.out().dims[0], tile, block);
    }
};
