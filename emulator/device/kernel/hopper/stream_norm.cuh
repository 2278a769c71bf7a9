// Rows of a that a NORM would have made. A product that does one itself (emulator/device/paths/fusion.py) has the rows that the
// NORM would have read; each of its blocks normalises them all, behind the sums in the staging, by the formula of norm.cuh.
#pragma once
#ifdef HOPPER
#include "exchange.cuh"
#include "rows.cuh"
#include "hopper/stream_operands.cuh"

template <u32 DTYPE> DEV float2 unpack_pair(u32 word) {
    if (DTYPE == DTYPE_BF16) return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
    return make_float2(f32_from_f16(static_cast<u16>(word)), f32_from_f16(static_cast<u16>(word >> 16)));
}
DEV u32 word_of(const uint4& v, u32 k) { return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w; }

// One vector of the gain or of the bias, which are rows of `channels`. What is not there is read from x: no branch is in the way.
template <u32 DTYPE> struct StreamChannel {
    const Tensor& tensor;
    bool there;
    const char* begin;
    uint4 raw;

    DEV StreamChannel(const Tensor& channels, bool exists, u32 row, const Tensor& x)
        : tensor(exists ? channels : x), there(exists), begin(element(tensor, exists && row ? channels.strides[0] : 0)) {}
    DEV void load(u32 vector) {
        const char* p = begin + vector * VECTOR_BYTES;
        raw = range_in_bounds(tensor, p, VECTOR_BYTES) ? *reinterpret_cast<const uint4*>(p) : make_uint4(0, 0, 0, 0);
    }
    // Two elements; `instead`, as they would lie in memory, where there are none.
    DEV float2 pair(u32 k, u32 instead) const { return unpack_pair<DTYPE>(there ? word_of(raw, k) : instead); }
};

// Both, of one vector.
template <u32 DTYPE> struct StreamChannels {
    StreamChannel<DTYPE> gain, bias;

    DEV StreamChannels(const Work& w, u32 flags)
        : gain(w.operands[CHANNELS_SLOT], flags & NORM_GAIN, flags & BIAS_FIRST, w.operands[1]),
          bias(w.operands[CHANNELS_SLOT], flags & NORM_BIAS, !(flags & BIAS_FIRST), w.operands[1]) {}
    DEV void load(u32 vector) {
        gain.load(vector);
        bias.load(vector);
    }
    // The normalised vector: `raw` was the row's.
    DEV uint4 finish(const uint4& raw, f32 centre, f32 scale) const {
        constexpr u32 ONES = DTYPE == DTYPE_BF16 ? 0x3f803f80u : 0x3c003c00u;
        u32 words[4];
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const float2 v = unpack_pair<DTYPE>(word_of(raw, k)), factor = gain.pair(k, ONES), term = bias.pair(k, 0);
            const f32 low = fmaf((v.x - centre) * scale, factor.x, term.x), high = fmaf((v.y - centre) * scale, factor.y, term.y);
            words[k] = DTYPE == DTYPE_BF16 ? pack_bf16(low, high) : pack_f16(low, high);
        }
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
};

DEV f32 mean_share(u32 vectors) { return fast_reciprocal(static_cast<f32>(vectors * VECTOR)); }

template <u32 DTYPE> struct StreamNorm {
    // One thread of a row's team: its vectors are `threads` apart, and stay where they are.
    const Tensor& x;
    u32 rows, vectors, team, threads, thread, part;

    DEV StreamNorm(const Tensor& given, u32 count, u32 index)
        : x(given), rows(count), vectors(given.dims[given.rank - 1] / VECTOR), team(3), thread(index) {
        while (team && rows > WORKER_WARPS >> team) --team;
        threads = WARP << team;
        part = thread & threads - 1;
    }
    DEV u32 first_row() const { return thread >> 5 + team; }
    DEV char* place(u32 row) const { return shared_memory + NORMALISED_AT + (row * vectors + part) * VECTOR_BYTES; }
    DEV const char* from(u32 row) const { return element(x, row < rows ? row_offset(x, row) : 0) + part * VECTOR_BYTES; }

    DEV void fetch(char* to, const char* from) const {
#pragma unroll 1
        for (u32 i = part; i < vectors; i += threads, to += threads * VECTOR_BYTES, from += threads * VECTOR_BYTES)
            copy_async_16(to, from, range_in_bounds(x, from, VECTOR_BYTES) ? VECTOR_BYTES : 0);
        copy_async_commit();
        copy_async_wait<0>();
    }
    template <class F> DEV f32 sum(const char* places, u32 exchange, F term) const {
        f32 sums[VECTOR] = {};
#pragma unroll 1
        for (u32 i = part; i < vectors; i += threads, places += threads * VECTOR_BYTES) {
            f32 v[VECTOR];
            read(places, v);
#pragma unroll
            for (u32 k = 0; k < VECTOR; ++k) sums[k] = term(v[k], sums[k]);
        }
        return fold_team<Sum>(fold_tree<Sum>(sums), thread, team, exchange);
    }
    DEV static void read(const char* place, f32 (&v)[VECTOR]) {
        const uint4 raw = *reinterpret_cast<const uint4*>(place);
        RawVector{raw, raw}.unpack(DTYPE, v);
    }
};

// Waits for the present work's operands and leaves its rows, one behind the other, at NORMALISED_AT, for all workers, who call it
// together; false if the run is over. A call: the weights stay in their registers meanwhile.
template <u32 DTYPE> DEV_CALL bool make_normalised_rows(u32 rows, u32 flags, f32 eps) {
    const Workers me;
    const Work& w = in_shared(me.work());
    const StreamNorm<DTYPE> norm(w.operands[1], rows, me.thread());
    StreamChannels<DTYPE> channels(w, flags);
    const u32 first = norm.part < norm.vectors ? norm.part : 0;
    channels.load(first);
    const f32 share = mean_share(norm.vectors);
    u32 row = norm.first_row();
    const char* from = norm.from(row);
    if (!me.wait_ready()) return false;
#pragma unroll 1
    for (; row < rows; row += WORKER_WARPS >> norm.team, from = norm.from(row)) {
        char* place = norm.place(row);
        norm.fetch(place, from);
        f32 centre = 0.0f;
        if (flags & NORM_CENTRED) centre = norm.sum(place, 0, [](f32 v, f32 sum) { return sum + v; }) * share;
        const f32 scale = rsqrtf(norm.sum(place, 1, [&](f32 v, f32 sum) { return fmaf(v - centre, v - centre, sum); }) * share + eps);
#pragma unroll 1
        for (u32 i = norm.part; i < norm.vectors; i += norm.threads, place += norm.threads * VECTOR_BYTES) {
            if (i != first) channels.load(i);
            *reinterpret_cast<uint4*>(place) = channels.finish(*reinterpret_cast<const uint4*>(place), centre, scale);
        }
    }
    me.sync();
    return true;
}

// The same of one row in which each thread has a vector at most, as most have: straight code, and the vector in registers.
template <u32 DTYPE> struct StreamNormOfOne {
    static DEV_CALL bool make(u32 flags, f32 eps, u32 takes) {
        const Workers me;
        const Work& w = in_shared(me.work());
        const Tensor& x = w.operands[1];
        const u32 vectors = x.dims[x.rank - 1] / VECTOR, thread = me.thread(), first = thread < vectors ? thread : 0;
        const bool mine = thread < vectors;
        StreamChannels<DTYPE> channels(w, flags);
        channels.load(first);
        const f32 share = mean_share(vectors);
        const char* from = (takes ? exchange_at(w, takes) : element(x, 0)) + first * VECTOR_BYTES;
        f32* const exchange = reinterpret_cast<f32*>(shared_memory + STAGING_AT);
        if (!me.wait_ready()) return false;
        const uint4 raw = takes ? taken(from) : range_in_bounds(x, from, VECTOR_BYTES) ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
        f32 centre = 0.0f;
        if (flags & NORM_CENTRED) centre = fold(exchange, mine ? sum(raw, [](f32 v) { return v; }) : 0.0f, me) * share;
        const f32 power = sum(raw, [&](f32 v) { return (v - centre) * (v - centre); });
        const f32 scale = rsqrtf(fold(exchange + WORKER_WARPS, mine ? power : 0.0f, me) * share + eps);
        if (mine) *reinterpret_cast<uint4*>(shared_memory + NORMALISED_AT + thread * VECTOR_BYTES) = channels.finish(raw, centre, scale);
        me.sync();
        return true;
    }

  private:
    // From the exchange. After a trap, whatever is there: the other warps count on this one.
    static DEV uint4 taken(const char* from) {
        const Launch* const launch = shared_state().launch;
        uint4 raw;
        const auto look = [&] {
            raw = load_relaxed_16(reinterpret_cast<const f32*>(from));
            return __all_sync(0xffffffffu, most_of(raw) != NOT_THERE);
        };
        if (!spin(launch, look, [&] { raise(launch, TRAP_TIMEOUT, present_instruction(), WAITED_FOR_RESULTS); })) stop(shared_state());
        return raw;
    }
    template <class F> static DEV f32 sum(const uint4& raw, F of) {
        f32 terms[VECTOR];
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const float2 v = unpack_pair<DTYPE>(word_of(raw, k));
            terms[2 * k] = of(v.x);
            terms[2 * k + 1] = of(v.y);
        }
        return fold_tree<Sum>(terms);
    }
    // As fold_team does it.
    static DEV f32 fold(f32* exchange, f32 value, const Workers& me) {
#pragma unroll
        for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
        const u32 thread = me.thread();
        if (thread % WARP == 0) exchange[thread / WARP] = value;
        me.sync();
        const float4 low = *reinterpret_cast<const float4*>(exchange), high = *reinterpret_cast<const float4*>(exchange + 4);
        return ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
    }
};

// Whichever of the two: rows of the present work, by its schedule.
template <u32 DTYPE> DEV bool normalise_rows(const StreamSchedule& s, u32 rows) {
    if (s.norm & NORM_OF_ONE) return StreamNormOfOne<DTYPE>::make(s.norm, s.eps, s.takes);
    return make_normalised_rows<DTYPE>(rows, s.norm, s.eps);
}
#endif
