// What the machine keeps: resolved operands, decoded work, the trap record, and what a tile's code gets to see.
#pragma once
#include "config.cuh"
#include "copy_engine.cuh"
#include "ptx.cuh"
#include "ring.cuh"
#include "generated.cuh"

// The lane of a thread, which a register keeps from one use to the next. The assembler would rather ask for the thread's index again
// each time, which takes longer than a look at shared memory; but what comes from a shuffle it cannot work out anew. Called by a warp.
DEV u32 lane_for_long() {
    const u32 lane = threadIdx.x % WARP;
    return __shfl_sync(0xffffffffu, lane, lane);
}

// The index in the last axis, of `size`, of the element at row-major position `linear`; what is left of `linear` is the
// position in the axes before it. Positions of 32 bits, most of all, take a fifth of the time.
DEV u32 last_index(u64& linear, u32 size) {
    const u64 rest = linear >> 32 ? linear / size : static_cast<u32>(linear) / size;
    const u32 index = static_cast<u32>(linear - rest * size);
    linear = rest;
    return index;
}

// A resolved operand. The plan writes it for the bounds; the controller patches what registers change.
// Operands that a row lets broadcast already have the rank and dims they broadcast to, with stride 0.
struct Tensor : TensorFields {
    DEV i64 elements() const { return count; }
    // Element offset (in elements) of the `linear`-th element in row-major order.
    DEV i64 offset_of(u64 linear) const { return contiguous ? static_cast<i64>(linear) : offset_over(0xffffffffu, linear); }
    // The same for the `linear`-th combination of the axes in `axes` (bit k: axis k), the others being at 0.
    // A call, because every element access of every row is behind it.
    DEV_CALL i64 offset_over(u32 axes, u64 linear) const {
        i64 offset = 0;
#pragma unroll 1
        for (i32 k = rank - 1; k >= 0; --k) {
            if (!(axes >> k & 1)) continue;
            offset += static_cast<i64>(last_index(linear, dims[k])) * strides[k];
        }
        return offset;
    }
};
static_assert(sizeof(Tensor) == sizeof(TensorFields) && sizeof(Tensor) % 16 == 0, "copied 16 bytes at a time");

// What a decoded instruction is. Its header and operands come from its image. Of a launch's first one, all of it comes from memory, as
// dla_prepare left it.
struct __align__(16) DecodedWork : ImageHeader {
    Tensor operands[MAX_OPERANDS];
    i64 scalars[2];   // the ScalarValue attributes, in order, registers read: i64, or the bits of an f64
    u32 scalar_is_float[2];
    u32 instruction;  // index in the program
    u32 last;         // there is no work in here: it is the end of the program
    u64 order;        // instructions executed so far, this one included
    u16 counters;     // to wait for, in front of wait_counter and wait_target
    u16 follows_own;  // what it depends on was done by this block's own workers, and nobody else
    u32 reserved;
};
// One of these as the controller hands it to the other roles.
struct Work : DecodedWork {
    u32 first_tile;   // of this block; the next ones follow at a distance of gridDim.x
    u32 exchange;     // where its set of results that are taken as they come begins, in bytes
    u32 go;           // set by the waiter: everything that it depends on is done, and nothing had gone wrong before it waited
    RingPlace place;  // set by the loader: where its first stage lies
    u32 wait_target[MAX_WAITS];

    DEV const u32* record(u32 slot) const { return records + slot * (WORD_BYTES / 4); }
};
static_assert(sizeof(ImageHeader) % 16 == 0 && sizeof(DecodedWork) == FIRST_WORK_BYTES, "copied 16 bytes at a time");

// An instruction as the plan wrote it, on its way to a Work: the operands that it has, without those it has not.
constexpr u32 PIECE_BYTES = 16;
constexpr u32 HEADER_PIECES = sizeof(ImageHeader) / PIECE_BYTES, TENSOR_PIECES = sizeof(Tensor) / PIECE_BYTES;
constexpr u32 IMAGE_PIECES = HEADER_PIECES + MAX_OPERANDS * TENSOR_PIECES;
constexpr u32 IMAGE_RING = IMAGES_AHEAD * IMAGE_PIECES;  // pieces of instructions on their way to the controller

// Registers of the scalar unit.
struct __align__(16) Registers {
    i64 s[32];
    f64 f[16];
    u32 p[8];
};

struct LoopFrame {
    u32 begin;    // index of the LOOP
    u32 counter;  // code of its register
    i64 count;
};

struct Scalars {
    Registers registers;
    LoopFrame loops[LOOP_STACK];
    u32 calls[CALL_STACK];
    u32 loop_depth;
    u32 call_depth;
    u32 rank;
    u32 world;
};

// A worker warp's place in the program. It is kept here because a tile's code takes all registers, and local memory is slow
// after an acquire.
struct WorkerPlace {
    u32 taken;    // works done
    u32 tile;     // of the present one
    u32 tiles;    // of all blocks; or SAID (hopper/gemm.cuh)
    u32 scratch;  // where its scratch memory is, from the start of shared memory
    union {
        u32 sequence;  // of a hot path, during a call: with `granule`, its RingPlace
        u32 end;       // of a handler's work: see Block::end
    };
    u32 granule;
    u32 met;     // tiles whose depth it has shared with the pair's other block
    u32 parted;  // it does so no more: the run is over
    union {
        struct {
            u32 step, query;             // the next step of its walk, and the tile's first query
            u32 head, sample, keys_end;  // of the tile
            u32 last;                    // there is no tile behind it
        } attention;
        struct {
            u32 none;                // no Lines: see below
            u32 batch, row, column;  // of the warp's part of the tile: its batch, and its first row and column there
            u32 rows, columns;       // of a batch
        } product;
        struct {
            u32 stages, at;  // what HopperFloats still has to multiply of its tile, and where the first of these stages lies
        } floats;
        struct {
            u32 what, pitch, to_low, to_high;  // Lines of the warp's part of the tile (hopper/finish_lines.cuh)
        } lines;
    };
};

// Where a tile of a product begins in the result, in units of 8 rows and of 64 columns. Results that are stored in lines or boxes are
// no larger than that allows (CORNER_ROWS and CORNER_COLUMNS in paths/tilings.py). Only a tile that overlaps the one before begins
// elsewhere, not behind that (last_row and last_column in hopper/tiles.cuh).
struct ProductCorner {
    u32 both;

    DEV static ProductCorner at(u32 row, u32 column) { return ProductCorner{(row + ROWS - 1) / ROWS << COLUMN_BITS | (column + COLUMNS - 1) / COLUMNS}; }
    DEV u32 row() const { return (both >> COLUMN_BITS) * ROWS; }
    DEV u32 column() const { return (both & (1u << COLUMN_BITS) - 1) * COLUMNS; }

  private:
    static constexpr u32 ROWS = 8, COLUMNS = 64, COLUMN_BITS = 12;
};
constexpr u32 CORNERS = GRANULES + 1;  // more than stages can be in use

// What the loader keeps from work to work. Its code takes all registers that a control warp has.
struct LoaderState {
    RingPlace place;
    u32 room = GRANULES;  // granules in front of `place` that nobody uses
    u32 oldest = 0;       // sequence of the oldest stage that may be in use
    u32 scratch = 0;      // a bit for each stage: workers write to it
    u32 size = 0;         // granules of the last stage claimed,
    u32 alike = 0;        // and how many of that size, all for copies, were claimed in a row
    u32 landed = 0;       // sequence of the oldest stage whose copies may be under way
    u32 taken = 0;        // works done
    u32 kind = OWN_STAGES;  // of the stages in use
    u32 loaded = 0;       // the present work, the launch's first, was before it was handed out
};
static_assert(RING_BARRIERS == 32, "a bit for each");

// What a block keeps in shared memory, besides the ring and the staging.
struct Shared {
    uint4 images[IMAGE_RING];
    Work works[WORKS];
    // A work's way through the roles. Each barrier's phase ends when the named role has arrived.
    u64 decoded[WORKS];  // controller -> all others
    u64 placed[WORKS];   // loader -> workers: the work's stages begin at its `place`
    u64 ready[WORKS];    // waiter -> loader, workers: everything that it depends on is done (or the run is over: see `go`)
    u64 done[WORKS];     // worker warps -> signaller
    u64 free[WORKS];     // loader and signaller -> controller: nobody needs the work any longer
    RingBarriers stages[PAIR];        // OWN_STAGES, SHARED_STAGES
    LoaderState loader;
    u64 opened;                       // both loaders of the pair have emptied their rings for shared stages
    u32 openings;                     // the loader's: how often,
    RingPlace other_place;            // and where it goes on with the kind of stages that is not in use
    u64 taking[WORKER_WARPS];         // a warp of the pair's other block can be given sums (hopper/together.cuh)
    u64 given[WORKER_WARPS];          // it has given this block's its own
    u64 parting[WORKER_WARPS];        // it gives nothing any more
    ProductCorner corners[CORNERS];   // the loader's, for the workers: of the tile whose first stage has this number, modulo
    u8 stage_way[RING_BARRIERS];      // the loader's: granules of each stage, with those skipped in front of it
    u32 expected[COUNTERS + 1];           // what each counter will show once everything so far, in program order, is done
    u32 shared_with[COUNTERS / WARP + 1]; // a bit for each counter: set once blocks other than this one count on it
    Scalars scalars;
    Launch launch[1];  // a copy: the parameters themselves are as far as global memory, unless the address is known to the compiler
    u32* counters;     // those of this launch,
    u32 exchange;      // and where its set of results that are taken as they come begins, in bytes; in a loop, that of the trip
    u32 trip_end;      // works handed out when the trip before had been decoded
    u32 stop;          // this block has trapped or heard of a trap
    WorkerPlace workers[WORKER_WARPS];
#ifdef HOPPER
    uint4 first_tile[FIRST_TILE_BYTES / PIECE_BYTES];  // the loader's, of a launch that begins with a product (hopper/first.cuh)
    u64 announced;    // loader -> controller, workers: the launch's first work is there,
    u32 begins_here;  // and is a product, of which this block has a tile, and the loader loads it
#endif
#ifdef DLA_RANKS
    char* mails[MOST_RANKS];  // of the mailboxes, at hand; without mail, there may be more ranks
#endif
};
constexpr u32 STAGING_AT = RING_BYTES, SHARED_AT = RING_BYTES + STAGING_BYTES;
constexpr u32 SHARED_BYTES = SHARED_AT + sizeof(Shared);
static_assert(SHARED_BYTES <= (GRANULES == 24 ? 227 : 163) * 1024, "fits a block of the smallest GPU that runs this build");
DEV Shared& shared_state() { return *reinterpret_cast<Shared*>(shared_memory + SHARED_AT); }

// Whether this block has trapped or heard of a trap.
DEV bool stopped(const Shared& shared) { return *reinterpret_cast<const volatile u32*>(&shared.stop) != 0; }
DEV void stop(Shared& shared) { *reinterpret_cast<volatile u32*>(&shared.stop) = 1; }

// The instruction that this worker's warp is at.
DEV u32 present_instruction() {
    const Shared& shared = shared_state();
    return shared.works[shared.workers[threadIdx.x / WARP - CONTROLLER_WARPS].taken % WORKS].instruction;
}

// Waits for a phase of one of the block's own barriers. Unbounded on purpose: what a role waits for on its own account is
// bounded, and after a trap it still passes every work on, so each of these waits ends.
DEV void wait_phase(u64* barrier, u32 parity) {
    while (!mbarrier_test(barrier, parity)) {
    }
}
// Waits for a phase that may be another block's to end; false if the run is over. Nobody else here would hear of a trap there.
DEV bool wait_or_stop(u64* barrier, u32 parity) {
    for (u32 polls = 1; !mbarrier_test(barrier, parity); ++polls) {
        if (polls % POLLS_PER_CHECK == 0 && load_relaxed(shared_state().launch->abort)) stop(shared_state());
        if (stopped(shared_state())) return false;
    }
    return true;
}
// Waits until all workers are done with the work before number `taken`: with the staging, and with stores that it may depend
// on. In front of the first work there is none: its barrier is as if the phase before its first one had ended.
DEV void wait_done_before(Shared& shared, u32 taken) {
    wait_phase(&shared.done[(taken - 1) % WORKS], (taken - 1) / WORKS % 2);
}

constexpr u32 MAY_END = 1, HAS_ENDED = 2;  // 0: a warp has more tiles of the work, or scratch memory to release

// What a tile's code sees of its block: 256 threads that may synchronise, and shared memory of its own.
// It holds nothing, so that passing it on costs nothing.
struct Block {
    DEV u32 thread() const { return threadIdx.x - CONTROLLER_WARPS * WARP; }  // 0 .. WORKER_THREADS - 1
    DEV u32 warp() const { return thread() / WARP; }  // no shuffle: a tile's code may be divergent where it asks
    DEV u32 lane() const { return threadIdx.x % WARP; }
    // The same threads, from work to work beginning at another warp.
    DEV u32 thread_in_turn() const { return (thread() + shared_state().workers[warp()].taken * WARP) % WORKER_THREADS; }
    // As many bytes as the handler's SCRATCH says, 1024-byte aligned, undefined at the start of a tile.
    DEV char* scratch() const { return shared_memory + static_cast<volatile WorkerPlace&>(shared_state().workers[warp()]).scratch; }
    DEV const Launch* launch() const { return shared_state().launch; }
    DEV void sync() const { named_barrier(WORKER_BARRIER, WORKER_THREADS); }
    // Waits until the block's workers are done with the work before, and until everything else that this one depends on is
    // done: only then are its operands there, and its scratch memory free. False if the run is over.
    DEV bool begin() const {
        Shared& shared = shared_state();
        const u32 taken = shared.workers[warp()].taken, slot = taken % WORKS;
        wait_done_before(shared, taken);
        wait_phase(&shared.ready[slot], taken / WORKS % 2);
        return static_cast<volatile Work&>(shared.works[slot]).go != 0;  // one answer for all warps, whoever traps meanwhile
    }
    // The first half of that: from here on, scratch memory and barriers are this work's.
    DEV void take_over() const {
        Shared& shared = shared_state();
        wait_done_before(shared, shared.workers[warp()].taken);
    }
    // Called by a whole warp that has stored all of its tile, and touches nothing of the work any more: what waits for the work
    // does not wait for the warp's way back through its callers, which takes longer than many a small tile's arithmetic.
    DEV void end() const {
        Shared& shared = shared_state();
        volatile WorkerPlace& here = shared.workers[warp()];
        const u32 taken = here.taken;
        if (here.end != MAY_END) return;
        warp_arrive(&shared.done[taken % WORKS]);  // all lanes have read their place by then
        here.end = HAS_ENDED;
    }
};

// Claims the report for the first trap of a launch, and tells every block to stop.
DEV_CALL void raise(const Launch* launch, u32 category, u32 instruction, u32 a = 0, u32 b = 0, u32 c = 0, u32 d = 0, u32 e = 0) {
    Report* report = launch->report;
    if (compare_and_swap(&report->claimed, 0, 1) == 0) {
        report->category = category;
        report->instruction = instruction;
        report->detail[0] = a;
        report->detail[1] = b;
        report->detail[2] = c;
        report->detail[3] = d;
        report->detail[4] = e;
        fence_gpu();
        store_relaxed(launch->abort, 1);
    }
}

// Called by a tile's code: traps, and lets the tile finish with any value that is safe to compute with.
DEV void trap(const Block& block, u32 category, u32 detail = 0) {
    Shared& shared = shared_state();
    stop(shared);
    raise(block.launch(), category, present_instruction(), detail);
}

// A wait that ends: polls until `done()` or, after the launch's time-out or a trap elsewhere, gives up with false.
template <class Done, class Report> DEV bool spin(const Launch* launch, Done done, Report report) {
    u64 start = 0;
    for (u32 polls = 1;; ++polls) {
        if (done()) return true;
        if (polls % SPINS_PER_CHECK == 0) {
            if (load_relaxed(launch->abort)) return false;
            const u64 now = nanoseconds();
            if (start == 0) start = now;
            if (now - start > launch->timeout_ns) {
                report();
                return false;
            }
        }
    }
}
