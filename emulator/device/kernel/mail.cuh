// What ranks send each other, and what they let each other reach. Each has memory for mail, which the others write to: for each
// of its blocks, and each rank, a channel and two places. A block sends to the blocks of its own number, on the other ranks, and
// to nobody else. All ranks have the same plan, so what a block has to do is the same block's everywhere, and blocks execute
// collectives in program order: the n-th card from a rank's block belongs to the n-th exchange with it, and needs no name.
//
// A card is 12 KB at most, in packets of 16 bytes that are written as one: three words, and the card's number. So the reader sees of each
// packet whether it is there, and the writer need not wait for what it wrote to be there before it says so, which takes as long as the
// way itself. (NCCL's protocol LL does the same with two words.) What is small goes on cards (cards.cuh). Of what is large, cards say
// where it lies, and the ranks reach into each other's memory (direct.cuh).
//
// A channel counts cards, as a ring of shared memory does its stages: the sender waits until the place is free, and fills it; the
// receiver waits for the number, reads, and says that one more was taken: in its next exchange with that rank, while it waits for that
// one's card anyway. Said at once, it would still be on its way when the block says that it is done, and a release waits for that. What
// both have said in a launch that ended, they agree on in the next one.
#pragma once
#include "vectors.cuh"
#include "views.cuh"

// A collective as this rank sees it: what the plan says of the ranks of its group, its members (paths/parties.py).
struct Party {
    u32 ranks, whom;
    DEV explicit Party(const Work& w) : ranks(in_shared(w).detail[PARTY_AT]), whom(in_shared(w).detail[PARTY_AT + 1]) {}
    DEV u32 count() const { return whom & 15; }
    DEV u32 rank(u32 member) const { return ranks >> 4 * member & 15; }
    DEV u32 targets() const { return whom >> 8 & 0xff; }  // members that get something from this rank, a bit for each,
    DEV u32 sources() const { return whom >> 16; }        // and those that it gets something from
    DEV bool may_reach() const { return whom >> 4 & 1; }  // as far as the plan knows
};

// Elements of a part of x, or of all of it where all go to everybody.
DEV i64 part_of(const Work& w, u32 kind) {
    const Tensor& x = in_shared(w.operands[1]);
    return kind & X_IN_PARTS ? x.elements() / Party(w).count() : x.elements();
}

// The first packets of all threads lie together, and behind them the second ones, and so on: a warp writes whole lines.
constexpr u32 CARD_PACKETS = CARD_PLACE_BYTES / sizeof(uint4), MOST_PACKETS = CARD_PACKETS / WORKER_THREADS;

constexpr u32 CARRIED_WORDS = 3;  // in a packet
DEV void write_packet(uint4* to, u32 number, uint4 words) { store_whole_everywhere(to, make_uint4(words.x, words.y, words.z, number)); }

static_assert(sizeof(Channel) == sizeof(uint4), "read at once");
// This block's channel in the mail of a rank: what it and the rank `with` say to each other there.
DEV Channel& channel_in(char* mail, u32 world, u32 with) { return reinterpret_cast<Channel*>(mail)[blockIdx.x * world + with]; }
// Where cards of the rank `from` lie: the place for number `card`.
DEV uint4* card_in(char* mail, u32 world, u32 from, u32 card) {
    const u64 channels = static_cast<u64>(gridDim.x) * world * sizeof(Channel), place = blockIdx.x * world + from;
    return reinterpret_cast<uint4*>(mail + channels + (place * CARD_PLACES + card % CARD_PLACES) * CARD_PLACE_BYTES);
}

// Waits for another rank, in one thread; false if the run is over. `rank`: which one that is, once it is late.
template <class Done> DEV bool wait_for_rank(const u32& rank, Done done) {
    const Launch* launch = shared_state().launch;
    const bool ok = spin(launch, done, [&] { raise(launch, TRAP_TIMEOUT, present_instruction(), WAITED_FOR_RANK, rank); });
    if (!ok) stop(shared_state());
    return ok;
}
// A call, so that what waits has registers left.
DEV_CALL void wait_for_count(const u32* count, u32 least, u32 rank) {
    wait_for_rank(rank, [&] { return static_cast<i32>(load_acquire_everywhere(count) - least) >= 0; });
}
// A thread's part of a card that is to come: where its first packet will be, with which number, and from which rank.
struct Awaited {
    const uint4* from = nullptr;  // none: nothing comes
    u32 number = 0, rank = 0;
};
// The first `packets` packets of all of them, once they are there; zeros if the run is over. Others stay as they are.
template <u32 N, u32 PACKETS> DEV void read_cards(const Awaited (&awaited)[N], u32 packets, uint4 (&v)[N][PACKETS]) {
    u32 late = 0;
    const bool ok = wait_for_rank(late, [&] {
        bool all = true;
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
#pragma unroll
            for (u32 p = 0; p < PACKETS; ++p)
                if (awaited[n].from && p < packets) v[n][p] = load_whole_everywhere(awaited[n].from + p * WORKER_THREADS);
        }
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            bool there = true;
#pragma unroll
            for (u32 p = 0; p < PACKETS; ++p) there &= p >= packets || v[n][p].w == awaited[n].number;
            if (!awaited[n].from || there) continue;
            all = false;
            late = awaited[n].rank;
        }
        return all;
    });
    if (ok) return;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
#pragma unroll
        for (u32 p = 0; p < PACKETS; ++p) v[n][p] = make_uint4(0, 0, 0, 0);
    }
}

// One block's part in a collective. If the run ends meanwhile, what is sent and stored is of no use to anybody, and nobody looks
// at it: all threads still meet.
struct Post {
    const Work& w;
    const Block& block;
    const Party party;
    const u32 kind, world, me, lane;
    u32 mine;          // which member this rank is
    u32 other;         // rank of member `lane`: each lane of a warp knows about one:
    bool sends, gets;  // whether it gets cards, and whether they come from it,
    u32 sent, taken;   // how many so far,
    u32 taken_by_it;   // and how many of those sent it has taken, as far as this rank knew at the beginning

    // `targets` and `sources` of cards.
    DEV Post(const Work& work, const Block& b, u32 what, u32 targets, u32 sources)
        : w(work), block(b), party(work), kind(what), world(b.launch()->world), me(b.launch()->rank), lane(b.lane()) {
        other = lane < party.count() ? party.rank(lane) : me;
        mine = __ffs(__ballot_sync(0xffffffffu, lane < party.count() && other == me)) - 1;
        sends = other != me && targets >> lane & 1;
        gets = other != me && sources >> lane & 1;
        // Said in earlier works, and so known before this one may begin.
        wait_done_before(shared_state(), shared_state().workers[block.warp()].taken);
        const uint4 fields = load_relaxed_everywhere(reinterpret_cast<const uint4*>(&channel()));
        const Channel said{fields.x, fields.y, fields.z};
        taken_by_it = said.taken_there;
        sent = said.sent;
        taken = said.taken;
    }
    DEV const Tensor& out() const { return in_shared(w.operands[0]); }
    DEV const Tensor& x() const { return in_shared(w.operands[1]); }
    DEV bool is_first_warp() const { return block.warp() == 0; }  // whose lanes look after their channels
    static DEV char* mail_of(u32 rank) { return in_global(in_shared(shared_state().mails[rank])); }
    DEV Channel& channel() const { return channel_in(mail_of(me), world, other); }
    // Where this rank's cards go, and what was taken is told.
    DEV uint4* card_there(u32 rank, u32 card) const { return card_in(mail_of(rank), world, me, card); }
    DEV uint4* card_here(u32 rank, u32 card) const { return card_in(mail_of(me), world, rank, card); }
    DEV u32* taken_there() const { return &channel_in(mail_of(other), world, me).taken_there; }

    // The n-th member behind this one; n up to their number, which is this one itself. Each begins there, so that not all write to one.
    DEV u32 behind(u32 n) const { return mine + n < party.count() ? mine + n : mine + n - party.count(); }

    // Each warp looks for itself: it is there nearly always, and they need not meet.
    DEV void wait_for_room() const {
        const u32 least = sent + 1 - CARD_PLACES;
        if (sends && static_cast<i32>(taken_by_it - least) < 0) wait_for_count(&channel().taken_there, least, other);
        __syncwarp();
    }
    // What the channels say, for the next work.
    DEV void end() const {
        if (!is_first_warp() || !(sends || gets)) return;
        store_relaxed(&channel().sent, sent);
        store_relaxed(&channel().taken, taken);
    }
};
