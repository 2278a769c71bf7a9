// GEMM: batched matrix products on tensor cores (16-bit floats), by FMA (f32, unless its mode is tf32) or by integer multiply-add (8-bit).
#pragma once
#include "epilogue.cuh"
#include "tilings.cuh"
#include "views.cuh"

// The products that an instruction stands for.
struct Products {
    u32 batches, m, n, k;
    u32 row_axis;  // of a: its stride is the distance of rows
    bool merged;   // b is the same for every batch, and rows of a lie at equal distances: all batches are one product

    DEV explicit Products(const GemmArgs& args) {
        const Tensor& out = args.out();
        const Tensor& a = args.a();
        const Tensor& b = args.b();
        const u32 axis = out.rank - 1;
        n = b.dims[axis];  // twice as many as out has, with glu
        m = out.dims[axis - 1];
        k = a.dims[axis];
        batches = 1;
        row_axis = axis - 1;
        bool same = true, even = true, rows = m != 1;  // rows: more than one, so far
        i64 next = m * a.strides[axis - 1];  // stride that continues them
        for (i32 i = static_cast<i32>(axis) - 2; i >= 0; --i) {
            if (out.dims[i] == 1) continue;
            batches *= out.dims[i];
            same &= b.strides[i] == 0;
            if (rows) even &= a.strides[i] == next;
            else row_axis = i;
            rows = true;
            next = out.dims[i] * a.strides[i];
        }
        merged = same && even && batches > 1;
        if (merged) {
            m *= batches;
            batches = 1;
        } else {
            row_axis = axis - 1;
        }
    }
};

DEV Epilogue gemm_epilogue(const GemmArgs& args) {
    Epilogue e = Epilogue::of(args);
    e.c = args.has_c() ? &args.c() : nullptr;
    e.alpha = args.alpha();
    e.beta = args.beta();
    e.glu = args.sub() == GEMM_GLU;
    e.unit = args.unit();
    return e;
}

template <class Tile> DEV_CALL void gemm_tile(const GemmArgs& args, const Products& p, const Tiling::Place& at, const Block& block) {
    const Tensor& a = args.a();
    const Tensor& b = args.b();
    const u32 axis = a.rank - 1;
    const u32 rows = min(Tile::ROWS, p.m - at.row), columns = min(Tile::COLUMNS, p.n - at.column);
    // With a depth of 0 nothing is loaded, and nothing may be divided by that dim.
    const i64 a_base = p.merged || p.k == 0 ? 0 : row_offset(a, at.batch * p.m), b_base = p.k == 0 ? 0 : row_offset(b, at.batch * p.k);
    const TileLoader<typename Tile::Element, Tile::ROWS, Tile::STEP> left(a, a_base, p.row_axis, axis, at.row, rows, block.thread());
    const TileLoader<typename Tile::Element, Tile::COLUMNS, Tile::STEP> right(b, b_base, axis, axis - 1, at.column, columns, block.thread());
    Tile::multiply(left, right, p.k, block);
    const Epilogue e = gemm_epilogue(args);
    // Worked out again rather than kept: registers are dear until here.
    TileExtent extent{at.batch * p.m + at.row, at.column, min(Tile::ROWS, p.m - at.row), min(Tile::COLUMNS, p.n - at.column)};
    if (e.glu) {
        extent.column /= 2;
        extent.columns /= 2;
    }
    store_tile(e, extent, Tile::PARTS, Tile::ROWS, Tile::PITCH, block);
}

struct GemmHandler {
    static constexpr u32 SCRATCH = SCRATCH_BYTES;
    static DEV u32 tiles(const GemmArgs& args) {
        return tiling_of(args, Products(args)).tiles;
    }

    static DEV_CALL void run(const GemmArgs& args, u32 tile, const Block& block) {
        const Products p(args);
        const Tiling tiling = tiling_of(args, p);
        const Tiling::Place at = tiling.place(tile);
        switch (args.a().dtype) {
            case DTYPE_BF16: run_on_tensor_cores<Bf16>(args, p, tiling, at, block); break;
            case DTYPE_F16: run_on_tensor_cores<F16>(args, p, tiling, at, block); break;
            case DTYPE_F32:
                if (args.math() == GEMM_MATH_TF32) run_on_tensor_cores<Tf32>(args, p, tiling, at, block);
                else if (tiling.rows == TallFloatTile::ROWS) gemm_tile<TallFloatTile>(args, p, at, block);
                else gemm_tile<SmallFloatTile>(args, p, at, block);
                break;
            default: gemm_tile<IntegerTile>(args, p, at, block); break;
        }
    }

  private:
    static DEV Tiling tiling_of(const GemmArgs& args, const Products& p) {
        const bool exact = args.a().dtype == DTYPE_F32 && args.math() == GEMM_MATH_EXACT;
        if (!is_float(args.a().dtype)) return Tiling(p.batches, p.m, p.n, IntegerTile::ROWS, IntegerTile::COLUMNS);
        if (!exact) return Tiling::choose(p.batches, p.m, p.n, LargeTile<Bf16>::COLUMNS, HAS_LARGE ? 14 : NEVER, true);
        return Tiling::choose(p.batches, p.m, p.n, TallFloatTile::COLUMNS, 13, false);
    }

    template <class T> static DEV void run_on_tensor_cores(const GemmArgs& args, const Products& p, const Tiling& tiling,
                                                           const Tiling::Place& at, const Block& block) {
        if constexpr (HAS_LARGE) {
            if (tiling.rows == 128) return gemm_tile<LargeTile<T>>(args, p, at, block);
        }
        if (tiling.rows == 64) gemm_tile<MediumTile<T>>(args, p, at, block);
        else gemm_tile<SmallTile<T>>(args, p, at, block);
    }
};
