#include <sys/mman.h>
// ---- the scheduler: one thread runs all fibers of all blocks in turn ----
static u64 random_ = 1;
static u32 draw() { random_ = random_ * 6364136223846793005ull + 1442695040888963407ull; return static_cast<u32>(random_ >> 33); }
static Launches launch_;
static void (*kernel_)(const Launches);
static void body() {
    kernel_(launch_);
    fibers_[current_].done = true;
    yield_("nothing");
}
static void land_some() {
    while (!in_flight_.empty() && draw() % 4) {
        const u32 i = draw() % in_flight_.size();
        auto f = std::move(in_flight_[i]);
        in_flight_[i] = std::move(in_flight_.back());
        in_flight_.pop_back();
        f();
    }
}
// Of a warp: rounds before its next turn, and how many they may be.
struct Rest { u32 left = 0, longest = 1; };
// The grid has `rows` of `in_row` blocks, one row for each rank.
static int run_kernel(void (*kernel)(const Launches), const Launches& launch, u32 in_row, u32 rows, u32 threads, u32 seed) {
    const u32 blocks = in_row * rows;
    constexpr u64 STACK = 64 * 1024 + 320;  // tops that share few sets of the caches; three times what the deepest one needs
    constexpr u64 LOWEST = 0x5ac5ac5ac5ac5ac5;  // stands at the end of each stack: nobody may have written there
    static std::vector<char> memory;
    static std::unique_ptr<char[]> stacks;  // not a vector, which would write to all of it
    static u64 room = 0;
    kernel_ = kernel;
    launch_ = launch;
    random_ = seed * 2654435761ull + 12345;
    broken_ = false;
    in_flight_.clear();  // of a run that broke
    if (room < STACK * blocks * threads) {
        stacks.reset(new char[room = STACK * blocks * threads]);
        // With small pages, there is one for each fiber, and a switch waits for its address.
        const u64 page = 2 << 20, first = (reinterpret_cast<u64>(stacks.get()) + page - 1) / page * page;
        madvise(reinterpret_cast<void*>(first), room - page, MADV_HUGEPAGE);
    }
    memory.assign(blocks * 262144ull + 1024, 0x5a);
    char* base = reinterpret_cast<char*>((reinterpret_cast<u64>(memory.data()) + 1023) / 1024 * 1024);
    blocks_.assign(blocks, BlockState());
    for (u32 b = 0; b < blocks; ++b) blocks_[b].shared = base + b * 262144ull;
    fibers_.assign(blocks * threads, Fiber());
    copies_.assign(fibers_.size(), Groups());
    gridDim = {in_row, rows, 1};
    blockDim = {threads, 1, 1};
    for (u32 i = 0; i < fibers_.size(); ++i) {
        memcpy(stacks.get() + i * STACK, &LOWEST, 8);
        char* top = stacks.get() + (i + 1) * STACK;
        top = reinterpret_cast<char*>(reinterpret_cast<u64>(top) / 64 * 64 - 64);
        void** frame = reinterpret_cast<void**>(top);
        *--frame = nullptr;  // return address of `body`, which never returns; keeps the stack aligned
        *--frame = reinterpret_cast<void*>(body);
        for (u32 r = 0; r < 6; ++r) *--frame = nullptr;
        fibers_[i] = {frame, i % threads, i / threads, false, "the start", nullptr, 0};
    }
    // Warps take turns in a random order, each for as long as it gets; progress is anything that another could see.
    const u32 warps = (blocks * threads + 31) / 32;
    u32 left = fibers_.size();
    // One that only polls is left out for a few rounds, as the hardware suspends it, unless nobody does anything.
    std::vector<Rest> rests(warps);
    // One of each block is slow: the others must not rely on what it does soon.
    const u32 of_block = threads / 32, slow = draw() % of_block;
    u64 seen = 0, idle = 0;
    while (left) {
        land_some();
        clock_ += 1;
        const u32 offset = draw() % warps;
        for (u32 n = 0; n < warps; ++n) {
            const u32 warp = (n + offset) % warps;
            Rest& rest = rests[warp];
            if (rest.left && !idle) { --rest.left; continue; }
            if (of_block > 1 && warp % of_block == slow && draw() % 8 && !idle) continue;
            const u64 before = progress_;
            for (u32 t = warp * 32; t < (warp + 1) * 32 && t < fibers_.size(); ++t) {
                Fiber& f = fibers_[t];
                __builtin_prefetch((&f)[t + 4 < fibers_.size() ? 4 : 0].stack_pointer);  // what a later switch reads
                if (f.done || (f.generation && *f.generation == f.waited)) continue;
                current_ = t;
                threadIdx.x = f.thread;
                blockIdx.x = f.block % in_row;
                blockIdx.y = f.block / in_row;
                fiber_runs_ = true;
                switch_stack(&scheduler_stack_, f.stack_pointer);
                fiber_runs_ = false;
                if (broken_) return 3;
                if (f.done) { --left; ++progress_; }
            }
            rest.longest = progress_ == before ? rest.longest < 8 ? 2 * rest.longest : 8 : 1;
            rest.left = draw() % rest.longest;
        }
        if (progress_ == seen && in_flight_.empty()) {
            if (++idle > 2000) {
                // Nothing will ever happen: let the clock run until somebody's wait times out, or copies have had their time to land.
                blockIdx.y = 0;
                clock_ += *own(launch).abort ? LANDING_NS : own(launch).timeout_ns;
                if (idle > 20000) {
                    fprintf(stderr, "device on CPU: deadlock\n");
                    for (u32 t = 0; t < fibers_.size(); t += 32)
                        if (!fibers_[t].done) fprintf(stderr, "  block %u warp %u waits for %s\n", fibers_[t].block, fibers_[t].thread / 32, fibers_[t].where);
                    return 1;
                }
            }
        } else {
            idle = 0;
        }
        seen = progress_;
    }
    for (u32 i = 0; i < fibers_.size(); ++i)
        if (memcmp(stacks.get() + i * STACK, &LOWEST, 8)) { fprintf(stderr, "device on CPU: a stack is too small\n"); return 4; }
    if (!in_flight_.empty()) { fprintf(stderr, "device on CPU: a block ended before its copies\n"); return 2; }
    return 0;
}
#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int run_prepare(const Launches* launch, u32 blocks, u32 rows) { return run_kernel(dla_prepare, *launch, blocks, rows, WARP, 1); }
EXPORTED int run_machine(const Launches* launch, u32 blocks, u32 rows, u32 seed) {
    return run_kernel(dla_machine, *launch, blocks, rows, BLOCK_THREADS, seed);
}
