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
    const char* slot = nullptr;  // where a thread keeps those of its vectors, LAYER apart

    // Keeps 16-bit channels, which are the same in every row, in shared memory from `place` on.
    template <u32 N> DEV void keep(const RowPart<N>& part, char* place) {
        if (!present || tensor.dtype == DTYPE_F32) return;
        place += part.block.thread() * VECTOR_BYTES;
#pragma unroll
        for (u32 n = 0; n < N; ++n) *reinterpret_cast<uint4*>(place + n * LAYER) = load(part, n).low;
        slot = place;
    }
    template <u32 N> DEV RawVector load(const RowPart<N>& part, u32 n) const {
        if (slot) return {*reinterpret_cast<const uint4*>(slot + n * LAYER), make_uint4(0, 0, 0, 0)};
        // Threads without such a vector read the last one, and then no branch is in the way.
        return RawVector::load(tensor, static_cast<i64>(min(part.vector(n), part.rows.vectors - 1)) * VECTOR);
    }
    // Whether it is absent, or vectors can be read.
    DEV bool fits() const {
        if (!present) return true;
        return is_float(tensor.dtype) && aligned_for_vectors(tensor) && (tensor.strides[0] == 1 || tensor.dims[0] == 1);
    }
};

struct NormHandler {
    static constexpr u32 SCRATCH = ROWS_SCRATCH_BYTES + 2 * Rows::MOST * LAYER;
    static_assert(SCRATCH <= SCRATCH_BYTES, "rows and channels fit");
    using Kept = Merged<2>;
    static DEV void prepare(const NormArgs& args, Kept& all) {
        const ChannelVectors gain{args.gain(), args.has_gain()}, bias{args.bias(), args.has_bias()};
        const bool by_line = args.sub() == NORM_LAYER || args.sub() == NORM_RMS;
        if (by_line && gain.fits() && bias.fits()) Rows::measure(all, args.work);
        else all.way = 0;
    }
    static DEV u32 scratch(const NormArgs& args) {
        const Kept& all = Kept::of(args.work);
        if (!all.way) return STAGING_BYTES;
        return Rows::at_once(all) ? 0 : ROWS_SCRATCH_BYTES + 2 * all.way * LAYER;
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
        ChannelVectors gain{args.gain(), args.has_gain()}, bias{args.bias(), args.has_bias()};
        if (!rows.direct) {
            const RowPart<N> part(rows, block);
            gain.keep(part, block.scratch() + ROWS_SCRATCH_BYTES);
            bias.keep(part, block.scratch() + ROWS_SCRATCH_BYTES + N * LAYER);
        }
        const bool centred = args.sub() == NORM_LAYER;
        const f32 share = 1.0f / static_cast<f32>(rows.vectors * VECTOR), eps = args.eps();
        map_rows<N>(rows, tile, block, [&](f32 (&v)[N][VECTOR], RowPart<N>& part) {
            if (centred) {
                const f32 centre = part.template sum<false>(v) * share;
#pragma unroll
                for (u32 n = 0; n < N; ++n)
                    if (part.held(n))  // the others are 0, and stay so
#pragma unroll
                        for (u32 k = 0; k < VECTOR; ++k) v[n][k] -= centre;
            }
            const f32 scale = rsqrtf(part.template sum<true>(v) * share + eps);
#pragma unroll
            for (u32 n = 0; n < N; ++n) {
                f32 channel[VECTOR];
                if (gain.present) gain.load(part, n).unpack(gain.tensor.dtype, channel);
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[n][k] = gain.present ? v[n][k] * scale * channel[k] : v[n][k] * scale;
                if (bias.present) bias.load(part, n).unpack(bias.tensor.dtype, channel);
#pragma unroll
                for (u32 k = 0; k < VECTOR; ++k) v[n][k] = bias.present ? v[n][k] + channel[k] : v[n][k];
            }
        });
    }

    static DEV_CALL void run(const NormArgs& args, u32 tile, const Block& block) {
        const u32 each = Kept::of(args.work).way;
        if (each == 1) return by_row<1>(args, tile, block);
        if (each == 2) return by_row<2>(args, tile, block);
        if (each != 0) return by_row<Rows::MOST>(args, tile, block);
        if (args.sub() == NORM_BATCH) by_channel(args, tile, block);
        else if (args.sub() == NORM_GROUP) by_group(args, tile, block);
        else by_line(args, tile, block);
    }
};
