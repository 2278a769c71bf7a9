// Collectives on cards (mail.cuh): each rank sends what the others need of its x, and makes its result of what comes.
#pragma once
#include "mail.cuh"
#include "rank_fold.cuh"

// How x, or a part of it, is cut: into chunks, as many for each thread. What is little goes in pairs, for then 16 bytes are read and
// written at once. Of more, links are the limit.
struct Cards {
    static constexpr u32 MOST = MOST_PACKETS / AsWhole::PACKETS;  // chunks of a thread
    static constexpr i64 SMALL = 4096;                            // bytes of a block's share at most, when it has been sent to all
    bool whole;
    u32 chunks;           // of a thread
    u32 elements, first;  // of a card; those that blocks begin with
    DEV Cards(i64 all, u32 item_bytes, u32 members) {
        whole = all * item_bytes * max(members - 1, 1) > gridDim.x * SMALL;
        const u32 each = (whole ? AsWhole::BYTES : InPairs::BYTES) / item_bytes;  // elements of a chunk
        const bool fill = all > static_cast<i64>(gridDim.x) * CARD_PACKETS * each;
        const u32 share = fill ? CARD_PACKETS : (static_cast<u32>(all) + gridDim.x * each - 1) / (gridDim.x * each);
        chunks = share > WORKER_THREADS ? MOST : 1;
        elements = max(WORKER_THREADS, (share + WARP - 1) / WARP * WARP) * each;
        first = fill ? gridDim.x : (static_cast<u32>(all) + elements - 1) / elements;
    }
};

// Whether the bytes of a chunk from `p` on are inside `t`.
template <class Chunk> DEV bool holds_chunk(const Tensor& t, const char* p) {
    return in_bounds(t, p) && in_bounds(t, p + Chunk::BYTES - t.item_bytes);
}
// Whether `count` elements of `t` from `p` on are a chunk that may be moved word by word, or at once.
template <class Chunk> DEV bool is_one_chunk(const Tensor& t, const char* p, u32 count) {
    return t.contiguous && count * t.item_bytes == Chunk::BYTES && reinterpret_cast<u64>(p) % (Chunk::BYTES == 16 ? 16 : 4) == 0;
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
        : Post(work, b, what, Party(work).targets(), Party(work).sources()), part(part_of(work, what)), cards(part, x().item_bytes, party.count()) {}

    template <class Chunk> DEV uint4 chunk_at(i64 at, u32 count) const {
        const char* const p = x().data + at * x().item_bytes;
        if (!is_one_chunk<Chunk>(x(), p, count)) return gather_elements(x(), at, count);
        if (!holds_chunk<Chunk>(x(), p)) return make_uint4(0, 0, 0, 0);
        const u32* const words = reinterpret_cast<const u32*>(p);
        return Chunk::BYTES == 16 ? *reinterpret_cast<const uint4*>(p) : make_uint4(words[0], words[1], words[2], 0);
    }
    template <class Chunk> DEV void keep_chunk(i64 at, u32 count, uint4 v) const {
        char* const p = out().data + at * out().item_bytes;
        if (!is_one_chunk<Chunk>(out(), p, count)) return scatter_elements(out(), at, count, v);
        if (!holds_chunk<Chunk>(out(), p)) return;
        u32* const words = reinterpret_cast<u32*>(p);
        if (Chunk::BYTES == 16) *reinterpret_cast<uint4*>(p) = v;
        else words[0] = v.x, words[1] = v.y, words[2] = v.z;
    }
    // One card to each that gets one, and the result of those that come: each thread has the same chunks of all of them.
    // TOGETHER: members whose cards are awaited at the same time.
    template <class Chunk, u32 CHUNKS, u32 TOGETHER> DEV void exchange(i64 begin, u32 sub) {
        const u32 each = Chunk::BYTES / x().item_bytes, elements = static_cast<u32>(min(static_cast<i64>(cards.elements), part - begin));
        const auto first_of = [&](u32 i) { return (i * WORKER_THREADS + block.thread()) * each; };
        const auto at = [&](u32 i) { return begin + first_of(i); };
        const auto count = [&](u32 i) { return first_of(i) < elements ? min(each, elements - first_of(i)) : 0; };
        u32 packets = 0;  // of those chunks that are there: the first ones
#pragma unroll
        for (u32 i = 0; i < CHUNKS; ++i) packets += count(i) ? Chunk::PACKETS : 0;
        uint4 own[CHUNKS] = {};
#pragma unroll
        for (u32 i = 0; i < CHUNKS; ++i)
            if (count(i) && !(kind & X_IN_PARTS)) own[i] = chunk_at<Chunk>(at(i), count(i));
#pragma unroll 1
        for (u32 n = 1; n <= party.count(); ++n) {
            const u32 m = behind(n), card = __shfl_sync(0xffffffffu, sent, m), rank = party.rank(m);
            if (!(party.targets() >> m & 1)) continue;
            uint4* const to = card_there(rank, card) + block.thread();
#pragma unroll
            for (u32 i = 0; i < CHUNKS; ++i) {
                if (!count(i)) continue;
                if (kind & X_IN_PARTS) own[i] = chunk_at<Chunk>(m * part + at(i), count(i));
                if (rank != me) Chunk::write(to + i * Chunk::PACKETS * WORKER_THREADS, card + 1, own[i]);
            }
        }
        // Of the cards before. What was read has been used, so it was read: nothing has to be waited for.
        if (gets && is_first_warp()) store_relaxed_everywhere(taken_there(), taken);
        const Fold all{out().dtype, sub};
        f32 sums[CHUNKS][VECTOR] = {};
#pragma unroll 1
        for (u32 first = 0; first < party.count(); first += TOGETHER) {
            const auto comes = [&](u32 m) { return m < party.count() && party.sources() >> m & 1; };
            Awaited awaited[TOGETHER] = {};
#pragma unroll
            for (u32 n = 0; n < TOGETHER; ++n) {
                const u32 m = first + n, card = __shfl_sync(0xffffffffu, taken, m);
                if (comes(m) && m != mine && packets) awaited[n] = {card_here(party.rank(m), card) + block.thread(), card + 1, party.rank(m)};
            }
            uint4 come[TOGETHER][CHUNKS * Chunk::PACKETS] = {};
            read_cards<Chunk>(awaited, packets, come);
#pragma unroll
            for (u32 n = 0; n < TOGETHER; ++n) {
                const u32 m = first + n;
                if (!comes(m)) continue;
#pragma unroll
                for (u32 i = 0; i < CHUNKS; ++i) {
                    if (!count(i)) continue;
                    const uint4 v = m == mine ? own[i] : Chunk::chunk(come[n] + i * Chunk::PACKETS);
                    if (!(kind & FOLDS)) keep_chunk<Chunk>((kind & OUT_IN_PARTS ? m * part : 0) + at(i), count(i), v);
                    else if (m == 0) all.begin(sums[i], v);
                    else all.add(sums[i], v);
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < CHUNKS; ++i) {
            if (!count(i)) continue;
            if (kind & FOLDS) keep_chunk<Chunk>(at(i), count(i), all.end(sums[i], party.count()));
            else if (party.sources() == 0) keep_chunk<Chunk>(at(i), count(i), make_uint4(0, 0, 0, 0));
        }
        block.sync();
        if (sends) sent += 1;
        if (gets) taken += 1;
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
        if (post.cards.whole && post.cards.chunks > 1) post.exchange<AsWhole, Cards::MOST, 2>(begin, sub);
        else if (post.cards.whole) post.exchange<AsWhole, 1, 4>(begin, sub);
        else if (post.party.count() <= 2) post.exchange<InPairs, 1, 2>(begin, sub);
        else post.exchange<InPairs, 1, 4>(begin, sub);
    }
    post.end();
}
