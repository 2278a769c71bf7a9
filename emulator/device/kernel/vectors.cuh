// The fast path of elementwise rows: eight neighbouring floats at a time, in loads and stores of 16 bytes.
#pragma once
#include "claims.cuh"

constexpr u32 VECTOR = 8;  // elements

// Whether eight elements of `t` from `p` on are inside it.
DEV bool holds_vector(const Tensor& t, const char* p) {
    return in_bounds(t, p) && in_bounds(t, p + (VECTOR - 1) * t.item_bytes);
}

// Eight elements as they are in memory.
struct RawVector {
    uint4 low;
    uint4 high;  // of f32 only

    // Where there are no higher elements, the lower ones are read once more: 16 bytes that come from a load on one way and
    // from elsewhere on another are what the compiler spills first.
    DEV static RawVector load(const char* p, u32 dtype) {
        const char* high = p + (dtype == DTYPE_F32 ? VECTOR_BYTES : 0);
        return {*reinterpret_cast<const uint4*>(p), *reinterpret_cast<const uint4*>(high)};
    }
    DEV static RawVector load(const Tensor& t, i64 offset) { return load_inside(t, element(t, offset)); }
    DEV static RawVector load_inside(const Tensor& t, const char* p) {
        return holds_vector(t, p) ? load(p, t.dtype) : none();
    }
    DEV static RawVector none() { return {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)}; }
    DEV void store(char* p, u32 dtype) const {
        *reinterpret_cast<uint4*>(p) = low;
        if (dtype == DTYPE_F32) *reinterpret_cast<uint4*>(p + VECTOR_BYTES) = high;
    }
    DEV void store(const Tensor& t, i64 offset) const {
        char* p = element(t, offset);
        if (holds_vector(t, p)) store(p, t.dtype);
    }
    DEV void unpack(u32 dtype, f32 (&v)[VECTOR]) const {
        const u32 words[VECTOR] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        if (dtype == DTYPE_F32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[k] = __uint_as_float(words[k]);
        } else if (dtype == DTYPE_BF16) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k)
                v[k] = __uint_as_float(k % 2 ? words[k / 2] & 0xffff0000u : words[k / 2] << 16);
        } else {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) v[k] = f32_from_f16(static_cast<u16>(words[k / 2] >> (k % 2 * 16)));
        }
    }
    // The same, such that the compiler does not keep what it becomes in a loop in registers over the loop.
    DEV RawVector read_anew() const {
        return {make_uint4(anew(low.x), anew(low.y), anew(low.z), anew(low.w)),
                make_uint4(anew(high.x), anew(high.y), anew(high.z), anew(high.w))};
    }
    DEV static RawVector pack(u32 dtype, const f32 (&v)[VECTOR]) {
        u32 words[VECTOR] = {};
        if (dtype == DTYPE_F32) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) words[k] = __float_as_uint(v[k]);
        } else if (dtype == DTYPE_BF16) {
#pragma unroll
            for (u32 k = 0; k < VECTOR; k += 2) words[k / 2] = pack_bf16(v[k], v[k + 1]);
        } else {
#pragma unroll
            for (u32 k = 0; k < VECTOR; k += 2) words[k / 2] = pack_f16(v[k], v[k + 1]);
        }
        return {make_uint4(words[0], words[1], words[2], words[3]), make_uint4(words[4], words[5], words[6], words[7])};
    }
};

// One float at `p`.
DEV f32 load_float(const Tensor& t, const char* p) {
    if (!in_bounds(t, p)) return 0.0f;
    if (t.dtype == DTYPE_F32) return *reinterpret_cast<const f32*>(p);
    const u16 half = *reinterpret_cast<const u16*>(p);
    return t.dtype == DTYPE_BF16 ? f32_from_bf16(half) : f32_from_f16(half);
}
DEV void store_float(const Tensor& t, char* p, f32 v) {
    if (!in_bounds(t, p)) return;
    if (t.dtype == DTYPE_F32) *reinterpret_cast<f32*>(p) = v;
    else *reinterpret_cast<u16*>(p) = t.dtype == DTYPE_BF16 ? bf16_from_f32(v) : f16_from_f32(v);
}

// Bytes of a vector of `dtype`.
DEV u32 vector_bytes(u32 dtype) { return dtype == DTYPE_F32 ? 2 * VECTOR_BYTES : VECTOR_BYTES; }

// Starts to copy the vector at `p`, if it exists, as below: no branch is in the way.
DEV void fetch_vector_if(bool exists, const char* p, u32 dtype, char* slot, u32 apart) {
    const u32 bytes = exists ? VECTOR_BYTES : 0;
    copy_async_16(slot, p, bytes);
    if (dtype == DTYPE_F32) copy_async_16(slot + apart, p + VECTOR_BYTES, bytes);
}
// Starts to copy the vector at `p` to shared memory: 16 bytes to `slot` and, of f32, 16 more `apart` behind. `shared`: other
// threads of the block read it as well.
DEV void fetch_vector(const char* p, u32 dtype, char* slot, u32 apart, bool shared) {
    if (shared) {
        copy_async_16_cached(slot, p);
        if (dtype == DTYPE_F32) copy_async_16_cached(slot + apart, p + VECTOR_BYTES);
    } else {
        copy_async_16(slot, p, VECTOR_BYTES);
        if (dtype == DTYPE_F32) copy_async_16(slot + apart, p + VECTOR_BYTES, VECTOR_BYTES);
    }
}
DEV RawVector fetched_vector(const char* slot, u32 apart, u32 dtype) {
    const char* high = slot + (dtype == DTYPE_F32 ? apart : 0);  // as in RawVector::load
    return {*reinterpret_cast<const uint4*>(slot), *reinterpret_cast<const uint4*>(high)};
}

// For several vectors the type is looked at once: then nothing stands between their loads, or their stores.
template <u32 DTYPE> constexpr u32 PLACE_BYTES = DTYPE == DTYPE_F32 ? 2 * LAYER : LAYER;  // from a fetched vector to the next

template <u32 N> DEV void unpack_all(const RawVector (&raw)[N], u32 dtype, f32 (&v)[N][VECTOR]) {
    const u32 type = anew(dtype);
    if (type == DTYPE_F32) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) raw[n].unpack(DTYPE_F32, v[n]);
    } else if (type == DTYPE_BF16) {
#pragma unroll
        for (u32 n = 0; n < N; ++n) raw[n].unpack(DTYPE_BF16, v[n]);
    } else {
#pragma unroll
        for (u32 n = 0; n < N; ++n) raw[n].unpack(DTYPE_F16, v[n]);
    }
}
template <u32 DTYPE, u32 N> DEV void read_fetched_as(const char* slot, f32 (&v)[N][VECTOR]) {
#pragma unroll
    for (u32 n = 0; n < N; ++n, slot += PLACE_BYTES<DTYPE>) {
        const char* high = slot + (DTYPE == DTYPE_F32 ? LAYER : 0);
        const RawVector raw{*reinterpret_cast<const uint4*>(slot), *reinterpret_cast<const uint4*>(high)};
        raw.unpack(DTYPE, v[n]);
    }
}
template <bool WIDE, u32 N> DEV void read_fetched(const char* slot, u32 dtype, f32 (&v)[N][VECTOR]) {
    if (WIDE) read_fetched_as<DTYPE_F32>(slot, v);
    else if (anew(dtype) == DTYPE_BF16) read_fetched_as<DTYPE_BF16>(slot, v);
    else read_fetched_as<DTYPE_F16>(slot, v);
}
// Writes the first `count` of v to `to` in tensor t.
template <u32 DTYPE, u32 N>
DEV void write_vectors_as(const Tensor& t, char* const (&to)[N], u32 count, const f32 (&v)[N][VECTOR]) {
#pragma unroll
    for (u32 n = 0; n < N; ++n)
        if (n < count && holds_vector(t, to[n])) RawVector::pack(DTYPE, v[n]).store(to[n], DTYPE);
}
template <u32 N>
DEV void write_vectors(const Tensor& t, u32 dtype, char* const (&to)[N], u32 count, const f32 (&v)[N][VECTOR]) {
    const u32 type = anew(dtype);
    if (type == DTYPE_F32) write_vectors_as<DTYPE_F32>(t, to, count, v);
    else if (type == DTYPE_BF16) write_vectors_as<DTYPE_BF16>(t, to, count, v);
    else write_vectors_as<DTYPE_F16>(t, to, count, v);
}

// Waits for the oldest of `depth` groups of copies. A call: what it looks at is kept in a predicate otherwise, of which there
// are few.
constexpr u32 MOST_GROUPS = 8;
DEV_CALL void wait_for_oldest(u32 depth) {
    switch (depth) {
        case 1: copy_async_wait<0>(); break;
        case 2: copy_async_wait<1>(); break;
        case 4: copy_async_wait<3>(); break;
        default: copy_async_wait<MOST_GROUPS - 1>();
    }
}

// The ways of elementwise handlers.
constexpr u32 WAY_VECTORS = 1;

// Measures operands that vectors of floats make up.
template <u32 N> DEV bool take_vectors(Merged<N>& all, const Work& w, u32 row_axes) {
    bool floats = true;
#pragma unroll
    for (u32 k = 0; k < N; ++k) floats &= is_float(w.operands[k].dtype);
    return floats && all.measure(w, VECTOR, row_axes);
}

// Vectors of each of N operands that a thread works on at once: less has to be worked out for each, and there is more to do
// while one waits. What it works on in a turn makes a stage; twice as much is under way, 64 KB of a block's on Hopper, whose workers
// have the registers for it. More only makes a queue.
#ifdef HOPPER
constexpr u32 STAGE_LAYERS = 8;
#else
constexpr u32 STAGE_LAYERS = 4;
#endif
constexpr u32 STAGE_BYTES = STAGE_LAYERS * LAYER, STAGES_AHEAD = 2;
template <u32 N, bool WIDE> constexpr u32 VECTORS_AT_ONCE = STAGE_LAYERS / (N - 1) / (WIDE ? 2 : 1);

// What a thread works on in each of its turns: AT_ONCE units, `apart` from each other. Where there is much, teams of half a block
// claim shares, units that lie together: 16 KB, because claims of less take as long as the turns between them. Else the units of
// all threads of all blocks lie side by side.
template <u32 AT_ONCE> struct UnitTurns {
    static constexpr u32 TEAMS = 2, TEAM_THREADS = WORKER_THREADS / TEAMS, PER_CLAIM = 8 / STAGE_LAYERS;
    static constexpr u32 TURN = AT_ONCE * TEAM_THREADS, SHARE = PER_CLAIM * TURN, AHEAD = STAGES_AHEAD / PER_CLAIM;
    Claims claims;
    u32 apart;
    u32 thread;  // of the team, or of all

    DEV UnitTurns(u32 where, u32 units, u32 tile, u32 tiles, const Block& block)
        : claims(where, (units + SHARE - 1) / SHARE, tile + block.thread() / TEAM_THREADS * tiles, TEAMS * tiles,
                 block.thread() / TEAM_THREADS, AHEAD),
          apart(TEAM_THREADS), thread(block.thread() % TEAM_THREADS) {
        if (claims.any()) {
            claims.begin(block, thread == 0);
            return;
        }
        thread = block.thread();
        apart = tiles * WORKER_THREADS;
        claims.first = tile * WORKER_THREADS;
    }
    // The first unit of a turn, of this team: behind the last one, there are no more turns.
    DEV u32 at(u32 turn) const {
        return claims.any() ? claims.at(turn / PER_CLAIM) * SHARE + turn % PER_CLAIM * TURN : claims.first + turn * AT_ONCE * apart;
    }
    // At the beginning of each turn.
    DEV void meet(u32 turn) {
        if (!claims.any() || turn % PER_CLAIM != 0) return;
        named_barrier(FIRST_FREE_BARRIER + claims.team, TEAM_THREADS);
        claims.claim(turn / PER_CLAIM, thread == 0);
    }
};

// Whether the elements that are read have 32 bits. All operands that are read have one type.
DEV bool reads_wide(const Work& w) { return in_shared(w).operands[1].dtype == DTYPE_F32; }

template <u32 N> DEV u32 vector_scratch(const Merged<N>& all) { return all.few() ? 0 : STAGES_AHEAD * STAGE_BYTES; }

// Units of a block, each thread's AT_ONCE at a time. `where`: see Claims::of. WIDE: elements of 32 bits are read.
template <bool WIDE, u32 N, class F> DEV void stream_units(const Streams<N>& all, u32 where, u32 tile, const Block& block, F f) {
    constexpr u32 SOURCES = N - 1, AT_ONCE = VECTORS_AT_ONCE<N, WIDE>, AXES = Merged<N>::AXES;
    constexpr u32 TYPE = WIDE ? DTYPE_F32 : DTYPE_BF16;  // or f16, which is copied alike
    constexpr u32 SOURCE_BYTES = AT_ONCE * PLACE_BYTES<TYPE>;
    static_assert(SOURCES * SOURCE_BYTES == STAGE_BYTES, "a stage");
    using Place = typename Merged<N>::Place;
    const u32 units = all.units, rows = all.rows(), dense = all.dense;
    const auto plain = [&] { return anew(rows) == 1; };  // then a unit's number says where it is
    const auto neighbours = [&](u32 k) { return (anew(dense) >> k & 1) != 0; };
    u32 repeated = 0;  // a bit for each tensor: other rows are read from the same place
#pragma unroll
    for (u32 k = 1; k < N; ++k) repeated |= (rows > 1 && all.bytes[k][0] == 0 ? 1u : 0u) << k;
    UnitTurns<AT_ONCE> turns(where, units, tile, all.tiles(), block);
    char* const mine = block.scratch() + block.thread() * VECTOR_BYTES;
    const Place by = all.template place<AXES>(plain() ? 0 : turns.apart);
    // Where AT_ONCE units, the first of them unit u, are in tensors `begin` to `end`.
    const auto locate = [&](char* (&at)[N][AT_ONCE], u32 begin, u32 end, u32 u) {
        if (plain()) {
#pragma unroll
            for (u32 k = 0; k < N; ++k) {
                if (k < begin || k >= end) continue;
                at[k][0] = all.data[k] + static_cast<u64>(u) * all.unit_bytes[k];
                const u64 apart = static_cast<u64>(turns.apart) * all.unit_bytes[k];
#pragma unroll
                for (u32 n = 1; n < AT_ONCE; ++n) at[k][n] = at[k][n - 1] + apart;
            }
        } else {
            Place p = all.template place<AXES>(u);
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; ++n) {
#pragma unroll
                for (u32 k = 0; k < N; ++k)
                    if (k >= begin && k < end) at[k][n] = all.template at<AXES>(k, p);
                all.template move<AXES>(p, by);
            }
        }
    };
    const auto fetch = [&](u32 base, u32 stage) {
        const u32 u = base + turns.thread;
        char* at[N][AT_ONCE];
        locate(at, 1, N, u);
#pragma unroll
        for (u32 k = 1; k < N; ++k) {
            if (!neighbours(k)) continue;
            const bool shared = N > 2 && (anew(repeated) >> k & 1);
            char* slot = mine + stage + (k - 1) * SOURCE_BYTES;
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; ++n, slot += PLACE_BYTES<TYPE>) {
                const bool exists = u + n * turns.apart < units && holds_vector(all.tensors[k], at[k][n]);
                if (shared && exists) fetch_vector(at[k][n], TYPE, slot, LAYER, true);
                if (!shared) fetch_vector_if(exists, at[k][n], TYPE, slot, LAYER);
            }
        }
        copy_async_commit();
    };
#pragma unroll 1
    for (u32 n = 0; n < STAGES_AHEAD; ++n) fetch(turns.at(n), n * STAGE_BYTES);
    u32 stage = 0;
#pragma unroll 1
    for (u32 turn = 0, base = turns.at(0); base < units; base = turns.at(++turn)) {
        copy_async_wait<STAGES_AHEAD - 1>();
        turns.meet(turn);
        const u32 unit = base + turns.thread;
        u32 count = 0;  // the others are whatever lies in their places
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; ++n) count += unit + n * turns.apart < units ? 1 : 0;
        f32 v[SOURCES][AT_ONCE][VECTOR];
#pragma unroll
        for (u32 k = 1; k < N; ++k) {
            if (neighbours(k)) {
                read_fetched<WIDE>(mine + stage + (k - 1) * SOURCE_BYTES, all.dtype[k], v[k - 1]);
            } else {
                char* at[N][AT_ONCE];
                locate(at, k, k + 1, unit);
#pragma unroll
                for (u32 n = 0; n < AT_ONCE; ++n) {
                    const f32 one = n < count ? load_float(all.tensors[k], at[k][n]) : 0.0f;
#pragma unroll
                    for (u32 i = 0; i < VECTOR; ++i) v[k - 1][n][i] = one;
                }
            }
        }
        fetch(turns.at(turn + STAGES_AHEAD), stage);
        f(v);
        char* to[N][AT_ONCE];
        locate(to, 0, 1, unit);
        write_vectors(all.tensors[0], all.dtype[0], to[0], count, v[0]);
        stage = stage + STAGE_BYTES < STAGES_AHEAD * STAGE_BYTES ? stage + STAGE_BYTES : 0;
    }
    copy_async_wait<0>();
}
