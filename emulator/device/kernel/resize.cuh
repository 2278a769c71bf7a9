// RESIZE: out[a..., p, b...] = sum over k of weights[p, k] * x[a..., indices[p, k], b...].
#pragma once
#include "units.cuh"
#include "views.cuh"

// out, the line 0 of x along the axis, and the first index of each position, as tensors of out's dims.
struct ResizeDims : SameDims {
    i32 along;

    DEV explicit ResizeDims(const ResizeArgs& args) : SameDims(args.work), along(args.axis()) {}
    DEV i64 stride(u32 k, i32 axis) const {
        if (k == 2) return axis == along ? SameDims::stride(2, 0) : 0;
        return k == 1 && axis == along ? 0 : SameDims::stride(k, axis);
    }
};

struct ResizeHandler {
    static constexpr u32 FEW = 2;    // terms that are fetched ahead
    static constexpr u32 DEPTH = 8;  // units that a thread has on their way
    static constexpr u32 SCRATCH = DEPTH * FEW * 2 * LAYER;
    using Kept = Merged<3>;
    using Place = Kept::Place;

    // Bytes from one line of x to the next.
    static DEV i64 pitch(const ResizeArgs& args) { return args.x().strides[args.axis()] * args.x().item_bytes; }

    static DEV void prepare(const ResizeArgs& args, Kept& all) {
        const Tensor& out = args.out();
        bool fits = is_float(out.dtype) && is_float(args.x().dtype);
        fits &= args.indices().contiguous && args.weights().contiguous;
        fits &= pitch(args) % VECTOR_BYTES == 0;  // no axis of ResizeDims has it
        all.way = 0;
        if (!fits || !all.measure_as(ResizeDims(args), VECTOR, MAX_RANK)) return;
        all.way = all.singles == 0 && all.neighbours(0) && all.neighbours(1) && !all.neighbours(2) ? WAY_VECTORS : 0;
    }
    static DEV u32 scratch(const ResizeArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way && !all.few() && args.indices().dims[1] <= FEW ? SCRATCH : 0;
    }
    static DEV u32 tiles(const ResizeArgs& args) {
        const Kept& all = Kept::of(args.work);
        return all.way ? all.tiles() : elementwise_tiles(args.out().elements());
    }

    // One element: the terms at `position` of the tables, of the line of x that starts at `from`.
    static DEV f32 value(const ResizeArgs& args, i64 position, i64 from, const Block& block) {
        const Tensor& x = args.x();
        const Tensor& indices = args.indices();
        const Tensor& weights = args.weights();
        const u32 axis = args.axis();
        f32 sum = 0.0f;
#pragma unroll 1
        for (i32 k = 0; k < indices.dims[1]; ++k) {
            const i64 picked = load_i64(indices, position * indices.strides[0] + k * indices.strides[1]);
            const f32 weight = load_f32(weights, position * weights.strides[0] + k * weights.strides[1]);
            if (picked < 0 || picked >= x.dims[axis]) trap_index(picked, block);
            else if (weight != 0.0f) sum = fmaf(weight, load_f32(x, from + picked * x.strides[axis]), sum);
        }
        return sum;
    }

    // Eight neighbours at a time.
    static DEV_CALL void by_vectors(const ResizeArgs& args, u32 tile, const Block& block) {
        constexpr u32 AXES = Kept::AXES;
        const Streams<3> all(args.work);
        const Tensor& x = all.tensors[1];
        const Tensor& indices = all.tensors[2];
        const Tensor& weights = args.weights();
        const u32 lines = x.dims[args.axis()], terms = indices.dims[1], dtype = all.dtype[1];
        const i64 pitch = ResizeHandler::pitch(args);
        const u32 wide = all.dtype[2] == DTYPE_I64;
        const char* const weight_table = in_global(weights.data);
        // The first term of a position, in the tables.
        const auto first_term = [&](const Place& p) { return static_cast<u32>(all.at<AXES>(2, p) - all.data[2]) >> (2 + wide); };
        // The elements of x of term `i`; null after a trap.
        const auto source = [&](const Place& p, u32 i) -> const char* {
            const char* index = all.data[2] + (static_cast<u64>(i) << (2 + wide));
            if (!in_bounds(indices, index)) return nullptr;
            const i64 picked = wide ? *reinterpret_cast<const i64*>(index) : *reinterpret_cast<const i32*>(index);
            const char* from = all.at<AXES>(1, p) + picked * pitch;
            if (static_cast<u64>(picked) < lines) return holds_vector(x, from) ? from : nullptr;
            trap_index(picked, block);
            return nullptr;
        };
        const auto add = [&](f32 (&sum)[VECTOR], const RawVector& raw, u32 i) {
            const char* at = weight_table + static_cast<u64>(i) * sizeof(f32);
            const f32 weight = in_bounds(weights, at) ? *reinterpret_cast<const f32*>(at) : 0.0f;
            f32 v[VECTOR];
            raw.unpack(dtype, v);
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sum[k] = weight != 0.0f ? fmaf(weight, v[k], sum[k]) : sum[k];
        };
        const auto write = [&](const Place& p, const f32 (&sum)[VECTOR]) {
            char* to = all.at<AXES>(0, p);
            if (holds_vector(all.tensors[0], to)) RawVector::pack(all.dtype[0], sum).store(to, all.dtype[0]);
        };
        if (all.few() || terms > FEW)
            return walk_units<AXES>(all, tile, block, [&](const Place& p) {
                const u32 first = first_term(p);
                f32 sum[VECTOR] = {};
#pragma unroll 1
                for (u32 k = 0; k < terms; k += 2 * FEW) {
                    RawVector raw[2 * FEW];
#pragma unroll
                    for (u32 i = 0; i < 2 * FEW; ++i) {
                        const char* from = k + i < terms ? source(p, first + k + i) : nullptr;
                        raw[i] = from ? RawVector::load(from, dtype) : RawVector::none();
                    }
#pragma unroll
                    for (u32 i = 0; i < 2 * FEW; ++i)
                        if (k + i < terms) add(sum, raw[i], first + k + i);
                }
                write(p, sum);
            });
        fetch_units<AXES, DEPTH, 2 * FEW>(
            all, tile, block,
            [&](const Place& p, char* slot) {
                const u32 first = first_term(p);
#pragma unroll
                for (u32 k = 0; k < FEW; ++k) {
                    const char* from = k < terms ? source(p, first + k) : nullptr;
                    if (from) fetch_vector(from, dtype, slot + 2 * k * LAYER, LAYER, true);
                }
            },
            [&](const Place& p, const char* slot) {
                const u32 first = first_term(p);
                f32 sum[VECTOR] = {};
#pragma unroll
                for (u32 k = 0; k < FEW; ++k)
                    if (k < terms) add(sum, fetched_vector(slot + 2 * k * LAYER, LAYER, dtype), first + k);
                write(p, sum);
            });
    }

    static DEV_CALL void run(const ResizeArgs& args, u32 tile, const Block& block) {
        if (Kept::of(args.work).way) return by_vectors(args, tile, block);
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const i32 axis = args.axis();
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            i64 from = 0, to = 0, position = 0;
            u64 rest = i;
#pragma unroll 1
            for (i32 k = out.rank - 1; k >= 0; --k) {
                const i64 at = last_index(rest, out.dims[k]);
                to += at * out.strides[k];
                if (k == axis) position = at;
                else from += at * x.strides[k];
            }
            store_f32(out, to, value(args, position, from, block));
        });
    }
};
