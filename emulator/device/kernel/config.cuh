// Sizes of the machine. Those that the host has to know come from layout.py.
#pragma once
#include "types.cuh"
#include "layout.cuh"

// Warp 0 of a block walks the program (controller); the workers execute tiles.
constexpr u32 WORKER_THREADS = WORKER_WARPS * WARP;

constexpr u32 RING = 4;                    // decoded instructions between controller and workers
constexpr u32 LOOP_STACK = 160;            // MAX_LOOP_DEPTH loops in each of MAX_CALL_DEPTH + 1 functions, with room
constexpr u32 CALL_STACK = 16;             // MAX_CALL_DEPTH
constexpr u32 SCRATCH_BYTES = 136 * 1024;  // shared memory that a tile may use
constexpr u32 SPINS_PER_CHECK = 256;       // polls between two looks at the clock and the abort flag
constexpr u32 STEPS_PER_CHECK = 64;        // instructions between two looks of a controller at the abort flag

constexpr u32 WAITED_FOR_COUNTER = 0;      // what a time-out waited for, in its report
constexpr u32 WAITED_FOR_WORKERS = 1;

constexpr u32 WORKER_BARRIER = 1;          // named barrier ids; 0 is __syncthreads
