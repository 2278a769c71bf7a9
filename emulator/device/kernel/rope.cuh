// ROPE: one thread rotates a pair, or eight, and copies elements beyond the pairs; so out may be x.
#pragma once
#include "reduction.cuh"
#include "rotary.cuh"
#include "units.cuh"
#include "views.cuh"

// out, x and cos with the dims of cos: a row is as long as there are pairs.
struct RopeDims : SameDims {
    DEV explicit RopeDims(const RopeArgs& args) : SameDims(args.work) {}
    DEV i64 dim(i32 axis) const { return tensors[2].dims[axis]; }
};

struct RopeHandler {
    static constexpr u32 DEPTH = 4, PIECES = 8;  // x twice, cos, sin: of f32, two pieces each
    static constexpr u32 SCRATCH = DEPTH * PIECES * LAYER;
    static constexpr bool BEGINS = true;
    using Kept = Merged<3>;

    static DEV u32 pairs(const RopeArgs& args) { return args.cos().dims[args.cos().rank - 1]; }
    // Pairs and single elements of a row.
    static DEV u32 items(const RopeArgs& args) { return args.x().dims[args.x().rank - 1] - pairs(args); }

    // cos and sin lie alike, and are read by vectors like the rest.
    static DEV void prepare(const RopeArgs& args, Kept& all) {
        const Tensor& cos = args.cos();
        const Tensor& sin = args.sin();
        bool fits = is_float(args.x().dtype) && is_float(args.out().dtype) && is_float(cos.dtype);
        fits &= aligned_for_vectors(sin) && (items(args) - pairs(args)) % VECTOR == 0;
        for (u32 k = 0; k < cos.rank; ++k) fits &= cos.strides[k] == sin.strides[k] || cos.dims[k] == 1;
        all.way = 0;
        if (!fits || !all.measure_as(RopeDims(args), VECTOR, 1)) return;
        const bool pairs = all.units != 0 && all.singles == 0;  // without pairs, no thread would copy the rest
        all.way = pairs && all.neighbours(0) && all.neighbours(1) && all.neighbours(2) ? WAY_VECTORS : 0;
    }
    static DEV u32 scratch(const RopeArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way == 0 || all.few() ? 0 : SCRATCH;
    }
    static DEV u32 units(const RopeArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? all.one_each() : 0;
    }
    static DEV u32 tiles(const RopeArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? all.tiles() : elementwise_tiles(Walk(args.x(), leading_axes(args.x(), 1)).count * items(args));
    }

    // Eight pairs at a time: two vectors of x, which are neighbours where pairs are.
    static DEV void by_vectors(const RopeArgs& args, u32 tile, const Block& block) {
        constexpr u32 AXES = Kept::AXES;
        using Place = Merged<3>::Place;
        Streams<3> all(args.work);
        const bool interleaved = args.interleaved();
        const i64 to_sin = args.sin().data - args.cos().data;
        const u32 apart = interleaved ? VECTOR : pairs(args);  // elements, from the first vector to the second
        const u32 rest = (items(args) - pairs(args)) / VECTOR;
        const Tensor* const tensors = all.tensors;
        if (interleaved) {
            all.unit_bytes[0] *= 2;
            all.unit_bytes[1] *= 2;
        }
        const u32 item[2] = {tensors[0].item_bytes, tensors[1].item_bytes};
        const auto part = [&](u32 k, const Place& p) -> const char* {  // of x, x, cos, sin
            return k < 2 ? all.at<AXES>(1, p) + k * apart * item[1] : all.at<AXES>(2, p) + (k == 3 ? to_sin : 0);
        };
        const auto tensor = [&](u32 k) -> const Tensor& { return tensors[k < 2 ? 1 : k]; };
        const auto fetch = [&](const Place& p, char* slot) {
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                const char* from = part(k, p);
                const u32 dtype = all.dtype[k < 2 ? 1 : 2];
                if (holds_vector(tensor(k), from)) fetch_vector(from, dtype, slot + 2 * k * LAYER, LAYER, k >= 2);
            }
        };
        const auto turn = [&](const Place& p, char* to, const RawVector (&x)[2], const RawVector (&table)[2]) {
            f32 v[2][VECTOR], angle[2][VECTOR];  // cosines, sines
            unpack_all(x, all.dtype[1], v);
            unpack_all(table, all.dtype[2], angle);
            if (interleaved) {
#pragma unroll
                for (u32 i = 0; i < VECTOR; ++i) {
                    f32(&pair)[VECTOR] = v[i * 2 / VECTOR];
                    rotate(pair[i * 2 % VECTOR], pair[i * 2 % VECTOR + 1], angle[0][i], angle[1][i]);
                }
            } else {
#pragma unroll
                for (u32 i = 0; i < VECTOR; ++i) rotate(v[0][i], v[1][i], angle[0][i], angle[1][i]);
            }
            char* const both[2] = {to, to + apart * item[0]};
            write_vectors(tensors[0], all.dtype[0], both, 2, v);
            // Elements beyond the pairs: each thread of the row takes every so many.
            const i64 begin = static_cast<i64>(2 * pairs(args)) - (interleaved ? 2 : 1) * static_cast<i64>(p.index[0]) * VECTOR;
#pragma unroll 1
            for (u32 r = p.index[0]; r < rest; r += all.size[0]) {
                const i64 at = begin + r * VECTOR;
                f32 plain[1][VECTOR];
                RawVector::load_inside(tensors[1], all.at<AXES>(1, p) + at * item[1]).unpack(all.dtype[1], plain[0]);
                char* const there[1] = {to + at * item[0]};
                write_vectors(tensors[0], all.dtype[0], there, 1, plain);
            }
        };
        struct Located {
            Place p;
            const char* from[4];
            char* to;
        };
        if (all.few())
            return one_unit_located<AXES>(
                all, tile, block,
                [&](const Place& p, bool exists) {
                    const Located at{p, {part(0, p), part(1, p), part(2, p), part(3, p)}, all.at<AXES>(0, p)};
#pragma unroll
                    for (u32 k = 2; k < 4; ++k)
                        if (exists && in_bounds(tensor(k), at.from[k])) prefetch(at.from[k]);
                    return at;
                },
                [&](const Located& at) {
                    RawVector raw[2][2];
#pragma unroll
                    for (u32 k = 0; k < 4; ++k) {
                        const bool exists = holds_vector(tensor(k), at.from[k]);
                        raw[k / 2][k % 2] = exists ? RawVector::load(at.from[k], all.dtype[k < 2 ? 1 : 2]) : RawVector::none();
                    }
                    turn(at.p, at.to, raw[0], raw[1]);
                });
        if (!block.begin()) return;
        fetch_units<AXES, DEPTH, PIECES>(
            all, tile, block, fetch,
            [&](const Place& p, const char* slot) {
                RawVector raw[2][2];
#pragma unroll
                for (u32 k = 0; k < 4; ++k)
                    raw[k / 2][k % 2] = fetched_vector(slot + 2 * k * LAYER, LAYER, all.dtype[k < 2 ? 1 : 2]);
                turn(p, all.at<AXES>(0, p), raw[0], raw[1]);
            });
    }

    static DEV_CALL void run(const RopeArgs& args, u32 tile, const Block& block) {
        if (Kept::of(args.work).way) return by_vectors(args, tile, block);
        if (!block.begin()) return;
        const Tensor& x = args.x();
        const Tensor& out = args.out();
        const Tensor& cos = args.cos();
        const Tensor& sin = args.sin();
        const Walk rows(x, leading_axes(x, 1)), out_rows(out, leading_axes(out, 1));
        const Walk cos_rows(cos, leading_axes(cos, 1)), sin_rows(sin, leading_axes(sin, 1));
        const u32 per_row = items(args), pairs = RopeHandler::pairs(args);
        const i64 step = x.strides[x.rank - 1], out_step = out.strides[out.rank - 1];
        const i64 cos_step = cos.strides[cos.rank - 1], sin_step = sin.strides[sin.rank - 1];
        const bool interleaved = args.interleaved();
        for_each_element(block, tile, rows.count * per_row, [&](i64 i) {
            const i64 row = i >> 32 ? i / per_row : static_cast<u32>(i) / per_row, item = i - row * per_row;
            const i64 from = rows.offset(row), to = out_rows.offset(row);
            if (item >= pairs) {
                store_f32(out, to + (item + pairs) * out_step, load_f32(x, from + (item + pairs) * step));
                return;
            }
            const i64 first = interleaved ? 2 * item : item, second = interleaved ? first + 1 : item + pairs;
            const f32 c = load_f32(cos, cos_rows.offset(row) + item * cos_step);
            const f32 s = load_f32(sin, sin_rows.offset(row) + item * sin_step);
            const f32 a = load_f32(x, from + first * step), b = load_f32(x, from + second * step);
            store_f32(out, to + first * out_step, a * c - b * s);
            store_f32(out, to + second * out_step, b * c + a * s);
        });
    }
};
