// NORM.batch in vectors: every channel has a centre, a factor and a term, the same for all rows.
#pragma once
#include "units.cuh"
#include "views.cuh"

constexpr u32 WAY_CHANNELS = 3;  // besides those of rows

// Whether an operand with one element for each channel can be read in vectors.
DEV bool lies_in_vectors(const Tensor& t) {
    return is_float(t.dtype) && aligned_for_vectors(t) && (t.strides[0] == 1 || t.dims[0] == 1);
}
// Eight of its elements; of one that is not there, eight times `otherwise`.
DEV void load_channels(const Tensor& t, bool present, u32 vector, f32 otherwise, f32 (&v)[VECTOR]) {
    const RawVector raw = present ? RawVector::load(t, static_cast<i64>(vector) * VECTOR) : RawVector::none();
    raw.unpack(t.dtype, v);
#pragma unroll
    for (u32 k = 0; k < VECTOR; ++k) v[k] = present ? v[k] : otherwise;
}

// Of eight neighbouring channels: an element x becomes (x - centre) * factor + term.
struct ChannelVector {
    f32 centre[VECTOR], factor[VECTOR], term[VECTOR];

    DEV ChannelVector() {}
    DEV ChannelVector(const NormArgs& args, u32 vector) {
        f32 gain[VECTOR];
        load_channels(args.mean(), true, vector, 0.0f, centre);
        load_channels(args.var(), true, vector, 0.0f, factor);
        load_channels(args.gain(), args.has_gain(), vector, 1.0f, gain);
        load_channels(args.bias(), args.has_bias(), vector, 0.0f, term);
        const f32 eps = args.eps();
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) factor[k] = rsqrtf(factor[k] + eps) * gain[k];
    }
    DEV void apply(f32 (&v)[VECTOR]) const {
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) v[k] = (v[k] - centre[k]) * factor[k] + term[k];
    }
};

// All channels in shared memory, in fours: those of neighbouring vectors are neighbours, so that lanes read different banks.
struct ChannelTable {
    static constexpr u32 MOST = 512;  // vectors
    static constexpr u32 FOURS = 3 * 2;
    static constexpr u32 BYTES = MOST * FOURS * sizeof(float4);
    float4* fours;  // [FOURS][vectors]
    u32 vectors;

    DEV void fill(const NormArgs& args, const Block& block) const {
#pragma unroll 1
        for (u32 i = block.thread(); i < vectors; i += WORKER_THREADS) {
            const ChannelVector c(args, i);
            put(0, i, c.centre);
            put(1, i, c.factor);
            put(2, i, c.term);
        }
        block.sync();
    }
    // Applies the channels of vector `i`, four at a time: registers.
    DEV void apply(u32 i, f32 (&v)[VECTOR]) const {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const float4 centre = fours[half * vectors + i], factor = fours[(2 + half) * vectors + i];
            const float4 term = fours[(4 + half) * vectors + i];
            f32* const four = v + half * 4;
            four[0] = (four[0] - centre.x) * factor.x + term.x;
            four[1] = (four[1] - centre.y) * factor.y + term.y;
            four[2] = (four[2] - centre.z) * factor.z + term.z;
            four[3] = (four[3] - centre.w) * factor.w + term.w;
        }
    }

  private:
    DEV void put(u32 kind, u32 i, const f32 (&v)[VECTOR]) const {
        fours[2 * kind * vectors + i] = make_float4(v[0], v[1], v[2], v[3]);
        fours[(2 * kind + 1) * vectors + i] = make_float4(v[4], v[5], v[6], v[7]);
    }
};

struct NormChannels {
    static constexpr u32 DEPTH = 8, SCRATCH = ChannelTable::BYTES + DEPTH * 2 * LAYER;
    static_assert(SCRATCH <= SCRATCH_BYTES, "the table and what is on its way fit");

    static DEV void measure(Merged<2>& all, const NormArgs& args) {
        bool fits = take_vectors(all, args.work, 1) && all.singles == 0 && all.size[0] <= ChannelTable::MOST;
        fits = fits && all.neighbours(0) && all.neighbours(1);
        fits &= lies_in_vectors(args.mean()) && lies_in_vectors(args.var());
        fits &= !args.has_gain() || lies_in_vectors(args.gain());
        fits &= !args.has_bias() || lies_in_vectors(args.bias());
        all.way = fits ? WAY_CHANNELS : 0;
    }
    static DEV u32 scratch(const Merged<2>& all) { return all.few() ? 0 : SCRATCH; }

    static DEV void run(const NormArgs& args, u32 tile, const Block& block) {
        if (Merged<2>::of(args.work).few()) at_once(args, tile, block);
        else stream(args, tile, block);
    }

  private:
    static constexpr u32 AXES = Merged<2>::AXES;
    using Place = Merged<2>::Place;

    static DEV void write(const Streams<2>& all, const Place& p, const f32 (&v)[VECTOR]) {
        char* to = all.at<AXES>(0, p);
        if (holds_vector(all.tensors[0], to)) RawVector::pack(all.dtype[0], v).store(to, all.dtype[0]);
    }
    static DEV_CALL void at_once(const NormArgs& args, u32 tile, const Block& block) {
        const Streams<2> all(args.work);
        one_unit<AXES>(all, tile, block, [&](const Place& p) {
            f32 v[VECTOR];
            RawVector::load_inside(all.tensors[1], all.at<AXES>(1, p)).unpack(all.dtype[1], v);
            ChannelVector(args, p.index[0]).apply(v);
            write(all, p, v);
        });
    }
    static DEV_CALL void stream(const NormArgs& args, u32 tile, const Block& block) {
        const Streams<2> all(args.work);
        const ChannelTable table{reinterpret_cast<float4*>(block.scratch() + DEPTH * 2 * LAYER), all.size[0]};
        table.fill(args, block);
        fetch_units<AXES, DEPTH, 2>(
            all, tile, block,
            [&](const Place& p, char* slot) {
                const char* from = all.at<AXES>(1, p);
                if (holds_vector(all.tensors[1], from)) fetch_vector(from, all.dtype[1], slot, LAYER, false);
            },
            [&](const Place& p, const char* slot) {
                f32 v[VECTOR];
                fetched_vector(slot, LAYER, all.dtype[1]).unpack(all.dtype[1], v);
                table.apply(p.index[0], v);
                write(all, p, v);
            });
    }
};
