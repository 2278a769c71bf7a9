// SCAN: each thread folds a piece of a line, adds up the pieces before its own, and writes its piece.
#pragma once
#include "reduction.cuh"
#include "views.cuh"

struct ScanHandler {
    static constexpr u32 SCRATCH = STAGING_BYTES;
    static constexpr u32 TERMS = 16;

    static DEV i64 lines(const ScanArgs& args) {
        const i64 length = args.x().dims[args.axis()];
        return length == 0 ? 0 : args.x().elements() / length;
    }
    static DEV u32 parts(const ScanArgs& args) {
        return Teams::parts_for(lines(args), args.x().dims[args.axis()], TERMS, false);
    }
    static DEV u32 tiles(const ScanArgs& args) { return Teams::tiles_for(lines(args), parts(args)); }

    template <class T> static DEV T fold(u32 sub, T a, T b) {
        switch (sub) {
            case SCAN_PROD: return multiply(a, b);
            case SCAN_MAX: return maximum(a, b);
            case SCAN_MIN: return minimum(a, b);
            default: return add(a, b);  // SCAN_SUM
        }
    }
    template <class T> static DEV T identity(u32 sub, u32 dtype) {
        switch (sub) {
            case SCAN_PROD: return 1;
            case SCAN_MAX: return least<T>(dtype);
            case SCAN_MIN: return greatest<T>(dtype);
            default: return 0;
        }
    }

    template <class T> static DEV void scan(const ScanArgs& args, const Teams& teams, i64 line, const Block& block) {
        const Tensor& x = args.x();
        const Tensor& out = args.out();
        const u32 sub = args.sub(), axis = args.axis(), others = ~(1u << axis);
        const bool mine = line < lines(args), exclusive = args.exclusive();
        const i64 length = x.dims[axis];
        const i64 piece = (length + teams.parts - 1) / teams.parts;
        const i64 begin = mine ? teams.part * piece : 0;
        const i64 end = mine ? (begin + piece < length ? begin + piece : length) : 0;
        const i64 from = mine ? Walk(x, others).offset(line) : 0, to = mine ? Walk(out, others).offset(line) : 0;
        const auto place = [&](i64 i) { return args.reverse() ? length - 1 - i : i; };
        T carry = identity<T>(sub, x.dtype);
        if (teams.parts > 1) {  // all of a line is read before any of it is written: out may be x
            T* shared = reinterpret_cast<T*>(block.scratch());
            T total = carry;
#pragma unroll 1
            for (i64 i = begin; i < end; ++i)
                total = fold(sub, total, load_as<T>(x, from + place(i) * x.strides[axis]));
            shared[teams.slot()] = total;
            block.sync();
#pragma unroll 1
            for (u32 p = 0; p < teams.part; ++p) carry = fold(sub, carry, shared[teams.row * teams.parts + p]);
        }
#pragma unroll 1
        for (i64 i = begin; i < end; ++i) {
            const T next = fold(sub, carry, load_as<T>(x, from + place(i) * x.strides[axis]));
            store_as(out, to + place(i) * out.strides[axis], exclusive ? carry : next);
            carry = next;
        }
    }

    static DEV_CALL void run(const ScanArgs& args, u32 tile, const Block& block) {
        const Teams teams(block, parts(args), args.x().strides[args.axis()] == 1);
        const i64 line = static_cast<i64>(tile) * teams.rows() + teams.row;
        if (is_float(args.x().dtype)) scan<f32>(args, teams, line, block);
        else scan<i64>(args, teams, line, block);
    }
};
