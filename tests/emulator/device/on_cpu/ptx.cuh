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
inline char* shared_at(u32 address) {
    if (address >= 232448) broken("an address outside shared memory");
    return shared_memory + address;
}
template <class T> const T& in_shared(const T& v) { shared_address(&v); return v; }
inline char* in_global(char* p) { return p; }
inline u32 thread_index_anew() { return threadIdx.x; }
inline char* shared_memory_anew() { return shared_memory; }
template <class T> inline T yielded(const T* p, const char* where) { yield_(where); return *p; }
inline u32 load_acquire(const u32* p) { return yielded(p, "a counter"); }
inline u32 load_relaxed(const u32* p) { return yielded(p, "a counter"); }
inline void store_relaxed(u32* p, u32 v) { *p = v; ++progress_; }
inline u32 load_acquire_everywhere(const u32* p) { return yielded(p, "another rank"); }
inline void store_release_everywhere(u32* p, u32 v) { *p = v; ++progress_; }
inline u32 load_relaxed_everywhere(const u32* p) { return yielded(p, "another rank"); }
static u32 draw();
// Neighbouring pairs of words arrive together, and no more than that.
inline uint4 load_relaxed_everywhere(const uint4* p) {
    const uint4 v = yielded(p, "another rank");
    const uint4 later = draw() % 2 ? yielded(p, "another rank") : v;
    return make_uint4(v.x, v.y, later.z, later.w);
}
inline void store_relaxed_everywhere(uint4* p, uint4 v) {
    const bool second = draw() % 2;
    reinterpret_cast<u64*>(p)[second] = second ? static_cast<u64>(v.w) << 32 | v.z : static_cast<u64>(v.y) << 32 | v.x;
    ++progress_;
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
inline void prefetch_map(const void*) {}
inline void fence_barrier_init() {}
template <u32 N> void give_registers() {}
template <u32 N> void take_registers() {}
inline bool elect_one() { return lane_() == 0; }
inline void pin(f32&) {}
inline void hold(f32) {}
inline u32 anew(u32 v) { return v; }
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
inline void warp_arrive(u64* b) { warp_barrier(); if (lane_() < ARRIVING_LANES) mbarrier_arrive(b); yield_("others"); }
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

// ---- the copy engine ----
struct HostMap {  // what tests encode instead of a CUtensorMap
    u64 address, dims[5], strides[5];  // strides in bytes, of each dim
    u32 box[5], rank, item, swizzle, im2col;
    i32 lower[3], upper[3];
    u32 traversal[5], pixels, channels;
};
static std::vector<std::function<void()>> in_flight_;
inline u32 swizzled_(u32 address, u32 width) {
    return width == 128 ? address ^ (address >> 7 & 7) << 4 : width == 64 ? address ^ (address >> 7 & 3) << 4 : width == 32 ? address ^ (address >> 7 & 1) << 4 : address;
}
inline void box_(const HostMap& m, char* block, u32 shared, const i32 (&c)[5]) {
    u32 extent[5], n = 1;
    for (u32 k = 0; k < 5; ++k) { extent[k] = k < m.rank ? m.box[k] : 1; n *= extent[k]; }
    for (u32 i = 0; i < n; ++i) {
        u32 rest = i;
        bool inside = true;
        u64 from = m.address;
        for (u32 k = 0; k < m.rank; ++k) {
            const i64 at = c[k] + static_cast<i64>(rest % extent[k]);
            rest /= extent[k];
            inside &= at >= 0 && at < static_cast<i64>(m.dims[k]);
            from += at * m.strides[k];
        }
        char* to = block + swizzled_(shared + i * m.item, m.swizzle);
        if (inside) memcpy(to, reinterpret_cast<const char*>(from), m.item);
        else memset(to, 0, m.item);
    }
}
inline void check_tile_(const HostMap& m, u32 shared) {
    if (shared % (m.swizzle == 128 ? 1024 : 128)) broken("a tile that is not aligned");
}
inline void land_(u64* full, u32 bytes) { Mbarrier& m = *reinterpret_cast<Mbarrier*>(full); m.bytes = m.bytes - bytes; ++progress_; m.settle(); }
inline void tensor_load_(u32 shared, const void* map, u64* full, const i32 (&c)[5], u32 rank) {
    const HostMap m = **reinterpret_cast<const HostMap* const*>(map);
    if (m.rank != rank || m.im2col) broken("a tensor map of another kind");
    check_tile_(m, shared);
    char* block = shared_memory;
    u32 bytes = m.item;
    for (u32 k = 0; k < rank; ++k) bytes *= m.box[k];
    struct C { i32 c[5]; } at; memcpy(at.c, c, sizeof c);
    in_flight_.push_back([=] { box_(m, block, shared, at.c); land_(full, bytes); });
}
// To both blocks of the pair; each at a time of its own.
inline void tensor_share_(u32 shared, const void* map, u64* full, const i32 (&c)[5], u32 rank) {
    tensor_load_(shared, map, full, c, rank);
    const Peer peer(full);
    tensor_load_(shared, map, peer.there<u64>(), c, rank);
}
inline void tensor_share_3d(u32 s, const void* m, u64* f, i32 a, i32 b, i32 c) { tensor_share_(s, m, f, {a, b, c, 0, 0}, 3); }
inline void tensor_share_5d(u32 s, const void* m, u64* f, i32 a, i32 b, i32 c, i32 d, i32 e) { tensor_share_(s, m, f, {a, b, c, d, e}, 5); }
inline void tensor_load_2d(u32 s, const void* m, u64* f, i32 a, i32 b) { tensor_load_(s, m, f, {a, b, 0, 0, 0}, 2); }
inline void tensor_load_3d(u32 s, const void* m, u64* f, i32 a, i32 b, i32 c) { tensor_load_(s, m, f, {a, b, c, 0, 0}, 3); }
inline void tensor_load_4d(u32 s, const void* m, u64* f, i32 a, i32 b, i32 c, i32 d) { tensor_load_(s, m, f, {a, b, c, d, 0}, 4); }
inline void bulk_load(u32 shared, const char* from, u32 bytes, u64* full) {
    if (shared % 16 || reinterpret_cast<u64>(from) % 16 || bytes % 16) broken("a misaligned copy");
    char* const to = shared_memory + shared;
    in_flight_.push_back([=] { memcpy(to, from, bytes); land_(full, bytes); });
}
inline void prefetch_to_stay(const char*, u32) {}
inline void tensor_load_5d(u32 s, const void* m, u64* f, i32 a, i32 b, i32 c, i32 d, i32 e) { tensor_load_(s, m, f, {a, b, c, d, e}, 5); }
// Copies to memory, as late as may be: shared memory is read when that is waited for, and memory written when that is.
struct Boxes { std::vector<std::function<std::function<void()>()>> open, started; std::vector<std::function<void()>> read; };
static std::map<u32, Boxes> boxes_;  // by fiber
inline void tensor_store_(const void* map, u32 shared, const i32 (&c)[4], u32 rank) {
    const HostMap m = **reinterpret_cast<const HostMap* const*>(map);
    if (m.rank != rank || m.im2col) broken("a tensor map of another kind");
    check_tile_(m, shared);
    const char* block = shared_memory;
    struct C { i32 c[4]; } first; memcpy(first.c, c, sizeof c);
    u32 count = 1;
    for (u32 k = 0; k < rank; ++k) count *= m.box[k];
    boxes_[current_].open.push_back([=] {
        std::vector<char> held(count * m.item);
        for (u32 i = 0; i < count; ++i) memcpy(&held[i * m.item], block + swizzled_(shared + i * m.item, m.swizzle), m.item);
        return [=] {
            for (u32 i = 0; i < count; ++i) {
                u32 rest = i;
                u64 to = m.address;
                bool inside = true;
                for (u32 k = 0; k < rank; ++k) {
                    const i64 at = first.c[k] + static_cast<i64>(rest % m.box[k]);
                    rest /= m.box[k];
                    inside &= at >= 0 && at < static_cast<i64>(m.dims[k]);
                    to += at * m.strides[k];
                }
                if (inside) memcpy(reinterpret_cast<char*>(to), &held[i * m.item], m.item);
            }
        };
    });
}
inline void tensor_store_2d(const void* map, u32 s, i32 a, i32 b) { tensor_store_(map, s, {a, b, 0, 0}, 2); }
inline void tensor_store_4d(const void* map, u32 s, i32 a, i32 b, i32 c, i32 d) { tensor_store_(map, s, {a, b, c, d}, 4); }
inline void bulk_commit() {
    Boxes& b = boxes_[current_];
    for (auto& f : b.open) b.started.push_back(std::move(f));
    b.open.clear();
}
inline void bulk_wait_read() {
    Boxes& b = boxes_[current_];
    for (auto& f : b.started) b.read.push_back(f());
    b.started.clear();
}
inline void bulk_wait() {
    bulk_wait_read();
    Boxes& b = boxes_[current_];
    for (auto& f : b.read) f();
    b.read.clear();
}
inline u64 read_once() { return 0; }
inline void tensor_stream_2d(u32 s, const void* m, u64* f, i32 a, i32 b, u64) { tensor_load_2d(s, m, f, a, b); }
inline void tensor_stream_3d(u32 s, const void* m, u64* f, i32 a, i32 b, i32 c, u64) { tensor_load_3d(s, m, f, a, b, c); }
inline void bulk_load_(u32 shared, const void* from, u32 bytes, u64* full) {
    if (shared % 16 || bytes % 16 || reinterpret_cast<u64>(from) % 16) broken("a misaligned bulk copy");
    char* to = shared_at(shared);
    in_flight_.push_back([=] { memcpy(to, from, bytes); land_(full, bytes); });
}
// Pixels of a window, channels-last (PTX ISA, im2col mode): base pixel walks the box of corners, offsets move the window.
inline void im2col_(const HostMap& m, char* block, u32 shared, const i32 (&c)[5], const u16 (&offset)[3]) {
    const u32 spatial = m.rank - 2;
    i32 at[3];
    i32 image = c[m.rank - 1];
    for (u32 k = 0; k < spatial; ++k) at[k] = c[1 + k];
    for (u32 p = 0; p < m.pixels; ++p) {
        bool inside = image >= 0 && image < static_cast<i32>(m.dims[m.rank - 1]);
        u64 from = m.address + static_cast<i64>(image) * m.strides[m.rank - 1];
        for (u32 k = 0; k < spatial; ++k) {
            const i64 x = at[k] + offset[k];
            inside &= x >= 0 && x < static_cast<i64>(m.dims[1 + k]);
            from += x * m.strides[1 + k];
        }
        for (u32 e = 0; e < m.channels; ++e) {
            const i64 channel = c[0] + static_cast<i64>(e);
            char* to = block + swizzled_(shared + (p * m.channels + e) * m.item, m.swizzle);
            if (inside && channel < static_cast<i64>(m.dims[0])) memcpy(to, reinterpret_cast<const char*>(from + channel * m.item), m.item);
            else memset(to, 0, m.item);
        }
        for (u32 k = 0; k < spatial; ++k) {  // the next base pixel
            at[k] += m.traversal[1 + k];
            if (at[k] < static_cast<i32>(m.dims[1 + k]) + m.upper[k]) break;
            at[k] = m.lower[k];
            if (k + 1 == spatial) ++image;
        }
    }
}
inline void tensor_im2col_(u32 shared, const void* map, u64* full, const i32 (&c)[5], const u16 (&offset)[3], u32 rank) {
    const HostMap m = **reinterpret_cast<const HostMap* const*>(map);
    if (m.rank != rank || !m.im2col) broken("a tensor map of another kind");
    check_tile_(m, shared);
    char* block = shared_memory;
    struct C { i32 c[5]; u16 o[3]; } a; memcpy(a.c, c, sizeof c); memcpy(a.o, offset, sizeof offset);
    in_flight_.push_back([=] { im2col_(m, block, shared, a.c, a.o); land_(full, m.pixels * m.channels * m.item); });
}
inline void tensor_load_im2col(u32 s, const void* m, u64* f, i32 c, i32 left, i32 top, i32 sample, u32 right, u32 down) {
    tensor_im2col_(s, m, f, {c, left, top, sample, 0}, {static_cast<u16>(right), static_cast<u16>(down), 0}, 4);
}

// ---- shared memory by address ----
template <class T> T read_shared_(u32 a) { if (a % sizeof(T)) broken("a misaligned shared load"); T v; memcpy(&v, shared_at(a), sizeof v); return v; }
template <class T> void write_shared_(u32 a, T v) { if (a % sizeof(T)) broken("a misaligned shared store"); memcpy(shared_at(a), &v, sizeof v); }
inline u32 load_shared(u32 a) { return read_shared_<u32>(a); }
inline u32 load_shared_1(u32 a) { return read_shared_<u32>(a); }
inline uint4 load_shared_16(u32 a) { return read_shared_<uint4>(a); }
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
inline f32 f32_from_f16(u16 h) { _Float16 f; memcpy(&f, &h, 2); return static_cast<f32>(f); }
inline u16 f16_from_f32(f32 v) { const _Float16 f = static_cast<_Float16>(v); u16 h; memcpy(&h, &f, 2); return h; }
inline f32 f32_from_bf16(u16 h) { return __uint_as_float(static_cast<u32>(h) << 16); }
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
    for (u32 e = 0; e < 4; ++e) {
        const u32 row = l / 4 + e / 2 * 8, column = l % 4 * 2 + e % 2;
        f32 s = d[e];
        for (u32 k = 0; k < 16; ++k) {
            const u32 al = row % 8 * 4 + k % 8 / 2, ar = row / 8 + k / 8 * 2, bl = column * 4 + k % 8 / 2, br = 4 + k / 8;
            s += to(static_cast<u16>(w.words[al][ar] >> (k % 2 * 16))) * to(static_cast<u16>(w.words[bl][br] >> (k % 2 * 16)));
        }
        d[e] = s;
    }
    warp_barrier();
}
inline void mma_bf16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_any(d, a, b0, b1, f32_from_bf16); }
inline void mma_f16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_any(d, a, b0, b1, f32_from_f16); }
inline f32 tf32_(u32 bits) { return __uint_as_float(bits & ~0x1fffu); }
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

// Element (row, k) of an operand of wgmma in shared memory: 128-byte swizzle, or none where k are neighbours; descriptors as the PTX
// ISA has them.
inline u16 descriptor_element_(u64 d, bool across, u32 row, u32 k) {
    const u32 start = static_cast<u32>(d & 0x3fff) << 4, leading = static_cast<u32>(d >> 16 & 0x3fff) << 4, stride = static_cast<u32>(d >> 32 & 0x3fff) << 4;
    if (d >> 62 == 0 && !across) return read_shared_<u16>(start + row / 8 * stride + row % 8 * 16 + k / 8 * leading + k % 8 * 2);
    if (d >> 62 != 1) broken("a descriptor with another swizzle than that of 128 bytes");
    const u32 at = across ? start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2 : start + row / 8 * stride + row % 8 * 128 + k * 2;
    return read_shared_<u16>(swizzled_(at, 128));
}
template <class T> f32 element_of_(u16 bits);
