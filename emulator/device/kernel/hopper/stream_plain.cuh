// The streamed products that there are most of: one, two or four rows without gaps, all of which warps keep in registers, and one
// result for each thread at most. In a chain of these what a warp executes one after the other is what the chain takes: little
// is looked up here, nothing is divided, and what is rare is elsewhere.
#pragma once
#ifdef HOPPER
#include "hopper/stream_across.cuh"
#include "hopper/stream_norm.cuh"
#include "hopper/stream_packed.cuh"

// A lane's part of a, row-major: its first chunk, and the depth that is left from there on; 0 without a row.
struct PlainRow {
    const Tensor& tensor;
    bool inside;  // this block's shared memory
    const char* at;
    u32 left;

    DEV PlainRow(const Tensor& a, const char* from, bool shared, u32 row, u32 rows, u32 depth) : tensor(a), inside(shared) {
        const u32 all = a.dims[a.rank - 1];
        at = from + (row < rows ? row * all + depth : 0) * 2;
        left = row < rows && depth < all ? all - depth : 0;
    }
    DEV uint4 load(u32 depth) const {
        const char* p = at + depth * 2;
        if (depth >= left || !(inside || range_in_bounds(tensor, p, CHUNK_BYTES))) return make_uint4(0, 0, 0, 0);
        return *reinterpret_cast<const uint4*>(p);
    }
};

// What becomes of one thread's sum, all 16-bit floats of one type: row-major like the result, the bias one row for all.
struct PlainResult {
    bool exists, half_floats;
    char* to;
    u32* others;  // where this element and its right neighbour are left for others
    u32 steps, act, bias, residual;
    f32 alpha;

    DEV PlainResult(const GemmArgs& args, bool there, u32 row, u32 column, bool f16)
        : exists(there), half_floats(f16), to(nullptr), others(nullptr), steps(args.steps(0) | args.steps(1) << 8 | args.steps(2) << 16),
          act(args.act()), bias(0), residual(0), alpha(args.alpha()) {
        const Tensor& out = args.out();
        if (exists) to = out.data + (row * out.dims[out.rank - 1] + column) * 2;
    }
    // Once the operands are there. They arrive meanwhile.
    DEV void fetch(const GemmArgs& args, u32 column) {
        if (exists && args.has_bias()) bias = element_at(args.bias(), column);
        if (exists && args.has_residual()) residual = element_at(args.residual(), static_cast<u32>(to - args.out().data) / 2);
    }
    // ANY: also other activations than relu, which are a call.
    template <bool ANY> DEV u32 finish(f32 v, const GemmArgs& args) const {
#pragma unroll 1
        for (u32 left = steps; left != 0; left >>= 8) {
            switch (left & 0xff) {
                case STEP_BIAS: v += number(bias); break;
                case STEP_ACT: v = !ANY || act == ACT_RELU ? activation_relu(v, 0.0f) : activate_any(act, v, args.act_alpha()); break;
                default: v += number(residual);
            }
        }
        return half_floats ? f16_from_f32(v) : bf16_from_f32(v);
    }
    // Called by whole warps, whose lanes `next` on have the column to the right.
    DEV void store(u32 bits, u32 next, const Tensor& out) const {
        const u32 right = __shfl_down_sync(0xffffffffu, bits, next);
        if (others) store_relaxed(others, bits | right << 16);
        if (exists && in_bounds(out, to)) *reinterpret_cast<u16*>(in_global(to)) = static_cast<u16>(bits);
    }

  private:
    DEV f32 number(u32 bits) const { return half_floats ? f32_from_f16(static_cast<u16>(bits)) : f32_from_bf16(static_cast<u16>(bits)); }
    DEV static u32 element_at(const Tensor& t, u32 index) {
        const char* p = t.data + index * 2;
        return in_bounds(t, p) ? *reinterpret_cast<const u16*>(p) : 0;
    }
};

// Neighbours first, whose parts of the depth are neighbours.
DEV f32 add_warps(const f32* sums) {
    f32 v[WORKER_WARPS];
#pragma unroll
    for (u32 i = 0; i < WORKER_WARPS; ++i) v[i] = sums[i * WARP_SUMS];
#pragma unroll
    for (u32 step = 1; step < WORKER_WARPS; step *= 2)
#pragma unroll
        for (u32 i = 0; i + step < WORKER_WARPS; i += 2 * step) v[i] += v[i + step];
    return v[0];
}

// Where result number `i` of this block goes; `column` is where it is in the product.
DEV PlainResult plain_result(const Work& w, const StreamSchedule& s, u32 unit, u32 i, u32& column) {
    const GemmArgs& args = GemmArgs::of(w);
    const u32 each = s.plain / PLAIN_UNITS, shift = s.plain / 2 % 4, rows = 1u << shift;
    const u32 block = w.first_tile, blocks = gridDim.x - s.spared, more = w.tiles - each * blocks;
    const u32 count = block < blocks ? each + (block < more) : 0;
    const u32 index = i >> shift, unit_columns = args.sub() == GEMM_GLU ? unit / 2 : unit;
    column = unit != PACKED_UNIT ? (block + index / unit_columns * gridDim.x) * unit_columns + index % unit_columns
                                 : (block * each + min(block, more)) * unit_columns + index;
    const u32 row = i & rows - 1, columns = args.out().dims[args.out().rank - 1];
    PlainResult result(args, index < count * unit_columns && column < columns, row, column, s.half_floats);
    if (s.gives && result.exists && column % 2 == 0) result.others = reinterpret_cast<u32*>(exchange_at(w, s.gives) + (row * columns + column) * 2);
    return result;
}

// Products of which no block has more than WARP results, as most are in a chain. The waiter finishes them, while the workers are
// at the next product already, up to where that needs these results; and the signaller is busy for longest with a release. Two of
// them at most are under way: their sums lie in two places of the staging, behind what a NORM exchanges there, and two named
// barriers tell of them.
struct SumsOfFew {
    static constexpr u32 END = 4 * WARP;  // of a warp's part of the staging, in sums
    static_assert((WARP_SUMS - END) * sizeof(f32) == WARP * CHUNK_BYTES, "what is left has a chunk for each lane");

    DEV static bool are(const StreamSchedule& s) { return s.plain & PLAIN_FEW; }
    // Where the first warp's are, from the start of the staging.
    DEV static u32 sums(u32 taken) { return (2 + taken % 2) * WARP; }
    // A warp of workers has left its sums.
    DEV static void summed(u32 taken) { named_barrier_arrive(FEW_BARRIER + taken % 2, WORKER_THREADS + WARP); }
    // Waits until the sums before the last ones are no longer needed.
    DEV static void wait_for_sums(Shared& shared, u32 taken) { wait_done_before(shared, taken - 1); }

    // The waiter's part, once the work is ready: from the workers' sums to results, and that all is done, as the workers would say it.
    DEV static void finish(const Work& w, u32 taken, u32 lane) {
        const StreamSchedule& s = *reinterpret_cast<const StreamSchedule*>(w.detail);
        const GemmArgs& args = GemmArgs::of(w);
        const bool go = static_cast<const volatile Work&>(w).go;
        u32 column;
        PlainResult result = plain_result(w, s, s.unit, lane, column);
        if (go) result.fetch(args, column);
        // Worked out before the sums are there.
        const u32 from = anew(sums(taken) + lane), next = anew(1u << s.plain / 2 % 4);
        named_barrier(FEW_BARRIER + taken % 2, WORKER_THREADS + WARP);
        if (go) {
            const f32* const all = reinterpret_cast<const f32*>(shared_memory + STAGING_AT);
            const u32 bits = result.exists ? result.finish<false>(result.alpha * add_warps(all + from), args) : 0;
            result.store(bits, next, args.out());
        }
        __syncwarp();
#pragma unroll 1
        for (u32 i = lane; i < WORKER_WARPS * ARRIVING_LANES; i += WARP) mbarrier_arrive(&Kept::shared().done[taken % WORKS]);
        wait_phase(&Kept::shared().ready[taken % WORKS], taken / WORKS % 2);  // nobody else may have: each phase has to be waited for
    }
};

// Executes such products for as long as one comes behind the other: finding out what comes next takes as long as a small product.
template <class Way> struct PlainStream {
    // The present work, and those behind it that are like it; others know that they are done, or will.
    static DEV_CALL void run() {
        u32 taken = Kept::taken();
        bool said;
        do said = execute(taken);
        while (goes_on(taken, said));
    }

  private:
    using Rows = typename Way::Rows;
    using Panels = typename Way::Chunks[Way::MOST_PANELS];

    static DEV const StreamSchedule& schedule(const Work& w) { return *reinterpret_cast<const StreamSchedule*>(w.detail); }
    // Says that this warp is done with work `taken`, unless it has, and takes up the next one if that is like it. All that this depends
    // on is read at once: with a branch for each, this took a tenth of a small product. Once all have said that they are done with a
    // work, its slot may be another one's.
    static DEV bool goes_on(u32& taken, bool said) {
        Shared& shared = Kept::shared();
        const u32 next = taken + 1;
        u32 plain = PLAIN_FEW | 1;
        if (!said) {
            plain = schedule(shared.works[taken % WORKS]).plain;
            if (plain & PLAIN_FEW) SumsOfFew::summed(taken);
            else warp_arrive(&shared.done[taken % WORKS]);
        }
        wait_phase(&shared.decoded[next % WORKS], next / WORKS % 2);
        const Work& w = shared.works[next % WORKS];
        const StreamSchedule& s = schedule(w);
        const u32 differs = w.last | (w.path ^ PATH_STREAM) | (s.unit ^ Way::UNIT) | Way::differs(s) | ((s.plain ^ plain) & (PLAIN_FEW | 1));
        if (__shfl_sync(0xffffffffu, differs, 0)) return false;  // all lanes go one way
        Kept::place().taken = taken = next;
        return true;
    }

    // A call: what is the same for all of them would be kept in registers, of which there are too few. Gives whether it has said that
    // this warp is done.
    static DEV_CALL bool execute(u32 taken) {
        Workers me;
        Shared& shared = Kept::shared();
        const Work& w = shared.works[taken % WORKS];
        const StreamSchedule& s = schedule(w);
        const GemmArgs& args = GemmArgs::of(w);
        const u32 plain = s.plain, each = plain / PLAIN_UNITS, shift = plain / 2 % 4, rows = 1u << shift;
        const u32 thread = me.thread(), warp = me.warp(), lane = me.lane(), block = w.first_tile, blocks = gridDim.x - s.spared;
        const u32 more = w.tiles - each * blocks, count = each + (block < more);
        if (block >= blocks) {
            me.wait_ready();
            return false;
        }
        const Way way(s, warp, lane);
        wait_phase(&shared.placed[taken % WORKS], taken / WORKS % 2);
        me.place = w.place;
        typename Way::Weights b;
        way.load(b, me, way.two(count, 0));

        const u32 norm = s.norm, takes = s.takes;
        const bool few = SumsOfFew::are(s), glu = args.sub() == GEMM_GLU;
        const char* const from = norm ? shared_memory + NORMALISED_AT : takes ? exchange_at(w, takes) : args.a().data;
        const PlainRow source(args.a(), from, norm, Way::Rows::row_of(lane), rows, warp * (Way::SPAN / WORKER_WARPS) + lane % 4 * 8);
        // Up to here, warps are ahead of each other; now the staging, or a place in it, is free.
        if (few && !norm) SumsOfFew::wait_for_sums(shared, taken);
        else wait_done_before(shared, taken);
        if (norm) {
            if (!(s.half_floats ? normalise_rows<DTYPE_F16>(s, rows) : normalise_rows<DTYPE_BF16>(s, rows))) return false;
        } else if (!few || !takes) {  // else what is multiplied comes by itself, and the waiter does the rest
            wait_phase(&shared.ready[taken % WORKS], taken / WORKS % 2);
            if (!static_cast<const volatile Work&>(w).go) return false;
        }
        // Where this warp's sums go, worked out before it waits for what it multiplies.
        const u32 own = anew((few ? SumsOfFew::sums(taken) : 0) + warp * WARP_SUMS), own_lane = anew(Way::place(rows, lane));
        Panels a;
        const u32 panels = way.panels(s), turned = Rows::turned_of(lane);
        if (Way::MOST_PANELS != 1) each_chunk(a, Way::MOST_PANELS, [](typename Rows::Chunk& chunk, u32) { chunk = {}; });  // none is undefined
        if (takes && !norm && Way::SPREAD && few && rows == 1) take_row(a, from, args.a().dims[args.a().rank - 1], panels, warp, lane, turned);
        else if (takes && !norm) take(a, source, panels, turned);
        else load(a, source, panels, turned);
        each_chunk(a, Way::MOST_PANELS, [&](typename Rows::Chunk& chunk, u32) { Rows::choose(chunk, turned); });

        f32* const sums = reinterpret_cast<f32*>(shared_memory + STAGING_AT);
        u32 unit = 0;
#pragma unroll 1
        for (;;) {
            typename Way::Sums sum = {};
#pragma unroll
            for (u32 k = 0; k < Way::MOST_PANELS; ++k) {
                way.multiply(sum, b, a[k], way.two(count - unit, k));
                if (k + 1 == Way::MOST_PANELS || k + 1 == panels) break;
                way.load(b, me, way.two(count - unit, k + 1));
            }
            way.store(sums + own + own_lane + unit * Way::UNIT * rows, sum, rows, count - unit, lane);
            unit += Way::UNITS;
            if (unit >= count) break;
            way.load(b, me, way.two(count - unit, 0));
        }
        if (few) {
            SumsOfFew::summed(taken);
            return true;
        }
        u32 column;
        PlainResult result = plain_result(w, s, Way::UNIT, thread, column);
        result.fetch(args, column);
        me.sync();
        u32 bits = 0;
        if (result.exists) {
            f32 v = result.alpha * add_warps(sums + (glu ? (2 * (thread >> shift) * rows + (thread & rows - 1)) : thread));
            if (glu) v = activate_any(args.unit(), v, 0.0f) * (result.alpha * add_warps(sums + (2 * (thread >> shift) + 1) * rows + (thread & rows - 1)));
            bits = result.finish<true>(v, args);
        }
        result.store(bits, rows, args.out());
        return false;
    }

    // f(chunk, depth) for what this lane has of a.
    template <class F> static DEV void each_chunk(Panels& a, u32 panels, F f) {
#pragma unroll
        for (u32 j = 0; j < Way::MOST_PANELS; ++j) {
            if (Way::MOST_PANELS != 1 && j >= panels) break;
#pragma unroll
            for (u32 span = 0; span < Way::SPANS; ++span)
#pragma unroll
                for (u32 step = 0; step < Way::STEPS; ++step) f(a[j][span][step], (j * Way::SPANS + span) * Way::SPAN + step * 32);
        }
    }
    static DEV void load(Panels& a, const PlainRow& row, u32 panels, u32 turned) {
        each_chunk(a, panels, [&](typename Rows::Chunk& chunk, u32 depth) { chunk = Rows::read(row.load(depth), turned); });
    }
    // A single row, of which each lane asks for a chunk that no other does: all blocks read the same few lines of memory, and the fewer of
    // these reads there are, the sooner they are answered. The staging hands the chunks on, behind the warp's sums (SumsOfFew).
    static DEV void take_row(Panels& a, const char* row, u32 all, u32 panels, u32 warp, u32 lane, u32 turned) {
        constexpr u32 EACH = Way::STEPS * 4;  // chunks of a span
        static_assert(!Way::SPREAD || Way::MOST_PANELS * Way::SPANS * EACH == WARP, "one for each lane");
        const Launch* const launch = shared_state().launch;
        const u32 depth = lane / EACH * Way::SPAN + warp * (Way::SPAN / WORKER_WARPS) + lane % EACH * 8;
        const f32* const from = reinterpret_cast<const f32*>(row + depth * 2);
        const u32 word = depth < all ? NOT_THERE : 0;
        uint4 v = make_uint4(word, word, word, word);
        const auto look = [&] {
            load_relaxed_16_if(v, from, most_of(v) == NOT_THERE);
            return __all_sync(0xffffffffu, most_of(v) != NOT_THERE);
        };
        const auto report = [&] { raise(launch, TRAP_TIMEOUT, present_instruction(), WAITED_FOR_RESULTS); };
        if (!spin(launch, look, report)) stop(shared_state());
        const u32 place = shared_address(shared_memory) + STAGING_AT + warp * (WARP_SUMS * 4) + SumsOfFew::END * 4;
        store_shared(place + lane * CHUNK_BYTES, v);
        __syncwarp();
        const bool mine = Rows::row_of(lane) == 0;
        each_chunk(a, panels, [&](typename Rows::Chunk& chunk, u32 at) {
            const u32 index = at / Way::SPAN * EACH + at % Way::SPAN / 8 + lane % 4;
            chunk = Rows::read(load_shared_16_if(place + index * CHUNK_BYTES, mine), turned);
        });
    }
    // After a trap, whatever is there: the other warps count on this one.
    static DEV void take(Panels& a, const PlainRow& row, u32 panels, u32 turned) {
        const Launch* const launch = shared_state().launch;
        each_chunk(a, panels, [&](typename Rows::Chunk& chunk, u32 depth) { Rows::begin(chunk, depth < row.left); });
        const auto look = [&] {
            u32 most = 0;
            const auto look_at = [&](const typename Rows::Chunk& chunk) {
#pragma unroll
                for (u32 i = 0; i < sizeof(chunk) / sizeof(u32); ++i) most = max(most, reinterpret_cast<const u32*>(&chunk)[i]);
            };
            each_chunk(a, panels, [&](typename Rows::Chunk& chunk, u32 depth) {
                Rows::read_again(chunk, reinterpret_cast<const f32*>(row.at + depth * 2), depth < row.left, turned);
                if (!Rows::AGAIN) look_at(chunk);
            });
            if (Rows::AGAIN) each_chunk(a, panels, [&](const typename Rows::Chunk& chunk, u32) { look_at(chunk); });
            return __all_sync(0xffffffffu, most != NOT_THERE);
        };
        const auto report = [&] { raise(launch, TRAP_TIMEOUT, present_instruction(), WAITED_FOR_RESULTS); };
        if (!spin(launch, look, report)) stop(shared_state());
    }
};
#endif
