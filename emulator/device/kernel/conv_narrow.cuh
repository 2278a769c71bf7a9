// CONV with few channels, an image's say, 16-bit floats: the depth is (row of the kernel, elements of that row), for the
// elements that a row of the kernel covers lie next to each other in x. Input rows are copied to scratch as they are, and
// operands of the tensor cores are read from there, overlapping windows included; nothing is gathered element by element.
#pragma once
#include "conv_shape.cuh"
#include "epilogue_vectors.cuh"

// How one convolution is cut. A tile has `lines` lines of output positions, all of one sample, `width` positions of each
// and COLUMNS outputs; it goes through them `step` lines at a time, the input rows of the next step being on their way.
struct Narrow {
    static constexpr u32 COLUMNS = 64, ROWS = 16;  // of a warp's share: outputs, and positions of one line (it has two)
    static constexpr u32 WIDEST = 256, MOST_CHANNELS = 16;
    static constexpr u32 SUMS_PITCH = COLUMNS + 4;  // f32, in front of the epilogue
    static constexpr u32 STAGING = WORKER_WARPS * ROWS * SUMS_PITCH * 4;
    static constexpr u32 HEAD = 1024;  // a NarrowTile

    u32 run;       // elements of a row of the kernel
    i32 begin;     // element of an input row at which the window of position 0 begins
    u32 shift;     // 1 where windows begin in the upper half of a word, and so have one more element in front
    bool odd;      // neighbouring windows begin in different halves of a word
    u32 pieces;    // of eight elements, in a row of the kernel
    u32 depth;     // rounded up to the tensor cores' 16
    u32 width, across, bands, columns;  // positions of a line in a tile; tiles of a line, of a sample's lines, of the outputs
    u32 lines, step;
    u32 span;      // elements of an input row that a tile keeps
    u32 rows_in;   // input rows of a step

    DEV Narrow(const ConvShape& s) {
        run = s.kernel[1] * s.channels;
        begin = -s.pad[1] * static_cast<i32>(s.channels);
        odd = s.stride[1] * s.channels % 2 != 0;
        shift = odd ? 0 : begin & 1;
        pieces = (shift + run + 7) / 8;
        depth = (s.kernel[0] * pieces + 1) / 2 * 16;
        width = min(static_cast<u32>(s.positions[1]), WIDEST);
        across = (s.positions[1] + width - 1) / max(width, 1);
        columns = (s.outputs + COLUMNS - 1) / COLUMNS;
        const u32 blocks = (width + ROWS - 1) / ROWS;
        span = (7 + (blocks * ROWS - 1) * s.stride[1] * s.channels + shift + pieces * 8 + 7) / 8 * 8;
        const u32 samples = s.rows / max(s.positions[0] * s.positions[1], 1), all = samples * across * columns;
        lines = (all * s.positions[0] + gridDim.x - 1) / gridDim.x;  // one round of tiles, if they are to be so large
        lines = max(1, min(lines, static_cast<u32>(s.positions[0])));
        // Two shares of ROWS positions for each warp, and again; as far as there is room.
        for (step = max(1, min(lines, 4 * WORKER_WARPS / max(blocks, 1)));; step = (step + 1) / 2) {
            rows_in = (step - 1) * s.stride[0] + (s.kernel[0] - 1) * s.dilation[0] + 1;
            if (step == 1 || bytes() <= SCRATCH_BYTES) break;
        }
        lines = (lines + step - 1) / step * step;
        bands = (s.positions[0] + lines - 1) / lines;
    }
    DEV u32 tiles(const ConvShape& s) const { return s.rows / max(s.positions[0] * s.positions[1], 1) * across * bands * columns; }

    // Scratch: a NarrowTile, the kernels [COLUMNS][pitch], a table [depth / 8][4], rows of x [2][rows_in][span], sums of each warp.
    DEV u32 pitch() const { return depth + 8; }  // elements; eight rows of 16 bytes then lie in different banks
    DEV u32 table_at() const { return HEAD + COLUMNS * pitch() * 2; }
    DEV u32 rows_at() const { return table_at() + depth / 8 * 4 * 8; }
    DEV u32 staging_at() const { return rows_at() + 2 * rows_in * span * 2; }
    DEV u32 bytes() const { return staging_at() + STAGING; }

    static DEV bool applies(const ConvArgs& args, const ConvShape& s) {
        const Tensor& x = args.x();
        const Tensor& w = args.w();
        if (s.groups != 1 || s.channels > MOST_CHANNELS || x.item_bytes != 2 || s.has_gaps() || s.dilation[1] != 1) return false;
        const i64 channels = s.channels;
        const auto rows_whole = [&](const Tensor& t) {
            return (channels == 1 || t.strides[t.rank - 1] == 1) && (t.dims[s.spatial] == 1 || t.strides[s.spatial] == channels);
        };
        if (!rows_whole(x) || !rows_whole(w) || reinterpret_cast<u64>(x.data) % CHUNK_BYTES != 0 || s.positions[1] < 8) return false;
        for (u32 k = 0; k < s.spatial; ++k) {
            if (x.dims[k] != 1 && x.strides[k] % 8 != 0) return false;
        }
        return Narrow(s).bytes() <= SCRATCH_BYTES;
    }
};

// What a tile of a narrow convolution is about.
struct NarrowPlace {
    u32 sample, line, at, column;  // first output line, position in it, output
    u32 lines, width, outputs;     // present ones
    i32 first;                     // element of an input row that lies first in scratch, a multiple of 8
    u32 offset;                    // of the first window in a row in scratch

    DEV NarrowPlace(const Narrow& n, const ConvShape& s, u32 tile) {
        column = tile % n.columns * Narrow::COLUMNS;
        u32 rest = tile / n.columns;
        at = rest % n.across * n.width;
        rest /= n.across;
        line = rest % n.bands * n.lines;
        sample = rest / n.bands;
        lines = min(n.lines, s.positions[0] - line);
        width = min(n.width, s.positions[1] - at);
        outputs = min(Narrow::COLUMNS, s.outputs - column);
        const i32 start = n.begin + static_cast<i32>(at) * s.stride[1] * static_cast<i32>(s.channels);
        first = start & ~7;
        offset = start - first - n.shift;
    }
};

// What the threads of a tile read over and over. It lies in shared memory: see finish_vectors.
struct NarrowTile {
    ConvShape s;
    Narrow n;
    NarrowPlace p;
    Epilogue e;
    bool whole;                 // the epilogue takes vectors
    bool one_bias;
    __align__(16) f32 bias[Narrow::COLUMNS];  // if all rows have the same

    DEV NarrowTile(const ConvArgs& args, u32 tile) : s(args), n(s), p(n, s, tile), e(Epilogue::of(args)) {
        whole = finishes_vectors(e);
        one_bias = ::one_bias(e);
    }
};
static_assert(sizeof(NarrowTile) <= Narrow::HEAD, "it fits");

// The kernels, bias and table to scratch. The table says, for each piece of the depth, where its elements lie, seen from
// the first window's first row (bytes), and which of each lane's two elements of it belong to the window (a mask).
DEV void load_narrow_kernels(const ConvArgs& args, NarrowTile& t, const Block& block) {
    const Tensor& w = args.w();
    const u32 per_row = t.n.pieces, shift = t.n.shift, run = t.n.run, rows = t.s.kernel[0], pieces = t.n.depth / 8, outputs = t.p.outputs;
#pragma unroll 2
    for (u32 i = block.thread(); i < Narrow::COLUMNS * pieces; i += WORKER_THREADS) {
        const u32 output = i / pieces, piece = i % pieces, row = piece / per_row;
        const u32 at = (piece - row * per_row) * 8 - shift;
        const bool there = output < outputs && row < rows;
        const i64 from = static_cast<i64>(t.p.column + output) * w.strides[0] + (t.s.spatial == 2 ? row * w.strides[1] : 0);
        u32 words[4] = {0, 0, 0, 0};
#pragma unroll
        for (u32 k = 0; k < 8; ++k) {
            if (there && at + k < run) words[k / 2] |= Bits16::load(w, from + (at + k)) << (k % 2 * 16);  // at may be "negative"
        }
        char* to = block.scratch() + Narrow::HEAD + (output * t.n.pitch() + piece * 8) * 2;
        *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    uint2* table = reinterpret_cast<uint2*>(block.scratch() + t.n.table_at());
    for (u32 i = block.thread(); i < pieces * 4; i += WORKER_THREADS) {
        const u32 row = i / 4 / per_row, piece = i / 4 % per_row, at = piece * 8 + i % 4 * 2 - shift;
        const bool there = row < rows;
        const u32 mask = (at < run ? 0xffffu : 0u) | (at + 1 < run ? 0xffff0000u : 0u);
        table[i] = make_uint2(there ? (row * t.s.dilation[0] * t.n.span + piece * 8) * 2 : 0, there ? mask : 0);
    }
    if (t.one_bias && block.thread() < outputs) {
        const Tensor& bias = *t.e.bias;
        t.bias[block.thread()] = load_f32(bias, (t.p.column + block.thread()) * bias.strides[bias.rank - 1]);
    }
}

// Starts to copy the input rows of the step that begins at line `line` of the tile; outside the image are zeros.
DEV_CALL void load_narrow_rows(const ConvArgs& args, const NarrowTile& t, u32 line, char* to, const Block& block) {
    const Tensor& x = args.x();
    const i32 top = static_cast<i32>(t.p.line + line) * t.s.stride[0] - t.s.pad[0], first = t.p.first;
    const i32 length = t.s.size[1] * static_cast<i32>(t.s.channels), size = t.s.size[0];
    const u32 chunks = t.n.span / 8, all = t.n.rows_in * chunks;
    const i64 image = t.p.sample * x.strides[0], pitch = t.s.spatial == 2 ? x.strides[1] : 0;
#pragma unroll 2
    for (u32 i = block.thread(); i < all; i += WORKER_THREADS) {
        const u32 place = i / chunks;
        const i32 row = top + static_cast<i32>(place), at = first + static_cast<i32>((i - place * chunks) * 8);
        const bool inside = row >= 0 && row < size && at >= 0 && at < length;
        copy_chunk<Bits16>(x, to + i * CHUNK_BYTES, inside ? image + row * pitch + at : 0, inside ? min(8, length - at) : 0);
    }
    copy_async_commit();
}

// Two elements from address `at` of shared memory on, which need not be a word.
template <bool ODD> DEV u32 load_pair(const char* at) {
    if (!ODD) return *reinterpret_cast<const u32*>(at);
    const u16* p = reinterpret_cast<const u16*>(at);
    return p[0] | static_cast<u32>(p[1]) << 16;
}

// The products of two shares of a warp; `windows`: of each share the first window of this lane's row, in scratch.
template <class T, bool ODD>
DEV void multiply_narrow(f32 (&sums)[2][8][4], const NarrowTile& t, const char* (&windows)[2], const Block& block) {
    const u32 lane = block.lane(), depth = t.n.depth, pitch = t.n.pitch() * 2;
    const u32 below = 8 * t.s.stride[1] * t.s.channels * 2;  // bytes between windows eight positions apart
    const uint2* table = reinterpret_cast<const uint2*>(block.scratch() + t.n.table_at()) + lane % 4;
    u32 kernels = shared_address(block.scratch()) + Narrow::HEAD + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 16;
#pragma unroll 2
    for (u32 k = 0; k < depth; k += 16, table += 8, kernels += 32) {
        const uint2 low = table[0], high = table[4];
        u32 a[2][4];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            a[i][0] = load_pair<ODD>(windows[i] + low.x) & low.y;
            a[i][1] = load_pair<ODD>(windows[i] + low.x + below) & low.y;
            a[i][2] = load_pair<ODD>(windows[i] + high.x) & high.y;
            a[i][3] = load_pair<ODD>(windows[i] + high.x + below) & high.y;
        }
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            u32 b[4];
            load_matrix_x4(b, kernels + j * 16 * pitch);
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                T::multiply(sums[i][2 * j], a[i], b[0], b[1]);
                T::multiply(sums[i][2 * j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// Leaves the sums of a share in scratch: f32 [ROWS][SUMS_PITCH].
DEV void stage_narrow(const f32 (&sums)[8][4], f32* staging, u32 lane) {
    constexpr u32 PITCH = Narrow::SUMS_PITCH;
    f32* corner = staging + lane / 4 * PITCH + lane % 4 * 2;
    __syncwarp();  // the share before has been stored
#pragma unroll
    for (u32 j = 0; j < 8; ++j)
#pragma unroll
        for (u32 half = 0; half < 2; ++half)
            *reinterpret_cast<float2*>(corner + half * 8 * PITCH + j * 8) = make_float2(sums[j][2 * half], sums[j][2 * half + 1]);
    __syncwarp();
}

// Finishes and stores a share, by one warp: ROWS positions (as far as there are) from (line, at) of the sample on. A call:
// it is long, and there are two shares of two types.
DEV_CALL void store_narrow(const NarrowTile& t, const f32* staging, u32 line, u32 at, u32 count, u32 lane) {
    constexpr u32 PITCH = Narrow::SUMS_PITCH, VECTORS = Narrow::COLUMNS / VECTOR, DISTANCE = WARP / VECTORS, EACH = Narrow::ROWS / DISTANCE;
    const u32 mine = lane % VECTORS * VECTOR, first = lane / VECTORS;
    if (mine >= t.p.outputs || first >= count) return;
    if (t.whole) {
        f32 v[EACH][VECTOR];
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const f32* sums = staging + (first + i * DISTANCE) * PITCH + mine;
            const float4 low = *reinterpret_cast<const float4*>(sums), high = *reinterpret_cast<const float4*>(sums + 4);
            const f32 row[VECTOR] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[i][k] = row[k];
        }
        const LinePlace place{t.p.sample, line, at + first, DISTANCE};
        finish_vectors(t.e, t.one_bias ? t.bias + mine : nullptr, place, t.p.column + mine, (count - first + DISTANCE - 1) / DISTANCE, v);
        return;
    }
    const u32 outputs = min(VECTOR, t.p.outputs - mine);
    for (u32 i = first; i < count; i += DISTANCE) {
        const RowOffsets offsets(t.e, (t.p.sample * t.s.positions[0] + line) * t.s.positions[1] + at + i);
        for (u32 k = 0; k < outputs; ++k) finish_one(t.e, offsets, t.p.column + mine + k, staging[i * PITCH + mine + k]);
    }
}

template <class T> DEV_CALL void narrow_tile(const ConvArgs& args, u32 tile, const Block& block) {
    NarrowTile& t = *reinterpret_cast<NarrowTile*>(block.scratch());
    if (block.thread() == 0) t = NarrowTile(args, tile);
    block.sync();
    const u32 stage = t.n.rows_in * t.n.span * 2, blocks = (t.p.width + Narrow::ROWS - 1) / Narrow::ROWS;
    char* rows = block.scratch() + t.n.rows_at();
    load_narrow_rows(args, t, 0, rows, block);
    load_narrow_kernels(args, t, block);
    f32* staging = reinterpret_cast<f32*>(block.scratch() + t.n.staging_at()) + block.warp() * Narrow::ROWS * Narrow::SUMS_PITCH;
    u32 other = 1;  // the stage that is not in use
#pragma unroll 1
    for (u32 done = 0; done < t.p.lines; done += t.n.step, other ^= 1) {
        copy_async_wait<0>();
        block.sync();
        if (done + t.n.step < t.p.lines) load_narrow_rows(args, t, done + t.n.step, rows + other * stage, block);
        const u32 shares = min(t.n.step, t.p.lines - done) * blocks;
#pragma unroll 1
        for (u32 share = 2 * block.warp(); share < shares; share += 2 * WORKER_WARPS) {
            f32 sums[2][8][4] = {};
            const char* windows[2];
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u32 mine = min(share + i, shares - 1), line = mine / blocks, at = mine % blocks * Narrow::ROWS + block.lane() / 4;
                const u32 window = line * t.s.stride[0] * t.n.span + at * t.s.stride[1] * t.s.channels + t.p.offset;
                windows[i] = rows + (other ^ 1) * stage + window * 2 + block.lane() % 4 * 4;
            }
            if (t.n.odd) multiply_narrow<T, true>(sums, t, windows, block);
            else multiply_narrow<T, false>(sums, t, windows, block);
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                if (share + i >= shares) break;
                const u32 line = (share + i) / blocks, at = (share + i) % blocks * Narrow::ROWS;
                stage_narrow(sums[i], staging, block.lane());
                store_narrow(t, staging, t.p.line + done + line, t.p.at + at, min(Narrow::ROWS, t.p.width - at), block.lane());
            }
        }
    }
}
