// What threads of a product of few rows read themselves: rows of a.
#pragma once
#ifdef HOPPER
#include "epilogue.cuh"
#include "exchange.cuh"

constexpr u32 WARP_SUMS = 256;  // that a warp leaves in the staging: one thread each finishes them

// Rows of a: where they are in memory, or one behind the other in the staging, behind the sums, where the product has made them
// itself (stream_norm.cuh).
constexpr u32 NORMALISED_AT = STAGING_AT + STAGING_BYTES / 2;
static_assert(STREAM_NORM_ELEMENTS * 2 <= STAGING_BYTES / 2, "the rows fit");
struct StreamRows {
    const Tensor& a;
    u32 count;
    bool normalised;
};

// One of them as a lane reads it: this lane's first chunk, and the depth that is left from there on; 0 without a row.
struct StreamRow {
    const Tensor* tensor;  // null in the staging
    const char* at;
    u32 left;

    DEV StreamRow(const StreamRows& rows, u32 row, u32 depth) : tensor(rows.normalised ? nullptr : &rows.a) {
        const bool exists = row < rows.count;
        const u32 all = rows.a.dims[rows.a.rank - 1];
        at = rows.normalised ? shared_memory + NORMALISED_AT + (exists ? row * all + depth : 0) * 2
                             : element(rows.a, exists ? row_offset(rows.a, row) + depth : 0);
        left = exists && depth < all ? all - depth : 0;
    }
    DEV uint4 load(u32 depth) const {
        const char* p = at + depth * 2;
        if (depth >= left || (tensor && !range_in_bounds(*tensor, p, CHUNK_BYTES))) return make_uint4(0, 0, 0, 0);
        return *reinterpret_cast<const uint4*>(p);
    }
};
#endif
