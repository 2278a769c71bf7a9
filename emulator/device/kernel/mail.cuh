// What ranks send each other, and what they let each other reach. Each has memory for mail, which the others write to: for each
// of its blocks, and each rank, a channel and two places. A block sends to the blocks of its own number, on the other ranks, and
// to nobody else. All ranks have the same plan, so what a block has to do is the same block's everywhere, and blocks execute
// collectives in program order: the n-th card from a rank's block belongs to the n-th exchange with it, and needs no name.
//
// A card is 8 KB at most: between each two of its words is its number, and eight bytes are written as one. So the reader sees of
// each word whether it is there, and the writer need not wait for what it wrote to be there before it says so, which takes as long
// as the way itself. (NCCL's protocol LL does the same.) What is small goes on cards (cards.cuh). Of what is large, cards say where
// it lies, and the ranks reach into each other's memory (direct.cuh).
//
// A channel counts cards, as a ring of shared memory does its stages: the sender waits until the place is free, and fills it; the
// receiver waits for the number, reads, and says that one more was taken. What both have said in a launch that ended, they agree on
// in the next one.
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

// Chunks of 16 bytes, so many for each thread. The first halves of all of them, with the numbers, lie together, and behind them the
// second halves: a warp writes whole lines.
constexpr u32 CHUNKS_OF_ONE = 2, CARD_CHUNKS = CHUNKS_OF_ONE * WORKER_THREADS, CARD_BYTES = CARD_CHUNKS * VECTOR_BYTES;
static_assert(CARD_PLACE_BYTES == 2 * CARD_BYTES, "with the numbers");

static_assert(sizeof(Channel) == sizeof(uint4), "read at once");
// This block's channel in the mail of a rank: what it and the rank `with` say to each other there.
DEV Channel& channel_in(char* mail, u32 world, u32 with) { return reinterpret_cast<Channel*>(mail)[blockIdx.x * world + with]; }
// Where cards of the rank `from` lie: the place for number `card`.
DEV uint4* card_in(char* mail, u32 world, u32 from, u32 card) {
    const u64 channels = static_cast<u64>(gridDim.x) * world * sizeof(Channel), place = blockIdx.x * world + from;
    return reinterpret_cast<uint4*>(mail + channels + (place * CARD_PLACES + card % CARD_PLACES) * CARD_PLACE_BYTES);
}

// Waits for another rank, in one thread; false if the run is over. Calls, so that what waits has registers left.
template <class Done> DEV bool wait_for_rank(u32 rank, Done done) {
    const Launch* launch = shared_state().launch;
    const bool ok = spin(launch, done, [&] { raise(launch, TRAP_TIMEOUT, present_instruction(), WAITED_FOR_RANK, rank); });
    if (!ok) stop(shared_state());
    return ok;
}
DEV_CALL void wait_for_count(const u32* count, u32 least, u32 rank) {
    wait_for_rank(rank, [&] { return static_cast<i32>(load_acquire_everywhere(count) - least) >= 0; });
}
// The chunk of a card that is at `from`, once it is there; zeros if the run is over.
DEV_CALL uint4 read_card(const uint4* from, u32 number, u32 rank) {
    uint4 low = {}, high = {};
    const bool ok = wait_for_rank(rank, [&] {
        low = load_relaxed_everywhere(from);
        high = load_relaxed_everywhere(from + CARD_CHUNKS);
        return low.y == number && low.w == number && high.y == number && high.w == number;
    });
    return ok ? make_uint4(low.x, low.z, high.x, high.z) : make_uint4(0, 0, 0, 0);
}
DEV void write_card(uint4* to, u32 number, uint4 v) {
    store_relaxed_everywhere(to, make_uint4(v.x, number, v.y, number));
    store_relaxed_everywhere(to + CARD_CHUNKS, make_uint4(v.z, number, v.w, number));
}

// One block's part in a collective. If the run ends meanwhile, what is sent and stored is of no use to anybody, and nobody looks
// at it: all threads still meet.
struct Post {
    const Work& w;
    const Block& block;
    const Party party;
    const u32 kind, world, me, lane;
    const Mailbox* boxes;
    char* const mail;
    u32 other;         // rank of member `lane`: each lane of a warp knows about one:
    bool sends, gets;  // whether it gets cards, and whether they come from it,
    u32 sent, taken;   // how many so far,
    u32 taken_by_it;   // and how many of those sent it has taken, as far as this rank knew at the beginning

    // `targets` and `sources` of cards.
    DEV Post(const Work& work, const Block& b, u32 what, u32 targets, u32 sources)
        : w(work), block(b), party(work), kind(what), world(b.launch()->world), me(b.launch()->rank), lane(b.lane()),
          boxes(b.launch()->mailboxes), mail(boxes[me].mail) {
        other = lane < party.count() ? party.rank(lane) : me;
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
    DEV Channel& channel() const { return channel_in(mail, world, other); }
    // Where this rank's cards go, and what was taken is told.
    DEV uint4* card_there(u32 rank, u32 card) const { return card_in(boxes[rank].mail, world, me, card); }
    DEV uint4* card_here(u32 rank, u32 card) const { return card_in(mail, world, rank, card); }
    DEV u32* taken_there() const { return &channel_in(boxes[other].mail, world, me).taken_there; }

    DEV bool begin() const {
        wait_for_room();
        return block.begin();
    }
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
