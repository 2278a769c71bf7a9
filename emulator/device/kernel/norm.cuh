// NORM: rows of neighbours are read once; of other groups, a team of threads reads its own for the mean, for the variance,
// and to write it; batch is elementwise.
#pragma once
#include "lines.cuh"
#include "rows.cuh"
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

    // Whether it is absent, or vectors can be read.
    DEV bool fits() const {
        if (!present) return true;
        return is_float(tensor.dtype) && aligned_for_vectors(tensor) && (tensor.strides[0] == 1 || tensor.dims[0] == 1);
    }
};

// The channels of so many of a thread's vectors, on their way to registers.
template <u32 COUNT> struct ChannelPart {
    RawVector raw[COUNT];

    // Those of the vectors from `first` on.
    template <u32 N> DEV void load(const ChannelVectors& channels, const RowPart<N>& part, u32 first) {
        if (!channels.present) return;
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {  // threads without such a vector read the last one, and then no branch is in the way
            const u32 vector = min(part.vector(first + n), part.rows.vectors - 1);
            raw[n] = RawVector::load(channels.tensor, static_cast<i64>(vector) * VECTOR);
        }
    }
    DEV void unpack(const ChannelVectors& channels, u32 n, f32 (&v)[VECTOR]) const { raw[n].unpack(channels.tensor.dtype, v); }
};

struct NormHandler {
    static constexpr u32 SCRATCH = ROWS_SCRATCH_BYTES;
    using Kept = Merged<2>;
    static DEV void prepare(const NormArgs& args, Kept& all) {
        const ChannelVectors gain{args.gain(), args.has_gain()}, bias{args.bias(), args.has_bias()};
        const bool by_line = args.sub() == NORM_LAYER || args.sub() == NORM_RMS;
        if (by_line && gain.fits() && bias.fits()) Rows::measure(all, args.work);
        else all.way = 0;
    }
    static DEV u32 scratch(const NormArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? Rows::scratch(all) : STAGING_BYTES;
    }
    static constexpr u32 TERMS = 8;

    static DEV NormGroups groups_of(const NormArgs& args, const Tensor& t) {
        return NormGroups(t, args.sub() == NORM_GROUP, static_cast<i64>(args.groups()));
    }
    static DEV u32 parts(const NormGroups& g) { return Teams::parts_for(g.folds(), g.elements(), TERMS, true); }

    static DEV u32 tiles(const NormArgs& args) {
        if (args.sub() == NORM_BATCH) return elementwise_tiles(args.out().elements());
        if (args.out().elements() == 0) return 0;
        const Kept& all = Kept::of(args.work);
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

    static DEV void by_channel(const NormArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const Tensor& mean = args.mean();
        const Tensor& var = args.var();
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const i64 channel = i % x.dims[x.rank - 1];
            const f32 scale = rsqrtf(load_f32(var, channel * var.strides[0]) + args.eps());
            const f32 centre = load_f32(mean, channel * mean.strides[0]);
            store_f32(out, out.offset_of(i), normalise(args, load_f32(x, x.offset_of(i)), centre, scale, channel));
        });
    }

    static DEV void by_group(const NormArgs& args, u32 tile, const Block& block) {
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

    // layer and rms: a group is a line.
    static DEV void by_line(const NormArgs& args, u32 tile, const Block& block) {
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
    template <u32 N> static DEV_CALL void by_row(const NormArgs& args, u32 tile, const Block& block) {
        const Rows rows(args.work);
        const ChannelVectors gain{args.gain(), args.has_gain()}, bias{args.bias(), args.has_bias()};
        const bool centred = args.sub() == NORM_LAYER;
        const f32 share = 1.0f / static_cast<f32>(rows.vectors * VECTOR), eps = args.eps();
        // Of long rows, gains would take the registers that rows need.
        constexpr bool EARLY = N <= 2;
        map_rows<N>(rows, tile, block, [&](f32 (&v)[N][VECTOR], RowPart<N>& part) {
            ChannelPart<EARLY ? N : 1> gains;
            if (EARLY) gains.load(gain, part, 0);
            if (centred) {
                const f32 centre = part.template sum<false>(v) * share;
#pragma unroll
                for (u32 n = 0; n < N; ++n)
#pragma unroll
                    for (u32 k = 0; k < VECTOR; ++k) v[n][k] = part.held(n) ? v[n][k] - centre : 0.0f;
            }
            const f32 scale = rsqrtf(part.template sum<true>(v) * share + eps);
            f32 channel[VECTOR];
#pragma unroll
            for (u32 n = 0; n < N; ++n) {
                if (!EARLY) gains.load(gain, part, n);
                if (gain.present) gains.unpack(gain, EARLY ? n : 0, channel);
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[n][k] = gain.present ? v[n][k] * scale * channel[k] : v[n][k] * scale;
            }
            if (!bias.present) return;
#pragma unroll
            for (u32 n = 0; n < N; ++n) {
                ChannelPart<1> biases;
                biases.load(bias, part, n);
                biases.unpack(bias, 0, channel);
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[n][k] += channel[k];
            }
        });
    }
    static DEV_CALL void run(const NormArgs& args, u32 tile, const Block& block) {
        switch (Kept::of(args.work).way) {
            case 1: return by_row<1>(args, tile, block);
            case 2: return by_row<2>(args, tile, block);
            case 4: return by_row<4>(args, tile, block);
            default: break;
        }
        if (args.sub() == NORM_BATCH) by_channel(args, tile, block);
        else if (args.sub() == NORM_GROUP) by_group(args, tile, block);
        else by_line(args, tile, block);
    }
};
