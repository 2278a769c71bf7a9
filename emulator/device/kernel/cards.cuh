// Collectives on cards (mail.cuh): each rank sends what the others need of its x, and makes its result of what comes.
#pragma once
#include "mail.cuh"
#include "rank_fold.cuh"

// How x, or a part of it, is cut: into as many cards as there are blocks, if they are worth it and fit.
struct Cards {
    static constexpr u32 SMALL = 4096;  // bytes
    u32 elements, first;                // of a card; those that blocks begin with
    DEV Cards(i64 all, u32 item_bytes) {
        const i64 bytes = all * item_bytes;
        const bool fill = bytes > static_cast<i64>(gridDim.x) * CARD_BYTES;
        const u32 share = fill ? CARD_BYTES : (static_cast<u32>(bytes) + gridDim.x - 1) / gridDim.x;
        elements = max(SMALL, (share + 255) / 256 * 256) / item_bytes;
        first = fill ? gridDim.x : (static_cast<u32>(all) + elements - 1) / elements;
    }
};
static_assert(CARD_BYTES % 256 == 0, "rounded up, it still fits");

// Whether 16 bytes from `p` on are inside `t`.
DEV bool holds(const Tensor& t, const uint4* p) {
    const char* const q = reinterpret_cast<const char*>(p);
    return in_bounds(t, q) && in_bounds(t, q + VECTOR_BYTES - t.item_bytes);
}
// Whether `count` elements of `t` from `p` on are 16 bytes that may be moved at once.
DEV bool is_one_chunk(const Tensor& t, const uint4* p, u32 count) {
    return t.contiguous && count * t.item_bytes == VECTOR_BYTES && reinterpret_cast<u64>(p) % VECTOR_BYTES == 0;
}
// One element at a time: up to 16 bytes of them, from number `at` on.
DEV_CALL uint4 gather_elements(const Tensor& t, i64 at, u32 count) {
    const u32 item = t.item_bytes;
    u64 low = 0, high = 0;
#pragma unroll 1
    for (u32 k = 0; k < count; ++k) {
        const char* q = element(t, t.offset_of(at + k));
        if (!in_bounds(t, q)) break;
        const u64 v = item == 1 ? *reinterpret_cast<const u8*>(q) : item == 2 ? *reinterpret_cast<const u16*>(q)
                    : item == 4 ? *reinterpret_cast<const u32*>(q) : *reinterpret_cast<const u64*>(q);
        const u32 bit = k * item * 8;
        if (bit < 64) low |= v << bit;
        else high |= v << (bit - 64);
    }
    return make_uint4(static_cast<u32>(low), static_cast<u32>(low >> 32), static_cast<u32>(high), static_cast<u32>(high >> 32));
}
DEV_CALL void scatter_elements(const Tensor& t, i64 at, u32 count, uint4 v) {
    const u32 item = t.item_bytes;
    const u64 low = static_cast<u64>(v.y) << 32 | v.x, high = static_cast<u64>(v.w) << 32 | v.z;
#pragma unroll 1
    for (u32 k = 0; k < count; ++k) {
        char* q = element(t, t.offset_of(at + k));
        if (!in_bounds(t, q)) break;
        const u32 bit = k * item * 8;
        const u64 bits = bit < 64 ? low >> bit : high >> (bit - 64);
        switch (item) {
            case 1: *reinterpret_cast<u8*>(q) = static_cast<u8>(bits); break;
            case 2: *reinterpret_cast<u16*>(q) = static_cast<u16>(bits); break;
            case 4: *reinterpret_cast<u32*>(q) = static_cast<u32>(bits); break;
            default: *reinterpret_cast<u64*>(q) = bits; break;
        }
    }
}

struct CardPost : Post {
    const i64 part;  // elements of a part
    const Cards cards;

    DEV CardPost(const Work& work, const Block& b, u32 what)
        : Post(work, b, what, Party(work).targets(), Party(work).sources()), part(part_of(work, what)), cards(part, x().item_bytes) {}

    DEV uint4 chunk_at(i64 at, u32 count) const {
        const auto* p = reinterpret_cast<const uint4*>(x().data + at * x().item_bytes);
        if (!is_one_chunk(x(), p, count)) return gather_elements(x(), at, count);
        return holds(x(), p) ? *p : make_uint4(0, 0, 0, 0);
    }
    DEV void keep_chunk(i64 at, u32 count, uint4 v) const {
        auto* p = reinterpret_cast<uint4*>(out().data + at * out().item_bytes);
        if (!is_one_chunk(out(), p, count)) scatter_elements(out(), at, count, v);
        else if (holds(out(), p)) *p = v;
    }
    // One card to each that gets one, and the result of those that come: each thread has the same chunks of all of them.
    DEV void exchange(i64 begin, u32 sub) {
        const u32 each = VECTOR_BYTES / x().item_bytes, elements = static_cast<u32>(min(static_cast<i64>(cards.elements), part - begin));
        const auto chunk = [&](u32 i) { return i * WORKER_THREADS + block.thread(); };
        const auto at = [&](u32 i) { return begin + chunk(i) * each; };
        const auto count = [&](u32 i) { return chunk(i) * each < elements ? min(each, elements - chunk(i) * each) : 0; };
        uint4 own[CHUNKS_OF_ONE] = {};
#pragma unroll
        for (u32 i = 0; i < CHUNKS_OF_ONE; ++i)
            if (count(i) && !(kind & X_IN_PARTS)) own[i] = chunk_at(at(i), count(i));
#pragma unroll 1
        for (u32 m = 0; m < party.count(); ++m) {
            const u32 card = __shfl_sync(0xffffffffu, sent, m), rank = party.rank(m);
            if (!(party.targets() >> m & 1)) continue;
#pragma unroll
            for (u32 i = 0; i < CHUNKS_OF_ONE; ++i) {
                if (!count(i)) continue;
                const uint4 v = kind & X_IN_PARTS ? chunk_at(m * part + at(i), count(i)) : own[i];
                if (rank == me) own[i] = v;
                else write_card(card_there(rank, card) + chunk(i), card + 1, v);
            }
        }
        const Fold all{out().dtype, sub};
        f32 sums[CHUNKS_OF_ONE][VECTOR] = {};
#pragma unroll 1
        for (u32 m = 0; m < party.count(); ++m) {
            const u32 card = __shfl_sync(0xffffffffu, taken, m), rank = party.rank(m);
            if (!(party.sources() >> m & 1)) continue;
#pragma unroll
            for (u32 i = 0; i < CHUNKS_OF_ONE; ++i) {
                if (!count(i)) continue;
                const uint4 v = rank == me ? own[i] : read_card(card_here(rank, card) + chunk(i), card + 1, rank);
                if (!(kind & FOLDS)) keep_chunk((kind & OUT_IN_PARTS ? m * part : 0) + at(i), count(i), v);
                else if (m == 0) all.begin(sums[i], v);
                else all.add(sums[i], v);
            }
        }
#pragma unroll
        for (u32 i = 0; i < CHUNKS_OF_ONE; ++i) {
            if (!count(i)) continue;
            if (kind & FOLDS) keep_chunk(at(i), count(i), all.end(sums[i], party.count()));
            else if (party.sources() == 0) keep_chunk(at(i), count(i), make_uint4(0, 0, 0, 0));
        }
        block.sync();
        if (sends) sent += 1;
        if (gets) taken += 1;
        // What was read has been used, so it was read: nothing has to be waited for.
        if (gets && is_first_warp()) store_relaxed_everywhere(taken_there(), taken);
    }
};

// Cards `tile`, `tile + gridDim.x`, ...
DEV_CALL void exchange_cards(const Work& w, u32 tile, const Block& block, u32 kind, u32 sub) {
    CardPost post(w, block, kind);
    if (!post.begin()) return;
    const i64 first = static_cast<i64>(tile) * post.cards.elements, by = static_cast<i64>(gridDim.x) * post.cards.elements;
#pragma unroll 1
    for (i64 begin = first; begin < post.part; begin += by) {
        if (begin != first) post.wait_for_room();
        post.exchange(begin, sub);
    }
    post.end();
}
