// TOPK: a block per row. Short rows are sorted in shared memory. Of long ones, what cannot be among the results is left out
// first; where that leaves too much, the best element is found K times.
#pragma once
#include "reduction.cuh"
#include "vectors.cuh"
#include "views.cuh"

// An element's place in the order: smaller keys come first, then lower indices.
struct Candidate {
    u64 key;
    u32 index;

    DEV bool before(const Candidate& other) const {
        return key < other.key || (key == other.key && index < other.index);
    }
};

struct TopkHandler {
    static constexpr u32 SCRATCH = SCRATCH_BYTES;
    static constexpr u32 SORTED = 8192;   // rows up to this length are sorted; a power of two
    static constexpr u32 FEW = 4;         // of more than that many results
    static constexpr u32 LAST = 0xffffffffu;
    static constexpr u32 AT_ONCE = 4;     // vectors that a thread has on their way
    static_assert(SORTED * sizeof(Candidate) <= SCRATCH_BYTES, "a row fits in shared memory");

    static DEV u32 tiles(const TopkArgs& args) {
        const Tensor& out = args.out();
        if (out.dims[out.rank - 1] > args.x().dims[args.x().rank - 1]) return 1;  // which traps
        return out.dims[out.rank - 1] == 0 ? 0 : static_cast<u32>(Walk(out, leading_axes(out, 1)).count);
    }

    // The order of an element as an unsigned number. By bits, so that subnormals differ from 0 in every build.
    static DEV u64 key_of(f32 v, bool smallest) {
        const u32 raw = __float_as_uint(v);
        const u32 bits = (raw & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : raw << 1 == 0 ? 0 : raw;
        const u32 ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
        return smallest ? ascending : ~ascending;
    }
    static DEV u64 key_of(const Tensor& x, i64 at, bool smallest) {
        if (is_float(x.dtype)) return key_of(load_f32(x, at), smallest);
        const u64 ascending = static_cast<u64>(load_i64(x, at)) ^ 1ull << 63;
        return smallest ? ascending : ~ascending;
    }

    // Calls f(key, index) for this thread's elements of the row that begins at `from`.
    template <class F> static DEV void each_key(const TopkArgs& args, i64 from, const Block& block, F f) {
        const Tensor& x = args.x();
        const u32 last = x.rank - 1, length = static_cast<u32>(x.dims[last]);
        const i64 stride = x.strides[last];
        const bool smallest = args.smallest();
        u32 begin = 0;
        if (is_float(x.dtype) && stride == 1 && reinterpret_cast<u64>(element(x, from)) % VECTOR_BYTES == 0) {
            const u32 vectors = length / VECTOR;
            begin = vectors * VECTOR;
#pragma unroll 1
            for (u32 i = block.thread(); i < vectors; i += AT_ONCE * WORKER_THREADS) {
                RawVector raw[AT_ONCE];
#pragma unroll
                for (u32 j = 0; j < AT_ONCE; ++j) {
                    const u32 vector = min(i + j * WORKER_THREADS, vectors - 1);  // loads without branches
                    raw[j] = RawVector::load(x, from + static_cast<i64>(vector) * VECTOR);
                }
#pragma unroll
                for (u32 j = 0; j < AT_ONCE; ++j) {
                    const u32 vector = i + j * WORKER_THREADS;
                    if (vector >= vectors) break;
                    f32 v[VECTOR];
                    raw[j].unpack(x.dtype, v);
#pragma unroll
                    for (u32 k = 0; k < VECTOR; ++k) f(key_of(v[k], smallest), vector * VECTOR + k);
                }
            }
        }
#pragma unroll 1
        for (u32 i = begin + block.thread(); i < length; i += WORKER_THREADS) f(key_of(x, from + i * stride, smallest), i);
    }

    // Sorts what may be among the first `wanted`, no more than there are threads, of a row; false if that is too much. The
    // best key of each thread is known after one look. As many elements as are wanted are no worse than the last of the best
    // so many of these keys, so what is worse is left out.
    static DEV_CALL bool select(const TopkArgs& args, i64 from, u32 wanted, const Block& block) {
        Candidate* const candidates = reinterpret_cast<Candidate*>(block.scratch());
        u64 best = ~0ull;
        each_key(args, from, block, [&](u64 key, u32) { best = key < best ? key : best; });
        candidates[block.thread()] = {best, block.thread()};
        block.sync();
        sort(candidates, WORKER_THREADS, block);
        const u64 limit = candidates[wanted - 1].key;
        u32& found = *reinterpret_cast<u32*>(shared_memory + STAGING_AT);
        if (block.thread() == 0) found = 0;
        block.sync();
        each_key(args, from, block, [&](u64 key, u32 index) {
            if (key <= limit) collect(candidates, found, key, index);
        });
        block.sync();
        const u32 count = found;
        if (count > SORTED) return false;
        u32 size = 1;
        while (size < count) size *= 2;
        for (u32 i = count + block.thread(); i < size; i += WORKER_THREADS) candidates[i] = {~0ull, LAST};
        block.sync();
        sort(candidates, size, block);
        return true;
    }
    // In any order: they are sorted.
    static DEV_CALL void collect(Candidate* candidates, u32& found, u64 key, u32 index) {
        const u32 at = fetch_add_shared(&found, 1);
        if (at < SORTED) candidates[at] = {key, index};
    }

    // Sorts `size` (a power of two) candidates in shared memory; bitonic (Batcher 1968).
    static DEV void sort(Candidate* c, u32 size, const Block& block) {
#pragma unroll 1
        for (u32 run = 2; run <= size; run *= 2) {
#pragma unroll 1
            for (u32 distance = run / 2; distance > 0; distance /= 2) {
#pragma unroll 1
                for (u32 i = block.thread(); i < size / 2; i += WORKER_THREADS) {
                    const u32 low = 2 * i - (i & (distance - 1)), high = low + distance;
                    const Candidate a = c[low], b = c[high];
                    if (((low & run) == 0) == b.before(a)) {
                        c[low] = b;
                        c[high] = a;
                    }
                }
                block.sync();
            }
        }
    }

    static DEV_CALL void run(const TopkArgs& args, u32 tile, const Block& block) {
        const Tensor& x = args.x();
        const Tensor& out = args.out();
        const u32 last = x.rank - 1, length = static_cast<u32>(x.dims[last]), wanted = static_cast<u32>(out.dims[last]);
        if (wanted > length) {
            if (block.thread() == 0) trap(block, TRAP_EXTENT, wanted);
            return;
        }
        const u32 rows = leading_axes(x, 1);
        const i64 from = Walk(x, rows).offset(tile), to = Walk(out, rows).offset(tile);
        const i64 index_to = args.has_indices() ? Walk(args.indices(), rows).offset(tile) : 0;
        const bool smallest = args.smallest();
        const auto write = [&](u32 k, u32 index) {
            move_element(out, to + k * out.strides[last], x, from + index * x.strides[last]);
            if (args.has_indices()) store_i64(args.indices(), index_to + k * args.indices().strides[last], index);
        };
        Candidate* const candidates = reinterpret_cast<Candidate*>(block.scratch());
        if (length > SORTED && wanted > 1 && wanted <= WORKER_THREADS && select(args, from, wanted, block)) {
            for (u32 k = block.thread(); k < wanted; k += WORKER_THREADS) write(k, candidates[k].index);
            return;
        }
        if (length <= SORTED && wanted > FEW) {
            u32 size = 1;
            while (size < length) size *= 2;
#pragma unroll 1
            for (u32 i = block.thread(); i < size; i += WORKER_THREADS) {
                candidates[i] = {~0ull, LAST};
                if (i < length) candidates[i] = {key_of(x, from + i * x.strides[last], smallest), i};
            }
            block.sync();
            sort(candidates, size, block);
#pragma unroll 1
            for (u32 k = block.thread(); k < wanted; k += WORKER_THREADS) write(k, candidates[k].index);
            return;
        }
        const Teams everyone(block, WORKER_THREADS, true);
        Candidate found{0, 0};
#pragma unroll 1
        for (u32 k = 0; k < wanted; ++k) {
            Candidate best{~0ull, LAST};
#pragma unroll 1
            for (u32 i = block.thread(); i < length; i += WORKER_THREADS) {
                const Candidate candidate{key_of(x, from + i * x.strides[last], smallest), i};
                if ((k == 0 || found.before(candidate)) && candidate.before(best)) best = candidate;
            }
            const auto first = [](const Candidate& a, const Candidate& b) { return a.before(b) ? a : b; };
            found = everyone.combine(block, best, first);
            if (block.thread() == 0) write(k, found.index);
        }
    }
};
