// GEMM of few rows: b streams through the ring of stages, ahead of what the product waits for, and a follows it.
//
// Columns of b go to blocks in units of a few neighbours, and pass through shared memory in stages, each a part of the depth
// (stream_packed.cuh, stream_across.cuh: the two ways in which b can lie). The depth of a stage is shared out over the
// warps, whose sums meet in the staging. A warp has two stages in registers before it waits for a: from there on it is a
// read of a, and the products.
#pragma once
#ifdef HOPPER
#include "epilogue_one.cuh"
#include "gemm.cuh"
#include "hopper/stream_across.cuh"
#include "hopper/stream_norm.cuh"
#include "hopper/stream_packed.cuh"
#include "hopper/stream_plain.cuh"

constexpr u32 PANEL_DEPTH = 2048;                  // of a stage of packed columns
constexpr u32 STAGES_IN_FLIGHT = 1;
static_assert(WARP_SUMS == WORKER_THREADS && STAGING_AT + WORKER_WARPS * WARP_SUMS * 4 <= NORMALISED_AT, "the sums fit");

// The part of an instruction that one block does. Where b lies across, units that are at work together are neighbours: they
// have lines of memory in common.
struct StreamShare {
    u32 rows;        // of a, at present
    u32 first, end;  // units, in the order in which the block takes them:
    u32 base, step;  // where they lie

    DEV StreamShare(const Work& w, bool spread) : rows(rows_of(w)) {
        const u32 blocks = gridDim.x - reinterpret_cast<const StreamSchedule*>(w.detail)->spared;
        const u32 block = w.first_tile, each = w.tiles / blocks, more = w.tiles - each * blocks;
        first = spread ? 0 : block * each + min(block, more);
        end = block < blocks ? first + each + (block < more) : first;
        base = spread ? block : 0;
        step = spread ? gridDim.x : 1;
    }
    DEV u32 unit(u32 index) const { return base + index * step; }
    DEV static u32 rows_of(const Work& w) {
        const Tensor& out = w.operands[0];
        u32 rows = 1;
#pragma unroll 1
        for (u32 k = 0; k + 1 < out.rank; ++k) rows *= out.dims[k];
        return rows;
    }
};

struct HopperStream {
    static DEV u32 tiles(const Work& w) {
        const u32 unit = schedule(w).unit;
        return StreamShare::rows_of(w) == 0 ? 0 : (columns(w) + unit - 1) / unit;
    }

    static DEV void load(const Work& w, Loader& loader) {
        const StreamSchedule& s = schedule(w);
        const u32 unit = s.unit;
        const bool across = unit != PACKED_UNIT;
        const StreamShare share(w, across);
        const void* map = shared_state().launch->maps + static_cast<u64>(s.map) * TENSOR_MAP_BYTES;
        const u32 granules = s.granules, panels = s.panels, boxes = s.boxes, bytes = granules * GRANULE_BYTES;
        const u32 moved = places_moved(w, s);
        const u32 lines = unit == 16 ? GRANULE_BYTES / 2 / 16 : GRANULE_BYTES / 2 / 32;  // of a box, where b lies across; nothing is divided
        const u64 policy = read_once();
        if (!s.constant) loader.wait_ready();
        u32 index = share.first, panel = 0;
#pragma unroll 1
        while (index != share.end) {
            loader.pace(STAGES_IN_FLIGHT);
            Stage stage;
            if (!loader.claim(stage, granules, bytes)) return;
            const u32 to = loader.address(stage), column = share.unit(index) * unit;
            u64* full = loader.full(stage);
            if (across) {
#pragma unroll 1
                for (u32 i = 0; i < boxes; ++i)
                    tensor_stream_3d(to + i * GRANULE_BYTES, map, full, column, (panel * boxes + i) * lines, moved, policy);
            } else if (boxes == 1) {
                tensor_stream_3d(to, map, full, 0, moved + column, panel * (PANEL_DEPTH / 64), policy);
            } else {
#pragma unroll 1
                for (u32 i = 0; i < boxes; ++i)
                    tensor_stream_2d(to + i * PACKED_BOX_BYTES, map, full, panel * PANEL_DEPTH + i * 64, moved + column, policy);
            }
            const bool second = !across && (index - share.first) & 1;  // of a pair
            if (!across && !second && index + 1 != share.end) {
                index += 1;
            } else if (++panel != panels) {
                index -= second;
            } else {
                panel = 0;
                index += 1;
            }
        }
    }

    // The present work, and maybe those behind it; others know that they are done.
    static DEV void run() {
        const Work& w = Kept::shared().works[Kept::taken() % WORKS];
        const StreamSchedule& s = schedule(w);
        if (s.plain) {
            run_plain(s);
            return;
        }
        const u32 rows = StreamShare::rows_of(w);
        switch (s.unit) {
            case PACKED_UNIT:
                if (s.half_floats) run_packed<F16>(rows);
                else run_packed<Bf16>(rows);
                break;
            case 16:
                if (rows <= 8) run_as<AcrossStream<16, 1>>();
                else run_as<AcrossStream<16, 2>>();
                break;
            default: run_as<AcrossStream<32, 1>>(); break;
        }
        warp_arrive(&Kept::shared().done[Kept::taken() % WORKS]);
    }
    // Whether the waiter has a part in a work.
    static DEV bool is_finished_here(const Work& w) { return w.path == PATH_STREAM && SumsOfFew::are(schedule(w)); }
    // Whether others know that the present work is done: always. The compiler had better not know, and treat all paths alike.
    static DEV bool has_said() { return anew(1); }

  private:
    static DEV const StreamSchedule& schedule(const Work& w) { return *reinterpret_cast<const StreamSchedule*>(w.detail); }
    static DEV u32 columns(const Work& w) {
        const Tensor& b = GemmArgs::of(w).b();
        return b.dims[b.rank - 1];
    }
    // Places between the map's first and that of b: columns of packed ones, else the map's last coordinate.
    static DEV u32 places_moved(const Work& w, const StreamSchedule& s) {
        if (s.pitch == 0) return 0;
        const u64 base = static_cast<u64>(s.base[1]) << 32 | s.base[0];
        return static_cast<u32>((reinterpret_cast<u64>(GemmArgs::of(w).b().data) - base) / s.pitch);
    }
    static DEV Epilogue epilogue(const Work& w) { return gemm_epilogue(GemmArgs::of(w)); }

    static DEV void run_plain(const StreamSchedule& s) {
        switch (s.unit) {
            case PACKED_UNIT:
                if (s.half_floats) run_packed_plain<F16>(s);
                else run_packed_plain<Bf16>(s);
                break;
            case 16: PlainStream<AcrossStream<16, 1>>::run(); break;
            default: PlainStream<AcrossStream<32, 1>>::run(); break;
        }
    }
    template <class T> static DEV void run_packed_plain(const StreamSchedule& s) {
        if (s.panels == 1) PlainStream<PackedStream<FewRows<T>, true>>::run();
        else PlainStream<PackedStream<FewRows<T>>>::run();
    }
    template <class T> static DEV void run_packed(u32 rows) {
        if (rows <= 4) run_as<PackedStream<FewRows<T>>>();
        else run_as<PackedStream<ManyRows<T>>>();
    }

    // What is not there is 0: no register is kept from before.
    template <class Way> static DEV void load_panel(typename Way::Chunks& a, const typename Way::Rows& rows, u32 panel, bool there = true) {
#pragma unroll
        for (u32 span = 0; span < Way::SPANS; ++span)
#pragma unroll
            for (u32 step = 0; step < Way::STEPS; ++step) a[span][step] = {};
        if (!there) return;
#pragma unroll
        for (u32 span = 0; span < Way::SPANS; ++span)
#pragma unroll
            for (u32 step = 0; step < Way::STEPS; ++step) a[span][step] = rows.load((panel * Way::SPANS + span) * Way::SPAN + step * 32);
    }

    // Waits until everything that the work depends on is done, and its rows are there; false if the run is over. The sums, of which
    // there are none yet, are not kept meanwhile.
    template <class Way> static DEV bool wait_for_rows(const Workers& me, typename Way::Sums& sum, u32 rows) {
        const StreamSchedule& s = schedule(me.work());
        if (!s.norm) return me.wait_ready();
        const bool go = s.half_floats ? normalise_rows<DTYPE_F16>(s, rows) : normalise_rows<DTYPE_BF16>(s, rows);
#pragma unroll
        for (u32 i = 0; i < sizeof(sum) / sizeof(f32); ++i) reinterpret_cast<f32*>(sum)[i] = 0.0f;
        return go;
    }

    // A way has UNITS of UNIT columns go through its panels together, each SPANS of the depth, and keeps PANELS of a. EARLY: it has
    // registers to spare for what follows the sums.
    template <class Way> static DEV_CALL void run_as() {
        Workers me;
        const Work& w = me.work();
        const StreamShare share(w, Way::SPREAD);
        const u32 thread = me.thread(), warp = me.warp(), lane = me.lane(), rows = share.rows;
        const Way way(schedule(w), warp, lane);
        const u32 panels = way.panels(schedule(w));
        const bool glu = GemmArgs::of(w).sub() == GEMM_GLU;
        const u32 out_columns = glu ? columns(w) / 2 : columns(w);
        const typename Way::Rows source(StreamRows{GemmArgs::of(w).a(), rows, schedule(w).norm != 0}, warp * (Way::SPAN / WORKER_WARPS) + lane % 4 * 8, lane);
        f32* const sums = reinterpret_cast<f32*>(shared_memory + STAGING_AT);
        const u32 per_batch = WARP_SUMS / Way::UNIT / rows / Way::UNITS * Way::UNITS, own_row = thread % rows, own_column = thread / rows;
        typename Way::Chunks a[Way::PANELS] = {};
        bool ready = false;
        me.wait_placed();
#pragma unroll 1
        for (u32 batch = share.first; batch < share.end; batch += per_batch) {
            const u32 end = min(batch + per_batch, share.end);
            const auto unit_of = [&] { return batch + (glu ? own_column / (Way::UNIT / 2) : own_column / Way::UNIT); };
            const auto find = [&] {
                const u32 own_unit = unit_of(), units_before = share.unit(own_unit) - (own_unit - batch);
                return ResultPlace{own_row, own_column + units_before * (glu ? Way::UNIT / 2 : Way::UNIT)};
            };
            OneResult result;
            const auto begin = [&] { result = OneResult(epilogue(w), find(), unit_of() < end && find().column < out_columns); };
            if (Way::EARLY) begin();
            if (Way::EARLY && ready) result.fetch(epilogue(w));
#pragma unroll 1
            for (u32 unit = batch; unit < end; unit += Way::UNITS) {
                typename Way::Sums sum = {};
#pragma unroll 1
                for (u32 first = 0; first < panels; first += Way::PANELS) {
#pragma unroll
                    for (u32 k = 0; k < Way::PANELS; ++k) {
                        const u32 panel = first + k;
                        if (panel >= panels) break;
                        const bool two = way.two(end - unit, panel);
                        typename Way::Weights b;
                        way.load(b, me, two);
                        if (!ready) {
                            if (!wait_for_rows<Way>(me, sum, rows)) return;
#pragma unroll
                            for (u32 j = 0; j < Way::PANELS; ++j) load_panel<Way>(a[j], source, j, j < panels);
                            if (Way::EARLY) result.fetch(epilogue(w));
                            ready = true;
                        }
                        way.multiply(sum, b, a[k], two);
                        // What this lane keeps of a next: the panel after those it has, or those of the next unit.
                        const u32 next = panel + Way::PANELS < panels ? panel + Way::PANELS : k;
                        if (next != panel) load_panel<Way>(a[k], source, next);
                    }
                }
                way.store(sums + warp * WARP_SUMS + (unit - batch) * Way::UNIT * rows + Way::place(rows, lane), sum, rows, end - unit, lane);
            }
            if (!Way::EARLY) {
                begin();
                result.fetch(epilogue(w));
            }
            const auto rest = [&] { return epilogue(w); };
            const u32 steps = rest().steps;
            const f32 alpha = rest().alpha;
            me.sync();
            if (result.exists) {
                if (glu) {
                    const f32 gate = alpha * add_warps(sums + 2 * own_column * rows + own_row);
                    result.store(activate(rest().unit, gate, 0.0f) * (alpha * add_warps(sums + (2 * own_column + 1) * rows + own_row)), steps, rest, find);
                } else {
                    result.store(alpha * add_warps(sums + thread), steps, rest, find);
                }
            }
            if (end < share.end) me.sync();  // the next sums go to the same place
        }
    }
};
#endif
