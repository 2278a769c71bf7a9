// ATTENTION of 16-bit floats on wgmma (after Shah et al., FlashAttention-3, 2024): a tile is 128 queries of one head, 64 for
// each warpgroup. Scores and probabilities never leave registers; the scores of one block of keys are multiplied while the
// probabilities of the block before meet its values. Earlier sums are only scaled down where scores rise far (as in
// FlashAttention-4).
#pragma once
#ifdef HOPPER
#include "hopper/flash_store.cuh"
#include "hopper/flash_tiles.cuh"
#include "hopper/multiply.cuh"

constexpr u32 FLASH_GROUP = FIRST_FREE_BARRIER + 2;   // and one more: within a warpgroup
constexpr u32 PANEL_BYTES = FLASH_KEYS * LINE_BYTES;  // 64 columns of 128 queries, keys or values
constexpr u32 PANEL_GRANULES = PANEL_BYTES / GRANULE_BYTES;

// What the loader fetches: panels of one head of a tensor.
struct FlashSource {
    const char* map;
    i32 moved;  // coordinate of the place that a register has moved the tensor to

    // `maps`: the program's, of which this is number `index`.
    DEV FlashSource(const Tensor& t, const char* maps, u32 index)
        : map(maps + static_cast<u64>(index) * TENSOR_MAP_BYTES),
          moved(t.offset_register == 0 ? 0 : static_cast<i32>((t.data - t.low) / t.offset_scale)) {
        prefetch_map(map);
    }

    // Panels of 128 lines, one behind the other.
    DEV void load(u32 to, u64* full, u32 panels, u32 line, u32 head, u32 sample) const {
#pragma unroll 1
        for (u32 i = 0; i < panels; ++i, to += PANEL_BYTES) tensor_load_5d(to, map, full, i * 64, line, head, sample, moved);
    }
};

// What a warpgroup does. WIDTH: 64 or 128 columns of q, k and v; what they lack is 0.
template <class T, u32 WIDTH> struct FlashAttention {
    static constexpr u32 GRANULES_EACH = WIDTH / 64 * PANEL_GRANULES, SCORES = FLASH_KEYS / 2, OUTPUTS = WIDTH / 2;
    static constexpr u32 STEPS = FLASH_KEYS / STEP_DEPTH;  // of a product with values
    // The first 64 columns of q stay in registers. If there are more, the last 64 stay in the store staging: with each block
    // of keys anew, they would cost a quarter of what the L2 cache brings.
    // With more columns tensor cores are the limit, and probabilities are worked out while the ones before meet their values.
    // With fewer, a warp's instructions are: it waits for all products, and then has less to do.
    static constexpr bool WIDE = WIDTH == 128;
    // Probabilities are relative to 2**base. It follows the running maximum, but stays where that is less than a factor of
    // 2**SLACK above: nearly always after the first few keys, so earlier sums hardly ever have to be multiplied. Narrow heads
    // look at what a lane has summed up of a row instead: while that is at most MOST, so is each probability.
    static constexpr f32 SLACK = 8.0f, MOST = 8192.0f, LOWEST = -3.402823466e38f;
    using KeyProduct = Wgmma<T, FLASH_KEYS, false, false>;
    using ValueProduct = Wgmma<T, WIDTH, false, true>;

    // Of rows lane / 4 and lane / 4 + 8 of a warp's 16.
    struct Running {
        f32 base[2], total[2];  // total: of probabilities
        f32 outputs[OUTPUTS];
    };
    // What stays the same while the keys of a tile pass by: as little as possible, for all registers are taken.
    struct Constants {
        i32 all_first, all_end;  // keys that every row of the warpgroup sees
        f32 factor;              // scores in base 2 are factor * product; negative: of the softcapped product

        DEV Constants(const AttentionShape& s, u32 query) {
            constexpr i64 FAR = 1 << 30;  // beyond all keys
            const i32 last = static_cast<i32>(max(-FAR, min(FAR, s.last_key(query)))), keys = static_cast<i32>(s.keys);
            all_first = static_cast<i32>(-FAR / 2);
            if (s.window != 0) all_first = max(all_first, last + static_cast<i32>(BLOCK_ROWS) - static_cast<i32>(min(FAR, s.window)));
            all_end = s.causal ? min(last + 1, keys) : keys;
            factor = s.softcap != 0.0f ? -LOG2_E * s.softcap : LOG2_E * s.scale;
        }
    };
    // Of 16 rows, as an operand in registers: the first 64 columns.
    using Held = u32[DEPTH / STEP_DEPTH][4];

    // `address`, which all lanes have alike: a reduction tells the compiler so, which then works out descriptors by uniform
    // instructions. It does not pay where products are short.
    static DEV u32 uniform(u32 address) { return WIDE ? __reduce_or_sync(0xffffffffu, address) : address; }

    // `keys`: where their stage is.
    static DEV void multiply_keys(f32 (&s)[SCORES], u32 keys, u32 group, const Held& held) {
        constexpr u32 STEP = STEP_DEPTH * 2 >> 4, PANEL_STEPS = DEPTH / STEP_DEPTH;
        // Anew: what is worked out from it would take registers all the while.
        const u32 a = descriptor_low(shared_address(shared_memory) + STAGING_AT + anew(group) * GRANULE_BYTES, PANEL_BYTES);
        const u32 b = descriptor_low(uniform(keys), PANEL_BYTES);
        warpgroup_fence();
#pragma unroll
        for (u32 d = 0; d < WIDTH / STEP_DEPTH; ++d) {
            const u32 step = d % PANEL_STEPS;
            const u64 left = matrix_descriptor(a + step * STEP);
            const u64 right = matrix_descriptor(b + d / PANEL_STEPS * (PANEL_BYTES >> 4) + step * STEP);
            if (d == 0) KeyProduct::start(s, held[0], right);
            else if (d < PANEL_STEPS) KeyProduct::multiply(s, held[step], right);
            else KeyProduct::multiply(s, left, right);
        }
        warpgroup_commit();
    }
    static DEV void multiply_values(f32 (&o)[OUTPUTS], const u32 (&p)[STEPS][4], u32 values) {
        constexpr u32 STEP = STEP_DEPTH * LINE_BYTES >> 4;
        const u32 b = descriptor_low(uniform(values), PANEL_BYTES);
        warpgroup_fence();
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) ValueProduct::multiply(o, p[i], matrix_descriptor(b + i * STEP));
        warpgroup_commit();
    }

    // Products of `key`.. and the keys behind it become those that scores are a multiple of; hidden keys' are -infinity.
    static DEV void mask(f32 (&s)[SCORES], const Constants& c, i32 key, const Workers& me) {
        f32 factor = c.factor;
        pin(factor);  // no predicate keeps what is found here until the next time
        if (factor < 0.0f) {
            const AttentionShape shape{AttentionArgs::of(me.work())};
            const f32 inner = 2.0f * LOG2_E * shape.scale * fast_reciprocal(shape.softcap);
#pragma unroll
            for (u32 i = 0; i < SCORES; ++i) {
                s[i] = 1.0f - 2.0f * fast_reciprocal(1.0f + fast_exp2(s[i] * inner));  // tanh
                if (i % 4 == 3) pin(s[i]);  // a few at a time: all registers are taken
            }
        }
        if (key >= c.all_first && key + static_cast<i32>(FLASH_KEYS) <= c.all_end) return;
        const AttentionArgs& args = AttentionArgs::of(me.work());
        const i32 keys = static_cast<i32>(args.v().dims[2]), per_row = args.causal() ? 1 : 0;
        const i32 row = Kept::warp() % 4 * 16 + thread_index_anew() % WARP / 4, column = key + thread_index_anew() % 4 * 2;
        // Anew: what is worked out from them would take registers all the while.
        const i32 all_first = static_cast<i32>(anew(c.all_first)), all_end = static_cast<i32>(anew(c.all_end));
        if (key < all_first) hide(s, [&](i32 at, i32 more) { return at < all_first - static_cast<i32>(BLOCK_ROWS - 1) + row + more - column; });
        if (key + static_cast<i32>(FLASH_KEYS) > all_end)
            hide(s, [&](i32 at, i32 more) { return at >= min(all_end + (row + more) * per_row, keys) - column; });
    }
    // Of keys `at` behind a lane's first one, for its first row, or the one `more` below.
    template <class Hidden> static DEV void hide(f32 (&s)[SCORES], Hidden hidden) {
#pragma unroll
        for (i32 i = 0; i < static_cast<i32>(SCORES); ++i)
            if (hidden(i / 4 * 8 + i % 2, i / 2 % 2 * 8)) s[i] = -infinity();
    }
    static DEV void find_top(f32 (&top)[2], const f32 (&s)[SCORES]) {
        f32 high[2][2];
#pragma unroll
        for (u32 i = 0; i < SCORES; ++i) {
            f32& to = high[i / 2 % 2][i % 2];
            to = i < 4 ? s[i] : fmaxf(to, s[i]);
        }
#pragma unroll
        for (u32 half = 0; half < 2; ++half) top[half] = fmaxf(high[half][0], high[half][1]);
    }
    // Lets the bases follow the maxima; `top`: of what a lane has of its rows. What was summed up relative to those before is to be
    // multiplied by `shrink`: outputs once no product adds to them, which a warp must not wait for by itself.
    static DEV void raise(Running& r, const f32 (&top)[2], f32 factor, f32 (&shrink)[2]) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            f32 row = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
            row = fmaxf(row, __shfl_xor_sync(0xffffffffu, row, 2));
            const f32 base = fmaxf(r.base[half], row * factor);
            shrink[half] = fast_exp2(r.base[half] - base);
            r.base[half] = base;
            r.total[half] *= shrink[half];
        }
    }
    static DEV void shrink_outputs(Running& r, const f32 (&shrink)[2]) {
#pragma unroll
        for (u32 i = 0; i < OUTPUTS; ++i) r.outputs[i] *= shrink[i / 2 % 2];
    }
    // Products become probabilities, where they are, while the ones before are in use.
    static DEV void soften(f32 (&s)[SCORES], Running& r, f32 factor, f32 (&shrink)[2]) {
        f32 top[2], sum[2][2];
        find_top(top, s);
        const f32 above = fmaxf(fmaf(top[0], factor, -r.base[0]), fmaf(top[1], factor, -r.base[1]));
        shrink[0] = shrink[1] = 1.0f;
        if (__any_sync(0xffffffffu, above > SLACK)) raise(r, top, factor, shrink);
#pragma unroll
        for (u32 i = 0; i < SCORES; ++i) {
            s[i] = fast_exp2(fmaf(s[i], factor, -r.base[i / 2 % 2]));
            f32& to = sum[i / 2 % 2][i % 2];
            to = i < 4 ? s[i] : to + s[i];
        }
#pragma unroll
        for (u32 half = 0; half < 2; ++half) r.total[half] += sum[half][0] + sum[half][1];
        hold(r.total[0] + r.total[1]);  // while the products with the values before are under way
        pin_all(s);
    }
    // Products become an operand of the next product; `sum`: of what a lane has of its rows.
    static DEV void soften_into(u32 (&p)[STEPS][4], f32 (&sum)[2], const f32 (&s)[SCORES], const Running& r, f32 factor) {
        f32 part[2][2];
#pragma unroll
        for (u32 i = 0; i < SCORES / 2; ++i) {
            const f32 base = r.base[i % 2];
            const f32 low = fast_exp2(fmaf(s[2 * i], factor, -base)), high = fast_exp2(fmaf(s[2 * i + 1], factor, -base));
            part[i % 2][0] = i < 2 ? low : part[i % 2][0] + low;
            part[i % 2][1] = i < 2 ? high : part[i % 2][1] + high;
            p[i / 4][i % 4] = T::pack(low, high);
        }
#pragma unroll
        for (u32 half = 0; half < 2; ++half) sum[half] = part[half][0] + part[half][1];
    }
    // The same for narrow heads: maxima are looked for only where the sums show that one has risen far, or to begin with.
    template <bool FIRST> static DEV void soften_narrow(u32 (&p)[STEPS][4], const f32 (&s)[SCORES], Running& r, f32 factor) {
        f32 top[2], sum[2], shrink[2];
        if (FIRST) {
            find_top(top, s);
            raise(r, top, factor, shrink);
        }
        soften_into(p, sum, s, r, factor);
        if (!FIRST && __any_sync(0xffffffffu, fmaxf(sum[0], sum[1]) > MOST)) {
            find_top(top, s);
            raise(r, top, factor, shrink);
            shrink_outputs(r, shrink);
            soften_into(p, sum, s, r, factor);
        }
#pragma unroll
        for (u32 half = 0; half < 2; ++half) r.total[half] += sum[half];
    }
    // Scores as they lie in the registers are an operand of the next product.
    static DEV void pack(u32 (&p)[STEPS][4], const f32 (&s)[SCORES]) {
#pragma unroll
        for (u32 i = 0; i < STEPS * 4; ++i) p[i / 4][i % 4] = T::pack(s[2 * i], s[2 * i + 1]);
    }
    template <u32 N> static DEV void pin_all(f32 (&v)[N]) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) pin(v[i]);
    }
    // Done with the stage that is `back` before the next one.
    static DEV void release(Workers& me, u32 back) { me.release(Stage{me.place.sequence - back, 0}); }

    static DEV void meet(u32 group) { named_barrier(FLASH_GROUP + anew(group), WARPGROUP); }

    // Moves this warp's queries to registers, of two panels the last one to the staging.
    static DEV void take_queries(Held& held, u32 group, Workers& me) {
        Stage stage;
        const u32 warp = me.warp(), lane = me.lane(), line = lane % 16;
        const u32 from = me.next(stage, GRANULES_EACH) + warp * (16 * LINE_BYTES), row = from + line * LINE_BYTES;
        me.wait(stage);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) load_matrix_x4(held[i], row + ((2 * i + lane / 16) ^ (line & 7)) * CHUNK_BYTES);
        if (WIDE) {
            const u32 to = shared_address(shared_memory) + STAGING_AT + warp * (16 * LINE_BYTES);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 at = (i * WARP + lane) * CHUNK_BYTES;
                store_shared(to + at, load_shared_16(from + PANEL_BYTES + at));
            }
            fence_proxy_shared();
            meet(group);
        }
        me.release(stage);
    }

    // Rows of values past the last key may hold anything, and nothing times a NaN is no 0.
    static DEV void clear_past(u32 values, u32 have, u32 group, Workers& me) {
#pragma unroll 1
        for (u32 i = me.thread() % WARPGROUP; i < (FLASH_KEYS - have) * (WIDTH / 8); i += WARPGROUP) {
            const u32 panel = i % (WIDTH / 64), chunk = have * 8 + i / (WIDTH / 64);
            store_shared(values + panel * PANEL_BYTES + chunk * CHUNK_BYTES, make_uint4(0, 0, 0, 0));
        }
        fence_proxy_shared();
        meet(group);
    }

    static DEV void attend(const AttentionShape& shape, const FlashTile& t, Running& r, Workers& me) {
        const u32 group = me.warp() / 4;
        const Constants c(shape, t.query + group * BLOCK_ROWS);
        u32 p[STEPS][4];
        f32 s[SCORES];
        Held held;
        take_queries(held, group, me);
#pragma unroll
        for (u32 i = 0; i < SCORES; ++i) s[i] = 0.0f;
        Stage stage;
        u32 from = me.next(stage, GRANULES_EACH);
        me.wait(stage);
        wait_turn(group);
        multiply_keys(s, from, group, held);
        pass_turn(group);
        warpgroup_wait<0>();
        pin_all(s);
        release(me, 1);
        mask(s, c, t.first_block, me);
        if (WIDE) {
            f32 shrink[2];
            soften(s, r, fabsf(c.factor), shrink);
            pack(p, s);
        } else {
            soften_narrow<true>(p, s, r, fabsf(c.factor));
        }
        u32 key = t.first_block + FLASH_KEYS;
#pragma unroll 1
        for (bool more = key < t.end; more; key += FLASH_KEYS) {
            me.place.sequence = anew(me.place.sequence);  // else the one before is kept, too, in local memory
            from = me.next(stage, GRANULES_EACH);
            me.wait(stage);
            wait_turn(group);
            multiply_keys(s, from, group, held);
            from = me.next(stage, GRANULES_EACH);
            me.wait(stage);
            multiply_values(r.outputs, p, from);
            pass_turn(group);
            more = key + FLASH_KEYS < Kept::place().attention.keys_end;  // asked for while products are under way, it takes no register
            warpgroup_wait<WIDE ? 1 : 0>();
            pin_all(s);
            release(me, 2);
            if (!WIDE) {
                pin_all(r.outputs);
                release(me, 1);
            }
            mask(s, c, key, me);
            if (WIDE) {
                f32 shrink[2];
                soften(s, r, fabsf(c.factor), shrink);
                warpgroup_wait<0>();
                pin_all(r.outputs);
                if (__any_sync(0xffffffffu, fminf(shrink[0], shrink[1]) < 1.0f)) shrink_outputs(r, shrink);
                release(me, 1);
                pack(p, s);
            } else {
                soften_narrow<false>(p, s, r, fabsf(c.factor));
            }
            me.place.sequence = anew(me.place.sequence);
        }
        from = me.next(stage, GRANULES_EACH);
        me.wait(stage);
        const u32 last_block = (Kept::place().attention.keys_end - 1) / FLASH_KEYS * FLASH_KEYS;
        const u32 keys = AttentionArgs::of(me.work()).v().dims[2];
        if (last_block + FLASH_KEYS > keys) clear_past(from, keys - last_block, group, me);
        multiply_values(r.outputs, p, from);
        warpgroup_wait<0>();
        pin_all(r.outputs);
        release(me, 1);
    }

    static DEV void run(Workers& me) {
        me.wait_placed();
        if (me.warp() / 4 == 1) pass_turn(1);  // group 0 begins
        Kept::place().attention.step = Kept::place().attention.last = 0;
        for (;;) {
            Running r;
            {
                FlashWalk walk{me.work(), Kept::place().attention.step};
                FlashTile t;
                if (!walk.next(t)) break;
                const AttentionShape s(AttentionArgs::of(me.work()));
                t.see(s);
                __syncwarp();  // every lane has read the step
                Kept::place().attention.step = walk.step;
                Kept::place().attention.last = walk.is_over();
                Kept::place().attention.query = t.query;
                Kept::place().attention.keys_end = t.end;
                Kept::place().attention.head = t.head;
                Kept::place().attention.sample = t.sample;
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    r.base[half] = LOWEST;
                    r.total[half] = 0.0f;
                }
#pragma unroll
                for (u32 i = 0; i < OUTPUTS; ++i) r.outputs[i] = 0.0f;
                if (!me.wait_ready()) {  // here, where what it takes to begin is known
                    Kept::place().attention.last = 0;
                    break;
                }
                if (me.warp() / 4 == 1 && FlashTiles::in_halves(me.work())) {
                    if (t.begin < t.end) me.place = follow_flash_tile(me.place, GRANULES_EACH, (t.end - t.first_block + FLASH_KEYS - 1) / FLASH_KEYS);
                    flash_tile_ends();
                    if (Kept::place().attention.last) break;
                    continue;
                }
                if (t.begin < t.end) attend(s, t, r, me);
            }
            if (Kept::place().attention.last && me.warp() / 4 == 0) wait_turn(0);
#pragma unroll
            for (u32 panel = 0; panel < WIDTH / 64; ++panel) {
                FlashPanel part;
#pragma unroll
                for (u32 i = 0; i < 32; ++i) part.outputs[i] = r.outputs[panel * 32 + i];
                store_panel<T>(part, r.base[0], r.base[1], r.total[0], r.total[1], panel, panel + 1 == WIDTH / 64);
            }
            if (Kept::place().attention.last) return;
        }
        if (me.warp() / 4 == 0) wait_turn(0);  // takes up what group 1 passed last
    }
};

struct HopperFlash {
    static DEV const FlashSchedule& schedule(const Work& w) { return FlashTiles::schedule(w); }

    static DEV u32 tiles(const Work& w) {
        const FlashTiles all(w);
        return all.down * all.heads;
    }

    static DEV void load(const Work& w, Loader& loader) {
        const AttentionArgs& args = AttentionArgs::of(w);
        const AttentionShape s(args);
        const FlashSchedule& maps = schedule(w);
        const u32 panels = maps.flags & FLASH_WIDE ? 2 : 1;
        const char* const all = shared_state().launch->maps;
        const FlashSource q(args.q(), all, maps.q_map), k(args.k(), all, maps.k_map), v(args.v(), all, maps.v_map);
        FlashWalk walk{w};
        FlashTile t;
        bool ready = false;
#pragma unroll 1
        while (walk.next(t)) {
            t.see(s);
            if (t.begin >= t.end) continue;
            const u32 key_head = t.head / s.heads_per_key;
            Stage queries, stage;
            if (!loader.claim(queries, panels * PANEL_GRANULES, panels * PANEL_BYTES)) return;
            const bool going_on = loader.claim(stage, panels * PANEL_GRANULES, panels * PANEL_BYTES);
            if (!ready) loader.wait_ready();  // with its first stages claimed
            ready = true;
            u32 key = t.first_block;
            // The first keys before the queries, which are soon in registers. The keys of a block come before the values of the one before.
            if (going_on) k.load(loader.address(stage), loader.full(stage), panels, key, key_head, t.sample);
            q.load(loader.address(queries), loader.full(queries), panels, t.query, t.head, t.sample);
            if (!going_on) return;
#pragma unroll 1
            for (;;) {
                key += FLASH_KEYS;
                if (key < t.end) {
                    if (!loader.claim(stage, panels * PANEL_GRANULES, panels * PANEL_BYTES)) return;
                    k.load(loader.address(stage), loader.full(stage), panels, key, key_head, t.sample);
                }
                if (!loader.claim(stage, panels * PANEL_GRANULES, panels * PANEL_BYTES)) return;
                v.load(loader.address(stage), loader.full(stage), panels, key - FLASH_KEYS, key_head, t.sample);
                if (key >= t.end) break;
            }
        }
    }

    static DEV void run(Workers& me) {
        switch (schedule(me.work()).flags & (FLASH_WIDE | FLASH_F16)) {
            case 0: FlashAttention<Bf16, 64>::run(me); break;
            case FLASH_WIDE: FlashAttention<Bf16, 128>::run(me); break;
            case FLASH_F16: FlashAttention<F16, 64>::run(me); break;
            default: FlashAttention<F16, 128>::run(me); break;
        }
    }
    // Whether the others know already that this warp is done with the work.
    static DEV bool has_said() { return Kept::place().attention.last != 0; }
};
#endif
