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
    // From the exchange, whatever is there.
    DEV uint4 look(u32 depth) const {
        if (depth >= left) return make_uint4(0, 0, 0, 0);
        return load_relaxed_16(reinterpret_cast<const f32*>(at + depth * 2));
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
    DEV u32 finish(f32 v, const GemmArgs& args) const {
#pragma unroll 1
        for (u32 left = steps; left != 0; left >>= 8) {
            switch (left & 0xff) {
                case STEP_BIAS: v += number(bias); break;
                case STEP_ACT: v = act == ACT_RELU ? activation_relu(v, 0.0f) : activate_any(act, v, args.act_alpha()); break;
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

// In order of the warps, which is that of the depth.
DEV f32 add_warps(const f32* sums) {
    f32 v = sums[0];
#pragma unroll
    for (u32 i = 1; i < WORKER_WARPS; ++i) v += sums[i * WARP_SUMS];
    return v;
}

template <class Way> struct PlainStream {
    static DEV_CALL void run() {
        const u32 taken = Kept::taken();
        Workers me;
        const Work& w = Kept::shared().works[taken % WORKS];
        const StreamSchedule& s = *reinterpret_cast<const StreamSchedule*>(w.detail);
        const GemmArgs& args = GemmArgs::of(w);
        const u32 plain = s.plain, each = plain / PLAIN_UNITS, shift = plain / 2 % 4, rows = 1u << shift;
        const u32 thread = me.thread(), warp = me.warp(), lane = me.lane(), block = w.first_tile, blocks = gridDim.x - s.spared;
        const u32 more = w.tiles - each * blocks, count = each + (block < more);
        if (block >= blocks) {
            me.wait_ready();
            return;
        }
        const Way way(s, warp, lane);
        wait_phase(&Kept::shared().placed[taken % WORKS], taken / WORKS % 2);
        me.place = w.place;
        typename Way::Weights b;
        way.load(b, me, way.two(count, 0));

        const u32 norm = s.norm, takes = s.takes;
        const char* const from = norm ? shared_memory + NORMALISED_AT : takes ? exchange_at(w, takes) : args.a().data;
        const PlainRow source(args.a(), from, norm, Way::Rows::row_of(lane), rows, warp * (Way::SPAN / WORKER_WARPS) + lane % 4 * 8);
        const bool glu = args.sub() == GEMM_GLU;
        const u32 index = thread >> shift, unit_columns = glu ? Way::UNIT / 2 : Way::UNIT;
        const u32 column = Way::SPREAD ? (block + index / unit_columns * gridDim.x) * unit_columns + index % unit_columns
                                       : (block * each + min(block, more)) * unit_columns + index;
        const u32 row = thread & rows - 1, columns = args.out().dims[args.out().rank - 1];
        PlainResult result(args, index < count * unit_columns && column < columns, row, column, s.half_floats);
        if (s.gives && result.exists && column % 2 == 0) result.others = reinterpret_cast<u32*>(exchange_at(w, s.gives) + (row * columns + column) * 2);
        if (norm) {
            if (!(s.half_floats ? normalise_rows<DTYPE_F16>(s, rows) : normalise_rows<DTYPE_BF16>(s, rows))) return;
        } else {
            wait_phase(&Kept::shared().ready[taken % WORKS], taken / WORKS % 2);
            if (!static_cast<const volatile Work&>(w).go) return;
        }
        result.fetch(args, column);
        Panels a = {};
        if (takes && !norm) take(a, source, way.panels(s), lane);
        else load(a, source, way.panels(s), lane);

        f32* const sums = reinterpret_cast<f32*>(shared_memory + STAGING_AT);
#pragma unroll 1
        for (u32 unit = 0; unit < count; unit += Way::UNITS) {
            typename Way::Sums sum = {};
#pragma unroll
            for (u32 k = 0; k < Way::MOST_PANELS; ++k) {
                if (k >= way.panels(s)) break;
                const bool two = way.two(count - unit, k);
                if (unit + k) way.load(b, me, two);
                way.multiply(sum, b, a[k], two);
            }
            way.store(sums + warp * WARP_SUMS + unit * Way::UNIT * rows, sum, rows, count - unit, lane);
        }
        me.sync();
        u32 bits = 0;
        if (result.exists) {
            f32 v = result.alpha * add_warps(sums + (glu ? 2 * index * rows + row : thread));
            if (glu) v = activate_any(args.unit(), v, 0.0f) * (result.alpha * add_warps(sums + (2 * index + 1) * rows + row));
            bits = result.finish(v, args);
        }
        result.store(bits, rows, args.out());
    }

  private:
    using Rows = typename Way::Rows;
    using Panels = typename Way::Chunks[Way::MOST_PANELS];

    // f(chunk, depth) for what this lane has of a.
    template <class F> static DEV void each_chunk(Panels& a, u32 panels, F f) {
#pragma unroll
        for (u32 j = 0; j < Way::MOST_PANELS; ++j) {
            if (j >= panels) break;
#pragma unroll
            for (u32 span = 0; span < Way::SPANS; ++span)
#pragma unroll
                for (u32 step = 0; step < Way::STEPS; ++step) f(a[j][span][step], (j * Way::SPANS + span) * Way::SPAN + step * 32);
        }
    }
    static DEV void load(Panels& a, const PlainRow& row, u32 panels, u32 lane) {
        each_chunk(a, panels, [&](typename Rows::Chunk& chunk, u32 depth) { chunk = Rows::chosen(row.load(depth), Rows::turned_of(lane)); });
    }
    // After a trap, whatever is there: the other warps count on this one.
    static DEV void take(Panels& a, const PlainRow& row, u32 panels, u32 lane) {
        const Launch* const launch = shared_state().launch;
        const auto look = [&] {
            u32 most = 0;
            each_chunk(a, panels, [&](typename Rows::Chunk& chunk, u32 depth) {
                chunk = Rows::chosen(row.look(depth), Rows::turned_of(lane));
#pragma unroll
                for (u32 i = 0; i < sizeof(chunk) / sizeof(u32); ++i) most = max(most, reinterpret_cast<const u32*>(&chunk)[i]);
            });
            return __all_sync(0xffffffffu, most != NOT_THERE);
        };
        const auto report = [&] { raise(launch, TRAP_TIMEOUT, present_instruction(), WAITED_FOR_RESULTS); };
        if (!spin(launch, look, report)) stop(shared_state());
    }
};
#endif
