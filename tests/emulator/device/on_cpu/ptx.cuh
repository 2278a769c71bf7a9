// The machine's own instructions (ptx.cuh) for the device on CPU. Copies that are asynchronous land late, in any order.
#pragma once
#include "clock.cuh"
#include <deque>
#include <functional>
#include <map>

inline u32 shared_address(const void* p) {
    const u64 at = reinterpret_cast<const char*>(p) - shared_memory;
    if (at >= 232448) broken("an address outside shared memory");
    return static_cast<u32>(at);
}
INLINED char* shared_at(u32 address) {
    if (address >= 232448) broken("an address outside shared memory");
    return shared_memory + address;
}
template <class T> const T& in_shared(const T& v) { shared_address(&v); return v; }
inline char* in_global(char* p) { return p; }
inline u32 thread_index_anew() { return threadIdx.x; }
inline u32 blocks_anew() { return gridDim.x; }
inline char* shared_memory_anew() { return shared_memory; }
template <class T> inline T yielded(const T* p, const char* where) { yield_(where); return *p; }
inline u32 load_acquire(const u32* p) { return yielded(p, "a counter"); }
inline u32 load_relaxed(const u32* p) { return yielded(p, "a counter"); }
inline void store_relaxed(u32* p, u32 v) { *p = v; ++progress_; }
inline u32 load_acquire_everywhere(const u32* p) { return yielded(p, "another rank"); }
inline void store_release_everywhere(u32* p, u32 v) { *p = v; ++progress_; }
static u32 draw();
// Neighbouring pairs of words arrive together, and no more than that.
inline uint4 load_relaxed_everywhere(const uint4* p) {
    const uint4 v = yielded(p, "another rank");
    const uint4 later = draw() % 2 ? yielded(p, "another rank") : v;
    return make_uint4(v.x, v.y, later.z, later.w);
}
// All four arrive together.
inline uint4 load_whole_everywhere(const uint4* p) { return yielded(p, "another rank"); }
inline void store_whole_everywhere(uint4* p, uint4 v) {
    yield_("others");
    *p = v;
    ++progress_;
}
inline void store_relaxed_everywhere(u32* p, u32 v) { *p = v; ++progress_; }
inline uint2 load_relaxed_8(const f32* p) { yield_("numbers"); return *reinterpret_cast<const uint2*>(p); }
inline void store_relaxed_8(f32* p, uint2 v) { *reinterpret_cast<uint2*>(p) = v; ++progress_; }
// It takes time, as the emulated clock hardly moves by itself, and a warp that polls together makes progress of a kind.
inline uint4 load_relaxed_16(const f32* p) { clock_ += 10000; yield_("numbers"); return *reinterpret_cast<const uint4*>(p); }
inline void load_relaxed_16_if(uint4& v, const f32* p, bool again) {
    if (again) v = load_relaxed_16(p);
}
inline void store_relaxed_16(f32* p, uint4 v) { *reinterpret_cast<uint4*>(p) = v; ++progress_; }
inline void count_relaxed(u32* p, u32 last) { *p = *p >= last ? 0 : *p + 1; ++progress_; }
inline void add_release(u32* p, u32 v) { *p += v; ++progress_; }
inline u32 fetch_add_acq_rel(u32* p, u32 v) { const u32 o = *p; *p += v; ++progress_; return o; }
inline u32 fetch_count_relaxed(u32* p, u32 last) { const u32 o = *p; *p = o >= last ? 0 : o + 1; ++progress_; return o; }
inline u32 fetch_add_shared(u32* p, u32 v) { shared_address(p); const u32 o = *p; *p += v; return o; }
inline u32 compare_and_swap(u32* p, u32 e, u32 d) { const u32 o = *p; if (o == e) *p = d; ++progress_; return o; }
inline void fence_gpu() {}
inline void fence_everywhere() {}
inline void fence_proxy_global() {}
inline void fence_proxy_shared() {}
inline void fence_barrier_init() {}
template <u32 N> void give_registers() {}
template <u32 N> void take_registers() {}
inline bool elect_one() { return lane_() == 0; }
inline void pin(f32&) {}
inline void hold(f32) {}
template <u32 N> inline void hold(const char* const (&)[N]) {}
template <class... T> inline void hold_all(const T&...) {}
inline u32 anew(u32 v) { return v; }
inline void nap() {}
inline void named_barrier(u32 id, u32 threads) { named_(id, threads, true); }
inline void named_barrier_arrive(u32 id, u32 threads) { named_(id, threads, false); }

// ---- mbarriers ----
struct Mbarrier {
    u64 phase : 1, count : 12, pending : 12, bytes : 39;  // bytes: that copies still have to bring, plus BIAS
    static constexpr u64 BIAS = 1ull << 30;
    void settle() {
        if (pending == 0 && bytes == BIAS) {
            phase = phase ^ 1;
            pending = count;
            ++progress_;
        }
    }
};
static_assert(sizeof(Mbarrier) == 8, "as the hardware's");
inline Mbarrier& barrier_at(u64* b) { shared_address(b); return *reinterpret_cast<Mbarrier*>(b); }
inline void mbarrier_init(u64* b, u32 count) { Mbarrier& m = barrier_at(b); m.phase = 0; m.count = m.pending = count; m.bytes = Mbarrier::BIAS; }
inline void mbarrier_end(u64*) {}
inline void mbarrier_arrive(u64* b) {
    Mbarrier& m = barrier_at(b);
    if (m.pending == 0) broken("one arrival too many at an mbarrier");
    m.pending = m.pending - 1;
    ++progress_;
    m.settle();
}
// Others may go on before this warp does.
inline void warp_arrive(u64* b, u32 lane) { warp_barrier(); if (lane < ARRIVING_LANES) mbarrier_arrive(b); yield_("others"); }
inline void warp_arrive(u64* b) { warp_arrive(b, lane_()); }
inline void mbarrier_arrive_expect(u64* b, u32 bytes) { Mbarrier& m = barrier_at(b); m.bytes = m.bytes + bytes; mbarrier_arrive(b); }
// The other block of the pair, for a moment.
struct Peer {
    u32 block = fibers_[current_].block;
    u64 offset;
    explicit Peer(const void* p) : offset(reinterpret_cast<const char*>(p) - shared_memory) { fibers_[current_].block ^= 1; }
    ~Peer() { fibers_[current_].block = block; }
    template <class T> T* there() const { return reinterpret_cast<T*>(shared_memory + offset); }
};
inline void mbarrier_arrive_there(u64* b) {
    if (gridDim.x % PAIR || PAIR == 1) broken("a block without a pair");
    const Peer peer(b);
    mbarrier_arrive(peer.there<u64>());
}
inline void pair_end() {
    NamedBarrier& pair = blocks_[fibers_[current_].block / PAIR * PAIR].pair;
    const unsigned generation = pair.generation;
    ++progress_;
    if (++pair.count == PAIR * blockDim.x) {
        pair.count = 0;
        ++pair.generation;
    } else {
        while (pair.generation == generation) yield_("its pair");
    }
}
inline void pair_begin() { pair_end(); }
inline bool mbarrier_test(u64* b, u32 parity) { yield_("an mbarrier"); return barrier_at(b).phase != parity; }
inline bool mbarrier_passed(u64* b, u32 parity) { return mbarrier_test(b, parity); }
inline void move_descriptor(u64& d, u32 by) { d = d >> 32 << 32 | static_cast<u32>(d + by); }
inline bool mbarrier_test_at(u32 b, u32 phase) { return mbarrier_test(reinterpret_cast<u64*>(shared_at(b)), phase); }
template <u32 OFFSET> void mbarrier_arrive_at(u32 b) { mbarrier_arrive(reinterpret_cast<u64*>(shared_at(b + OFFSET))); }
template <u32 OFFSET> void mbarrier_arrive_there_at(u32 b) { mbarrier_arrive_there(reinterpret_cast<u64*>(shared_at(b + OFFSET))); }

// ---- copies of a thread ----
struct Groups { std::deque<std::vector<std::function<void()>>> done; std::vector<std::function<void()>> open; };
static std::vector<Groups> copies_;  // by fiber
inline void copy_async_16(void* shared, const void* global, u32 bytes) {
    if (reinterpret_cast<u64>(shared) % 16 || reinterpret_cast<u64>(global) % 16) broken("a misaligned copy");
    shared_address(shared);
    copies_[current_].open.push_back([=] { memset(shared, 0, 16); if (bytes) memcpy(shared, global, bytes); });
}
inline void copy_async_16_cached(void* shared, const void* global) { copy_async_16(shared, global, 16); }
inline void commit_(Groups& g) { g.done.push_back(std::move(g.open)); g.open.clear(); }
inline void wait_(Groups& g, u32 left) {
    while (g.done.size() > left) { for (auto& f : g.done.front()) f(); g.done.pop_front(); }
}
inline void prefetch(const char*) {}
inline void copy_async_commit() { commit_(copies_[current_]); }
template <u32 N> void copy_async_wait() { wait_(copies_[current_], N); }

// ---- shared memory by address ----
template <class T> T read_shared_(u32 a) { if (a % sizeof(T)) broken("a misaligned shared load"); T v; memcpy(&v, shared_at(a), sizeof v); return v; }
template <class T> void write_shared_(u32 a, T v) { if (a % sizeof(T)) broken("a misaligned shared store"); memcpy(shared_at(a), &v, sizeof v); }
inline u32 load_shared(u32 a) { return read_shared_<u32>(a); }
inline u32 load_shared_1(u32 a) { return read_shared_<u32>(a); }
inline uint4 load_shared_16(u32 a) { return read_shared_<uint4>(a); }
inline uint4 load_shared_16_if(u32 a, bool wanted) { return wanted ? read_shared_<uint4>(a) : make_uint4(0, 0, 0, 0); }
inline void load_shared_2(u32 (&v)[2], u32 a) { const uint2 both = read_shared_<uint2>(a); v[0] = both.x; v[1] = both.y; }
inline void load_shared_2(f32 (&v)[2], u32 a) { const float2 both = read_shared_<float2>(a); v[0] = both.x; v[1] = both.y; }
inline void store_shared(u32 a, u32 v) { write_shared_(a, v); }
inline void store_shared(u32 a, float2 v) { write_shared_(a, v); }
inline void store_shared(u32 a, uint4 v) { write_shared_(a, v); }

// ---- matrices ----
inline void check_row_(u32 address) { if (address % 16) broken("a misaligned row of a matrix"); }
inline void load_matrix_any(u32 (&r)[4], u32 address, bool across) {
    check_row_(address);
    WarpState& w = warp_();
    const u32 l = lane_();
    w.words[l][0] = address;
    warp_barrier();
    for (u32 m = 0; m < 4; ++m) {
        u16 low, high;
        if (!across) {
            const u16* row = reinterpret_cast<const u16*>(shared_at(w.words[m * 8 + l / 4][0]));
            low = row[l % 4 * 2];
            high = row[l % 4 * 2 + 1];
        } else {
            low = reinterpret_cast<const u16*>(shared_at(w.words[m * 8 + l % 4 * 2][0]))[l / 4];
            high = reinterpret_cast<const u16*>(shared_at(w.words[m * 8 + l % 4 * 2 + 1][0]))[l / 4];
        }
        r[m] = low | static_cast<u32>(high) << 16;
    }
    warp_barrier();
}
inline void load_matrix_x4(u32 (&r)[4], u32 a) { load_matrix_any(r, a, false); }
inline void load_matrix_x4_transposed(u32 (&r)[4], u32 a) { load_matrix_any(r, a, true); }
inline void store_matrix_any(u32 address, const u32 (&r)[4], bool transposed) {
    check_row_(address);
    WarpState& w = warp_();
    const u32 l = lane_();
    w.words[l][0] = address;
    warp_barrier();
    for (u32 m = 0; m < 4; ++m)
        for (u32 c = 0; c < 2; ++c) {
            const u32 row = transposed ? l % 4 * 2 + c : l / 4, column = transposed ? l / 4 : l % 4 * 2 + c;
            write_shared_(w.words[m * 8 + row][0] + column * 2, static_cast<u16>(r[m] >> c * 16));
        }
    warp_barrier();
}
inline void store_matrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) { store_matrix_any(address, {r0, r1, r2, r3}, false); }
inline void store_matrix_x4_transposed(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) { store_matrix_any(address, {r0, r1, r2, r3}, true); }
INLINED f32 f32_from_f16(u16 h) { _Float16 f; memcpy(&f, &h, 2); return static_cast<f32>(f); }
inline u16 f16_from_f32(f32 v) { const _Float16 f = static_cast<_Float16>(v); u16 h; memcpy(&h, &f, 2); return h; }
INLINED f32 f32_from_bf16(u16 h) { return __uint_as_float(static_cast<u32>(h) << 16); }
inline u16 bf16_from_f32(f32 f) { const u32 u = __float_as_uint(f); return isnan(f) ? 0x7fff : static_cast<u16>((u + 0x7fff + (u >> 16 & 1)) >> 16); }
inline u32 pack_bf16(f32 l, f32 h) { return bf16_from_f32(l) | static_cast<u32>(bf16_from_f32(h)) << 16; }
inline u32 pack_f16(f32 l, f32 h) { return f16_from_f32(l) | static_cast<u32>(f16_from_f32(h)) << 16; }
inline f32 fast_exp2(f32 x) { return std::exp2(x); }
inline f32 fast_reciprocal(f32 x) { return 1.0f / x; }
inline f32 max_nan(f32 a, f32 b) { return isnan(a) || isnan(b) ? NAN : a > b ? a : b; }
inline f32 min_nan(f32 a, f32 b) { return isnan(a) || isnan(b) ? NAN : a < b ? a : b; }
inline u32 max_nan_bf16x2(u32 a, u32 b) {
    return pack_bf16(max_nan(f32_from_bf16(a), f32_from_bf16(b)), max_nan(f32_from_bf16(a >> 16), f32_from_bf16(b >> 16)));
}
inline u32 max_nan_f16x2(u32 a, u32 b) {
    return pack_f16(max_nan(f32_from_f16(a), f32_from_f16(b)), max_nan(f32_from_f16(a >> 16), f32_from_f16(b >> 16)));
}
template <class F> void mma_any(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, F to) {
    WarpState& w = warp_();
    const u32 l = lane_();
    for (u32 i = 0; i < 4; ++i) w.words[l][i] = a[i];
    w.words[l][4] = b0;
    w.words[l][5] = b1;
    warp_barrier();
    // Rows l / 4 and the eighth below, columns l % 4 * 2 and the next: four results at once, each summed up in order of k.
    using Four = f32 __attribute__((vector_size(16)));
    const u32 row = l / 4 * 4, left = l % 4 * 8, right = left + 4;
    Four sums = {d[0], d[1], d[2], d[3]};
    for (u32 k = 0; k < 16; ++k) {
        const u32 lane = k % 8 / 2, half = k / 8, shift = k % 2 * 16;
        const auto at = [&](u32 of, u32 word) { return to(static_cast<u16>(w.words[of + lane][word] >> shift)); };
        const f32 up = at(row, half * 2), down = at(row, half * 2 + 1), l_b = at(left, 4 + half), r_b = at(right, 4 + half);
        sums += Four{up, up, down, down} * Four{l_b, r_b, l_b, r_b};
    }
    for (u32 e = 0; e < 4; ++e) d[e] = sums[e];
    warp_barrier();
}
inline void mma_bf16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_any(d, a, b0, b1, f32_from_bf16); }
inline void mma_f16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_any(d, a, b0, b1, f32_from_f16); }
INLINED f32 tf32_(u32 bits) { return __uint_as_float(bits & ~0x1fffu); }
inline void mma_tf32(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {  // m16n8k8
    WarpState& w = warp_();
    const u32 l = lane_();
    for (u32 i = 0; i < 4; ++i) w.words[l][i] = a[i];
    w.words[l][4] = b0;
    w.words[l][5] = b1;
    warp_barrier();
    for (u32 e = 0; e < 4; ++e) {
        const u32 row = l / 4 + e / 2 * 8, column = l % 4 * 2 + e % 2;
        f32 s = d[e];
        for (u32 k = 0; k < 8; ++k) s += tf32_(w.words[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2]) * tf32_(w.words[column * 4 + k % 4][4 + k / 4]);
        d[e] = s;
    }
    warp_barrier();
}
inline void warpgroup_fence() {}
inline void warpgroup_commit() {}
template <u32 N> void warpgroup_wait() {}
