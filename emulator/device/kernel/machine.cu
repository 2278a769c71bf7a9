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
#include "waiter.cuh"
#include "workers.cuh"

// What a kernel is given. The build for several ranks may run some of them on one GPU, each on blocks of its own: then the grid has
// as many rows.
#ifdef DLA_RANKS
struct Launches {
    Launch of[MOST_RANKS];
};
DEV const Launch& own(const Launches& launches) { return launches.of[blockIdx.y]; }
#else
using Launches = Launch;
DEV const Launch& own(const Launch& launch) { return launch; }
#endif

// Keeps the launch's parameters at hand: of a single rank, all but the last ones, which few look at. Called by a warp.
DEV void copy(const Launch& launch, Shared& shared, u32 lane) {
#ifdef DLA_RANKS
    constexpr u32 WORDS = sizeof(Launch) / sizeof(u32);
#else
    constexpr u32 WORDS = WARP;
#endif
#pragma unroll
    for (u32 i = lane; i < WORDS; i += WARP) reinterpret_cast<u32*>(shared.launch)[i] = reinterpret_cast<const u32*>(&launch)[i];
}

// What each warp does first, none after another: the controller asks for the first images, which takes longest, and the others
// make the barriers, a few each. The compiler knows an election for a single thread: else it goes over lanes in a loop. Gives the
// controller the launch's turn.
DEV u32 start(const Launch& launch, Shared& shared, u32 warp, u32 lane) {
    u32 turn = 0;
    if (warp == CONTROLLER) {
        turn = Controller::ask(launch, shared, lane);
    } else if (warp == LOADER) {
#ifdef HOPPER
        FirstWork::ask(launch, lane);
#endif
        copy(launch, shared, lane);
        if (elect_one()) {
            shared.loader = LoaderState();
            shared.openings = 0;
            shared.other_place = RingPlace();
            mbarrier_init(&shared.opened, PAIR);
            shared.stop = 0;
        }
    } else if (warp == WAITER) {
        if (elect_one()) {
#ifdef HOPPER
            mbarrier_init(&shared.announced, ARRIVING_LANES);
#endif
            for (u32 i = 0; i < WORKS; ++i) {
                mbarrier_init(&shared.decoded[i], ARRIVING_LANES);
                mbarrier_init(&shared.placed[i], ARRIVING_LANES);
                mbarrier_init(&shared.ready[i], ARRIVING_LANES);
            }
        }
    } else if (warp == SIGNALLER) {
        if (elect_one()) {
            for (u32 i = 0; i < WORKS; ++i) {
                mbarrier_init(&shared.done[i], WORKER_WARPS * ARRIVING_LANES);
                mbarrier_init(&shared.free[i], 2 * ARRIVING_LANES);
            }
        }
#ifdef DLA_RANKS
        if (lane < min(launch.world, MOST_RANKS)) shared.mails[lane] = launch.mailboxes[lane].mail;
#endif
    } else {
        const u32 worker = warp - CONTROLLER_WARPS;
        if (worker == WORKER_WARPS - 1) prefetch_code(launch, lane);
#pragma unroll
        for (u32 i = 0; i < COUNTERS / WORKER_THREADS; ++i)
            shared.expected[i * WORKER_THREADS + worker * WARP + lane] = launch.expected_base;
        if (worker == 0) shared.shared_with[lane] = 0;
        if (elect_one()) {
            shared.stages[OWN_STAGES].init(1, worker);
            if (launch.pairs) {
                shared.stages[PAIR - 1].init(PAIR, worker);
                mbarrier_init(&shared.taking[worker], 1);
                mbarrier_init(&shared.given[worker], 1);
                mbarrier_init(&shared.parting[worker], 1);
                shared.workers[worker].met = shared.workers[worker].parted = 0;
            }
        }
    }
    fence_barrier_init();
    return turn;
}

// How each warp ends, wherever it does: if the roles came together first, the compiler would keep in local memory what lets them.
DEV void end(const Launch& launch) {
    if (launch.pairs) pair_end();  // nobody reaches into the shared memory of a block that has ended
}

extern "C" __global__ void IN_PAIRS __launch_bounds__(BLOCK_THREADS, 1) dla_machine(const __grid_constant__ Launches launches) {
    Shared& shared = shared_state();
    const u32 warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0), lane = threadIdx.x % WARP;
    const u32 turn = start(own(launches), shared, warp, lane);
    __syncthreads();
#ifdef DLA_RANKS
    const Launch& launch = *shared.launch;  // where it lies, the compiler knows
#else
    const Launch& launch = launches;
#endif
    if (launch.pairs) pair_begin();
    if (warp < CONTROLLER_WARPS) {
        give_registers<CONTROL_REGISTERS>();
        if (warp == CONTROLLER) Controller{launch, shared, lane_for_long(), turn}.run();
        else if (warp == LOADER) run_loader();
        else if (warp == WAITER) run_waiter(launch, shared, lane);
        else run_signaller(launch, shared, lane);
        end(launch);
        return;
    }
    take_registers<WORKER_REGISTERS>();
    work();
#ifdef HOPPER
    if (launch.pairs) Together::end();
#endif
    end(launch);
}

// Runs once when a program is loaded, one warp in each of as many blocks as the machine has: chooses the way
// of each instruction that no register takes part in, counts its tiles, and writes both to its image; keeps the first one (hopper/first.cuh).
extern "C" __global__ void __launch_bounds__(WARP, 1) dla_prepare(const __grid_constant__ Launches launches) {
    const Launch& launch = own(launches);
    Shared& shared = shared_state();
    const u32 lane = threadIdx.x;
    copy(launch, shared, lane);
    shared.scalars.registers.s[lane] = 0;
    __syncwarp();
    Fetcher fetcher;
    for (u32 at = blockIdx.x; at < launch.instructions; at += gridDim.x) {
        fetcher.jump(at, lane);
        Work& w = shared.works[0];
        const Head head(shared.images);
        copy_image(shared.images, head, w, at, lane);
        resolve(shared.scalars, head, w, lane);
        if (head.dynamic) continue;
#ifdef DLA_RANKS
        if (head.path == PATH_HOST) continue;
#endif
        prepare_path(w, lane);
        const u32 tiles = tiles_of_path(w);
        auto* image = reinterpret_cast<ImageHeader*>(launch.images + static_cast<u64>(launch.image_places[2 * at]) * PIECE_BYTES);
        const u32 granules = scratch_granules(w);
        if (lane < PATH_DETAIL) image->detail[lane] = w.detail[lane];
        if (lane == 0) {
            image->tiles = tiles + 1;
            image->units = w.units;
            image->granules = granules;
        }
#ifdef HOPPER
        if (at == 0 && launch.first_work) FirstWork::keep(launch, w, tiles, granules, lane);
#endif
    }
    copy_async_wait<0>();
}

// Read by the host: the sizes that a launch needs.
extern "C" __device__ const u32 dla_shared_bytes = SHARED_BYTES;
// And where the kernel lies: in the binary that is a reference to something else, until the host puts the kernel in its place
// (emulator/device/cubin.py), because the compiler lets no code know the address of a kernel.
extern "C" __device__ const void* dla_code = &dla_shared_bytes;
