// ALLGATHER of one rank: what it brings, as the only part of out.
#pragma once
#include "collective.cuh"

struct AllgatherHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const AllgatherArgs& args) { return tiles_alone(args.work, args.out().dims[0]); }
    static DEV_CALL void run(const AllgatherArgs& args, u32 tile, const Block& block) {
        run_alone(args.work, args.out().dims[0], tile, block);
    }
};
