// PERMUTE of one rank: it sends to itself.
#pragma once
#include "collective.cuh"

struct PermuteHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const PermuteArgs& args) { return tiles_alone(args.work, 1); }
    static DEV_CALL void run(const PermuteArgs& args, u32 tile, const Block& block) {
        run_alone(args.work, 1, tile, block);
    }
};
