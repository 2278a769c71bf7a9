// CONV of images on wgmma: 16-bit floats, three channels, every second position across, no more than 64 outputs. The first layer of many
// networks, which has too few channels for lines of 128 bytes.
//
// Workers spread pixels to four elements, the last of them 0. Then a pair of pixels is 16 bytes, and so is the distance of neighbouring
// windows: for a pair of the kernel, what eight neighbouring windows have there lies in 128 bytes, one behind the other, as wgmma takes
// an operand without swizzle (PTX ISA, "Matrix-Descriptor Format"), and windows may overlap. The depth is (row of the kernel, pair, pixel,
// element). Of a kernel's last pair that has only one pixel, wgmma must not see the other, which may be no number: all pairs are there a
// second time, with zeros in its place.
#pragma once
#ifdef HOPPER
#include "hopper/tall.cuh"
#include "matrix.cuh"

struct HopperPixels {
    static DEV_CALL u32 tiles(const Work& w) { return ConvArgs::of(w).out().dims[0] * schedule(w).bands; }
    static DEV u32 granules(const Work& w) { return schedule(w).granules; }

    static DEV void run(Workers& me) {
        me.wait_placed();
        Stage stage;
        const u32 base = me.next(stage, schedule(me.work()).granules);
        me.wait(stage);
        const bool constant = schedule(me.work()).flags & B_CONSTANT;
        if (constant) put_kernels(base, me);
        if (!me.wait_ready()) return;
        if (!constant) put_kernels(base, me);
        const u32 what = Lines::what_of(ProductArgs(me.work()), true);
        f32 bias[2] = {0.0f, 0.0f};
        if (what & Lines::BIAS) fetch_turned(bias, what & Lines::HALF ? DTYPE_F16 : DTYPE_BF16, 0, me);
        u32 tile = me.work().first_tile;
        ask_for_rows(base, tile, me);
        for (;;) {
            copy_async_wait<0>();
            me.sync();  // all rows are there, and all products of the tile before are done
            spread(base, tile, me);
            fence_proxy_shared();
            me.sync();
            const u32 next = tile + gridDim.x;
            const bool more = next < me.work().tiles;
            if (more) ask_for_rows(base, next, me);
            if (schedule(me.work()).flags & HALF_FLOATS) multiply_tile<F16>(base, tile, bias, what, me);
            else multiply_tile<Bf16>(base, tile, bias, what, me);
            if (!more) break;
            tile = next;
        }
        bulk_wait();
        me.release(stage);
    }

  private:
    static constexpr u32 OUTPUTS = 64, PIXEL = 3, PAIR_BYTES = 16, CHUNK_OF_KERNELS = OUTPUTS * PAIR_BYTES;
    static constexpr u32 POSITIONS = 128, BOX_BYTES = POSITIONS * LINE_BYTES;  // of a line, that a warpgroup multiplies and stores at a time
    static constexpr u32 MARGIN = 16;  // bytes in front of an input row as it comes

    static DEV const PixelSchedule& schedule(const Work& w) { return *reinterpret_cast<const PixelSchedule*>(w.detail); }

    // Where things lie, from `base` on: a box of results for each warpgroup, kernels [pair of the depth][output], pairs of pixels
    // [row][span], the same of which only the first pixel is there, and input rows as they come.
    struct Places {
        u32 kernels, pairs, half_pairs, rows;

        DEV Places(u32 base, const PixelSchedule& s)
            : kernels(base + 2 * BOX_BYTES), pairs(kernels + s.depth * CHUNK_OF_KERNELS), half_pairs(pairs + s.rows * s.span * PAIR_BYTES),
              rows(half_pairs + s.rows * s.span * PAIR_BYTES) {}
    };
    struct Band {
        u32 sample, line;  // the tile's first line

        DEV Band(const PixelSchedule& s, u32 tile) : sample(tile / s.bands), line((tile - sample * s.bands) * s.lines) {}
    };

    // Neighbouring lanes have neighbouring outputs, so that what they write lies in different banks.
    static DEV void put_kernels(u32 base, const Workers& me) {
        const PixelSchedule& s = schedule(me.work());
        const Tensor& w = ConvArgs::of(me.work()).w();
        const u32 kernels = Places(base, s).kernels;
#pragma unroll 2
        for (u32 i = me.thread(); i < OUTPUTS * s.depth; i += WORKER_THREADS) {
            const u32 output = i % OUTPUTS, chunk = i / OUTPUTS, row = chunk / s.pairs, pixel = (chunk - row * s.pairs) * 2;
            const i64 from = output * w.strides[0] + row * w.strides[1] + pixel * w.strides[2];
            u32 words[4] = {0, 0, 0, 0};
#pragma unroll
            for (u32 k = 0; k < 2 * PIXEL; ++k) {
                const u32 right = k / PIXEL, channel = k % PIXEL;
                if (output < w.dims[0] && pixel + right < w.dims[2])
                    words[right * 2 + channel / 2] |= Bits16::load(w, from + right * w.strides[2] + channel) << channel % 2 * 16;
            }
            store_shared(kernels + chunk * CHUNK_OF_KERNELS + output * PAIR_BYTES, make_uint4(words[0], words[1], words[2], words[3]));
        }
    }

    // Starts to copy a tile's input rows, a warp each; above and below the image are zeros.
    static DEV void ask_for_rows(u32 base, u32 tile, const Workers& me) {
        const PixelSchedule& s = schedule(me.work());
        const ConvArgs& args = ConvArgs::of(me.work());
        const Tensor& x = args.x();
        const Band band(s, tile);
        const i32 top = static_cast<i32>(band.line * args.strides(0)) - static_cast<i32>(args.pads(0));
        const u32 elements = x.dims[2] * PIXEL;
        char* const rows = shared_memory + (Places(base, s).rows - shared_address(shared_memory)) + MARGIN;
#pragma unroll 1
        for (u32 row = me.warp(); row < s.rows; row += WORKER_WARPS) {
            const bool inside = static_cast<u32>(top + static_cast<i32>(row)) < x.dims[1];
            const i64 from = inside ? band.sample * x.strides[0] + (top + static_cast<i32>(row)) * x.strides[1] : 0;
#pragma unroll 2
            for (u32 at = me.lane() * 8; at < elements; at += WARP * 8)
                copy_chunk<Bits16>(x, rows + row * s.pitch + at * 2, inside ? from + at : 0, inside ? min(8, elements - at) : 0);
        }
        copy_async_commit();
    }

    // Input rows as they came -> pairs of pixels, a warp each row.
    static DEV void spread(u32 base, u32 tile, const Workers& me) {
        const PixelSchedule& s = schedule(me.work());
        const ConvArgs& args = ConvArgs::of(me.work());
        const i32 left = -static_cast<i32>(args.pads(1)), width = args.x().dims[2];
        const Places places(base, s);
        const u32 span = s.span;
#pragma unroll 1
        for (u32 row = me.warp(); row < s.rows; row += WORKER_WARPS) {
            const u32 from = places.rows + row * s.pitch + MARGIN;
#pragma unroll 2
            for (u32 pair = me.lane(); pair < span; pair += WARP) {
                const i32 pixel = left + 2 * static_cast<i32>(pair);
                const u32 at = from + min(max(pixel, -1), width - 1) * 2 * static_cast<i32>(PIXEL), word = at & ~3u, shift = at % 4 * 8;
                const u32 a = load_shared(word), b = load_shared(word + 4), c = load_shared(word + 8), d = load_shared(word + 12);
                const u32 first = __funnelshift_r(a, b, shift), middle = __funnelshift_r(b, c, shift), last = __funnelshift_r(c, d, shift);
                const bool one = static_cast<u32>(pixel) < static_cast<u32>(width), two = static_cast<u32>(pixel + 1) < static_cast<u32>(width);
                const u32 to = (row * span + pair) * PAIR_BYTES, low = one ? first : 0, high = one ? middle & 0xffff : 0;
                store_shared(places.pairs + to, make_uint4(low, high, two ? __funnelshift_r(middle, last, 16) : 0, two ? last >> 16 : 0));
                store_shared(places.half_pairs + to, make_uint4(low, high, 0, 0));
            }
        }
    }

    // The two warpgroups take turns at 128 positions of a line. Outputs are wgmma's rows, as in tall tiles: half as many products have to be
    // started as with positions for rows.
    template <class T> static DEV void multiply_tile(u32 base, u32 tile, const f32 (&bias)[2], u32 what, const Workers& me) {
        const u32 blocks = (ConvArgs::of(me.work()).out().dims[2] + POSITIONS - 1) / POSITIONS, lines = lines_of_tile(tile, me);
#pragma unroll 1
        for (u32 unit = me.warp() / 4; unit < lines * blocks; unit += 2) {
            const u32 line = unit / blocks, first = (unit - line * blocks) * POSITIONS;
            f32 sums[POSITIONS / 2];
            if (schedule(me.work()).pairs == 2) multiply_positions<T, 2>(sums, base, line, first, me);
            else multiply_positions<T, 4>(sums, base, line, first, me);
            finish_positions<T>(sums, base, tile, line, first, bias, what, me);
        }
    }
    static DEV u32 lines_of_tile(u32 tile, const Workers& me) {
        const PixelSchedule& s = schedule(me.work());
        return min(s.lines, ConvArgs::of(me.work()).out().dims[1] - Band(s, tile).line);
    }

    // Of 128 positions of a line, from `first` on.
    template <class T, u32 PAIRS> static DEV void multiply_positions(f32 (&sums)[POSITIONS / 2], u32 base, u32 line, u32 first, const Workers& me) {
        using Product = Wgmma<T, POSITIONS, false, false>;
        const PixelSchedule& s = schedule(me.work());
        const ConvArgs& args = ConvArgs::of(me.work());
        const Places places(base, s);
        const u32 row_bytes = s.span * PAIR_BYTES, down = args.dilations(0) * row_bytes;
        const u32 last = args.w().dims[2] % 2 ? places.half_pairs - places.pairs + PAIR_BYTES : PAIR_BYTES;  // from a row's last pair but one to the last
        u32 a = places.kernels, b = places.pairs + line * args.strides(0) * row_bytes + first * PAIR_BYTES;
#pragma unroll
        for (u32 i = 0; i < POSITIONS / 2; ++i) sums[i] = 0.0f;
#pragma unroll 1
        for (u32 rows = args.w().dims[1]; rows != 0; --rows) {
            warpgroup_fence();
#pragma unroll
            for (u32 pair = 0; pair < PAIRS; pair += 2) {
                const u32 apart = pair + 2 == PAIRS ? last : PAIR_BYTES;
                Product::multiply(sums, plain_descriptor(a + pair * CHUNK_OF_KERNELS, CHUNK_OF_KERNELS, 8 * PAIR_BYTES),
                                  plain_descriptor(b + pair * PAIR_BYTES, apart, 8 * PAIR_BYTES));
            }
            warpgroup_commit();
            warpgroup_wait<1>();
            a += PAIRS * CHUNK_OF_KERNELS;
            b += down;
        }
        warpgroup_wait<0>();
#pragma unroll
        for (u32 i = 0; i < POSITIONS / 2; ++i) pin(sums[i]);
    }

    // What lies behind the line's end the copy engine leaves out.
    template <class T>
    static DEV void finish_positions(f32 (&sums)[POSITIONS / 2], u32 base, u32 tile, u32 line, u32 position, const f32 (&bias)[2], u32 what, const Workers& me) {
        const u32 box = base + me.warp() / 4 * BOX_BYTES;
        finish_turned<POSITIONS / 2>(sums, bias, what);
        bulk_wait_read();
        meet_in_group(me);  // the box has been read
        pack_turned<T, 0, POSITIONS / 2>(sums, box, me);
        fence_proxy_shared();
        meet_in_group(me);
        if (me.warp() % 4 == 0 && elect_one()) {
            const PixelSchedule& s = schedule(me.work());
            const Band band(s, tile);
            tensor_store_4d(HopperProducts(me.work()).map(s.out_map), box, 0, position, band.line + line, band.sample);
            bulk_commit();
        }
    }
};
#endif
