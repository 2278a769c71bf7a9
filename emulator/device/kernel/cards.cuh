// Collectives on cards (mail.cuh): each rank sends what the others need of its x, and makes its result of what comes.
#pragma once
#include "mail.cuh"
#include "rank_fold.cuh"

// How x, or a part of it, is cut: into chunks, one for each packet.
struct Cards {
    u32 each, chunks;     // elements of a chunk; chunks of a thread
    u32 elements, first;  // of a card; those that blocks begin with
    DEV Cards(i64 all, u32 item_bytes) : each(CARRIED_BYTES >> (__ffs(item_bytes) - 1)) {  // of a power of two
        const bool fill = all > static_cast<i64>(gridDim.x) * CARD_PACKETS * each;
        const u32 blocks = all <= CARD_PACKETS * each ? 1 : gridDim.x;  // what follows a single one waits for nobody else
        const u32 share = fill ? CARD_PACKETS : (static_cast<u32>(all) + blocks * each - 1) / (blocks * each);
        chunks = share > WORKER_THREADS ? MOST_PACKETS : 1;
        elements = max(WORKER_THREADS, (share + WARP - 1) / WARP * WARP) * each;
        first = fill ? gridDim.x : (static_cast<u32>(all) + elements - 1) / elements;
    }
};

// Whether the bytes of a chunk from `p` on are inside `t`.
DEV bool holds_chunk(const Tensor& t, const char* p) { return in_bounds(t, p) && in_bounds(t, p + CARRIED_BYTES - t.item_bytes); }
// Whether chunks of `each` elements of `t` from `p` on may be moved word by word.
DEV bool moves_in_words(const Tensor& t, const char* p, u32 each) {
    return t.contiguous && each * t.item_bytes == CARRIED_BYTES && reinterpret_cast<u64>(p) % sizeof(u32) == 0;
}
// One element at a time: those of a chunk, from number `at` on.
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
    return make_uint4(static_cast<u32>(low), static_cast<u32>(low >> 32), static_cast<u32>(high), 0);
}
DEV_CALL void scatter_elements(const Tensor& t, i64 at, u32 count, uint4 v) {
    const u32 item = t.item_bytes;
    const u64 low = static_cast<u64>(v.y) << 32 | v.x, high = v.z;
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

// A thread's chunks of a card: what is whole goes without a branch, so that all are on their way at the same time.
template <u32 N> struct Chunks {
    u32 each, first, elements;  // of a chunk; the thread's first one; of all of the card
    u32 some, whole;            // chunks that have elements, and those that have all
    DEV Chunks(const Cards& cards, u32 all, u32 thread) : each(cards.each), first(thread * each), elements(all), some(0), whole(0) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            some += at(i) < elements;
            whole += at(i) + each <= elements;
        }
    }
    DEV u32 at(u32 i) const { return first + i * WORKER_THREADS * each; }
    DEV u32 count(u32 i) const { return min(each, elements - at(i)); }

    // From and to elements from `begin` on.
    DEV void take(uint4 (&v)[N], const Tensor& t, i64 begin) const {
        const char* const p = t.data + (begin + first) * t.item_bytes;
        const u32 at_once = moves_in_words(t, p, each) ? whole : 0;
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            const u32* const words = reinterpret_cast<const u32*>(p + i * WORKER_THREADS * CARRIED_BYTES);
            if (i < at_once && holds_chunk(t, reinterpret_cast<const char*>(words))) v[i] = make_uint4(words[0], words[1], words[2], 0);
        }
        if (at_once == some) return;
#pragma unroll
        for (u32 i = 0; i < N; ++i)
            if (i >= at_once && i < some) v[i] = gather_elements(t, begin + at(i), count(i));
    }
    DEV void keep(const uint4 (&v)[N], const Tensor& t, i64 begin) const {
        char* const p = t.data + (begin + first) * t.item_bytes;
        const u32 at_once = moves_in_words(t, p, each) ? whole : 0;
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            u32* const words = reinterpret_cast<u32*>(p + i * WORKER_THREADS * CARRIED_BYTES);
            if (i >= at_once || !holds_chunk(t, reinterpret_cast<const char*>(words))) continue;
            words[0] = v[i].x;
            words[1] = v[i].y;
            words[2] = v[i].z;
        }
        if (at_once == some) return;
#pragma unroll
        for (u32 i = 0; i < N; ++i)
            if (i >= at_once && i < some) scatter_elements(t, begin + at(i), count(i), v[i]);
    }
};

struct CardPost : Post {
    const i64 part;  // elements of a part
    const Cards cards;

    DEV CardPost(const Work& work, const Block& b, u32 what)
        : Post(work, b, what, Party(work).targets(), Party(work).sources()), part(part_of(work, what)), cards(part, x().item_bytes) {}

    // One card to each that gets one, and the result of those that come: each thread has the same chunks of all of them.
    // TOGETHER: members whose cards are awaited at the same time.
    template <u32 CHUNKS, u32 TOGETHER> DEV void exchange(i64 begin, u32 sub) {
        const Chunks<CHUNKS> chunks(cards, static_cast<u32>(min(static_cast<i64>(cards.elements), part - begin)), block.thread());
        const u32 packets = chunks.some;
        uint4 own[CHUNKS] = {};
        if (!(kind & X_IN_PARTS)) chunks.take(own, x(), begin);
        wait_for_room();  // x is on its way meanwhile, and the first time what the channel says, too
#pragma unroll 1
        for (u32 n = 1; n <= party.count(); ++n) {
            const u32 m = behind(n), card = __shfl_sync(0xffffffffu, sent, m), rank = party.rank(m);
            if (!(party.targets() >> m & 1)) continue;
            uint4* const to = card_there(rank, card) + block.thread();
            if (kind & X_IN_PARTS) chunks.take(own, x(), m * part + begin);
#pragma unroll
            for (u32 i = 0; i < CHUNKS; ++i)
                if (i < packets && rank != me) write_packet(to + i * WORKER_THREADS, card + 1, own[i]);
        }
        // Of the cards before. What was read has been used, so it was read: nothing has to be waited for.
        if (gets && is_first_warp()) store_relaxed_everywhere(taken_there(), taken);
        const Fold all(out().dtype, sub);
        Sums<CARRIED_WORDS> sums[CHUNKS] = {};
#pragma unroll 1
        for (u32 first = 0; first < party.count(); first += TOGETHER) {
            const auto comes = [&](u32 m) { return m < party.count() && party.sources() >> m & 1; };
            Awaited awaited[TOGETHER] = {};
#pragma unroll
            for (u32 n = 0; n < TOGETHER; ++n) {
                const u32 m = first + n, card = __shfl_sync(0xffffffffu, taken, m);
                if (comes(m) && m != mine && packets) awaited[n] = {card_here(party.rank(m), card) + block.thread(), card + 1, party.rank(m)};
            }
            uint4 come[TOGETHER][CHUNKS] = {};
            read_cards(awaited, packets, come);
#pragma unroll
            for (u32 n = 0; n < TOGETHER; ++n) {
                const u32 m = first + n;
                if (!comes(m)) continue;
#pragma unroll
                for (u32 i = 0; i < CHUNKS; ++i)
                    if (m == mine) come[n][i] = own[i];
                if (!(kind & FOLDS)) chunks.keep(come[n], out(), (kind & OUT_IN_PARTS ? m * part : 0) + begin);
                else if (m == 0) all.begin(sums, come[n], packets);
                else all.add(sums, come[n], packets);
            }
        }
        uint4 result[CHUNKS] = {};
        if (kind & FOLDS) all.end(result, sums, packets, party.count());
        if (kind & FOLDS || party.sources() == 0) chunks.keep(result, out(), begin);
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
        if (begin != first) block.sync();  // all have read what the first warp will say they have
        if (post.cards.chunks > 1) post.exchange<MOST_PACKETS, 2>(begin, sub);
        else post.exchange<1, 4>(begin, sub);
    }
    post.end();
    block.end();
}
