// The controller: one warp of each block walks the whole program. It executes scalar and control instructions, and decodes
// tensor instructions for the other roles, ahead of them.
#pragma once
#include "decode.cuh"
#include "paths.cuh"
#include "pause.cuh"
#include "waiting.cuh"

struct Controller {
    const Launch& launch;
    Shared& shared;
    u32 lane;
    u32 turn;        // of the launch: see `ask`
    u32 pushed = 0;  // works handed out so far
    u32 looked = 0;  // at the abort flag: how many instructions had been executed by then
    u64 steps = 0;   // instructions executed so far

    DEV bool first_lane() const { return anew(lane) == 0; }
    DEV Work& slot() { return shared.works[pushed % WORKS]; }

    // Waits until nobody needs work number `last` any longer, one of the last few; then all before it are done as well. False if the
    // run is over. In front of the first work there is none: their barriers are as if a phase before the first one had ended.
    DEV bool wait_until_free(u32 last) const {
        return __all_sync(0xffffffffu, is_free(shared, last) & !stopped(shared)) || wait_longer(last);
    }
    static DEV bool is_free(Shared& shared, u32 last) { return mbarrier_test(&shared.free[last % WORKS], last / WORKS % 2); }
    // A call, as it lies in the way.
    static DEV_CALL bool wait_longer(u32 last) {
        Shared& shared = shared_state();
        const bool ok = spin(
            shared.launch, [&] { return is_free(shared, last); },
            [&] { raise(shared.launch, TRAP_TIMEOUT, shared.works[last % WORKS].instruction, WAITED_FOR_WORKERS); });
        return __all_sync(0xffffffffu, ok && !stopped(shared));  // one answer, whoever traps meanwhile
    }

    // What a work waits for: how many counters there are, and whether there are any, all of which only this block counts on.
    struct Waits {
        u32 counters;
        bool own;
    };
    // Fills in their targets, which are those of this point in program order; lanes meet before others look. The counters are read from
    // the image, which is there before the work. No lane goes another way than the others: those without a counter look at one that
    // nobody waits for.
    DEV Waits gather_waits(Work& w, const Fetcher& fetcher, u32 waits) {
        static_assert(MAX_WAITS == WARP, "a lane for each");
        const ImageHeader& image = *reinterpret_cast<const ImageHeader*>(shared.images + fetcher.at);
        const u32 counters = waits > MAX_WAITS ? 0 : waits;
        const bool mine = lane < counters;
        const u32 counter = mine ? image.wait_counter[lane] : COUNTERS;
        w.wait_target[lane] = shared.expected[counter];
        const bool others = mine & (shared.shared_with[counter / WARP] >> counter % WARP);
        const bool own = !__any_sync(0xffffffffu, others) & (counters != 0);
        return Waits{counters, own};
    }

    // Waits here, in the controller, until everything before this point is done; false if the run is over. A call, as it is rare
    // (`ask_anew`).
    static DEV_CALL bool drain(u32 instruction, u32 lane) {
        Shared& shared = shared_state();
        for (u32 first = 0; first < COUNTERS; first += WARP) {
            if (!wait_counters(*shared.launch, first + lane, shared.expected[first + lane], instruction)) return false;
        }
        return true;
    }

    // From here on, later instructions that wait for one that signals `counter` wait for `arrivals` more, some or all of them
    // other blocks'. Lanes have met since any of them looked, and do in the next decode.
    DEV void expect(u32 counter, u32 arrivals, bool others) {
        if (first_lane()) set_expected(counter, shared.expected[counter] + arrivals, shared.shared_with[counter / WARP], others);
    }
    DEV void set_expected(u32 counter, u32 arrivals, u32 shared_with, bool others) {
        shared.expected[counter] = arrivals;
        if (others) shared.shared_with[counter / WARP] = shared_with | 1u << counter % WARP;
    }

    DEV void fail(u32 category, u32 instruction, u32 detail = 0) {
        if (first_lane()) raise(&launch, category, instruction, detail);
        __syncwarp();
    }

    // Hands a tensor instruction to the other roles, if this block has a share in it.
    DEV void issue(Work& w, const Head& head, const Waits& waits, u32 tiles) {
        const u32 first_tile = blockIdx.x - head.first_block + (blockIdx.x >= head.first_block ? 0 : gridDim.x);
        hand_out(head.signal, tiles, first_tile < tiles, [&] {
            tell_waits(w, head, waits);
            w.order = steps;
            w.tiles = tiles;
            w.first_tile = first_tile;
            w.exchange = shared.exchange;
            Tracing::decoded(w);
        });
    }
    // Called by one lane.
    DEV void tell_waits(Work& w, const Head& head, const Waits& waits) {
        w.counters = waits.counters;
        // Copies ahead of the workers do not wait for them; they need to see the counters.
        w.follows_own = waits.own & (head.path == PATH_GENERIC);
    }
    // Tells the others of the present work, which one lane completes, if this block has a part in it; and expects its signals.
    // Lanes have met since they wrote to the work.
    template <class Complete> DEV void hand_out(u32 signal, u32 tiles, bool takes_part, Complete complete) {
        const u32 blocks = tiles < gridDim.x ? tiles : gridDim.x;
        const u32 expected = shared.expected[signal], shared_with = shared.shared_with[signal / WARP];  // asked for ahead of their use
        if (first_lane()) {
            if (takes_part) {
                complete();
                if constexpr (ARRIVING_LANES == 1) mbarrier_arrive(&shared.decoded[pushed % WORKS]);
            }
            set_expected(signal, expected + blocks, shared_with, blocks > takes_part);
        }
        if (ARRIVING_LANES != 1 && takes_part) mbarrier_arrive(&shared.decoded[pushed % WORKS]);
        pushed += takes_part;
    }

    // Waits for a tensor's value and loads it to a register.
    DEV bool execute_loads(Work& w, const Fetcher& fetcher, const Head& head) {
        const Waits waits = gather_waits(w, fetcher, head.waits);
        if (first_lane()) tell_waits(w, head, waits);
        __syncwarp();
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
        write_register(shared.scalars, lane, LoadsArgs::of(w).dst(), bits);
        if (first_lane() && head.signal != COUNTERS) add_release(shared.counters + w.signal, 1);  // a later write to x waits for every block's load
        expect(head.signal, gridDim.x, true);
        return true;
    }

    // Executes an instruction that is the controller's own; false at the end of the program, at a pause or after a trap. `next` is
    // where to go on.
    DEV bool execute(Work& w, const Fetcher& fetcher, const Head& head, u32& next) {
        Scalars& m = shared.scalars;
        switch (opcode_of(w)) {
            case OP_NOP: return true;
            case OP_HALT: return false;
            case OP_MOV: execute_mov(m, w, lane); return true;
            case OP_CMP: execute_cmp(m, w, lane); return true;
            case OP_LOADS: return execute_loads(w, fetcher, head);
            case OP_ENDLOOP:
                next = execute_endloop(m, lane, next);
                return w.detail[0] == 0 || end_trip(w, head.signal, next != w.instruction + 1);
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
                if (read_register(m, AssertArgs::of(w).cond())) return true;
                fail(TRAP_ASSERT, w.instruction, AssertArgs::of(w).code());
                return false;
            default: return true;
        }
    }

    // An instruction of which there is more to do than to hand it out: reads registers, waits for all before it, and executes what is
    // the controller's own. Goes on to the next one; false at the end of the program, at a pause or after a trap.
    DEV bool step(Fetcher& fetcher, u32& at) {
        Work& w = slot();
        if (!resolve(shared.scalars, head_of(fetcher), w, lane)) {
            fail(TRAP_EXTENT, at);
            return false;
        }
#ifdef DLA_RANKS
        if (head_of(fetcher).path == PATH_HOST) {
            if (blockIdx.x == 0) pause(launch, w, shared.scalars, steps, lane);
            return false;
        }
#endif
        if (head_of(fetcher).waits == WAIT_FOR_ALL && !drain(at, lane)) return false;
        const Head head = head_of(fetcher);
        u32 next = at + 1;
        if (head.scalar_count & CONTROLLER_ONLY) {
            if (!execute(w, fetcher, head, next)) return false;
        } else {
            u32 tiles = head.tiles - 1;
            if (head.tiles == 0) {  // they depend on registers
                Work& here = Kept::shared().works[anew(pushed) % WORKS];  // an address for calls, worked out here
                prepare_path(here, lane);
                tiles = tiles_of_path(here);
                if (first_lane()) here.granules = scratch_granules(here);
            }
            const Head again = head_of(fetcher);
            const Waits waits = gather_waits(w, fetcher, again.waits);
            __syncwarp();
            issue(w, again, waits, tiles);
        }
        const Head then = head_of(fetcher);
        __syncwarp();  // every lane has read what it needs of the image, before another one takes its place
        if (next == at + 1) {
            fetcher.advance(launch, shared.images, then.ahead_begin, then.ahead_pieces, lane);
        } else {
            // A long scalar loop waits for nobody, and still has to hear of a trap or an interrupt.
            if (static_cast<u32>(steps) - looked >= STEPS_PER_CHECK) {
                looked = static_cast<u32>(steps);
                if (__any_sync(0xffffffffu, load_relaxed(launch.abort))) return false;
            }
            fetcher.jump(next, lane);
        }
        at = next;
        return true;
    }
    // What the present instruction's image says, read each time: no register keeps it over the calls in between.
    DEV Head head_of(const Fetcher& fetcher) const { return Head(shared.images + anew(fetcher.at)); }

    // Asks for what a launch begins with, before the block's first barrier: it is under way while barriers are made. Gives the
    // launch's turn, which nobody should look at earlier than necessary.
    static DEV u32 ask(const Launch& launch, Shared& shared, u32 lane) {
        Scalars& m = shared.scalars;
        if (lane < sizeof(m.registers.s) / PIECE_BYTES)
            copy_async_16(m.registers.s + 2 * lane, launch.initial_registers + 2 * lane, PIECE_BYTES);
        Fetcher::begin(launch, shared.images, lane);
        const u32 turn = load_relaxed(launch.counters + TURN_AT);
        if (lane < 16) m.registers.f[lane] = 0.0;
        if (lane < 8) m.registers.p[lane] = 0;
        if (lane == 0) {
            m.loop_depth = m.call_depth = 0;
            m.rank = launch.rank;
            m.world = launch.world;
        }
        return turn;
    }

    // Launches take turns with two sets of counters, and each leaves the other's at zero: no block has to wait for the last one.
    // Likewise with what is in the exchange, which they leave without results.
    // The turn is a count of blocks, up to those of two launches. Each block adds itself after it has looked, so that all blocks
    // of a launch find a number in the same half.
    DEV void take_turn() {
        const bool first = turn < gridDim.x;
        if (first_lane()) {
            shared.counters = launch.counters + (first ? 0 : COUNTERS);
            shared.exchange = first ? 0 : launch.exchange_bytes;
            shared.trip_end = 0;
        }
    }
    // This block's part of results from `begin` on is none again.
    DEV void clear_results(u32 begin, u32 bytes) const {
        for (u32 i = blockIdx.x * WARP + lane; i < bytes / PIECE_BYTES; i += gridDim.x * WARP)
            store_relaxed_16(reinterpret_cast<f32*>(launch.exchange + begin) + i * 4, make_uint4(~0u, ~0u, ~0u, ~0u));
    }

    // Trips of a loop in which results are taken as they come use TRIP_SETS sets of these in turns (emulator/device/exchange.py). At
    // the end of trip i, a block makes sure that it has done trip i - 1, and that all blocks have come here at the end of trip i - 1.
    // So all have done trip i - 2, whose results it makes none again; and those of trip i - 3 are none already: trip i + 1 uses that
    // set. What is waited for is mostly long done. False if the run is over.
    DEV bool end_trip(const Work& w, u32 signal, bool more) {
        const u32 turns = shared.counters == launch.counters ? 0 : launch.exchange_bytes;
        const u32 bytes = w.detail[0], moved = shared.exchange - turns, before = shared.trip_end;
        __syncwarp();
        if (more) {
            if (pushed - before < WORKS - 1 && !wait_until_free(before - 1)) return false;
            if (!wait_counters(launch, signal, shared.expected[signal], w.instruction)) return false;
            clear_results(turns + w.detail[1] + (moved + 2 * bytes) % (TRIP_SETS * bytes), bytes);
            __syncwarp();
            if (first_lane()) add_release(shared.counters + signal, 1);
            expect(signal, gridDim.x, true);
        }
        if (first_lane()) {
            shared.exchange = turns + (more ? (moved + bytes) % (TRIP_SETS * bytes) : 0);
            shared.trip_end = pushed;
        }
        __syncwarp();
        return true;
    }
    DEV void end_turn() {
        const bool first = shared.counters == launch.counters;
        u32* const others = launch.counters + (first ? COUNTERS : 0);
        for (u32 i = blockIdx.x * WARP + lane; i < COUNTERS; i += gridDim.x * WARP) store_relaxed(others + i, 0);
        clear_results(first ? launch.exchange_bytes : 0, launch.exchange_bytes);
        if (first_lane()) count_relaxed(launch.counters + TURN_AT, 2 * gridDim.x - 1);
    }

#ifdef HOPPER
    // Hands out the first instruction, which has come decoded, and goes on to the second one.
    DEV void hand_out_first(Fetcher& fetcher) {
        wait_phase(&shared.announced, 0);
        Work& w = shared.works[0];
        const u32 ahead_begin = w.ahead_begin, ahead_pieces = w.ahead_pieces, signal = w.signal, tiles = w.tiles;
        const bool takes_part = w.first_tile < tiles;
        __syncwarp();
        hand_out(signal, tiles, takes_part, [&] {
            w.exchange = shared.exchange;
            Tracing::decoded(w);
        });
        steps = 1;
        fetcher.advance(launch, shared.images, ahead_begin, ahead_pieces, lane);
    }
#endif

    DEV void run() {
        Fetcher fetcher;
        if (!Fetcher::has_first(launch)) Fetcher::arrive();
        take_turn();
        u32 at = 0;
#ifdef DLA_RANKS
        at = resume(launch, shared.scalars, steps, lane);
        if (at) fetcher.jump(at, lane);
#endif
#ifdef HOPPER
        if (Fetcher::has_first(launch)) {  // not where the launch goes on behind a pause
            hand_out_first(fetcher);
            at = 1;
        }
#endif
        while (at < launch.instructions && wait_until_free(pushed - WORKS)) {
            const Head head(shared.images + fetcher.at);
            const Waits waits = gather_waits(slot(), fetcher, head.waits);
            copy_image(shared.images + fetcher.at, head, slot(), at, lane);
            steps += 1;
            if (head.special()) {
                if (!step(fetcher, at)) break;
                continue;
            }
            issue(slot(), head, waits, head.tiles - 1);
            fetcher.advance(launch, shared.images, head.ahead_begin, head.ahead_pieces, lane);
            at += 1;
        }
        copy_async_wait<0>();
        end_turn();
        if (const u32 own = anew(lane); blockIdx.x == 0) launch.report->registers[own] = shared.scalars.registers.s[own];
        // One last, empty work tells the others to go home. After a trap its slot may still be in use, by roles that
        // are past the point where they look at `last`.
        __syncwarp();
        if (first_lane()) slot().last = 1;
        if (anew(lane) < ARRIVING_LANES) mbarrier_arrive(&shared.decoded[pushed % WORKS]);
    }
};
