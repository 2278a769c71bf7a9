// Collectives on cards (mail.cuh): each rank sends what the others need of its x, and makes its result of what comes.
#pragma once
#include "mail.cuh"
#include "rank_fold.cuh"

// How x, or a part of it, is cut: into packets. A word of one lies beside the same word of the next lane's, so that a warp moves whole
// lines. An element of 8 bytes takes two words, and no other goes with it.
struct Cards {
    u32 in_word, each;    // elements of a word (1 where they are larger), and of a packet
    u32 packets_each;     // of a thread
    u32 elements, first;  // of a card; those that blocks begin with
    DEV Cards(i64 all, u32 item_bytes) : in_word(4u >> min(__ffs(item_bytes) - 1, 2)), each(item_bytes == 8 ? 1 : CARRIED_WORDS * in_word) {
        const bool fill = all > static_cast<i64>(gridDim.x) * CARD_PACKETS * each;
        const u32 share = fill ? CARD_PACKETS : (static_cast<u32>(all) + gridDim.x * each - 1) / (gridDim.x * each);
        packets_each = share > WORKER_THREADS ? MOST_PACKETS : 1;
        elements = max(WORKER_THREADS, (share + WARP - 1) / WARP * WARP) * each;
        first = fill ? gridDim.x : (static_cast<u32>(all) + elements - 1) / elements;
    }
};

// Whether the bytes of a word at `p` are inside `t`.
DEV bool holds_word(const Tensor& t, const char* p) { return in_bounds(t, p) && in_bounds(t, p + sizeof(u32) - t.item_bytes); }
// A packet's words, one element at a time: the first one's from number `at` on; those of the others that are before `end`.
DEV_CALL uint4 gather_words(const Tensor& t, i64 at, i64 end, u32 in_word) {
    const u32 item = t.item_bytes;
    uint4 v = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (u32 j = 0; j < (item == 8 ? 1 : CARRIED_WORDS); ++j, at += WARP * in_word) {
        u64 bits = 0;
#pragma unroll 1
        for (u32 k = 0; k < in_word && at + k < end; ++k) {
            const char* q = element(t, t.offset_of(at + k));
            if (!in_bounds(t, q)) break;
            const u64 one = item == 1 ? *reinterpret_cast<const u8*>(q) : item == 2 ? *reinterpret_cast<const u16*>(q)
                          : item == 4 ? *reinterpret_cast<const u32*>(q) : *reinterpret_cast<const u64*>(q);
            bits |= one << k * item * 8;
        }
        const u32 low = static_cast<u32>(bits);
        if (j == 0) v = make_uint4(low, static_cast<u32>(bits >> 32), 0, 0);
        else if (j == 1) v.y = low;
        else v.z = low;
    }
    return v;
}
DEV_CALL void scatter_words(const Tensor& t, i64 at, i64 end, u32 in_word, uint4 v) {
    const u32 item = t.item_bytes;
#pragma unroll 1
    for (u32 j = 0; j < (item == 8 ? 1 : CARRIED_WORDS); ++j, at += WARP * in_word) {
        const u64 word = j == 0 ? static_cast<u64>(v.y) << 32 | v.x : j == 1 ? v.y : v.z;
#pragma unroll 1
        for (u32 k = 0; k < in_word && at + k < end; ++k) {
            char* q = element(t, t.offset_of(at + k));
            if (!in_bounds(t, q)) break;
            const u64 bits = word >> k * item * 8;
            switch (item) {
                case 1: *reinterpret_cast<u8*>(q) = static_cast<u8>(bits); break;
                case 2: *reinterpret_cast<u16*>(q) = static_cast<u16>(bits); break;
                case 4: *reinterpret_cast<u32*>(q) = static_cast<u32>(bits); break;
                default: *reinterpret_cast<u64*>(q) = bits; break;
            }
        }
    }
}

// What a thread has of a card, as N packets. Whole words go without a branch, so that all are on their way at the same time.
template <u32 N> struct Packets {
    u32 in_word, each, first, elements;  // of a word, of a packet; the thread's first one; of all of the card
    u32 count = 0;                       // that have elements: the first ones
    DEV Packets(const Cards& cards, u32 all, const Block& block)
        : in_word(cards.in_word), each(cards.each), first(block.warp() * WARP * each + block.lane() * in_word), elements(all) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) count += at(i, 0) < elements;
    }
    DEV u32 at(u32 i, u32 word) const { return first + i * WORKER_THREADS * each + word * WARP * in_word; }
    DEV bool has(u32 i, u32 word) const { return at(i, word) + in_word <= elements; }
    DEV static u32 bytes_to(u32 i, u32 word) { return (i * WORKER_THREADS * CARRIED_WORDS + word * WARP) * sizeof(u32); }
    DEV static bool in_words(const Tensor& t, const char* p) {
        return t.contiguous && t.item_bytes <= sizeof(u32) && reinterpret_cast<u64>(p) % sizeof(u32) == 0;
    }
    // Unless whole words are all that a packet has.
    DEV bool in_elements(u32 i, bool words) const { return i < count && !(words && (has(i, CARRIED_WORDS - 1) || (elements & (in_word - 1)) == 0)); }

    // From and to elements of `t`, from `begin` on.
    DEV void take(uint4 (&v)[N], const Tensor& t, i64 begin) const {
        const char* const p = element(t, begin + first);
        const bool words = in_words(t, p);
        const auto word = [&](u32 i, u32 j) {
            const char* const q = p + bytes_to(i, j);
            return words && has(i, j) && holds_word(t, q) ? *reinterpret_cast<const u32*>(q) : 0;
        };
#pragma unroll
        for (u32 i = 0; i < N; ++i) v[i] = make_uint4(word(i, 0), word(i, 1), word(i, 2), 0);
#pragma unroll
        for (u32 i = 0; i < N; ++i)
            if (in_elements(i, words)) v[i] = gather_words(t, begin + at(i, 0), begin + elements, in_word);
    }
    DEV void keep(const uint4 (&v)[N], const Tensor& t, i64 begin) const {
        char* const p = element(t, begin + first);
        const bool words = in_words(t, p);
        const auto store = [&](u32 i, u32 j, u32 word) {
            char* const q = p + bytes_to(i, j);
            if (words && has(i, j) && holds_word(t, q)) *reinterpret_cast<u32*>(q) = word;
        };
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            store(i, 0, v[i].x);
            store(i, 1, v[i].y);
            store(i, 2, v[i].z);
        }
#pragma unroll
        for (u32 i = 0; i < N; ++i)
            if (in_elements(i, words)) scatter_words(t, begin + at(i, 0), begin + elements, in_word, v[i]);
    }
};

struct CardPost : Post {
    const i64 part;  // elements of a part
    const Cards cards;

    DEV CardPost(const Work& work, const Block& b, u32 what)
        : Post(work, b, what, Party(work).targets(), Party(work).sources()), part(part_of(work, what)), cards(part, x().item_bytes) {}

    // One card to each that gets one, and the result of those that come: each thread has the same packets of all of them.
    // TOGETHER: members whose cards are awaited at the same time.
    template <u32 N, u32 TOGETHER> DEV void exchange(i64 begin, u32 sub) {
        const Packets<N> packets(cards, static_cast<u32>(min(static_cast<i64>(cards.elements), part - begin)), block);
        uint4 own[N] = {};
        if (!(kind & X_IN_PARTS)) packets.take(own, x(), begin);
        wait_for_room();  // x is on its way meanwhile, and the first time what the channel says, too
#pragma unroll 1
        for (u32 n = 1; n <= party.count(); ++n) {
            const u32 m = behind(n), card = __shfl_sync(0xffffffffu, sent, m), rank = party.rank(m);
            if (!(party.targets() >> m & 1)) continue;
            uint4* const to = card_there(rank, card) + block.thread();
            if (kind & X_IN_PARTS) packets.take(own, x(), m * part + begin);
#pragma unroll
            for (u32 i = 0; i < N; ++i)
                if (i < packets.count && rank != me) write_packet(to + i * WORKER_THREADS, card + 1, own[i]);
        }
        // All have read the cards before, which the first warp says now, and their channels, which it writes at the end.
        block.sync();
        if (gets && is_first_warp()) store_relaxed_everywhere(taken_there(), taken);
        const Fold all(out().dtype, sub);
        Sums<CARRIED_WORDS> sums[N] = {};
#pragma unroll 1
        for (u32 first = 0; first < party.count(); first += TOGETHER) {
            const auto comes = [&](u32 m) { return m < party.count() && party.sources() >> m & 1; };
            Awaited awaited[TOGETHER] = {};
#pragma unroll
            for (u32 n = 0; n < TOGETHER; ++n) {
                const u32 m = first + n, card = __shfl_sync(0xffffffffu, taken, m);
                if (comes(m) && m != mine && packets.count) awaited[n] = {card_here(party.rank(m), card) + block.thread(), card + 1, party.rank(m)};
            }
            uint4 come[TOGETHER][N] = {};
            read_cards(awaited, packets.count, come);
#pragma unroll
            for (u32 n = 0; n < TOGETHER; ++n) {
                const u32 m = first + n;
                if (!comes(m)) continue;
#pragma unroll
                for (u32 i = 0; i < N; ++i)
                    if (m == mine) come[n][i] = own[i];
                if (!(kind & FOLDS)) packets.keep(come[n], out(), (kind & OUT_IN_PARTS ? m * part : 0) + begin);
                else if (m == 0) all.begin(sums, come[n], packets.count);
                else all.add(sums, come[n], packets.count);
            }
        }
        uint4 result[N] = {};
        if (kind & FOLDS) all.end(result, sums, packets.count, party.count());
        if (kind & FOLDS || party.sources() == 0) packets.keep(result, out(), begin);
        if (sends) sent += 1;
        if (gets) taken += 1;
    }
};

// Cards `tile`, `tile + gridDim.x`, ...
DEV_CALL void exchange_cards(const Work& w, u32 tile, const Block& block, u32 kind, u32 sub) {
    CardPost post(w, block, kind);
    if (!block.begin()) return;
    const i64 first = static_cast<i64>(tile) * post.cards.elements, by = static_cast<i64>(gridDim.x) * post.cards.elements;
#pragma unroll 1
    for (i64 begin = first; begin < post.part; begin += by) {
        if (post.cards.packets_each > 1) post.exchange<MOST_PACKETS, 2>(begin, sub);
        else post.exchange<1, 4>(begin, sub);
    }
    post.end();
    block.end();
}
