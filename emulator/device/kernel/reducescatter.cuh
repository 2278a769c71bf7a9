// REDUCESCATTER of one rank: the only part of what it brings.
#pragma once
#include "collective.cuh"

struct ReducescatterHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const ReducescatterArgs& args) { return tiles_alone(args.work, args.x().dims[0]); }
    static DEV_CALL void run(const ReducescatterArgs& args, u32 tile, const Block& block) {
        run_alone(args.work, args.x().dims[0], tile, block);
    }
};
