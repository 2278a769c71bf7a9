// ALLREDUCE of one rank: what it brings.
#pragma once
#include "collective.cuh"

struct AllreduceHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const AllreduceArgs& args) { return tiles_alone(args.work, 1); }
    static DEV_CALL void run(const AllreduceArgs& args, u32 tile, const Block& block) {
        run_alone(args.work, 1, tile, block);
    }
};
