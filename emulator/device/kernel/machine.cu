// The machine: one persistent kernel that runs any program.
//
// Every block holds four control warps and 256 workers. The controller walks the whole program: it executes scalar and
// control instructions, and decodes tensor instructions into a small ring of works, ahead of the others. The loader
// fills shared memory for them, the waiter waits for what they depend on, the workers execute them, and the signaller
// tells the other blocks. An instruction is a number of tiles; block b takes tiles b, b + grid, ... (counted from the
// instruction's first block). Order between instructions is kept by counters in global memory: each instruction names
// the counters that its operands' last users signal, and waits until they have counted everything that came before it
// in program order.
#include "config.cuh"
#include "ptx.cuh"
#include "state.cuh"
#include "controller.cuh"
#include "workers.cuh"

DEV void start(const Launch& launch, Shared& shared) {
    for (u32 i = threadIdx.x; i < COUNTERS; i += BLOCK_THREADS) shared.expected[i] = launch.expected_base;
    for (u32 i = threadIdx.x; i < COUNTERS / WARP; i += BLOCK_THREADS) shared.shared_with[i] = 0;
    Scalars& m = shared.scalars;
    if (threadIdx.x < 32) m.registers.s[threadIdx.x] = launch.initial_registers[threadIdx.x];
    if (threadIdx.x < 16) m.registers.f[threadIdx.x] = 0.0;
    if (threadIdx.x < 8) m.registers.p[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        m.loop_depth = m.call_depth = 0;
        m.rank = launch.rank;
        m.world = launch.world;
        shared.launch = &launch;
        shared.stop = 0;
        for (u32 i = 0; i < WORKS; ++i) {
            mbarrier_init(&shared.decoded[i], ARRIVING_LANES);
            mbarrier_init(&shared.placed[i], ARRIVING_LANES);
            mbarrier_init(&shared.ready[i], ARRIVING_LANES);
            mbarrier_init(&shared.done[i], WORKER_WARPS * ARRIVING_LANES);
            mbarrier_init(&shared.free[i], 2 * ARRIVING_LANES);
        }
        for (u32 kind = 0; kind < PAIR; ++kind) shared.stages[kind].init(kind + 1);
        shared.loader = LoaderState();
        mbarrier_init(&shared.opened, PAIR);
        shared.openings = 0;
        shared.other_place = RingPlace();
        fence_barrier_init();
    }
}

// The last block out leaves the counters at zero for the next launch.
DEV void leave(const Launch& launch, Shared& shared) {
    pair_end();  // nobody reaches into the shared memory of a block that has ended
    if (threadIdx.x == 0) shared.leaves_last = fetch_add_acq_rel(launch.counters + COUNTERS, 1) == gridDim.x - 1;
    __syncthreads();
    if (!shared.leaves_last) return;
    for (u32 i = threadIdx.x; i <= COUNTERS; i += BLOCK_THREADS) store_relaxed(launch.counters + i, 0);
}

extern "C" __global__ void IN_PAIRS __launch_bounds__(BLOCK_THREADS, 1) dla_machine(const __grid_constant__ Launch launch) {
    Shared& shared = shared_state();
    start(launch, shared);
    pair_begin();
    const u32 warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0);
    if (warp < CONTROLLER_WARPS) {
        give_registers<CONTROL_REGISTERS>();
        const u32 lane = threadIdx.x % WARP;
        if (warp == CONTROLLER) Controller{launch, shared, lane}.run();
        else if (warp == LOADER) run_loader();
        else if (warp == WAITER) run_waiter(launch, shared, lane);
        else run_signaller(launch, shared, lane);
    } else {
        take_registers<WORKER_REGISTERS>();
        work(launch);
    }
    leave(launch, shared);
}

// Runs once when a program is loaded, one warp in each of as many blocks as the machine has: chooses the way
// of each instruction that no register takes part in, counts its tiles, and writes both to its image.
extern "C" __global__ void __launch_bounds__(WARP, 1) dla_prepare(const __grid_constant__ Launch launch) {
    Shared& shared = shared_state();
    const u32 lane = threadIdx.x;
    shared.launch = &launch;
    shared.scalars.registers.s[lane] = 0;
    Fetcher fetcher;
    for (u32 at = blockIdx.x; at < launch.instructions; at += gridDim.x) {
        fetcher.jump(launch, shared.images, at, lane);
        Work& w = shared.works[0];
        decode(shared.scalars, shared.images, fetcher.at, w, at, lane);
        if (w.dynamic) continue;
        prepare_path(w, lane);
        const u32 tiles = tiles_of_path(w);
        auto* image = reinterpret_cast<ImageHeader*>(launch.images + static_cast<u64>(launch.image_places[2 * at]) * PIECE_BYTES);
        const u32 granules = scratch_granules(w);
        if (lane < PATH_DETAIL) image->detail[lane] = w.detail[lane];
        if (lane == 0) {
            image->tiles = tiles + 1;
            image->granules = granules;
        }
    }
    copy_async_wait<0>();
}

// Read by the host: the sizes that a launch needs.
extern "C" __device__ const u32 dla_shared_bytes = SHARED_BYTES;
