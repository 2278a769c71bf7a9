// Sizes of the machine. Those that the host has to know come from layout.py.
#pragma once
#include "types.cuh"
#include "layout.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1  // tensor maps, bulk copies, wgmma, registers that move between roles
#endif

// Warps of a block. The first four have a role each; the others, the workers, execute tiles.
constexpr u32 CONTROLLER = 0;  // walks the program and decodes it
constexpr u32 LOADER = 1;      // fills the stage ring
constexpr u32 WAITER = 2;      // waits for what an instruction depends on
constexpr u32 SIGNALLER = 3;   // tells the other blocks that an instruction is done here
#ifdef HOPPER
#define IN_PAIRS __cluster_dims__(2, 1, 1)
constexpr u32 PAIR = 2;  // neighbouring blocks that run on neighbouring multiprocessors, and reach each other's shared memory
#else
#define IN_PAIRS
constexpr u32 PAIR = 1;
#endif
constexpr u32 WORKER_THREADS = WORKER_WARPS * WARP;
// Registers of a thread where roles may differ: 128 * 72 + 256 * 216 = 64,512.
constexpr u32 CONTROL_REGISTERS = 72, WORKER_REGISTERS = 216;

constexpr u32 WORKS = 4;                   // decoded instructions between the controller and the others
constexpr u32 LOOP_STACK = 8;              // MAX_LOOP_DEPTH, which the verifier counts through calls
constexpr u32 CALL_STACK = 16;             // MAX_CALL_DEPTH
constexpr u32 SCRATCH_BYTES = 128 * 1024;  // shared memory that a tile may ask for
constexpr u32 STAGING_BYTES = 16 * 1024;   // shared memory that a tile always has
constexpr u32 SPINS_PER_CHECK = 256;       // polls between two looks at the clock and the abort flag
constexpr u32 POLLS_PER_CHECK = 16;        // the same, where the hardware suspends a poll for a while
constexpr u32 STEPS_PER_CHECK = 64;        // instructions between two looks of a controller at the abort flag, which it has at jumps

constexpr u32 LANDING_NS = 100 * 1000;     // longer than any copy takes

constexpr u32 WAITED_FOR_COUNTER = 0;      // what a time-out waited for, in its report
constexpr u32 WAITED_FOR_WORKERS = 1;
constexpr u32 WAITED_FOR_RESULTS = 2;
constexpr u32 WAITED_FOR_RANK = 3;

constexpr u32 WORKER_BARRIER = 1;          // named barrier ids; 0 is __syncthreads
constexpr u32 FEW_BARRIER = 14;            // and 15: see SumsOfFew
constexpr u32 FIRST_FREE_BARRIER = 2;      // from here on for whoever is at work

// Lanes of a warp that arrive at a barrier for it. One is enough; the checked build lets all, because compute-sanitizer's
// racecheck follows only threads that arrive themselves.
#ifdef DLA_CHECKED
constexpr u32 ARRIVING_LANES = WARP;
#else
constexpr u32 ARRIVING_LANES = 1;
#endif
