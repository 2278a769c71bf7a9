// Large collectives: the ranks reach into each other's memory. Once a block has all that it depends on, it lets the blocks of its
// number on the other ranks know where its x and its result lie; when it has heard from them, it reads what it needs of theirs and
// writes what they need of its own, 16 bytes at a time; and when it has told them so, and has heard the same from them, it is done:
// nobody reads its x any longer, and its result is there.
//
// What is not set on every way has a value nonetheless: else the compiler holds its register from the launch's start on, and the
// hot paths spill.
//
// Of an ALLREDUCE, each member folds a part and writes it to all: so every byte goes over a rank's link twice at most, however many
// they are, and all get the same bits. As a part is read and written by one member alone, thread by thread, out may be x.
#pragma once
#include "mail.cuh"
#include "rank_fold.cuh"

// Whether the first and the last element of a tensor without gaps are inside of it. Only the checked build asks.
DEV bool holds_all(const Tensor& t) {
    return t.elements() == 0 || (in_bounds(t, t.data) && in_bounds(t, t.data + (t.elements() - 1) * t.item_bytes));
}

struct DirectPost : Post {
    static constexpr u32 UNDER_WAY = 8;  // chunks of 16 bytes that come to a thread at the same time, from all members alike
    static constexpr u32 COPIED = 4;     // and those that it moves without folding

    u64 its_x, its_out;    // of member `lane`
    const u64 part_bytes;  // of what each rank brings to another

    // Who folds needs all of x and out. Else members write to each other, and those that are written to say where.
    DEV DirectPost(const Work& work, const Block& b, u32 what)
        : Post(work, b, what, Party(work).sources(), Party(work).targets()),
          part_bytes(static_cast<u64>(part_of(work, what)) * x().item_bytes) {}

    // Tells the others where x and out lie, and hears the same from them: addresses of vectors, below 2^52, of which three words
    // hold two. False if the run is over, or for this warp so.
    DEV bool meet() {
        wait_for_room();
        its_x = reinterpret_cast<u64>(in_global(x().data));
        its_out = reinterpret_cast<u64>(in_global(out().data));
        if (sends && is_first_warp()) {
            fence_everywhere();  // what this block has waited for, others may rely on
            const u64 own_x = its_x / VECTOR_BYTES, own_out = its_out / VECTOR_BYTES;
            const u32 ends = static_cast<u32>(own_x >> 32) | static_cast<u32>(own_out >> 32) << 16;
            write_packet(card_there(other, sent), sent + 1, make_uint4(static_cast<u32>(own_x), static_cast<u32>(own_out), ends, 0));
        }
        if (sends) sent += 1;
        if (gets) {
            const uint4* const from = card_here(other, taken);
            const Awaited awaited[1] = {{from, taken + 1, other}};
            uint4 come[1][1] = {};
            read_cards(awaited, 1, come);
            const uint4 both = come[0][0];
            its_x = (static_cast<u64>(both.z & 0xffff) << 32 | both.x) * VECTOR_BYTES;
            its_out = (static_cast<u64>(both.z >> 16) << 32 | both.y) * VECTOR_BYTES;
            load_acquire_everywhere(&from->w);  // its number; a fence would wait for the cards that this rank has sent
        }
        __syncwarp();  // all lanes read and write where one of them has heard that they may
        return __all_sync(0xffffffffu, its_x != 0 && holds_all(x()) && holds_all(out()));
    }
    // All of the block have read and written. Tells the others, and waits until they have.
    DEV void part_company() {
        block.sync();
        if (gets) taken += 1;
        if (is_first_warp()) {
            if (gets) store_release_everywhere(taken_there(), taken);
            if (sends) wait_for_count(&channel().taken_there, sent, other);
        }
        block.sync();
    }

    DEV const uint4* x_of(u32 member, u64 offset) const { return reinterpret_cast<const uint4*>(__shfl_sync(0xffffffffu, its_x, member) + offset); }
    DEV uint4* out_of(u32 member, u64 offset) const { return reinterpret_cast<uint4*>(__shfl_sync(0xffffffffu, its_out, member) + offset); }

    // This block's share of chunks [begin, end): calls act(first, end) for a turn of all threads.
    template <u32 CHUNKS, class Act> DEV void walk(u32 begin, u32 end, u32 tile, Act act) const {
        const u32 all = end - begin, share = ((all + gridDim.x - 1) / gridDim.x + WARP - 1) / WARP * WARP;
        const u32 first = begin + min(all, tile * share), last = min(end, first + share);
#pragma unroll 1
        for (u32 turn = first; turn < last; turn += CHUNKS * WORKER_THREADS) act(turn + block.thread(), last);
    }
    DEV void fold(u32 tile, u32 sub) const {
        if (party.count() <= 2) fold_of<2>(tile, sub);
        else if (party.count() <= 4) fold_of<4>(tile, sub);
        else fold_of<8>(tile, sub);
    }
    // Of so many members at most.
    template <u32 MOST> DEV void fold_of(u32 tile, u32 sub) const {
        constexpr u32 CHUNKS = UNDER_WAY / MOST;
        const u32 members = party.count(), chunks = static_cast<u32>(part_bytes / VECTOR_BYTES);
        const bool to_all = !(kind & X_IN_PARTS);
        const u32 piece = to_all ? (chunks + members - 1) / members : chunks, begin = to_all ? min(chunks, mine * piece) : 0;
        const u64 from = to_all ? 0 : mine * part_bytes;
        const Fold all(out().dtype, sub);
        walk<CHUNKS>(begin, min(chunks, begin + piece), tile, [&](u32 first, u32 end) {
            uint4 brought[MOST][CHUNKS] = {};
#pragma unroll
            for (u32 m = 0; m < MOST; ++m) {
                if (m >= members) break;
                const uint4* const theirs = x_of(m, from);
#pragma unroll
                for (u32 k = 0; k < CHUNKS; ++k)
                    if (first + k * WORKER_THREADS < end) brought[m][k] = __ldcg(theirs + first + k * WORKER_THREADS);
            }
            uint4 result[CHUNKS] = {};
            Sums<VECTOR_BYTES / sizeof(u32)> sums[CHUNKS] = {};
            all.begin(sums, brought[0], CHUNKS);
#pragma unroll
            for (u32 m = 1; m < MOST; ++m) {
                if (m >= members) break;
                all.add(sums, brought[m], CHUNKS);
            }
            all.end(result, sums, CHUNKS, members);
#pragma unroll 1
            for (u32 n = to_all ? 1 : members; n <= members; ++n) {
                uint4* const theirs = out_of(behind(n), 0);
#pragma unroll
                for (u32 k = 0; k < CHUNKS; ++k)
                    if (first + k * WORKER_THREADS < end) theirs[first + k * WORKER_THREADS] = result[k];
            }
        });
    }
    // From nobody come zeros.
    DEV void put(u32 tile) const {
        const u32 members = party.count(), chunks = static_cast<u32>(part_bytes / VECTOR_BYTES);
#pragma unroll 1
        for (u32 n = 1; n <= members; ++n) {
            const u32 m = behind(n);
            if (party.targets() >> m & 1) copy(x_of(mine, kind & X_IN_PARTS ? m * part_bytes : 0), out_of(m, kind & OUT_IN_PARTS ? mine * part_bytes : 0), chunks, tile);
        }
        if (party.sources() == 0) copy(nullptr, out_of(mine, 0), chunks, tile);
    }
    DEV void copy(const uint4* from, uint4* to, u32 chunks, u32 tile) const {
        if (from == to) return;
        walk<COPIED>(0, chunks, tile, [&](u32 first, u32 end) {
            uint4 v[COPIED] = {};
#pragma unroll
            for (u32 k = 0; k < COPIED; ++k)
                if (from && first + k * WORKER_THREADS < end) v[k] = __ldcg(from + first + k * WORKER_THREADS);
#pragma unroll
            for (u32 k = 0; k < COPIED; ++k)
                if (first + k * WORKER_THREADS < end) to[first + k * WORKER_THREADS] = v[k];
        });
    }
};

// Whether it is worth that: where the plan allows it, all ranks see the same. A card goes to each member, with its numbers, and of
// what lies in memory no more than two shares, so it is worth it earlier where there are many.
DEV bool is_direct(const Work& w, u32 kind) {
    const Tensor& out = in_shared(w.operands[0]);
    const Tensor& x = in_shared(w.operands[1]);
    const i64 bytes = part_of(w, kind) * x.item_bytes;
    const u32 copies = kind ? Party(w).count() : 2;  // BROADCAST and PERMUTE have the least to send
    return Party(w).may_reach() && x.contiguous && out.contiguous && bytes % VECTOR_BYTES == 0 && bytes * copies > static_cast<i64>(gridDim.x) * DIRECT_BYTES;
}
DEV_CALL void exchange_directly(const Work& w, u32 tile, const Block& block, u32 kind, u32 sub) {
    DirectPost post(w, block, kind);
    if (!block.begin()) return;
    if (post.meet()) {
        if (kind & FOLDS) post.fold(tile, sub);
        else post.put(tile);
    }
    post.part_company();
    post.end();
}
