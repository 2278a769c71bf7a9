// The machine: one persistent kernel that runs any program.
//
// Every block holds a controller warp and 256 worker threads. The controller walks the whole program: it executes
// scalar and control instructions, and decodes tensor instructions into a small ring for the workers, ahead of them.
// An instruction is a number of tiles; block b takes tiles b, b + grid, ... . Order between instructions is kept by
// counters in global memory: each instruction names the counters that its operands' last users signal, and waits
// until they have counted everything that came before it in program order.
#include "config.cuh"
#include "ptx.cuh"
#include "state.cuh"
#include "numbers.cuh"
#include "scalar.cuh"
#include "decode.cuh"
#include "handlers.cuh"

// ---- dependencies ----

// Waits, in each `active` lane of a warp, until `counter` reaches `target`; false after a trap or a time-out.
DEV bool wait_counters(const Launch& launch, bool active, u32 counter, u32 target, u32 instruction) {
    const u32* p = launch.counters + counter;
    const bool ok = !active || spin(
        &launch, [&] { return static_cast<i32>(load_acquire(p) - target) >= 0; },
        [&] { raise(&launch, TRAP_TIMEOUT, instruction, WAITED_FOR_COUNTER, counter, load_relaxed(p), target); });
    return __all_sync(0xffffffffu, ok);
}

DEV bool wait_for(const Launch& launch, const Work& w, u32 lane) {
    const bool active = lane < w.waits;
    return wait_counters(launch, active, active ? w.wait_counter[lane] : 0, active ? w.wait_target[lane] : 0, w.instruction);
}

// ---- the controller ----

struct Controller {
    const Launch& launch;
    Shared& shared;
    u32 lane;
    u32 pushed;      // works handed to the workers so far
    bool slot_free;  // the slot for the next one has been waited for
    u64 steps;       // instructions executed so far

    DEV Work& slot() { return shared.ring[pushed % RING]; }

    // False if the run is over.
    DEV bool wait_for_slot() {
        if (slot_free) return true;
        const u32 phase = pushed / RING % 2 ^ 1;
        const bool ok = spin(
            &launch, [&] { return mbarrier_test(&shared.empty[pushed % RING], phase); },
            [&] { raise(&launch, TRAP_TIMEOUT, slot().instruction, WAITED_FOR_WORKERS); });
        slot_free = __all_sync(0xffffffffu, ok) && *reinterpret_cast<volatile u32*>(&shared.stop) == 0;
        return slot_free;
    }

    // Fills in what `w` waits for; the targets are those of this point in program order.
    DEV void gather_waits(Work& w) {
        const uint4 entry = __ldg(reinterpret_cast<const uint4*>(launch.waits) + w.instruction);
        const bool for_all = entry.y == WAIT_FOR_ALL;
        if (for_all) drain(w.instruction);
        const u32 waits = for_all ? 0 : entry.y;
        if (lane < waits) {
            const u32 counter = __ldg(launch.wait_lists + entry.x + lane);
            w.wait_counter[lane] = counter;
            w.wait_target[lane] = shared.expected[counter];
        }
        __syncwarp();
        if (lane == 0) {
            w.waits = waits;
            w.signal = entry.z;
        }
        __syncwarp();
    }

    // Waits here, in the controller, until everything before this point is done.
    DEV void drain(u32 instruction) {
        for (u32 first = 0; first < COUNTERS; first += WARP) {
            if (!wait_counters(launch, true, first + lane, shared.expected[first + lane], instruction)) return;
        }
    }

    // From here on, later instructions that wait for `w` wait for `arrivals` more.
    DEV void expect(const Work& w, u32 arrivals) {
        __syncwarp();
        if (lane == 0) shared.expected[w.signal] += arrivals;
        __syncwarp();
    }

    DEV void fail(u32 category, u32 instruction, u32 detail = 0) {
        if (lane == 0) raise(&launch, category, instruction, detail);
        __syncwarp();
    }

    // Hands a tensor instruction to the workers, if this block has a share in it.
    DEV void issue(Work& w) {
        gather_waits(w);
        const u32 tiles = tiles_of(w);
        const u32 blocks = tiles < gridDim.x ? tiles : gridDim.x;
        const u32 first_block = __ldg(launch.waits + w.instruction * 4 + 3) % gridDim.x;
        const u32 first_tile = blockIdx.x >= first_block ? blockIdx.x - first_block : blockIdx.x + gridDim.x - first_block;
        expect(w, blocks);
        if (first_tile >= tiles) return;
        if (lane == 0) {
            w.order = steps;
            w.last = 0;
            w.tiles = tiles;
            w.first_tile = first_tile;
        }
        __syncwarp();
        mbarrier_arrive(&shared.full[pushed % RING]);
        pushed += 1;
        slot_free = false;
    }

    // Waits for a tensor's value and loads it to a register.
    DEV bool execute_loads(Work& w) {
        gather_waits(w);
        if (!wait_for(launch, w, lane)) return false;
        const Tensor& x = w.operands[0];
        const volatile char* p = x.data;  // written during this launch: never from a read-only cache
        i64 bits;
        switch (x.dtype) {
            case DTYPE_F32: bits = __double_as_longlong(*reinterpret_cast<const volatile f32*>(p)); break;
            case DTYPE_F16: bits = __double_as_longlong(f32_from_f16(*reinterpret_cast<const volatile u16*>(p))); break;
            case DTYPE_BF16: bits = __double_as_longlong(f32_from_bf16(*reinterpret_cast<const volatile u16*>(p))); break;
            case DTYPE_I32: bits = *reinterpret_cast<const volatile i32*>(p); break;
            case DTYPE_I64: bits = *reinterpret_cast<const volatile i64*>(p); break;
            case DTYPE_I8: bits = *reinterpret_cast<const volatile i8*>(p); break;
            default: bits = *reinterpret_cast<const volatile u8*>(p); break;
        }
        write_register(shared.scalars, lane, LoadsArgs(w).dst(), bits);
        if (lane == 0) add_release(launch.counters + w.signal, 1);  // a later write to x waits for every block's load
        expect(w, gridDim.x);
        return true;
    }

    // Executes one instruction; false at the end of the program or after a trap. `next` is where to go on.
    DEV bool step(Work& w, u32& next) {
        Scalars& m = shared.scalars;
        switch (opcode_of(w)) {
            case OP_NOP: return true;
            case OP_HALT: return false;
            case OP_MOV: execute_mov(m, w, lane); return true;
            case OP_CMP: execute_cmp(m, w, lane); return true;
            case OP_LOADS: return execute_loads(w);
            case OP_ENDLOOP: next = execute_endloop(m, lane, next); return true;
            case OP_BR: next = execute_branch(m, w, lane, next); return true;
            case OP_CALL: next = execute_call(m, w, lane, next); return true;
            case OP_RET: next = execute_ret(m, lane); return true;
            case OP_ALU:
                if (execute_alu(m, w, lane)) return true;
                fail(TRAP_ARITHMETIC, w.instruction);
                return false;
            case OP_LOOP:
                if (execute_loop(m, w, lane, next)) return true;
                fail(TRAP_LOOP, w.instruction);
                return false;
            case OP_ASSERT:
                if (read_register(m, AssertArgs(w).cond())) return true;
                fail(TRAP_ASSERT, w.instruction, AssertArgs(w).code());
                return false;
            default: issue(w); return true;
        }
    }

    DEV void run() {
        Fetcher fetcher;
        fetcher.start(launch, lane);
        for (u32 at = 0; at < launch.instructions;) {
            // A long scalar loop waits for nobody, and still has to hear of a trap or an interrupt.
            if (++steps % STEPS_PER_CHECK == 0 && (load_relaxed(launch.abort) || *reinterpret_cast<volatile u32*>(&shared.stop))) break;
            fetcher.seek(launch, at, lane);
            if (!wait_for_slot()) break;
            Work& w = slot();
            if (!decode(launch, shared.scalars, fetcher, w, at, lane)) {
                fail(TRAP_EXTENT, at);
                break;
            }
            u32 next = at + 1;
            if (!step(w, next)) break;
            at = next;
        }
        if (blockIdx.x == 0) launch.report->registers[lane] = shared.scalars.registers.s[lane];
        // One last, empty work tells the workers to go home. After a trap its slot may still be in use, by workers that
        // are past the point where they look at `last`.
        __syncwarp();
        if (lane == 0) slot().last = 1;
        mbarrier_arrive(&shared.full[pushed % RING]);
    }
};

// ---- the workers ----

// Waits, in one warp, for what `w` depends on; whether the workers are to execute it.
DEV bool prepare(const Launch& launch, Shared& shared, const Work& w, u32 lane) {
    volatile u32* stop = &shared.stop;
    const bool go = *stop == 0 && wait_for(launch, w, lane);
    __syncwarp();
    if (lane == 0) {
        shared.instruction = w.instruction;
        if (!go) *stop = 1;
    }
    return go;
}

// What a worker has to know from one tile to the next, read anew each time: a tile's code takes all registers, and what
// the compiler kept would go to local memory, which every acquire empties from the cache.
struct Worker {
    DEV u32 thread() const { return thread_index_anew() - CONTROLLER_WARPS * WARP; }
    DEV u32 warp() const { return __shfl_sync(0xffffffffu, thread() / WARP, 0); }
    DEV u32 lane() const { return thread_index_anew() % WARP; }
    DEV Shared& shared() const { return *reinterpret_cast<Shared*>(shared_memory_anew()); }
    DEV volatile u32& taken() const { return shared().taken[thread()]; }
    DEV volatile u32& tile() const { return shared().tile[thread()]; }
    DEV u32 slot() const { return taken() % RING; }
    DEV const Work& present() const { return shared().ring[slot()]; }
};

DEV void work(const Launch& launch) {
    const Worker me;
    const Block block;
    for (me.taken() = 0;; me.taken() = me.taken() + 1) {
        // Unbounded on purpose: the controller's own waits are bounded, and it always sends a last work.
        while (!mbarrier_test(&me.shared().full[me.slot()], me.taken() / RING % 2)) {
        }
        if (me.present().last) return;
        if (me.warp() == 0) {
            const bool go = prepare(launch, me.shared(), me.present(), me.lane());
            if (me.lane() == 0) me.shared().go[me.slot()] = go;
        }
        block.sync();
        if (me.shared().go[me.slot()]) {  // and not `stop`, which a quick warp may set while a slow one still has to read it
#pragma unroll 1
            for (me.tile() = me.present().first_tile; me.tile() < me.present().tiles; me.tile() = me.tile() + gridDim.x) {
                run_tile(me.present(), me.tile(), block);
                block.sync();
            }
            // The barrier above orders every worker's stores before this one thread's release.
            const bool stop = *reinterpret_cast<volatile u32*>(&me.shared().stop) != 0;
            if (me.thread() == 0 && !stop) add_release(launch.counters + me.present().signal, 1);
        }
        mbarrier_arrive(&me.shared().empty[me.slot()]);
    }
}

// ---- the kernel ----

DEV void start(const Launch& launch, Shared& shared) {
    for (u32 i = threadIdx.x; i < COUNTERS; i += BLOCK_THREADS) shared.expected[i] = launch.expected_base;
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
        for (u32 i = 0; i < RING; ++i) {
            // Every thread arrives for itself: what it wrote or read in the ring is then ordered without further ado.
            mbarrier_init(&shared.full[i], WARP);
            mbarrier_init(&shared.empty[i], WORKER_THREADS);
        }
    }
}

// The last block out leaves the counters at zero for the next launch.
DEV void leave(const Launch& launch) {
    __shared__ u32 last;
    __syncthreads();
    if (threadIdx.x == 0) last = fetch_add_acq_rel(launch.counters + COUNTERS, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    for (u32 i = threadIdx.x; i <= COUNTERS; i += BLOCK_THREADS) store_relaxed(launch.counters + i, 0);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) dla_machine(const __grid_constant__ Launch launch) {
    Shared& shared = shared_state();
    start(launch, shared);
    __syncthreads();
    const u32 warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0);
    if (warp < CONTROLLER_WARPS) {
        if (warp == 0) Controller{launch, shared, threadIdx.x % WARP, 0, false, 0}.run();
    } else {
        work(launch);
    }
    leave(launch);
}

// Read by the host: the sizes that a launch needs.
extern "C" __device__ const u32 dla_shared_bytes = SHARED_BYTES;
