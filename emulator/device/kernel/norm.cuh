// NORM: rows of neighbours are read from memory once; of other groups, threads read their own for the mean, for the
// variance, and to write it, eight channels at a time where they lie so; batch is elementwise.
#pragma once
#include "channels.cuh"
#include "columns.cuh"
#include "held_rows.cuh"
#include "lines.cuh"
#include "matrix.cuh"
#include "norm_lone.cuh"
#include "norm_scale.cuh"
#include "views.cuh"

// The elements that share statistics: neighbouring channels, at every position.
struct NormGroups {
    Walk outer;      // samples (group) or rows (layer, rms)
    Walk positions;  // axes between the first and the last (group), or none
    i64 groups;      // of channels
    i64 channels;    // in each
    i64 channel_stride;

    DEV NormGroups(const Tensor& x, bool by_sample, i64 divided)
        : outer(x, by_sample ? 1u : leading_axes(x, 1)),
          positions(x, by_sample ? leading_axes(x, 1) & ~1u : 0u),
          groups(by_sample ? divided : 1),
          channels(x.dims[x.rank - 1] / groups),
          channel_stride(x.strides[x.rank - 1]) {}
    DEV i64 folds() const { return outer.count * groups; }
    DEV i64 elements() const { return positions.count * channels; }
    DEV i64 offset(i64 sample, i64 channel) const { return outer.offset(sample) + channel * channel_stride; }
    DEV i64 within(i64 position, i64 channel) const { return positions.offset(position) + channel * channel_stride; }
};

// The elements `part`, `part + parts`, ... of a group.
struct NormShare {
    const NormGroups& group;
    const Teams& teams;
    i64 count;  // 0 for a thread without a group

    // Calls f(position, channel in the group) for each.
    template <class F> DEV void each(F f) const {
#pragma unroll 1
        for (i64 i = teams.part; i < count; i += teams.parts) {
            const i64 position = group.positions.count == 1 ? 0 : i / group.channels;
            f(position, i - position * group.channels);
        }
    }
};

// An operand with one element for each channel, in vectors.
struct ChannelVectors {
    const Tensor& tensor;
    bool present;
    u32 dtype;
    u32 kept = 0;  // where in shared memory they are, as f32: the lower halves of all vectors, then the higher ones

    static constexpr u32 MOST_BYTES = (RING_BYTES - ROW_LAYERS * LAYER) / 2;  // that are kept

    DEV ChannelVectors(const Tensor& t, bool exists) : tensor(t), present(exists), dtype(t.dtype) {}

    DEV u32 vectors() const { return tensor.dims[0] / VECTOR; }
    // Of shared memory, where they have room.
    DEV u32 bytes_kept() const {
        const u32 bytes = present ? vectors() * 2 * VECTOR_BYTES : 0;
        return bytes <= MOST_BYTES ? bytes : 0;
    }
    // Brings the channels, which are the same for every row, to shared memory from `place` on: their types are looked at once.
    DEV void keep(char* place, const Block& block) {
        if (bytes_kept() == 0) return;
#pragma unroll 1
        for (u32 i = block.thread(); i < vectors(); i += WORKER_THREADS) {
            f32 v[VECTOR];
            RawVector::load(tensor, static_cast<i64>(i) * VECTOR).unpack(dtype, v);
            const RawVector raw = RawVector::pack(DTYPE_F32, v);
            *reinterpret_cast<uint4*>(place + i * VECTOR_BYTES) = raw.low;
            *reinterpret_cast<uint4*>(place + (vectors() + i) * VECTOR_BYTES) = raw.high;
        }
        kept = static_cast<u32>(place - shared_memory);
    }
    // The channels of N vectors.
    template <u32 N> DEV void read(const Rewritten& which, f32 (&v)[N][VECTOR]) const {
        if (kept) {
            const char* p = shared_memory + kept + which.vector * VECTOR_BYTES;
#pragma unroll
            for (u32 n = 0; n < N; ++n, p += which.apart * VECTOR_BYTES) {
                const char* high = p + vectors() * VECTOR_BYTES;
                RawVector{*reinterpret_cast<const uint4*>(p), *reinterpret_cast<const uint4*>(high)}.unpack(DTYPE_F32, v[n]);
            }
            return;
        }
        RawVector raw[N];
#pragma unroll
        for (u32 n = 0; n < N; ++n) raw[n] = RawVector::load(tensor, static_cast<i64>(which.vector + n * which.apart) * VECTOR);
        unpack_all(raw, dtype, v);
    }
    // Whether rows of x can be held beside it: it is read before the work may begin.
    DEV bool alike(const Tensor& x) const { return !present || (dtype == x.dtype && tensor.constant); }
    // Whether it is absent, or vectors can be read.
    DEV bool fits() const {
        if (!present) return true;
        return is_float(tensor.dtype) && aligned_for_vectors(tensor) && (tensor.strides[0] == 1 || tensor.dims[0] == 1);
    }
};

// The channels of rows that are held. Where there are many they are kept as they lie in memory.
template <bool WIDE, u32 N> struct HeldChannels {
    static constexpr bool MANY = N > 4;
    HeldVectors<WIDE, N> raw;
    f32 v[MANY ? 1 : N][VECTOR];

    // What is not there is read from somewhere harmless.
    DEV void load(const ChannelVectors& channels, const HeldRow<WIDE, N>& row) {
        char* const harmless = row.block.launch()->images;
        const char* const first = in_global(channels.present ? channels.tensor.data : harmless);
        raw.load(channels.tensor, first, row.place, channels.present ? row.count : 0);
    }
    DEV void unpack(const ChannelVectors& channels, u32 dtype, f32 instead) {
        if (!channels.present) {
            const f32 all[VECTOR] = {instead, instead, instead, instead, instead, instead, instead, instead};
#pragma unroll
            for (u32 n = 0; n < N; ++n) raw.raw[n] = RawVector::pack(dtype, all);
        }
        if constexpr (!MANY) raw.unpack(dtype, v);
    }
    DEV void read(u32 n, u32 dtype, f32 (&channel)[VECTOR]) const {
        if constexpr (MANY) {
            raw.raw[n].read_anew().unpack(dtype, channel);
        } else {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) channel[k] = v[n][k];
        }
    }
};

// The last step of a streamed row.
struct NormEnd {
    f32 centre, scale;
    const ChannelVectors& gain;
    const ChannelVectors& bias;

    template <u32 N> DEV void operator()(f32 (&v)[N][VECTOR], const Rewritten& which) const {
        f32 channel[N][VECTOR];
#pragma unroll
        for (u32 n = 0; n < N; ++n)
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[n][k] = (v[n][k] - centre) * scale;
        if (gain.present) {
            gain.read(which, channel);
#pragma unroll
            for (u32 n = 0; n < N; ++n)
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[n][k] *= channel[n][k];
        }
        if (bias.present) {
            bias.read(which, channel);
#pragma unroll
            for (u32 n = 0; n < N; ++n)
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[n][k] += channel[n][k];
        }
    }
};

// What becomes of a row in vectors (layer and rms): its mean, then its deviations, then the result.
struct NormRow {
    bool centred;
    f32 eps;
    ChannelVectors gain, bias;

    // Of f32, the channels take as many registers as the row.
    DEV static constexpr u32 most_held(bool wide) { return wide && MOST_HELD > 4 ? 4 : MOST_HELD; }
    template <bool WIDE, u32 N> struct Held {
        HeldChannels<WIDE, N> gain, bias;
        DEV void load(const NormRow& norm, const HeldRow<WIDE, N>& row) {
            gain.load(norm.gain, row);
            bias.load(norm.bias, row);
        }
        DEV void unpack(const NormRow& norm, u32 dtype) {
            gain.unpack(norm.gain, dtype, 1.0f);
            bias.unpack(norm.bias, dtype, 0.0f);
        }
    };
    template <bool WIDE, u32 N> DEV void operator()(HeldRow<WIDE, N>& row, const Held<WIDE, N>& channels) const {
        const NormScale all = measure(row);
        const auto finish = [&](u32 dtype) {
#pragma unroll
            for (u32 n = 0; n < N; ++n) {
                f32 gain[VECTOR], bias[VECTOR];
                channels.gain.read(n, dtype, gain);
                channels.bias.read(n, dtype, bias);
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) row.v[n][k] = fmaf(fmaf(row.v[n][k], all.scale, all.shift), gain[k], bias[k]);
            }
        };
        if constexpr (N > 4) by_type<WIDE>(row.rows.dtype[1], finish);
        else finish(DTYPE_F32);
    }
    DEV void operator()(StreamedRow& row) const {
        f32 centre, scale;
        measure(row, centre, scale);
        row.rewrite(NormEnd{centre, scale, gain, bias});
    }

  private:
    DEV static void add_squares(const f32 (&v)[VECTOR], f32 centre, f32 (&squares)[VECTOR]) {
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) squares[k] = fmaf(v[k] - centre, v[k] - centre, squares[k]);
    }
    // A row that is held loses the mean of each warp's part at once: only then warps meet.
    template <bool WIDE, u32 N> DEV NormScale measure(HeldRow<WIDE, N>& row) const {
        const f32 share = fast_reciprocal(static_cast<f32>(row.rows.vectors * VECTOR));
        f32 own = 0.0f, weight = 0.0f, squares[VECTOR] = {};
        row.fill_raw(0);
        by_type<WIDE>(row.rows.dtype[1], [&](u32 dtype) { row.raw.unpack(dtype, row.v); });
        if (centred) {
            const u32 elements = row.warp_vectors() * VECTOR;
            f32 sums[VECTOR] = {};
            row.each([&](const f32 (&v)[VECTOR]) {
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) sums[k] += v[k];
            });
            own = fold_warp<Sum>(fold_tree<Sum>(sums)) * fast_reciprocal(static_cast<f32>(max(elements, 1)));
            weight = static_cast<f32>(elements) * share;
            row.each([&](f32 (&v)[VECTOR]) {
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[k] -= own;
            });
            row.fill(0.0f);
        }
        row.each([&](const f32 (&v)[VECTOR]) { add_squares(v, 0.0f, squares); });
        return finish_norm(own, fold_tree<Sum>(squares), weight, share, eps, row.block.thread(), row.rows.team, row.exchange ^= 1);
    }
    DEV void measure(StreamedRow& row, f32& centre, f32& scale) const {
        const f32 share = fast_reciprocal(static_cast<f32>(row.rows.vectors * VECTOR));
        f32 squares[VECTOR] = {};
        centre = 0.0f;
        if (centred) {
            f32 sums[VECTOR] = {};
            row.each([&](const f32 (&v)[VECTOR]) {
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) sums[k] += v[k];
            });
            centre = row.combine<Sum>(fold_tree<Sum>(sums)) * share;
        }
        row.each([&](const f32 (&v)[VECTOR]) { add_squares(v, centre, squares); });
        scale = rsqrtf(row.combine<Sum>(fold_tree<Sum>(squares)) * share + eps);
    }
};

struct NormHandler {
    static constexpr bool BEGINS = true;
    using Kept = Merged<2>;
    static DEV void prepare(const NormArgs& args, Kept& all) {
        const ChannelVectors gain{args.gain(), args.has_gain()}, bias{args.bias(), args.has_bias()};
        const bool by_line = args.sub() == NORM_LAYER || args.sub() == NORM_RMS;
        const bool alike = gain.alike(args.x()) && bias.alike(args.x());
        if (args.sub() == NORM_BATCH) NormChannels::measure(all, args);
        else if (args.sub() == NORM_GROUP) measure_sets(args, reinterpret_cast<ColumnSets&>(all));
        else if (by_line && gain.fits() && bias.fits()) {
            Rows::measure(all, args.work, alike ? NormRow::most_held(args.x().dtype == DTYPE_F32) : 0);
            if (all.way == WAY_HELD && is_lone(all, args.x().dtype)) all.way = WAY_LONE;
        } else all.way = 0;
    }
    // Whether each row is one warp's, and each warp has one at most.
    static DEV bool is_lone(const Kept& all, u32 dtype) {
        return dtype != DTYPE_F32 && all.team == 0 && Rows::each_of(all) <= MOST_LONE && all.rows() <= Rows::teams(all);
    }
    static DEV void measure_sets(const NormArgs& args, ColumnSets& sets) {
        const Tensor& x = args.x();
        const u32 last = 1u << (x.rank - 1), together = x.dims[x.rank - 1] / static_cast<u32>(args.groups());
        sets.way = 0;
        const ChannelVectors gain{args.gain(), args.has_gain()}, bias{args.bias(), args.has_bias()};
        if (gain.fits() && bias.fits()) sets.measure(args.work, 1, (last - 1) & ~1u, last, together);
    }
    static DEV u32 scratch(const NormArgs& args) {
        const Kept& all = Kept::of(args.work);
        if (!all.way) return STAGING_BYTES;
        if (all.way == WAY_SETS) return ColumnSets::of(args.work).scratch();
        if (all.way == WAY_CHANNELS) return NormChannels::scratch(all);
        if (all.way == WAY_LONE) return 0;
        const u32 rows = Rows::scratch(all, args.work);
        const ChannelVectors gain{args.gain(), args.has_gain()}, bias{args.bias(), args.has_bias()};
        return all.way == WAY_STREAMED ? rows + gain.bytes_kept() + bias.bytes_kept() : rows;
    }
    static constexpr u32 TERMS = 8;

    static DEV NormGroups groups_of(const NormArgs& args, const Tensor& t) {
        return NormGroups(t, args.sub() == NORM_GROUP, static_cast<i64>(args.groups()));
    }
    static DEV u32 parts(const NormGroups& g) { return Teams::parts_for(g.folds(), g.elements(), TERMS, true); }

    static DEV u32 tiles(const NormArgs& args) {
        const Kept& all = Kept::of(args.work);
        if (all.way == WAY_CHANNELS) return all.tiles();
        if (all.way == WAY_SETS) return ColumnSets::of(args.work).tiles();
        if (args.sub() == NORM_BATCH) return elementwise_tiles(args.out().elements());
        if (args.out().elements() == 0) return 0;
        if (all.way) return Rows::row_tiles(all);
        const NormGroups g = groups_of(args, args.x());
        return Teams::tiles_for(g.folds(), parts(g));
    }

    // (x - centre) * scale, then gain and bias of the channel.
    static DEV_CALL f32 normalise(const NormArgs& args, f32 x, f32 centre, f32 scale, i64 channel) {
        f32 y = (x - centre) * scale;
        if (args.has_gain()) y *= load_f32(args.gain(), channel * args.gain().strides[0]);
        if (args.has_bias()) y += load_f32(args.bias(), channel * args.bias().strides[0]);
        return y;
    }

    static DEV_CALL void by_channel(const NormArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const Tensor& mean = args.mean();
        const Tensor& var = args.var();
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            u64 rest = i;
            const i64 channel = last_index(rest, x.dims[x.rank - 1]);
            const f32 scale = rsqrtf(load_f32(var, channel * var.strides[0]) + args.eps());
            const f32 centre = load_f32(mean, channel * mean.strides[0]);
            store_f32(out, out.offset_of(i), normalise(args, load_f32(x, x.offset_of(i)), centre, scale, channel));
        });
    }

    static DEV_CALL void by_group(const NormArgs& args, u32 tile, const Block& block) {
        const Tensor& x = args.x();
        const NormGroups g = groups_of(args, x), destination = groups_of(args, args.out());
        const Teams teams(block, parts(g), true);
        const i64 fold = static_cast<i64>(tile) * teams.rows() + teams.row;
        const NormShare share{g, teams, fold < g.folds() ? g.elements() : 0};
        const i64 outer = share.count ? fold / g.groups : 0, first = share.count ? fold % g.groups * g.channels : 0;
        const i64 from = g.offset(outer, first), to = destination.offset(outer, first);
        const auto sum = [](f32 a, f32 b) { return a + b; };
        const f32 size = static_cast<f32>(g.elements());
        f32 centre = 0.0f;
        share.each([&](i64 p, i64 c) { centre += load_f32(x, from + g.within(p, c)); });
        centre = teams.combine(block, centre, sum) / size;
        f32 power = 0.0f;
        share.each([&](i64 p, i64 c) {
            const f32 deviation = load_f32(x, from + g.within(p, c)) - centre;
            power += deviation * deviation;
        });
        const f32 scale = rsqrtf(teams.combine(block, power, sum) / size + args.eps());
        share.each([&](i64 p, i64 c) {
            const f32 v = load_f32(x, from + g.within(p, c));
            store_f32(args.out(), to + destination.within(p, c), normalise(args, v, centre, scale, first + c));
        });
    }

    // Of groups in vectors of channels.
    static DEV_CALL void by_sets(const NormArgs& args, u32 tile, const Block& block) {
        const ColumnThread thread(args.work, tile, block);
        const u32 together = args.x().dims[args.x().rank - 1] / static_cast<u32>(args.groups());
        const f32 share = 1.0f / (static_cast<f32>(thread.sets.terms) * static_cast<f32>(together));
        const auto add = [](f32 a, f32 b) { return a + b; };
        f32 centre[VECTOR] = {}, scale[VECTOR] = {};
        thread.each([&](const f32 (&v)[VECTOR], u32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) centre[k] += v[k];
        });
        thread.combine(centre, together, add);
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) centre[k] *= share;
        thread.each([&](const f32 (&v)[VECTOR], u32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) scale[k] += (v[k] - centre[k]) * (v[k] - centre[k]);
        });
        thread.combine(scale, together, add);
        if (!thread.present) return;
        f32 gain[VECTOR], bias[VECTOR];
        load_channels(args.gain(), args.has_gain(), thread.channel / VECTOR, 1.0f, gain);
        load_channels(args.bias(), args.has_bias(), thread.channel / VECTOR, 0.0f, bias);
        const f32 eps = args.eps();
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) scale[k] = rsqrtf(scale[k] * share + eps) * gain[k];
        thread.rewrite([&](f32 (&v)[VECTOR]) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[k] = (v[k] - centre[k]) * scale[k] + bias[k];
        });
    }

    // layer and rms: a group is a line.
    static DEV_CALL void by_line(const NormArgs& args, u32 tile, const Block& block) {
        const Tensor& x = args.x();
        const Tensor& out = args.out();
        const NormGroups g = groups_of(args, x), destination = groups_of(args, out);
        const Teams teams(block, parts(g), true);
        const i64 row = static_cast<i64>(tile) * teams.rows() + teams.row;
        const bool mine = row < g.folds();
        const Line from(x, mine ? g.offset(row, 0) : 0, g.channel_stride, mine ? g.channels : 0);
        const Line to(out, mine ? destination.offset(row, 0) : 0, destination.channel_stride, mine ? g.channels : 0);
        const auto sum = [](f32 a, f32 b) { return a + b; };
        const f32 size = static_cast<f32>(g.channels);
        f32 centre = 0.0f;
        if (args.sub() == NORM_LAYER) {
            from.each(teams, [&](f32 v, i64) { centre += v; });
            centre = teams.combine(block, centre, sum) / size;
        }
        f32 power = 0.0f;
        from.each(teams, [&](f32 v, i64) { power += (v - centre) * (v - centre); });
        const f32 scale = rsqrtf(teams.combine(block, power, sum) / size + args.eps());
        from.rewrite(teams, to, [&](f32 v, i64 c) { return normalise(args, v, centre, scale, c); });
    }

    // layer and rms, of rows in vectors.
    static DEV NormRow row_of(const NormArgs& args) {
        return {args.sub() == NORM_LAYER, args.eps(), {args.gain(), args.has_gain()}, {args.bias(), args.has_bias()}};
    }
    template <class T, u32 N> static DEV void lone_of(const NormArgs& args, u32 tile) {
        norm_lone<T, N>(args.work, tile, args.sub() == NORM_LAYER, args.eps(), args.has_gain(), args.has_bias(), args.gain(), args.bias());
    }
    template <class T> static DEV void lone(const NormArgs& args, u32 tile) {
        const u32 each = Rows::each_of(Kept::of(args.work));
        if (each == 1) lone_of<T, 1>(args, tile);
        else if (each == 2) lone_of<T, 2>(args, tile);
        else if (each == 3) lone_of<T, 3>(args, tile);
        else lone_of<T, MOST_LONE>(args, tile);
    }
    static DEV_CALL void held(const NormArgs& args, u32 tile, const Block& block) {
        map_held(args.work, tile, block, row_of(args));
    }
    static DEV_CALL void streamed(const NormArgs& args, u32 tile, const Block& block) {
        NormRow row = row_of(args);
        char* const channels = block.scratch() + Rows::scratch(Kept::of(args.work), args.work);
        const auto begin = [&] {
            row.gain.keep(channels, block);
            row.bias.keep(channels + row.gain.bytes_kept(), block);
        };
        map_streamed(args.work, tile, block, begin, row);
    }

    static DEV void run(const NormArgs& args, u32 tile, const Block& block) {
        const u32 way = Kept::of(args.work).way;
        if (way == WAY_HELD) return held(args, tile, block);
        if (way == WAY_LONE) return args.x().dtype == DTYPE_BF16 ? lone<Bf16>(args, tile) : lone<F16>(args, tile);
        if (!block.begin()) return;
        if (way == WAY_STREAMED) return streamed(args, tile, block);
        if (way == WAY_CHANNELS) return NormChannels::run(args, tile, block);
        if (way == WAY_SETS) return by_sets(args, tile, block);
        if (args.sub() == NORM_BATCH) by_channel(args, tile, block);
        else if (args.sub() == NORM_GROUP) by_group(args, tile, block);
        else by_line(args, tile, block);
    }
};
