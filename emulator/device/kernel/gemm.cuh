// GEMM: batched matrix products on tensor cores (16-bit floats), by FMA (f32, unless its mode is tf32) or by integer multiply-add (8-bit).
#pragma once
#include "gemm_few.cuh"

template <class Tile> DEV_CALL void gemm_tile(const GemmArgs& args, const Products& p, Tiling::Place at, const Block& block) {
    const Tensor& a = args.a();
    const Tensor& b = args.b();
    const u32 axis = a.rank - 1;
    const u32 rows = min(Tile::ROWS, p.m - at.row), columns = min(Tile::COLUMNS, p.n - at.column);
    const i64 a_base = batch_offset(a, at.batch), b_base = batch_offset(b, at.batch);
    const TileLoader<typename Tile::Element, Tile::ROWS, Tile::STEP> left(a, a_base, p.row_axis, axis, at.row, rows, block.thread());
    const TileLoader<typename Tile::Element, Tile::COLUMNS, Tile::STEP> right(b, b_base, axis, axis - 1, at.column, columns, block.thread());
    if (!block.begin()) return;
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
    static constexpr bool BEGINS = true;
    using Kept = GemmShape;
    static DEV void prepare(const GemmArgs& args, Kept& kept) {
        const Products p(args);
        kept.products = p;
        kept.way = is_exact(args) && kept.few.choose(p, args.out().elements()) ? WAY_FEW : 0;
        if (kept.way == WAY_FEW) {
            const u32 axis = args.a().rank - 1, rows = FewShape::ROWS << (kept.few.lanes - kept.few.across);
            kept.few.a_deep = FewShape::in_fours(args.a(), axis);
            kept.few.b_deep = FewShape::in_fours(args.b(), axis - 1);
            kept.few.b_across = FewShape::in_fours(args.b(), axis);
            kept.tiling = Tiling(p.batches, p.m, p.n, rows, FewShape::COLUMNS << kept.few.across);
        } else {
            kept.tiling = tiling_of(args, p);
        }
    }
    static DEV u32 scratch(const GemmArgs& args) { return Kept::of(args.work).way == WAY_FEW ? 0 : SCRATCH_BYTES; }
    static DEV u32 tiles(const GemmArgs& args) { return Kept::of(args.work).tiling.tiles; }

    static DEV_CALL void run(const GemmArgs& args, u32 tile, const Block& block) {
        const GemmShape& shape = Kept::of(args.work);
        const Products& p = shape.products;
        const Tiling& tiling = shape.tiling;
        if (shape.way == WAY_FEW) return few_results(args, tile, block);
        const Tiling::Place at = tiling.place(tile);
        switch (args.a().dtype) {
            case DTYPE_BF16: run_on_tensor_cores<Bf16>(args, p, tiling, at, block); break;
            case DTYPE_F16: run_on_tensor_cores<F16>(args, p, tiling, at, block); break;
            case DTYPE_F32:
                if (!is_exact(args)) run_on_tensor_cores<Tf32>(args, p, tiling, at, block);
                else if (tiling.rows == TallFloatTile::ROWS) gemm_tile<TallFloatTile>(args, p, at, block);
                else gemm_tile<SmallFloatTile>(args, p, at, block);
                break;
            default: gemm_tile<IntegerTile>(args, p, at, block); break;
        }
    }

  private:
    static DEV bool is_exact(const GemmArgs& args) { return args.a().dtype == DTYPE_F32 && args.math() == GEMM_MATH_EXACT; }
    static DEV Tiling tiling_of(const GemmArgs& args, const Products& p) {
        if (!is_float(args.a().dtype)) return Tiling(p.batches, p.m, p.n, IntegerTile::ROWS, IntegerTile::COLUMNS);
        if (!is_exact(args)) return Tiling::choose(p.batches, p.m, p.n, LargeTile<Bf16>::COLUMNS, HAS_LARGE ? 14 : NEVER, true);
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
