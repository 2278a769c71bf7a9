// CUDA's language and built-in functions for a C++ compiler: threads are fibers, and a block's shared memory is an array.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)
#define __constant__ static const
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return {a, b, c, d}; }
inline uint2 make_uint2(unsigned a, unsigned b) { return {a, b}; }
inline int2 make_int2(int a, int b) { return {a, b}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
inline float2 make_float2(float a, float b) { return {a, b}; }

inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline int __float_as_int(float f) { int u; memcpy(&u, &f, 4); return u; }
inline float __int_as_float(int u) { float f; memcpy(&f, &u, 4); return f; }
inline double __longlong_as_double(long long v) { double d; memcpy(&d, &v, 8); return d; }
inline long long __double_as_longlong(double d) { long long v; memcpy(&v, &d, 8); return v; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
    const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
    unsigned r = 0;
    for (unsigned i = 0; i < 4; ++i) r |= static_cast<unsigned>(bytes >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return r;
}
inline int __ffs(unsigned v) { return __builtin_ffs(v); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift % 32));
}
inline int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }
inline int __clzll(unsigned long long v) { return v ? __builtin_clzll(v) : 64; }
inline unsigned __brev(unsigned v) { unsigned r = 0; for (int i = 0; i < 32; ++i) r |= (v >> i & 1) << (31 - i); return r; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
inline float __double2float_rz(double v) { float f = (float)v; if (std::fabs((double)f) > std::fabs(v)) f = std::nextafterf(f, 0.0f); return f; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __frsqrt_rn(float a) { return 1.0f / std::sqrt(a); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned min(unsigned a, int b) { return a < (unsigned)b ? a : b; }
inline unsigned min(int a, unsigned b) { return (unsigned)a < b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned max(unsigned a, int b) { return a > (unsigned)b ? a : b; }
inline unsigned max(int a, unsigned b) { return (unsigned)a > b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

// ---- fibers ----

struct Dim3 { unsigned x, y, z; };
static Dim3 threadIdx, blockIdx, gridDim, blockDim;

struct NamedBarrier { unsigned count = 0, generation = 0, wanted = 0; };
struct WarpState { unsigned count = 0, generation = 0; unsigned long long values[32]; unsigned words[32][8]; };
struct BlockState {
    char* shared;
    NamedBarrier named[16], pair;  // pair: in the first block of each
    WarpState warps[16];
};
struct Fiber {
    void* stack_pointer;
    unsigned thread, block;
    bool done;
    const char* where;  // what it waits for, for the message about a deadlock
    const unsigned* generation;  // of the barrier that it waits at, and what that was: its turns are skipped until that changes
    unsigned waited;
};
static std::vector<Fiber> fibers_;
static std::vector<BlockState> blocks_;
static unsigned current_;
static void* scheduler_stack_;
static unsigned long long progress_;  // counts everything that changes what others wait for

extern "C" __attribute__((visibility("hidden"))) void switch_stack(void** save, void* load);
asm(R"(
.text
.globl switch_stack
.hidden switch_stack
.type switch_stack,@function
switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

// For what almost everything asks; -O1 inlines little by itself.
#define INLINED static inline __attribute__((always_inline))
INLINED BlockState& block_() { return blocks_[fibers_[current_].block]; }
#define shared_memory (block_().shared)
static void yield_(const char* where) {
    fibers_[current_].where = where;
    switch_stack(&fibers_[current_].stack_pointer, scheduler_stack_);
}
static void wait_for_next_(const unsigned& generation, const char* where) {
    Fiber& f = fibers_[current_];
    f.generation = &generation;
    f.waited = generation;
    yield_(where);
    f.generation = nullptr;
}
// Ends the run. What the scheduler itself finds ends the process: there is nowhere to go back to.
static bool fiber_runs_, broken_;
[[noreturn]] static void broken(const char* what) {
    fprintf(stderr, "device on CPU: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
    if (!fiber_runs_) abort();
    broken_ = true;
    for (;;) yield_("nothing");
}

// What -fsanitize=alignment calls (as libubsan has it): a GPU faults where an address is no multiple of the type's alignment.
struct MisalignedAccess {
    const char* file;
    unsigned line, column;
    struct { unsigned short kind, info; char name[1]; } const* type;
    unsigned char log_alignment, kind;
};
extern "C" [[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(const MisalignedAccess* access, unsigned long address) {
    char what[400];
    snprintf(what, sizeof what, "%s:%u: %#lx is not aligned for %s, which takes %u bytes", access->file, access->line, address,
             access->type->name, 1u << access->log_alignment);
    broken(what);
}

INLINED unsigned lane_() { return threadIdx.x % 32; }
INLINED WarpState& warp_() { return block_().warps[threadIdx.x / 32]; }
static void named_(unsigned id, unsigned threads, bool waits) {
    NamedBarrier& b = block_().named[id];
    if (b.count && b.wanted != threads) broken("a barrier with two counts");
    b.wanted = threads;
    ++progress_;
    if (++b.count == threads) {
        b.count = 0;
        ++b.generation;
    } else if (waits) {
        wait_for_next_(b.generation, "a named barrier");
    }
}
static void meet_warp() {
    WarpState& w = warp_();
    if (++w.count == 32) {
        w.count = 0;
        ++w.generation;
    } else {
        wait_for_next_(w.generation, "its warp");
    }
}
static void warp_barrier() {
    ++progress_;
    meet_warp();
}
template <class T> T shuffle_(T v, unsigned from) {
    unsigned long long bits = 0;
    memcpy(&bits, &v, sizeof v);
    WarpState& w = warp_();
    w.values[lane_()] = bits;
    warp_barrier();
    bits = w.values[from % 32];
    warp_barrier();
    T r;
    memcpy(&r, &bits, sizeof r);
    return r;
}
template <class T> T __shfl_sync(unsigned, T v, int from, int width = 32) { return shuffle_(v, (lane_() & ~(width - 1)) | (from & (width - 1))); }
template <class T> T __shfl_xor_sync(unsigned, T v, int m, int = 32) { return shuffle_(v, lane_() ^ m); }
template <class T> T __shfl_down_sync(unsigned, T v, int d, int = 32) { return shuffle_(v, lane_() + d < 32 ? lane_() + d : lane_()); }
template <class T> T __shfl_up_sync(unsigned, T v, int d, int = 32) { return shuffle_(v, lane_() >= (unsigned)d ? lane_() - d : lane_()); }
// No progress by itself: warps vote on whether what they poll has come.
inline unsigned __ballot_sync(unsigned, bool p) {
    WarpState& w = warp_();
    w.values[lane_()] = p;
    meet_warp();
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (unsigned)w.values[i] << i;
    meet_warp();
    return r;
}
template <class F> unsigned reduce_(unsigned v, F f) {
    WarpState& w = warp_();
    w.values[lane_()] = v;
    warp_barrier();
    unsigned r = (unsigned)w.values[0];
    for (int i = 1; i < 32; ++i) r = f(r, (unsigned)w.values[i]);
    warp_barrier();
    return r;
}
inline unsigned __reduce_or_sync(unsigned, unsigned v) { return reduce_(v, [](unsigned a, unsigned b) { return a | b; }); }
inline unsigned __reduce_max_sync(unsigned, unsigned v) { return reduce_(v, [](unsigned a, unsigned b) { return a > b ? a : b; }); }
inline unsigned __reduce_min_sync(unsigned, unsigned v) { return reduce_(v, [](unsigned a, unsigned b) { return a < b ? a : b; }); }
inline bool __all_sync(unsigned m, bool p) { return __ballot_sync(m, p) == 0xffffffffu; }
inline bool __any_sync(unsigned m, bool p) { return __ballot_sync(m, p) != 0; }
inline void __syncwarp(unsigned = 0) { warp_barrier(); }
inline void __syncthreads() { named_(0, blockDim.x, true); }
inline unsigned __activemask() { return 0xffffffffu; }
