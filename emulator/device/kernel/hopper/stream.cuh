// GEMM of few rows: b streams through the ring of stages, ahead of what the product waits for, and a follows it.
//
// Columns of b (whose depth is packed) go to blocks in units of 8 neighbours. A stage is a unit by up to 2048 of the depth,
// [depth / 64][8 columns][64], chunks of 16 bytes permuted as tensor maps do. Its depth is shared out over the warps, whose
// sums meet in the staging. Units go in pairs through the panels of the depth, so that two of them share what a warp reads
// of a. A warp has a pair's stages in registers before it waits for a: from there on it is a read of a, and the products.
#pragma once
#ifdef HOPPER
#include "gemm.cuh"
#include "path_workers.cuh"

constexpr u32 UNIT = 8;              // columns of b
constexpr u32 PANEL_DEPTH = 2048;
constexpr u32 SPAN_DEPTH = 1024;     // what the warps share out at once: PANEL_DEPTH is two spans
constexpr u32 WARP_DEPTH = SPAN_DEPTH / WORKER_WARPS;
constexpr u32 STEPS = WARP_DEPTH / 32;             // of a lane in a span: one chunk of 16 bytes each
constexpr u32 BOX_BYTES = UNIT * 128;              // 64 of the depth
constexpr u32 SPAN_BYTES = SPAN_DEPTH / 64 * BOX_BYTES;
constexpr u32 WARP_SUMS = 256;                     // that a warp leaves in the staging: one thread each finishes them
constexpr u32 STAGES_IN_FLIGHT = 1;
static_assert(WARP_SUMS == WORKER_THREADS && WORKER_WARPS * WARP_SUMS * 4 <= STAGING_BYTES, "the sums fit");

// The part of an instruction that one block does.
struct StreamShare {
    u32 rows;         // of a, at present
    u32 first, end;   // units

    DEV explicit StreamShare(const Work& w) : rows(rows_of(w)) {
        const u32 block = w.first_tile, each = w.tiles / gridDim.x, more = w.tiles - each * gridDim.x;
        first = block * each + min(block, more);
        end = first + each + (block < more);
    }
    DEV static u32 rows_of(const Work& w) {
        const Tensor& out = w.operands[0];
        u32 rows = 1;
#pragma unroll 1
        for (u32 k = 0; k + 1 < out.rank; ++k) rows *= out.dims[k];
        return rows;
    }
};

// ---- the two ways to multiply ----
//
// A lane reads chunks of 16 bytes: 8 neighbours in depth of one column of b, and of one row of a. Which of the depth's
// elements meet in one multiplication does not matter, as long as both sides agree. Lane l reads column stream_column(l)
// of the unit, which spreads eight neighbouring lanes over all banks.
DEV u32 stream_column(u32 lane) { return (lane >> 3) | (lane >> 2 & 1) << 2; }

// One row of a as a lane reads it: this lane's first chunk, and the depth that is left from there on; 0 without a row.
struct StreamRow {
    const Tensor* tensor;
    const char* at;
    u32 left;

    DEV StreamRow(const Tensor& a, u32 row, u32 rows, u32 depth) : tensor(&a) {
        const u32 all = a.dims[a.rank - 1];
        at = element(a, row < rows ? row_offset(a, row) + depth : 0);
        left = row < rows && depth < all ? all - depth : 0;
    }
    DEV uint4 load(u32 depth) const {
        const char* p = at + depth * 2;
        if (depth >= left || !range_in_bounds(*tensor, p, CHUNK_BYTES)) return make_uint4(0, 0, 0, 0);
        return *reinterpret_cast<const uint4*>(p);
    }
};

// Up to 4 rows of a. b is the left operand: a lane's chunk is its fragment, of which words 0 and 2 count as row g, words 1
// and 3 as row g + 8. Row m of a stands in column 2 m with words 0 and 2, and in column 2 m + 1 with words 1 and 3.
template <class T> struct FewRows {
    static constexpr u32 PANELS = 2;  // of a that a lane keeps at once
    struct Chunk {
        u32 words[2];
    };
    StreamRow row;
    bool odd;

    DEV FewRows(const Tensor& a, u32 rows, u32 depth, u32 lane) : row(a, lane >> 3, rows, depth), odd(lane >> 2 & 1) {}
    DEV Chunk load(u32 depth) const {
        const uint4 v = row.load(depth);
        return {odd ? v.y : v.x, odd ? v.w : v.z};
    }
    static DEV void multiply(f32 (&sums)[2][4], const uint4& b, const Chunk& a, u32 step) {
        const u32 left[4] = {b.x, b.y, b.z, b.w};
        T::multiply(sums[step & 1], left, a.words[0], a.words[1]);
    }
    // Leaves a unit's sums as [8 columns][rows].
    static DEV void store(f32* to, const f32 (&s)[2][4], u32 rows, u32 lane) {
        if (lane % 4 < rows) to[stream_column(lane) * rows + lane % 4] = (s[0][0] + s[1][0]) + (s[0][3] + s[1][3]);
    }
};

// Up to 16. b is the right operand: a lane's chunk is its fragment of two multiplications.
template <class T> struct ManyRows {
    static constexpr u32 PANELS = 1;
    struct Chunk {
        uint4 low, high;
    };
    StreamRow low, high;

    DEV ManyRows(const Tensor& a, u32 rows, u32 depth, u32 lane) : low(a, lane >> 2, rows, depth), high(a, (lane >> 2) + 8, rows, depth) {}
    DEV Chunk load(u32 depth) const { return {low.load(depth), high.load(depth)}; }
    static DEV void multiply(f32 (&sums)[2][4], const uint4& b, const Chunk& a, u32) {
        const u32 first[4] = {a.low.x, a.high.x, a.low.y, a.high.y}, second[4] = {a.low.z, a.high.z, a.low.w, a.high.w};
        T::multiply(sums[0], first, b.x, b.y);
        T::multiply(sums[0], second, b.z, b.w);  // and not sums[1]: registers are dear
    }
    static DEV void store(f32* to, const f32 (&s)[2][4], u32 rows, u32 lane) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = lane / 4 + 8 * half;
            if (row < rows) {
                to[stream_column(lane % 4 * 8) * rows + row] = s[0][2 * half];
                to[stream_column(lane % 4 * 8 + 4) * rows + row] = s[0][2 * half + 1];
            }
        }
    }
};

// ---- the epilogue ----

// An operand's element on its way from memory.
struct Coming {
    u32 bits = 0;

    DEV void load(const Tensor* t, i64 offset) {
        const char* p = element(*t, offset);
        if (!in_bounds(*t, p)) bits = 0;
        else if (t->item_bytes == 4) bits = *reinterpret_cast<const u32*>(p);
        else bits = *reinterpret_cast<const u16*>(p);
    }
    DEV f32 value(const Tensor* t) const {
        if (t->item_bytes == 4) return __uint_as_float(bits);
        return t->dtype == DTYPE_F16 ? f32_from_f16(static_cast<u16>(bits)) : f32_from_bf16(static_cast<u16>(bits));
    }
};

// What one thread finishes: one element of the result, whose operands are fetched while the products are made.
struct StreamResult {
    bool exists;
    i64 out, c, bias, residual, gate;  // element offsets
    Coming of_c, of_bias, of_residual, of_gate;

    DEV StreamResult(const Epilogue& e, u32 row, u32 column, bool there) : exists(there) {
        const u32 axis = e.out->rank - 1;
        const RowOffsets r(e, there ? row : 0);
        const auto at = [&](const Tensor* t, i64 offset) { return t ? offset + static_cast<i64>(column) * t->strides[axis] : 0; };
        out = at(e.out, r.out);
        c = at(e.c, r.c);
        bias = at(e.bias, r.bias);
        residual = at(e.residual, r.residual);
        gate = at(e.gate, r.gate);
    }
    DEV void fetch(const Epilogue& e) {
        if (!exists) return;
        if (e.c) of_c.load(e.c, c);
        if (e.bias) of_bias.load(e.bias, bias);
        if (e.residual) of_residual.load(e.residual, residual);
        if (e.gate) of_gate.load(e.gate, gate);
    }
    // `v` is the sum times alpha, or what glu made of two.
    DEV void store(const Epilogue& e, f32 v) const {
        if (e.c) v += e.beta * of_c.value(e.c);
#pragma unroll 1
        for (u32 steps = e.steps; steps != 0; steps >>= 8) {
            switch (steps & 0xff) {
                case STEP_BIAS: v += of_bias.value(e.bias); break;
                case STEP_ACT: v = activate(e.act, v, e.act_alpha); break;
                case STEP_RESIDUAL: v += of_residual.value(e.residual); break;
                case STEP_GATE: v *= of_gate.value(e.gate); break;
                default: v = v < e.clamp_low ? e.clamp_low : v > e.clamp_high ? e.clamp_high : v; break;  // STEP_CLAMP; NaN stays
            }
        }
        store_f32(*e.out, out, v);
    }
};

// ---- the path ----

struct HopperStream {
    static DEV u32 tiles(const Work& w) {
        return StreamShare::rows_of(w) == 0 ? 0 : (columns(w) + UNIT - 1) / UNIT;
    }

    static DEV void load(const Work& w, Loader& loader) {
        const StreamSchedule& s = schedule(w);
        const StreamShare share(w);
        const void* map = shared_state().launch->maps + static_cast<u64>(s.map) * TENSOR_MAP_BYTES;
        const u32 granules = s.granules, panels = s.panels, boxes = s.boxes, bytes = granules * GRANULE_BYTES;
        const u32 moved = moved_columns(w, s);
        const u64 policy = read_once();
        if (!s.constant) loader.wait_ready();
        u32 unit = share.first, panel = 0;
#pragma unroll 1
        while (unit != share.end) {
            loader.pace(STAGES_IN_FLIGHT);
            Stage stage;
            if (!loader.claim(stage, granules, bytes)) return;
            const u32 to = loader.address(stage), column = moved + unit * UNIT;
            u64* full = loader.full(stage);
            if (boxes == 1) {
                tensor_stream_3d(to, map, full, 0, column, panel * (PANEL_DEPTH / 64), policy);
            } else {
#pragma unroll 1
                for (u32 i = 0; i < boxes; ++i) tensor_stream_2d(to + i * BOX_BYTES, map, full, panel * PANEL_DEPTH + i * 64, column, policy);
            }
            const bool second = (unit - share.first) & 1;
            if (!second && unit + 1 != share.end) {
                unit += 1;
            } else if (++panel != panels) {
                unit -= second;
            } else {
                panel = 0;
                unit += 1;
            }
        }
    }

    static DEV void run() {
        const Work& w = Kept::shared().works[Kept::taken() % WORKS];
        const bool half = schedule(w).half_floats;
        if (StreamShare::rows_of(w) <= 4) {
            if (half) run_as<FewRows<F16>>();
            else run_as<FewRows<Bf16>>();
        } else {
            if (half) run_as<ManyRows<F16>>();
            else run_as<ManyRows<Bf16>>();
        }
    }

  private:
    static DEV const StreamSchedule& schedule(const Work& w) { return *reinterpret_cast<const StreamSchedule*>(w.detail); }
    static DEV u32 columns(const Work& w) {
        const Tensor& b = GemmArgs::of(w).b();
        return b.dims[b.rank - 1];
    }
    // Columns between the map's first and that of b.
    static DEV u32 moved_columns(const Work& w, const StreamSchedule& s) {
        if (s.pitch == 0) return 0;
        const u64 base = static_cast<u64>(s.base[1]) << 32 | s.base[0];
        return static_cast<u32>((reinterpret_cast<u64>(GemmArgs::of(w).b().data) - base) / s.pitch);
    }
    static DEV Epilogue epilogue(const Work& w) { return gemm_epilogue(GemmArgs::of(w)); }

    // A warp's part of one stage of each of two units, from shared memory.
    struct Pair {
        uint4 chunk[2][2][STEPS];  // [unit][span][step]

        DEV void load(Workers& me, u32 at, u32 granules, bool wide, bool two) {
            Stage stage[2];
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const bool exists = i == 0 || two;
                u32 from = 0;
                if (exists) {
                    from = me.next(stage[i], granules) + at;
                    me.wait(stage[i]);
                }
#pragma unroll
                for (u32 span = 0; span < 2; ++span)
#pragma unroll
                    for (u32 step = 0; step < STEPS; ++step) {
                        // Never undefined: what may be is alive from the start of the kernel on, in registers of its own.
                        chunk[i][span][step] = make_uint4(0, 0, 0, 0);
                        if (exists && (span == 0 || wide))
                            chunk[i][span][step] = load_shared_16((step & 1 ? from ^ 64 : from) + step / 2 * BOX_BYTES + span * SPAN_BYTES);
                    }
            }
            me.release(stage[0]);
            if (two) me.release(stage[1]);
        }
    };

    template <class Rows> static DEV void load_panel(typename Rows::Chunk (&a)[2][STEPS], const Rows& rows, u32 panel) {
#pragma unroll
        for (u32 span = 0; span < 2; ++span)
#pragma unroll
            for (u32 step = 0; step < STEPS; ++step) a[span][step] = rows.load(panel * PANEL_DEPTH + span * SPAN_DEPTH + step * 32);
    }

    template <class Rows> static DEV_CALL void run_as() {
        Workers me;
        const Work& w = me.work();
        const StreamSchedule& s = schedule(w);
        const StreamShare share(w);
        const u32 thread = me.thread(), warp = me.warp(), lane = me.lane();
        const u32 rows = share.rows, all_columns = columns(w), panels = s.panels, granules = s.granules;
        const bool wide = granules * GRANULE_BYTES > SPAN_BYTES, glu = GemmArgs::of(w).sub() == GEMM_GLU;
        const u32 column = stream_column(lane), at = warp * (STEPS / 2 * BOX_BYTES) + column * 128 + (((lane & 3) ^ column) << 4);
        const Rows source(GemmArgs::of(w).a(), rows, warp * WARP_DEPTH + lane % 4 * 8, lane);
        f32* const sums = reinterpret_cast<f32*>(shared_memory + STAGING_AT);
        const u32 per_batch = WARP_SUMS / UNIT / rows / 2 * 2, own_row = thread % rows, own_column = thread / rows;
        typename Rows::Chunk a[Rows::PANELS][2][STEPS] = {};
        bool ready = false;
        me.wait_placed();
#pragma unroll 1
        for (u32 batch = share.first; batch < share.end; batch += per_batch) {
            const u32 end = min(batch + per_batch, share.end);
            const u32 first_column = batch * UNIT, batch_columns = min(end * UNIT, all_columns) - first_column;
            const u32 out_columns = glu ? batch_columns / 2 : batch_columns;
            StreamResult result(epilogue(w), own_row, (glu ? first_column / 2 : first_column) + own_column, own_column < out_columns);
            if (ready) result.fetch(epilogue(w));
#pragma unroll 1
            for (u32 unit = batch; unit < end; unit += 2) {
                const bool two = unit + 1 < end;
                f32 sum[2][2][4] = {};
#pragma unroll 1
                for (u32 first = 0; first < panels; first += Rows::PANELS) {
#pragma unroll
                    for (u32 k = 0; k < Rows::PANELS; ++k) {
                        const u32 panel = first + k;
                        if (panel >= panels) break;
                        Pair b;
                        b.load(me, at, granules, wide, two);
                        if (!ready) {
                            if (!me.wait_ready()) return;
#pragma unroll
                            for (u32 j = 0; j < Rows::PANELS; ++j)
                                if (j < panels) load_panel(a[j], source, j);
                            result.fetch(epilogue(w));
                            ready = true;
                        }
#pragma unroll
                        for (u32 span = 0; span < 2; ++span) {
                            if (span == 1 && !wide) break;
#pragma unroll
                            for (u32 step = 0; step < STEPS; ++step) {
                                Rows::multiply(sum[0], b.chunk[0][span][step], a[k][span][step], step);
                                if (two) Rows::multiply(sum[1], b.chunk[1][span][step], a[k][span][step], step);
                            }
                        }
                        // What this lane keeps of a next: the panel after those it has, or those of the next pair.
                        const u32 next = panel + Rows::PANELS < panels ? panel + Rows::PANELS : k;
                        if (next != panel) load_panel(a[k], source, next);
                    }
                }
                f32* to = sums + warp * WARP_SUMS + (unit - batch) * UNIT * rows;
                Rows::store(to, sum[0], rows, lane);
                if (two) Rows::store(to + UNIT * rows, sum[1], rows, lane);
            }
            const Epilogue e = epilogue(w);
            me.sync();
            if (result.exists) {
                if (glu) {
                    const f32 gate = e.alpha * add_warps(sums + 2 * own_column * rows + own_row);
                    result.store(e, activate(e.unit, gate, 0.0f) * (e.alpha * add_warps(sums + (2 * own_column + 1) * rows + own_row)));
                } else {
                    result.store(e, e.alpha * add_warps(sums + thread));
                }
            }
            if (end < share.end) me.sync();  // the next sums go to the same place
        }
    }
    // In order of the warps, which is that of the depth.
    static DEV f32 add_warps(const f32* sums) {
        f32 v = sums[0];
#pragma unroll
        for (u32 i = 1; i < WORKER_WARPS; ++i) v += sums[i * WARP_SUMS];
        return v;
    }
};
#endif
