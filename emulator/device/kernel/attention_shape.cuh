// ATTENTION: what all its tiles share - the shape of an instruction, which keys a query sees, logits, probabilities.
#pragma once
#include "arithmetic.cuh"
#include "epilogue.cuh"
#include "views.cuh"

// What every tile of one instruction needs to know. A tile is some queries of one head, and some columns of v.
struct AttentionShape {
    u32 heads, heads_per_key, queries, keys, depth, columns;
    f32 scale, softcap;
    i64 position, window;  // window 0: none
    bool causal;
    bool tensor_cores;
    u32 tile_queries, tile_columns, query_tiles, column_tiles, tiles;

    DEV explicit AttentionShape(const AttentionArgs& args) {
        const Tensor& q = args.q();
        const Tensor& v = args.v();
        heads = q.dims[1];
        heads_per_key = heads == 0 ? 1 : heads / v.dims[1];
        queries = q.dims[2];
        keys = v.dims[2];
        depth = q.dims[3];
        columns = v.dims[3];
        scale = args.scale() != 0.0f ? args.scale() : rsqrtf(depth == 0 ? 1.0f : static_cast<f32>(depth));
        softcap = args.softcap();
        position = args.has_position() ? args.work.scalars[args.position()] : static_cast<i64>(keys) - queries;
        window = args.window();
        causal = args.causal();
        tile_queries = 64;
        tile_columns = 128;
        tensor_cores = q.dtype != DTYPE_F32 && stages() != 0;
        if (!tensor_cores) tile_queries = 32;
        query_tiles = (queries + tile_queries - 1) / tile_queries;
        column_tiles = (columns + tile_columns - 1) / tile_columns;
        if (columns == 0 && args.has_lse()) column_tiles = 1;
        tiles = q.dims[0] * heads * query_tiles * column_tiles;
    }

    // Tensor cores: q, and one or two blocks of keys with their values, share the scratch memory; 0 if they do not fit.
    DEV u32 padded_depth() const { return (depth + 63) / 64 * 64; }
    DEV u32 query_bytes() const { return tile_queries * padded_depth() * 2; }
    DEV u32 stage_bytes() const { return 64 * (padded_depth() + tile_columns) * 2; }
    DEV u32 stages() const {
        if (depth > 512) return 0;
        return query_bytes() + 2 * stage_bytes() <= SCRATCH_BYTES ? 2 : query_bytes() + stage_bytes() <= SCRATCH_BYTES ? 1 : 0;
    }

    // The keys that a query sees by position are first_key .. end_key.
    DEV u32 within(i64 key) const { return key < 0 ? 0 : key > keys ? keys : static_cast<u32>(key); }
    // Far beyond all keys is as good as just beyond, and cannot overflow.
    DEV i64 last_key(u32 query) const {
        constexpr i64 FAR = 1ll << 40;
        return query + (position > FAR ? FAR : position < -FAR ? -FAR : position);
    }
    DEV u32 first_key(u32 query) const { return window == 0 ? 0 : within(last_key(query) - window + 1); }
    DEV u32 end_key(u32 query) const { return causal ? within(last_key(query) + 1) : keys; }
};

// One tile: which queries and columns, and where its operands begin (element offsets).
struct AttentionTile {
    u32 query, queries, column, columns;
    u32 begin, end;  // keys that any of its queries sees
    i64 out, q, k, v, mask, lse;

    DEV AttentionTile(const AttentionArgs& args, const AttentionShape& s, u32 tile) {
        const u32 column_tile = tile % s.column_tiles, rest = tile / s.column_tiles;
        // Under a causal mask the last queries have most keys: they go first.
        const u32 query_tile = s.query_tiles - 1 - rest % s.query_tiles, head = rest / s.query_tiles % s.heads;
        const u32 sample = rest / s.query_tiles / s.heads, key_head = head / s.heads_per_key;
        query = query_tile * s.tile_queries;
        queries = min(s.tile_queries, s.queries - query);
        column = column_tile * s.tile_columns;
        columns = min(s.tile_columns, s.columns - column);
        begin = s.first_key(query);
        end = s.end_key(query + queries - 1);
        const auto at = [&](const Tensor& t, u32 h) { return sample * t.strides[0] + h * t.strides[1]; };
        out = at(args.out(), head);
        q = at(args.q(), head);
        k = at(args.k(), key_head);
        v = at(args.v(), key_head);
        mask = args.has_mask() ? at(args.mask(), head) : 0;
        lse = args.has_lse() ? at(args.lse(), head) : 0;
    }
};

// The logit of a visible key from its product: scale, soft cap, mask. A call, for those that have one of the last two.
// `at`: where the mask of its head begins.
DEV_CALL f32 attention_score(const AttentionArgs& args, const AttentionShape& s, i64 at, u32 query, u32 key, f32 product) {
    f32 score = product * s.scale;
    if (s.softcap != 0.0f) score = s.softcap * tanhf(score / s.softcap);
    if (args.has_mask()) {
        const Tensor& mask = args.mask();
        const f32 m = load_f32(mask, at + query * mask.strides[2] + key * mask.strides[3]);
        score = mask.dtype != DTYPE_BOOL ? score + m : m != 0.0f ? score : -infinity();
    }
    return score;
}

// e**(score - top), where no score at all counts as a top of 0.
DEV f32 exp_below(f32 score, f32 top) { return exp2f((score - (top == -infinity() ? 0.0f : top)) * LOG2_E); }

// Weighted sums over their denominator; 0 where there was no key.
DEV float4 quotient(float4 v, f32 total) {
    if (total == 0.0f) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return make_float4(v.x / total, v.y / total, v.z / total, v.w / total);
}

// A call: few instructions have it.
DEV_CALL void store_lse(const Tensor& lse, i64 at, f32 top, f32 total) {
    store_f32(lse, at, total == 0.0f ? -infinity() : logf(total) + top);
}
