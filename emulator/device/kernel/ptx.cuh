// Inline assembly, which only this file, copy_engine.cuh and clock.cuh have: one small function per instruction.
#pragma once
#include "clock.cuh"

DEV u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
// `v`, which lies in shared memory, and `p`, which points to global memory. A reference that came through a call, or from
// memory, does not say so; access by it would be slower, and keep others waiting. The compiler forgets a cast of its own.
template <class T> DEV const T& in_shared(const T& v) {
    u64 p;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(p) : "l"(&v));
    return *static_cast<const T*>(__cvta_shared_to_generic(p));
}
DEV char* in_global(char* p) {
    u64 q;
    asm("cvta.to.global.u64 %0, %1;" : "=l"(q) : "l"(p));
    return static_cast<char*>(__cvta_global_to_generic(q));
}

// The thread's index in its block, read anew: no register holds it from one use to the next.
DEV u32 thread_index_anew() {
    u32 t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}
// The launch's blocks, likewise.
DEV u32 blocks_anew() {
    u32 n;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(n));
    return n;
}
// The start of the block's dynamic shared memory, as a generic address, worked out anew.
extern __shared__ __align__(1024) char shared_memory[];
DEV char* shared_memory_anew() {
    u64 p;
    asm volatile("mov.u64 %0, shared_memory;" : "=l"(p));
    return static_cast<char*>(__cvta_shared_to_generic(p));
}

// `v`, of which the compiler knows nothing. What is decided by it inside of a loop is not decided in front of it: the answer
// would wait in a predicate, and where those run out, in local memory.
DEV u32 anew(u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}
// Sleeps for an instant: one instruction.
DEV void nap() { asm volatile("nanosleep.u32 20;"); }
// Barriers and waits behind this do not come before `v`, which is never negative, is known: the assembler likes to let them
// wait first, and work out afterwards what was to be done meanwhile.
DEV void hold(f32 v) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p nanosleep.u32 0;\n}" ::"f"(v) : "memory");
}
// The same of any bits.
DEV void hold(u32 v) { asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 1;\n@p nanosleep.u32 0;\n}" ::"r"(v) : "memory"); }
// The same of addresses.
template <u32 N> DEV void hold(const char* const (&all)[N]) {
    u32 mixed = 0;
#pragma unroll
    for (u32 i = 0; i < N; ++i) mixed ^= static_cast<u32>(reinterpret_cast<u64>(all[i]));
    hold(mixed);
}

// The same of addresses and numbers, all of their bits.
DEV u32 bits_of(f32 v) { return __float_as_uint(v); }
DEV u32 bits_of(const void* p) {
    const u64 bits = reinterpret_cast<u64>(p);
    return static_cast<u32>(bits) ^ static_cast<u32>(bits >> 32);
}
template <class T, u32 N> DEV u32 bits_of(const T (&all)[N]) {
    u32 mixed = 0;
#pragma unroll
    for (u32 i = 0; i < N; ++i) mixed ^= bits_of(all[i]);
    return mixed;
}
template <class... T> DEV void hold_all(const T&... all) { hold((bits_of(all) ^ ...)); }

// ---- global memory, across blocks ----
DEV u32 load_acquire(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEV u32 load_relaxed(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEV void store_relaxed(u32* p, u32 v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
// Across GPUs, too: memory of one may be read and written by another.
DEV u32 load_acquire_everywhere(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEV void store_release_everywhere(u32* p, u32 v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
DEV uint4 load_relaxed_everywhere(const uint4* p) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
// All 16 bytes at once: whoever sees some of what was stored sees all of it; a vector's elements are accesses of their own. All of what is
// loaded has to be used somewhere: where some words never are, ptxas (13.0) loads the others one by one.
DEV uint4 load_whole_everywhere(const uint4* p) {
    uint4 v;
    asm volatile("{ .reg .b128 all; .reg .b64 low, high; ld.relaxed.sys.global.b128 all, [%4]; mov.b128 {low, high}, all;\n"
                 "mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high; }" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
DEV void store_whole_everywhere(uint4* p, uint4 v) {
    asm volatile("{ .reg .b128 all; .reg .b64 low, high; mov.b64 low, {%1, %2}; mov.b64 high, {%3, %4};\n"
                 "mov.b128 all, {low, high}; st.relaxed.sys.global.b128 [%0], all; }" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEV void store_relaxed_everywhere(u32* p, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
// 8 or 16 bytes; others see each word of them as soon as it is there, for itself.
DEV uint2 load_relaxed_8(const f32* p) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}
DEV void store_relaxed_8(f32* p, uint2 v) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
DEV uint4 load_relaxed_16(const f32* p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
// The same where `again`, else `v` as it is; without a branch, so that several of them are under way together.
DEV void load_relaxed_16_if(uint4& v, const f32* p, bool again) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p), "r"(static_cast<u32>(again)) : "memory");
}
DEV void store_relaxed_16(f32* p, uint4 v) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// Counts up to `last`, then from 0 again.
DEV void count_relaxed(u32* p, u32 last) { asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(p), "r"(last) : "memory"); }
DEV void add_release(u32* p, u32 v) { asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
DEV u32 fetch_add_acq_rel(u32* p, u32 v) {
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}
// Counts up to `last`, then from 0 again, and gives what was there.
DEV u32 fetch_count_relaxed(u32* p, u32 last) {
    u32 old;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(last) : "memory");
    return old;
}
DEV u32 compare_and_swap(u32* p, u32 expected, u32 desired) {
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(p), "r"(expected), "r"(desired) : "memory");
    return old;
}
DEV void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
DEV void fence_everywhere() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// ---- barriers ----
DEV void named_barrier(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// Arrives without waiting: others wait for this thread.
DEV void named_barrier_arrive(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEV void mbarrier_init(u64* b, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
// Behind a barrier's last use: its memory is for something else.
DEV void mbarrier_end(u64* b) { asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address(b)) : "memory"); }
// Makes fresh barriers known to the copy engine.
DEV void fence_barrier_init() {
#ifdef HOPPER
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
DEV void mbarrier_arrive(u64* b) {
    asm volatile("{\n.reg .b64 s;\nmbarrier.arrive.shared.b64 s, [%0];\n}" ::"r"(shared_address(b)) : "memory");
}
DEV bool mbarrier_test(u64* b, u32 phase) {
    u32 done;
    asm volatile("{\n.reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
                 "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
#endif
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(shared_address(b)), "r"(phase) : "memory");
    return done != 0;
}

#ifdef HOPPER
// The same of barriers by where they lie in the shared window, the arrivals OFFSET bytes further.
DEV bool mbarrier_test_at(u32 b, u32 phase) {
    u32 done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(b), "r"(phase) : "memory");
    return done != 0;
}
template <u32 OFFSET> DEV void mbarrier_arrive_at(u32 b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0+%1];" ::"r"(b), "n"(OFFSET) : "memory");
}
template <u32 OFFSET> DEV void mbarrier_arrive_there_at(u32 b) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there+%2];\n}" ::"r"(b), "r"(blockIdx.x % PAIR ^ 1), "n"(OFFSET) : "memory");
}
// Adds to the lower half of a descriptor of wgmma. The other half stays where it is: else there is a move for it in front of each product.
DEV void move_descriptor(u64& d, u32 by) {
    asm("{\n.reg .b32 low, high;\nmov.b64 {low, high}, %0;\nadd.u32 low, low, %1;\nmov.b64 %0, {low, high};\n}" : "+l"(d) : "r"(by));
}
#endif

// True in one lane of a converged warp, always the same. The compiler then knows that a single thread is active, and
// passes operands to the copy engine without a loop over lanes.
DEV bool elect_one() {
#ifdef HOPPER
    u32 chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen)::"memory");
    return chosen != 0;
#else
    return threadIdx.x % WARP == 0;
#endif
}
// Waits for all threads of the pair: at the beginning, until each has made its barriers known (fence_barrier_init); at the
// end, until everything is done, which takes a fence of all memory.
DEV void pair_begin() {
#ifdef HOPPER
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
DEV void pair_end() {
#ifdef HOPPER
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// Arrives at the same barrier of the pair's other block.
DEV void mbarrier_arrive_there(u64* b) {
#ifdef HOPPER
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(b)), "r"(blockIdx.x % PAIR ^ 1) : "memory");
#endif
}
#ifdef HOPPER
// Where the pair's other block has what lies at `p` here.
DEV u32 address_there(const void* p) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(blockIdx.x % PAIR ^ 1));
    return there;
}
// Stores there, in the background; `barrier`, which is there, too, hears of the bytes. By then they can be seen.
DEV void store_there(u32 to, uint4 v, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier) : "memory");
}
#endif
DEV void warp_arrive(u64* b) {
    __syncwarp();
    if (thread_index_anew() % WARP < ARRIVING_LANES) mbarrier_arrive(b);
}
// The same for a warp that knows its lanes.
DEV void warp_arrive(u64* b, u32 lane) {
    __syncwarp();
    if (lane < ARRIVING_LANES) mbarrier_arrive(b);
}
// Arrives, and tells the barrier to wait for so many bytes of copies.
DEV void mbarrier_arrive_expect(u64* b, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
#endif
}
// Orders this thread's accesses to global memory before copies of the copy engine that are started after it, and the other
// way round: without a kind of memory, it takes 500 clocks more.
DEV void fence_proxy_global() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
// The same for shared memory.
DEV void fence_proxy_shared() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
template <u32 N> DEV void give_registers() {
#ifdef HOPPER
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <u32 N> DEV void take_registers() {
#ifdef HOPPER
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
// mbarrier_test, but never suspending the thread.
DEV bool mbarrier_passed(u64* b, u32 phase) {
    u32 done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(shared_address(b)), "r"(phase) : "memory");
    return done != 0;
}

// ---- shared memory ----
// Adds to a number in shared memory that other threads add to as well, and gives what it was.
DEV u32 fetch_add_shared(u32* p, u32 v) {
    u32 old;
    asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(shared_address(p)), "r"(v) : "memory");
    return old;
}
DEV u32 load_shared_1(u32 address) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}
DEV void load_shared_2(u32 (&v)[2], u32 address) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(address) : "memory");
}
DEV void load_shared_2(f32 (&v)[2], u32 address) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(address) : "memory");
}

// ---- asynchronous copies, global to shared ----
// Copies `bytes` (0..16) and fills the rest of the 16 with zeros. Both addresses 16-byte aligned.
DEV void copy_async_16(void* shared, const void* global, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}
// The same through the first-level cache, for what other threads of the block read as well.
DEV void copy_async_16_cached(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
// Brings what lies around `p` to the second-level cache, which all blocks share: whatever is written meanwhile is seen there.
DEV void prefetch(const char* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
DEV void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <u32 N> DEV void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---- tensor cores ----
// Four 8x8 matrices of 16-bit elements, one row address per lane.
DEV void load_matrix_x4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
DEV void load_matrix_x4_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
// d += a (16x16, row) * b (16x8, column), f32 accumulators.
DEV void mma_bf16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void mma_f16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d += a (16x8, row) * b (8x8, column), for the upper 19 bits of f32 elements.
DEV void mma_tf32(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- arithmetic ----
// The larger and the smaller; NaN where one of them is.
DEV f32 max_nan(f32 a, f32 b) {
    f32 y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
DEV f32 min_nan(f32 a, f32 b) {
    f32 y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
// The same for two neighbouring 16-bit elements in one register.
DEV u32 max_nan_bf16x2(u32 a, u32 b) {
    u32 y;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
DEV u32 max_nan_f16x2(u32 a, u32 b) {
    u32 y;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

// ---- number conversions ----
DEV f32 f32_from_f16(u16 h) {
    f32 f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
DEV u16 f16_from_f32(f32 f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
DEV f32 f32_from_bf16(u16 h) { return __uint_as_float(static_cast<u32>(h) << 16); }
DEV u16 bf16_from_f32(f32 f) {
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
// Two neighbouring 16-bit elements in one register, `low` in the low half.
DEV u32 pack_bf16(f32 low, f32 high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DEV u32 pack_f16(f32 low, f32 high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

#ifdef HOPPER
// ---- Hopper: products of a warpgroup (wgmma.cuh) ----
DEV void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 N> DEV void warpgroup_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Sums that wgmma writes in the background must not move across a wait for it.
DEV void pin(f32& v) { asm volatile("" : "+f"(v)::"memory"); }

// ---- Hopper: shared memory ----
// Four 8x8 matrices of 16-bit elements, one row address per lane.
DEV void store_matrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}
// Likewise, of matrices whose columns become rows in memory.
DEV void store_matrix_x4_transposed(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}
DEV void store_shared(u32 address, u32 v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory"); }
DEV void store_shared(u32 address, float2 v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}
DEV void store_shared(u32 address, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEV uint4 load_shared_16(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}
// 0 where it is not wanted, without an access.
DEV uint4 load_shared_16_if(u32 address, bool wanted) {
    uint4 v = make_uint4(0, 0, 0, 0);
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "r"(address), "r"(static_cast<u32>(wanted)) : "memory");
    return v;
}
DEV u32 load_shared(u32 address) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}
#endif

// ---- approximations of the special function unit: relative error below 2^-21 ----
DEV f32 fast_exp2(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV f32 fast_reciprocal(f32 x) {
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
