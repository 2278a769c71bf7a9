// The copy engine (copy_engine.cuh) for the device on CPU. What it brings and takes away lands late, in any order.
#pragma once
#include "ptx.cuh"

inline void prefetch_map(const void*) {}
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
// ---- stores to the pair's other block ----
constexpr u32 THERE_ = 1u << 31;  // of an address
inline u32 address_there(const void* p) { return shared_address(p) | THERE_; }
inline void store_there(u32 to, uint4 v, u32 barrier) {
    if (!(to & THERE_) || !(barrier & THERE_) || to % sizeof v) broken("an address of the other block");
    char* const at = Peer(shared_at(to & ~THERE_)).there<char>();
    u64* const full = Peer(shared_at(barrier & ~THERE_)).there<u64>();
    in_flight_.push_back([=] { memcpy(at, &v, sizeof v); land_(full, sizeof v); });
}

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
