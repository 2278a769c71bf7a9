// Hopper's copy engine: whole boxes and lines, by one thread's instruction.
#pragma once
#include "ptx.cuh"

#ifdef HOPPER
// Fetches a map from memory, ahead of the first copy by it.
DEV void prefetch_map(const void* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
// Copies one box of `map` to shared memory; `full` hears of its bytes. Coordinates are in elements, innermost first.
DEV void tensor_load_3d(u32 shared, const void* map, u64* full, i32 c0, i32 c1, i32 c2) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(shared), "l"(map), "r"(shared_address(full)), "r"(c0), "r"(c1), "r"(c2) : "memory");
}
// The same to both blocks of the pair: to the same place in each, whose barrier hears of it.
DEV void tensor_share_3d(u32 shared, const void* map, u64* full, i32 c0, i32 c1, i32 c2) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
                 ::"r"(shared), "l"(map), "r"(shared_address(full)), "r"(c0), "r"(c1), "r"(c2), "h"(static_cast<u16>(3)) : "memory");
}
DEV void tensor_share_5d(u32 shared, const void* map, u64* full, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
                 ::"r"(shared), "l"(map), "r"(shared_address(full)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(static_cast<u16>(3)) : "memory");
}
DEV void tensor_load_4d(u32 shared, const void* map, u64* full, i32 c0, i32 c1, i32 c2, i32 c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(shared), "l"(map), "r"(shared_address(full)), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
// Channels from c on of pixels of an im2col map (channel, column, row, sample): those `right` and `down` of where the
// windows begin, the first of which is the one at (left, top).
DEV void tensor_load_im2col(u32 shared, const void* map, u64* full, i32 c, i32 left, i32 top, i32 sample, u32 right, u32 down) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
                 ::"r"(shared), "l"(map), "r"(shared_address(full)), "r"(c), "r"(left), "r"(top), "r"(sample),
                   "h"(static_cast<u16>(right)), "h"(static_cast<u16>(down)) : "memory");
}
// Copies `bytes` that lie together, a multiple of 16, as all addresses are.
DEV void bulk_load(u32 shared, const char* from, u32 bytes, u64* full) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared), "l"(from), "r"(bytes), "r"(shared_address(full)) : "memory");
}
DEV void tensor_load_5d(u32 shared, const void* map, u64* full, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
                 ::"r"(shared), "l"(map), "r"(shared_address(full)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}
// Brings `bytes`, a multiple of 16, to the L2 cache, where they outlast what is only read or written.
DEV void prefetch_to_stay(const char* p, u32 bytes) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(p), "r"(bytes), "l"(policy) : "memory");
}
// Copies one box from shared memory to where `map` says, but for what lies outside of it. The copies that a thread has started
// since the last commit are a group of its own.
DEV void tensor_store_2d(const void* map, u32 shared, i32 c0, i32 c1) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(shared), "r"(c0), "r"(c1) : "memory");
}
DEV void tensor_store_4d(const void* map, u32 shared, i32 c0, i32 c1, i32 c2, i32 c3) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 ::"l"(map), "r"(shared), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
DEV void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Wait for all groups of this thread: until they have read shared memory, or until what they wrote is there.
DEV void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEV void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// What is read once leaves the L2 cache first.
DEV u64 read_once() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
DEV void tensor_stream_2d(u32 shared, const void* map, u64* full, i32 c0, i32 c1, u64 policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;"
                 ::"r"(shared), "l"(map), "r"(shared_address(full)), "r"(c0), "r"(c1), "l"(policy) : "memory");
}
DEV void tensor_stream_3d(u32 shared, const void* map, u64* full, i32 c0, i32 c1, i32 c2, u64 policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;"
                 ::"r"(shared), "l"(map), "r"(shared_address(full)), "r"(c0), "r"(c1), "r"(c2), "l"(policy) : "memory");
}
#endif
