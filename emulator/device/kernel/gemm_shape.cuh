// What a GEMM is made of, and how its handler cuts it: measured before its tiles are counted, and kept in the detail of the work.
#pragma once
#include "epilogue.cuh"
#include "merged.cuh"
#include "tilings.cuh"
#include "views.cuh"

// The products that an instruction stands for.
struct Products {
    u32 batches, m, n, k;
    u32 row_axis;  // of a: its stride is the distance of rows

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
        if (same && even && batches > 1) {  // b is the same for every batch, and rows of a lie at equal distances: one product
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

// Where matrix `batch` of an operand begins, in elements.
DEV i64 batch_offset(const Tensor& t, u32 batch) { return batch == 0 ? 0 : t.offset_over((1u << (t.rank - 2)) - 1, batch); }

// How products of few results are shared out (gemm_few.cuh): tiles of 2 to 8 rows and 8 to 32 columns. A thread has 2 rows and 4
// columns of one, and 8 of the depth at a time; so there are 2 to 32 threads to a tile, and the others share the depth.
struct FewShape {
    static constexpr u32 ROWS = 2, COLUMNS = 4, DEPTH = 8;
    static constexpr u32 MOST_RESULTS = ROWS * COLUMNS * WARP;  // of a tile: one for each thread to finish
    // In clocks, about: of a turn, and of each block more that is waited for. And what a tile of 32 x 32 takes, to begin and end and
    // for each of the depth: less than has been measured, so that what is deep and fills the blocks goes that way.
    static constexpr u32 TURN = 700, BLOCK = 20, OTHERWISE = 6000, OTHERWISE_EACH = 10;
    static_assert(MOST_RESULTS == WORKER_THREADS, "one for each thread");

    u8 across, lanes;  // log2 of the threads to a tile's row, and to a tile
    u8 a_deep, b_deep, b_across;  // whether operands can be read in fours: of neighbours in depth, or of columns

    DEV u32 threads() const { return 1u << lanes; }
    // Chooses the tiles of `results` results. False where there would be more than blocks, or where larger ones, which share more of
    // what they read, are quicker.
    DEV bool choose(const Products& p, i64 results) {
        if (results == 0 || results > gridDim.x * MOST_RESULTS) return false;
        const u32 depth = min(p.k, 1u << 24), otherwise = OTHERWISE + depth * OTHERWISE_EACH;
        u32 least = otherwise;
#pragma unroll 1
        for (u32 down = 0; down <= 2; ++down) {
#pragma unroll 1
            for (u32 wide = 1; wide <= 3; ++wide) {
                const u32 turn = DEPTH * WORKER_THREADS >> (down + wide), turns = (depth + turn - 1) / turn;
                const u32 tiles = p.batches * ((p.m - 1 >> (down + 1)) + 1) * ((p.n - 1 >> (wide + 2)) + 1);
                const u32 time = turns * TURN + tiles * BLOCK;
                if (tiles > gridDim.x || time >= least) continue;
                least = time;
                across = static_cast<u8>(wide);
                lanes = static_cast<u8>(down + wide);
            }
        }
        return least < otherwise;
    }
    // Whether four neighbours along an axis are always there, in aligned memory.
    DEV static bool in_fours(const Tensor& t, u32 axis) { return t.dims[axis] % 4 == 0 && copies_whole<Bits32>(t, axis); }
};

constexpr u32 WAY_FEW = 1;  // 0: tiles that pass through shared memory

// What the handler keeps in the detail of the work.
struct GemmShape {
    Products products;
    Tiling tiling;
    FewShape few;
    u32 unused[3];
    u32 way;

    DEV static const GemmShape& of(const Work& w) { return kept<GemmShape>(w); }
};
