// What ranks send each other. Each has memory for mail, which the others write to: for each of its blocks, and each rank, a
// channel and two places. A block sends to the blocks of its own number, on the other ranks, and to nobody else. What goes from
// rank to rank is cut into parcels. All ranks have the same plan, so a parcel is the same block's everywhere, and blocks execute
// collectives in program order: the n-th parcel from a rank's block belongs to the n-th exchange with it, and needs no name.
//
// A channel counts parcels, as a ring of shared memory does its stages: the sender waits until the place is free, fills it, and
// says that one more has arrived; the receiver waits for that, reads, and says that one more was taken. What both have said in
// a launch that ended, they agree on in the next one.
//
// A parcel of up to 4 KB is a *card*: between each two of its words is its number, and eight bytes are written as one. So the
// reader sees of each word whether it is there, and the writer need not wait for what it wrote to be there before it says so,
// which takes as long as the way itself. (NCCL's protocol LL does the same.) Cards have places of their own: what else lies in
// a place could be taken for a number.
#pragma once
#include "vectors.cuh"
#include "views.cuh"

// A collective as this rank sees it: what the plan says of the ranks of its group, its members (paths/parties.py).
struct Party {
    u32 ranks, whom;
    DEV explicit Party(const Work& w) : ranks(in_shared(w).detail[PARTY_AT]), whom(in_shared(w).detail[PARTY_AT + 1]) {}
    DEV u32 count() const { return whom & 15; }
    DEV u32 rank(u32 member) const { return ranks >> 4 * member & 15; }
    DEV bool sends_to(u32 member) const { return whom >> (8 + member) & 1; }
    DEV bool gets_from(u32 member) const { return whom >> (16 + member) & 1; }
};

// Elements of a part of x, or of all of it where all go to everybody.
DEV i64 part_of(const Work& w, u32 kind) {
    const Tensor& x = in_shared(w.operands[1]);
    return kind & X_IN_PARTS ? x.elements() / Party(w).count() : x.elements();
}

// How these are packed into parcels: as many as there are blocks, if they are worth it and fit.
constexpr u32 SMALL_PARCEL = 2048;
struct Parcels {
    u32 elements, count;
    DEV Parcels(i64 all, u32 item_bytes) {
        const i64 bytes = all * item_bytes, share = (bytes + gridDim.x - 1) / gridDim.x;
        const u32 of_one = share > PARCEL_BYTES ? PARCEL_BYTES : max(SMALL_PARCEL, static_cast<u32>(share + 255) / 256 * 256);
        elements = of_one / item_bytes;
        count = static_cast<u32>((all + elements - 1) / elements);
    }
};
static_assert(PARCEL_BYTES % 256 == 0, "rounded up, a parcel still fits");

constexpr u32 CARD_BYTES = WORKER_THREADS * VECTOR_BYTES;  // of x: a chunk for each thread
static_assert(CARD_PLACE_BYTES == 2 * CARD_BYTES, "with the numbers");

// This block's channel in the mail of a rank: what it and the rank `with` say to each other there.
DEV Channel& channel_in(char* mail, u32 world, u32 with) { return reinterpret_cast<Channel*>(mail)[blockIdx.x * world + with]; }
// Where parcels of the rank `from` lie, and which of its places is the one for parcel number `parcel`.
DEV char* place_in(char* mail, u32 world, u32 from, u32 parcel) {
    const u64 channels = static_cast<u64>(gridDim.x) * world * sizeof(Channel);
    return mail + channels + ((static_cast<u64>(blockIdx.x) * world + from) * PARCEL_PLACES + parcel % PARCEL_PLACES) * PARCEL_BYTES;
}
DEV uint4* card_in(char* mail, u32 world, u32 from, u32 parcel) {
    const u64 before = static_cast<u64>(gridDim.x) * world * (sizeof(Channel) + PARCEL_PLACES * PARCEL_BYTES);
    return reinterpret_cast<uint4*>(mail + before + ((static_cast<u64>(blockIdx.x) * world + from) * PARCEL_PLACES + parcel % PARCEL_PLACES) * CARD_PLACE_BYTES);
}

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
// What is no sum, as isa/instructions/allreduce.py has it: of equal numbers the first, NaN if one is.
DEV f32 other_fold(u32 sub, f32 a, f32 b) {
    const bool second = sub == ALLREDUCE_MAX ? b > a : b < a;
    return sub == ALLREDUCE_PROD ? __fmul_rn(a, b) : second || b != b ? b : a;
}
DEV u32 fold_integers(u32 sub, u32 a, u32 b) {
    const bool second = sub == ALLREDUCE_MAX ? static_cast<i32>(b) > static_cast<i32>(a) : static_cast<i32>(b) < static_cast<i32>(a);
    return sub == ALLREDUCE_SUM ? a + b : sub == ALLREDUCE_PROD ? a * b : second ? b : a;
}
static_assert(ALLREDUCE_MEAN == REDUCESCATTER_MEAN && ALLREDUCE_MAX == REDUCESCATTER_MAX && ALLREDUCE_MIN == REDUCESCATTER_MIN &&
              ALLREDUCE_PROD == REDUCESCATTER_PROD, "the same folds");

// The fold of 16 bytes of each member, one after the other; rounded once.
struct Fold {
    u32 dtype, sub;

    // `sums`: eight floats, or four integers.
    DEV void begin(f32 (&sums)[VECTOR], uint4 v) const { unpack(v, sums); }
    DEV void add(f32 (&sums)[VECTOR], uint4 v) const {
        f32 more[VECTOR];
        unpack(v, more);
        if (dtype == DTYPE_I32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR / 2; ++k)
                sums[k] = __uint_as_float(fold_integers(sub, __float_as_uint(sums[k]), __float_as_uint(more[k])));
        } else if (sub == ALLREDUCE_SUM || sub == ALLREDUCE_MEAN) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] = __fadd_rn(sums[k], more[k]);
        } else {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] = other_fold(sub, sums[k], more[k]);
        }
    }
    DEV uint4 end(f32 (&sums)[VECTOR], u32 members) const {
        if (dtype == DTYPE_I32)
            return make_uint4(__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]), __float_as_uint(sums[3]));
        if (sub == ALLREDUCE_MEAN) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] = __fdiv_rn(sums[k], static_cast<f32>(members));
        }
        return RawVector::pack(dtype, sums).low;
    }

  private:
    DEV void unpack(uint4 v, f32 (&to)[VECTOR]) const { RawVector{v, v}.unpack(dtype == DTYPE_I32 ? static_cast<u32>(DTYPE_F32) : dtype, to); }
};

// Waits for another rank, in one thread. Calls, so that what waits has registers left.
template <class Done> DEV void wait_for_rank(u32 rank, Done done) {
    const Launch* launch = shared_state().launch;
    if (!spin(launch, done, [&] { raise(launch, TRAP_TIMEOUT, present_instruction(), WAITED_FOR_RANK, rank); })) stop(shared_state());
}
DEV_CALL void wait_for_count(const u32* count, u32 least, u32 rank) {
    wait_for_rank(rank, [&] { return static_cast<i32>(load_acquire_everywhere(count) - least) >= 0; });
}
DEV_CALL uint4 read_card(const uint4* from, u32 number, u32 rank) {
    uint4 low = {}, high = {};
    wait_for_rank(rank, [&] {
        low = load_relaxed_everywhere(from);
        high = load_relaxed_everywhere(from + 1);
        return low.y == number && low.w == number && high.y == number && high.w == number;
    });
    return make_uint4(low.x, low.z, high.x, high.z);
}

// One block's part in a collective: its parcels go to all members that get them, and of those that come the result is made. If
// the run ends meanwhile, what is sent and stored is of no use to anybody, and nobody looks at it: all threads still meet.
struct Post {
    static constexpr u32 CHUNKS = 2;  // of 16 bytes, of a parcel, that are on their way to a thread at the same time
    static constexpr u32 TURN = CHUNKS * WORKER_THREADS;

    const Work& w;
    const Block& block;
    const Party party;
    const u32 kind, world, me, lane;
    const Mailbox* boxes;
    char* const mail;
    u32 other;            // rank of member `lane`: each lane of a warp knows about one,
    u32 sent, taken;      // parcels to it and from it,
    bool looks;           // and those of the first warp look after its channel
    const i64 part;       // elements of a part
    const Parcels parcels;

    DEV Post(const Work& work, const Block& b, u32 what)
        : w(work), block(b), party(work), kind(what), world(b.launch()->world), me(b.launch()->rank), lane(b.lane()),
          boxes(b.launch()->mailboxes), mail(boxes[me].mail),
          part(part_of(work, what)), parcels(part, x().item_bytes) {
        other = lane < party.count() ? party.rank(lane) : me;
        looks = lane < party.count() && other != me && block.warp() == 0;
        // Said in earlier works, and so known before this one may begin.
        wait_done_before(shared_state(), shared_state().workers[block.warp()].taken);
        sent = load_relaxed(&channel().sent);
        taken = load_relaxed(&channel().taken);
    }
    DEV Channel& channel() const { return channel_in(mail, world, other); }
    DEV const Tensor& out() const { return in_shared(w.operands[0]); }
    DEV const Tensor& x() const { return in_shared(w.operands[1]); }

    // Each warp looks for itself: it is there nearly always, and they need not meet.
    DEV void wait_for_room() const {
        if (lane < party.count() && other != me && party.sends_to(lane))
            wait_for_count(&channel().taken_there, sent + 1 - PARCEL_PLACES, other);
        __syncwarp();
    }
    // What was read has been used, so it was read: nothing has to be waited for.
    DEV void say_taken() {
        if (lane >= party.count() || !party.gets_from(lane)) return;
        taken += 1;
        if (looks) store_relaxed_everywhere(&channel_in(boxes[other].mail, world, me).taken_there, taken);
    }
    // A parcel lies in a place as chunks of 16 bytes. Those that are 16 bytes in `t`, too, are moved at once, several of them on
    // their way at the same time; of others there are few, or nobody waits for them: they go element by element. Gives the
    // number of those that come first.
    DEV u32 at_once(const Tensor& t, bool in_parts, u32 elements) const {
        const u32 item = t.item_bytes;
        const bool aligned = reinterpret_cast<u64>(t.data) % VECTOR_BYTES == 0 && (!in_parts || part * item % VECTOR_BYTES == 0);
        return t.contiguous && aligned ? elements * item / VECTOR_BYTES : 0;
    }
    DEV u32 chunk(u32 first, u32 k) const { return first + k * WORKER_THREADS + block.thread(); }
    DEV char* place(u32 member, u32 places, char* of, u32 from) const { return place_in(of, world, from, places >> member & 1); }
    DEV char* theirs(u32 member, u32 places) const { return place(member, places, mail, party.rank(member)); }

    DEV void send(i64 begin, u32 elements) {
        const u32 places = __ballot_sync(0xffffffffu, sent % PARCEL_PLACES), each = VECTOR_BYTES / x().item_bytes;
        const u32 whole = at_once(x(), kind & X_IN_PARTS, elements);
#pragma unroll 1
        for (u32 m = 0; m < party.count(); ++m) {
            if (!party.sends_to(m)) continue;
            const i64 first = (kind & X_IN_PARTS ? m * part : 0) + begin;
            auto* const to = reinterpret_cast<uint4*>(place(m, places, boxes[party.rank(m)].mail, me));
            const auto* const from = reinterpret_cast<const uint4*>(in_global(x().data + first * x().item_bytes));
#pragma unroll 1
            for (u32 turn = 0; turn < whole; turn += TURN) {
                uint4 chunks[CHUNKS];
#pragma unroll
                for (u32 i = 0; i < CHUNKS; ++i)
                    if (chunk(turn, i) < whole && holds(x(), from + chunk(turn, i))) chunks[i] = from[chunk(turn, i)];
#pragma unroll
                for (u32 i = 0; i < CHUNKS; ++i)
                    if (chunk(turn, i) < whole) to[chunk(turn, i)] = chunks[i];
            }
#pragma unroll 1
            for (u32 c = whole + block.thread(); c * each < elements; c += WORKER_THREADS)
                to[c] = gather_elements(x(), first + c * each, min(each, elements - c * each));
        }
        block.sync();
        if (lane < party.count() && party.sends_to(lane)) {  // to itself as well
            sent += 1;
            if (looks) store_release_everywhere(&channel_in(boxes[other].mail, world, me).arrived, sent);
        }
    }

    DEV void receive(i64 begin, u32 elements, u32 sub) {
        if (looks && party.gets_from(lane))
            wait_for_count(&channel().arrived, taken + 1, other);
        const u32 places = __ballot_sync(0xffffffffu, taken % PARCEL_PLACES);
        block.sync();
        if (kind & FOLDS) fold(begin, elements, sub, places);
        else keep(begin, elements, places);
        block.sync();
        say_taken();
    }
    // All members send.
    DEV void fold(i64 begin, u32 elements, u32 sub, u32 places) const {
        const u32 members = party.count(), whole = at_once(out(), false, elements), each = VECTOR_BYTES / out().item_bytes;
        const Fold all{out().dtype, sub};
        auto* const to = reinterpret_cast<uint4*>(in_global(out().data + begin * out().item_bytes));
#pragma unroll 1
        for (u32 turn = 0; turn < whole; turn += TURN) {
            f32 sums[CHUNKS][VECTOR];
#pragma unroll 1
            for (u32 m = 0; m < members; ++m) {
                const auto* const from = reinterpret_cast<const uint4*>(theirs(m, places));
                uint4 brought[CHUNKS];
#pragma unroll
                for (u32 k = 0; k < CHUNKS; ++k)
                    if (chunk(turn, k) < whole) brought[k] = __ldcg(from + chunk(turn, k));
#pragma unroll
                for (u32 k = 0; k < CHUNKS; ++k) {
                    if (m == 0) all.begin(sums[k], brought[k]);
                    else all.add(sums[k], brought[k]);
                }
            }
#pragma unroll
            for (u32 k = 0; k < CHUNKS; ++k)
                if (chunk(turn, k) < whole && holds(out(), to + chunk(turn, k))) to[chunk(turn, k)] = all.end(sums[k], members);
        }
#pragma unroll 1
        for (u32 c = whole + block.thread(); c * each < elements; c += WORKER_THREADS) {
            f32 few[VECTOR];
            all.begin(few, __ldcg(reinterpret_cast<const uint4*>(theirs(0, places)) + c));
#pragma unroll 1
            for (u32 m = 1; m < members; ++m) all.add(few, __ldcg(reinterpret_cast<const uint4*>(theirs(m, places)) + c));
            scatter_elements(out(), begin + c * each, min(each, elements - c * each), all.end(few, members));
        }
    }
    // What comes stays as it is; from nobody come zeros.
    DEV void keep(i64 begin, u32 elements, u32 places) const {
        const u32 whole = at_once(out(), kind & OUT_IN_PARTS, elements), each = VECTOR_BYTES / out().item_bytes;
        const bool none = party.whom >> 16 == 0;
#pragma unroll 1
        for (u32 m = 0; m < (none ? 1 : party.count()); ++m) {
            if (!none && !party.gets_from(m)) continue;
            const i64 first = (kind & OUT_IN_PARTS ? m * part : 0) + begin;
            const auto* const from = reinterpret_cast<const uint4*>(theirs(m, places));
            auto* const to = reinterpret_cast<uint4*>(in_global(out().data + first * out().item_bytes));
#pragma unroll 1
            for (u32 turn = 0; turn < whole; turn += TURN) {
                uint4 chunks[CHUNKS];
#pragma unroll
                for (u32 i = 0; i < CHUNKS; ++i) {
                    chunks[i] = make_uint4(0, 0, 0, 0);
                    if (chunk(turn, i) < whole && !none) chunks[i] = __ldcg(from + chunk(turn, i));
                }
#pragma unroll
                for (u32 i = 0; i < CHUNKS; ++i)
                    if (chunk(turn, i) < whole && holds(out(), to + chunk(turn, i))) to[chunk(turn, i)] = chunks[i];
            }
#pragma unroll 1
            for (u32 c = whole + block.thread(); c * each < elements; c += WORKER_THREADS)
                scatter_elements(out(), first + c * each, min(each, elements - c * each), none ? make_uint4(0, 0, 0, 0) : __ldcg(from + c));
        }
    }

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
    // One card to each that gets one, and the result of those that come: each thread has a chunk of all of them.
    DEV void exchange_card(i64 begin, u32 elements, u32 sub) {
        const u32 each = VECTOR_BYTES / x().item_bytes, first = block.thread() * each;
        const u32 count = first < elements ? min(each, elements - first) : 0;
        const i64 at = begin + first;
        uint4 v = {}, own = {};
        if (count && !(kind & X_IN_PARTS)) v = own = chunk_at(at, count);
#pragma unroll 1
        for (u32 m = 0; m < party.count(); ++m) {
            const u32 number = __shfl_sync(0xffffffffu, sent, m) + 1;
            if (!count || !party.sends_to(m)) continue;
            if (kind & X_IN_PARTS) v = chunk_at(m * part + at, count);
            if (party.rank(m) == me) {
                own = v;
            } else {
                uint4* const to = card_in(boxes[party.rank(m)].mail, world, me, number - 1) + 2 * block.thread();
                store_relaxed_everywhere(to, make_uint4(v.x, number, v.y, number));
                store_relaxed_everywhere(to + 1, make_uint4(v.z, number, v.w, number));
            }
        }
        const Fold all{out().dtype, sub};
        f32 sums[VECTOR];
#pragma unroll 1
        for (u32 m = 0; m < party.count(); ++m) {
            const u32 number = __shfl_sync(0xffffffffu, taken, m) + 1;
            if (!count || !party.gets_from(m)) continue;
            v = party.rank(m) == me ? own : read_card(card_in(mail, world, party.rank(m), number - 1) + 2 * block.thread(), number, party.rank(m));
            if (!(kind & FOLDS)) keep_chunk((kind & OUT_IN_PARTS ? m * part : 0) + at, count, v);
            else if (m == 0) all.begin(sums, v);
            else all.add(sums, v);
        }
        if (count && kind & FOLDS) keep_chunk(at, count, all.end(sums, party.count()));
        else if (count && party.whom >> 16 == 0) keep_chunk(at, count, make_uint4(0, 0, 0, 0));
        block.sync();
        if (lane < party.count() && party.sends_to(lane)) sent += 1;
        say_taken();
    }

    DEV bool begin() const {
        wait_for_room();
        return block.begin();
    }
    DEV i64 begin_of(u32 parcel) const { return static_cast<i64>(parcel) * parcels.elements; }
    DEV u32 elements_of(u32 parcel) const { return static_cast<u32>(min(static_cast<i64>(parcels.elements), part - begin_of(parcel))); }
    // What the channels say, for the next work.
    DEV void end() const {
        if (!looks) return;
        store_relaxed(&channel().sent, sent);
        store_relaxed(&channel().taken, taken);
    }
};
static_assert(PARCEL_PLACES == 2, "a bit says which");

// Parcel `tile`, which is a card.
DEV_CALL void exchange_cards(const Work& w, u32 tile, const Block& block, u32 kind, u32 sub) {
    Post post(w, block, kind);
    if (!post.begin()) return;
    post.exchange_card(post.begin_of(tile), post.elements_of(tile), sub);
    post.end();
}
// Parcels `tile`, `tile + gridDim.x`, ...: each is sent before the one that came before it is read.
DEV_CALL void exchange_parcels(const Work& w, u32 tile, const Block& block, u32 kind, u32 sub) {
    Post post(w, block, kind);
    if (!post.begin()) return;
    post.send(post.begin_of(tile), post.elements_of(tile));
#pragma unroll 1
    for (u32 parcel = tile; parcel < post.parcels.count; parcel += gridDim.x) {
        const u32 next = parcel + gridDim.x;
        if (next < post.parcels.count) {
            post.wait_for_room();
            post.send(post.begin_of(next), post.elements_of(next));
        }
        post.receive(post.begin_of(parcel), post.elements_of(parcel), sub);
    }
    post.end();
}
DEV void take_part(const Work& w, u32 tile, const Block& block, u32 kind, u32 sub) {
    const u32 item = in_shared(w.operands[1]).item_bytes;
    if (Parcels(part_of(w, kind), item).elements * item <= CARD_BYTES) exchange_cards(w, tile, block, kind, sub);
    else exchange_parcels(w, tile, block, kind, sub);
}
