// CONV with a kernel for each channel, 16-bit floats: a thread has eight channels of some neighbouring positions. Input
// pixels come to scratch once, many at a time, and are read from there by every window that covers them.
#pragma once
#include "conv_shape.cuh"
#include "epilogue_vectors.cuh"

// How one convolution is cut. A tile has `lines` lines of output positions, all of one sample, `width` positions of each,
// and `vectors` vectors of channels; it goes through them `step` lines at a time, the pixels of the next step on their way.
struct Depthwise {
    static constexpr u32 NEIGHBOURS = 4;  // positions of a thread
    static constexpr u32 SLAB = 8;        // vectors of channels in a tile, at most: 128 neighbouring bytes
    static constexpr u32 WIDEST = 56, MOST_TAPS = 64;
    static constexpr u32 HEAD = 1024;     // a DepthwiseTile

    u32 vectors, slabs;         // in the widest slab; slabs of all channels
    u32 width, across, bands;   // tiles of a line, of a sample's lines
    u32 lines, step;
    u32 rows_in, columns_in;    // pixels of a step

    DEV Depthwise(const ConvShape& s) {
        const u32 all = s.groups / VECTOR;
        slabs = (all + SLAB - 1) / SLAB;
        vectors = (all + slabs - 1) / slabs;
        across = max(1, (s.positions[1] + WIDEST - 1) / WIDEST);
        width = (s.positions[1] + across - 1) / across;
        // Windows are read NEIGHBOURS at a time, also where fewer are left.
        const u32 runs = (width + NEIGHBOURS - 1) / NEIGHBOURS;
        columns_in = (runs * NEIGHBOURS - 1) * s.stride[1] + (s.kernel[1] - 1) * s.dilation[1] + 1;
        const u32 tiles = s.rows / max(s.positions[0] * s.positions[1], 1) * across * slabs;
        // Two rounds of tiles, if they are to be so large; a unit for every thread in a step.
        lines = max(1, min((tiles * s.positions[0] + 2 * gridDim.x - 1) / (2 * gridDim.x), static_cast<u32>(s.positions[0])));
        for (step = max(1, min(lines, (WORKER_THREADS + runs * vectors - 1) / (runs * vectors)));; step = (step + 1) / 2) {
            rows_in = (step - 1) * s.stride[0] + (s.kernel[0] - 1) * s.dilation[0] + 1;
            if (step == 1 || bytes(s.depth) <= SCRATCH_BYTES) break;
        }
        lines = (lines + step - 1) / step * step;
        bands = (s.positions[0] + lines - 1) / lines;
    }
    DEV u32 tiles(const ConvShape& s) const { return s.rows / max(s.positions[0] * s.positions[1], 1) * bands * across * slabs; }

    // Scratch: a DepthwiseTile, bias and kernels f32 [1 + taps][vectors], pixels [2][rows_in][columns_in][vectors].
    DEV u32 pixels_at(u32 taps) const { return HEAD + (1 + taps) * vectors * VECTOR * 4; }
    DEV u32 stage_bytes() const { return rows_in * columns_in * vectors * VECTOR_BYTES; }
    DEV u32 bytes(u32 taps) const { return pixels_at(taps) + 2 * stage_bytes(); }

    static DEV bool applies(const ConvArgs& args, const ConvShape& s) {
        const Tensor& x = args.x();
        return s.groups > 1 && s.channels == 1 && s.outputs == 1 && x.item_bytes == 2 && s.groups % VECTOR == 0 && !s.has_gaps() &&
               s.depth <= MOST_TAPS && copies_whole<Bits16>(x, x.rank - 1) && finishes_vectors(Epilogue::of(args)) &&
               Depthwise(s).bytes(s.depth) <= SCRATCH_BYTES;
    }
};

// What the threads of a tile read over and over. It lies in shared memory: see finish_vectors.
struct DepthwiseTile {
    ConvShape s;
    Depthwise d;
    Epilogue e;
    u32 first, vectors;           // of channels
    u32 sample, line, at;         // first output line, position in it
    u32 lines, width;             // present ones
    bool one_bias;

    DEV DepthwiseTile(const ConvArgs& args, u32 tile) : s(args), d(s), e(Epilogue::of(args)) {
        first = tile % d.slabs * d.vectors * VECTOR;
        vectors = min(d.vectors, (s.groups - first) / VECTOR);
        u32 rest = tile / d.slabs;
        at = rest % d.across * d.width;
        rest /= d.across;
        line = rest % d.bands * d.lines;
        sample = rest / d.bands;
        lines = min(d.lines, s.positions[0] - line);
        width = min(d.width, s.positions[1] - at);
        one_bias = ::one_bias(e);
    }
    static DEV f32* bias(const Block& block) { return reinterpret_cast<f32*>(block.scratch() + Depthwise::HEAD); }
    DEV f32* kernels(const Block& block) const { return bias(block) + vectors * VECTOR; }
};
static_assert(sizeof(DepthwiseTile) <= Depthwise::HEAD, "it fits");

template <bool HALF> DEV void load_kernels(const ConvArgs& args, const DepthwiseTile& t, const Block& block) {
    const Tensor& w = args.w();
    const u32 taps = t.s.depth, across = t.s.kernel[1], count = t.vectors * VECTOR, all = count * taps;
    const i64 down = t.s.spatial == 2 ? w.strides[1] : 0, step = w.strides[t.s.spatial], channel_step = w.strides[0];
    f32* to = t.kernels(block);
#pragma unroll 4
    for (u32 i = block.thread(); i < all; i += WORKER_THREADS) {
        const u32 channel = i / taps, tap = i - channel * taps, y = tap / across;  // neighbouring threads read neighbouring taps
        const i64 from = (t.first + channel) * channel_step + y * down + (tap - y * across) * step;
        const u16 bits = static_cast<u16>(Bits16::load(w, from));
        to[tap * count + channel] = HALF ? f32_from_f16(bits) : f32_from_bf16(bits);
    }
    if (t.one_bias && block.thread() < count) {
        const Tensor& bias = *t.e.bias;
        t.bias(block)[block.thread()] = load_f32(bias, (t.first + block.thread()) * bias.strides[bias.rank - 1]);
    }
}

// Starts to copy the pixels of the step that begins at line `line` of the tile; outside the image are zeros.
DEV void load_pixels(const ConvArgs& args, const DepthwiseTile& t, u32 line, char* to, const Block& block) {
    const Tensor& x = args.x();
    const i32 top = static_cast<i32>(t.line + line) * t.s.stride[0] - t.s.pad[0];
    const i32 left = static_cast<i32>(t.at) * t.s.stride[1] - t.s.pad[1];
    const i32 high = t.s.size[0], wide = t.s.size[1];
    const u32 vectors = t.vectors, columns = t.d.columns_in, all = t.d.rows_in * columns * vectors;
    const i64 image = t.sample * x.strides[0] + t.first, pitch = t.s.spatial == 2 ? x.strides[1] : 0, step = x.strides[t.s.spatial];
#pragma unroll 4
    for (u32 i = block.thread(); i < all; i += WORKER_THREADS) {
        const u32 pixel = i / vectors, down = pixel / columns;
        const i32 row = top + static_cast<i32>(down), column = left + static_cast<i32>(pixel - down * columns);
        const bool inside = row >= 0 && row < high && column >= 0 && column < wide;
        const i64 from = image + row * pitch + column * step + (i - pixel * vectors) * VECTOR;
        copy_chunk<Bits16>(x, to + i * CHUNK_BYTES, inside ? from : 0, inside ? VECTOR : 0);
    }
    copy_async_commit();
}

template <bool HALF> DEV void unpack_16(const uint4& raw, f32 (&v)[VECTOR]) {
    const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (u32 k = 0; k < VECTOR; ++k) {
        const u16 bits = static_cast<u16>(words[k / 2] >> (k % 2 * 16));
        v[k] = HALF ? f32_from_f16(bits) : f32_from_bf16(bits);
    }
}

// The sums of NEIGHBOURS positions for eight channels. `pixels`: what the first window begins with; `kernels`: its channels.
template <bool HALF>
DEV void depthwise_sums(f32 (&sums)[Depthwise::NEIGHBOURS][VECTOR], const DepthwiseTile& t, const char* pixels, const f32* kernels) {
    constexpr u32 N = Depthwise::NEIGHBOURS;
    const u32 pixel = t.vectors * VECTOR_BYTES, pitch = t.vectors * VECTOR, next = t.s.stride[1] * pixel;
    const u32 right = t.s.dilation[1] * pixel, down = t.s.dilation[0] * t.d.columns_in * pixel, high = t.s.kernel[0], wide = t.s.kernel[1];
#pragma unroll
    for (u32 p = 0; p < N; ++p)
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) sums[p][k] = 0.0f;
#pragma unroll 1
    for (u32 y = 0; y < high; ++y, pixels += down) {
        const char* from = pixels;
#pragma unroll 3
        for (u32 x = 0; x < wide; ++x, from += right, kernels += pitch) {
            uint4 raw[N];
#pragma unroll
            for (u32 p = 0; p < N; ++p) raw[p] = *reinterpret_cast<const uint4*>(from + p * next);
            const float4 low = *reinterpret_cast<const float4*>(kernels), more = *reinterpret_cast<const float4*>(kernels + 4);
            const f32 w[VECTOR] = {low.x, low.y, low.z, low.w, more.x, more.y, more.z, more.w};
#pragma unroll
            for (u32 p = 0; p < N; ++p) {
                f32 v[VECTOR];
                unpack_16<HALF>(raw[p], v);
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) sums[p][k] = fmaf(v[k], w[k], sums[p][k]);
            }
        }
    }
}

template <bool HALF> DEV_CALL void depthwise_tile(const ConvArgs& args, u32 tile, const Block& block) {
    constexpr u32 N = Depthwise::NEIGHBOURS;
    DepthwiseTile& t = *reinterpret_cast<DepthwiseTile*>(block.scratch());
    if (block.thread() == 0) t = DepthwiseTile(args, tile);
    block.sync();
    char* pixels = block.scratch() + t.d.pixels_at(t.s.depth);
    const u32 stage = t.d.stage_bytes(), runs = (t.width + N - 1) / N;
    load_pixels(args, t, 0, pixels, block);
    load_kernels<HALF>(args, t, block);
    u32 other = 1;  // the stage that is not in use
#pragma unroll 1
    for (u32 done = 0; done < t.lines; done += t.d.step, other ^= 1) {
        copy_async_wait<0>();
        block.sync();
        if (done + t.d.step < t.lines) load_pixels(args, t, done + t.d.step, pixels + other * stage, block);
        const u32 units = min(t.d.step, t.lines - done) * runs * t.vectors;
#pragma unroll 1
        for (u32 unit = block.thread(); unit < units; unit += WORKER_THREADS) {
            const u32 rest = unit / t.vectors, vector = unit - rest * t.vectors, line = rest / runs, at = (rest - line * runs) * N;
            const u32 window = (line * t.s.stride[0] * t.d.columns_in + at * t.s.stride[1]) * t.vectors + vector;
            f32 sums[N][VECTOR];
            depthwise_sums<HALF>(sums, t, pixels + (other ^ 1) * stage + window * VECTOR_BYTES, t.kernels(block) + vector * VECTOR);
            const LinePlace place{t.sample, t.line + done + line, t.at + at, 1};
            finish_vectors(t.e, t.one_bias ? t.bias(block) + vector * VECTOR : nullptr, place, t.first + vector * VECTOR,
                           min(N, t.width - at), sums);
        }
    }
}
