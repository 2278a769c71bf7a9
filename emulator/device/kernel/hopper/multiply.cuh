// The main loop of every product on wgmma: sums of a tile over the stages that the loader fills.
#pragma once
#ifdef HOPPER
#include "hopper/turn.cuh"
#include "path_workers.cuh"
#include "wgmma.cuh"

constexpr u32 DEPTH = 64;        // elements of K in a slice, of 16 bits: one swizzled line of 128 bytes; a stage has one or more
constexpr u32 STEP_DEPTH = 16;   // elements of K that one wgmma takes: 32 bytes of them, also of f32
constexpr u32 BLOCK_ROWS = 64;   // rows that one wgmma takes
constexpr u32 SUMS = 128;        // accumulators of a thread, at most

// A wgmma descriptor of an operand in shared memory, swizzled over 128 bytes, with 8 lines every 1024 bytes (PTX ISA,
// "Matrix-Descriptor Format"). For an operand that lies across, the next 64 columns are `apart` bytes further.
DEV u32 descriptor_low(u32 address, u32 apart) { return (address >> 4 & 0x3fff) | apart >> 4 << 16; }
DEV u64 matrix_descriptor(u32 low) {
    constexpr u32 HIGH = 1u << 30 | 1024 >> 4;
    return static_cast<u64>(HIGH) << 32 | low;
}

// The same of an operand that is not swizzled: of 8 lines, 16 bytes each lie one behind the other; the next 8 elements of the depth
// `leading` bytes further, the next 8 lines `stride`.
DEV u64 plain_descriptor(u32 address, u32 leading, u32 stride) {
    return static_cast<u64>(stride >> 4) << 32 | leading >> 4 << 16 | (address >> 4 & 0x3fff);
}

// How the two warpgroups share a tile: one below the other (each reads its own 64 rows of a, and all of b), or side by
// side (each reads the same 64 rows of a, and its own columns of b). In a stage a comes before b; of an operand that lies
// along the depth, each slice has all rows; of one across, each 64 rows have all slices.
struct TileLayout {
    u32 kind;          // of stages
    u32 granules;      // of a stage
    u32 slices;        // of a stage
    u32 left_offset;   // bytes from the stage's start to this warpgroup's part of a
    u32 right_offset;  // the same for b
    u32 left_slice;    // bytes from a slice of a to the next
    u32 right_slice;

    // Bytes between 64 rows and the next 64 of an operand that lies across.
    DEV u32 apart() const { return slices * GRANULE_BYTES; }
};

// All: registers never set would be kept from the kernel's start, on every path. The compiler must not know that all hold the same: it
// would copy one to all others, behind the main loop to those that a narrow tile leaves alone, behind the wait to the rest.
DEV void clear(f32 (&sums)[SUMS]) {
#pragma unroll
    for (u32 i = 0; i < SUMS; ++i) {
        sums[i] = 0.0f;
        pin(sums[i]);
    }
}

// For operands that wgmma takes as they lie in memory.
struct AsLoaded {
    DEV void arrange(u32, Workers&) const {}
};

// sums = a * b over `stages` stages, each of which is arranged first. False, without them, if before() says so, which is what has to be waited
// for: all that can be done ahead of that is done by then, and the code that follows is there. Warps hold rows 16 w .. 16 w + 15 of their warpgroup's part; a lane's sums are
// [COLUMNS / 8][row lane / 4, row lane / 4 + 8][column 2 (lane % 4), and the next].
template <class T, u32 COLUMNS, bool A_ACROSS, bool B_ACROSS, class Arrangement, class Before>
DEV bool multiply(f32 (&sums)[SUMS], const TileLayout& layout, u32 stages, Workers& me, const Arrangement& arrangement, const Before& before) {
    constexpr u32 A_STEP = (A_ACROSS ? STEP_DEPTH * LINE_BYTES : STEP_DEPTH * 2) >> 4;  // in 16 bytes
    constexpr u32 B_STEP = (B_ACROSS ? STEP_DEPTH * LINE_BYTES : STEP_DEPTH * 2) >> 4;
    using Product = Wgmma<T, COLUMNS, A_ACROSS, B_ACROSS>;
    clear(sums);
    if (!before()) return false;
    Stage last{0, 0};
#pragma unroll 1
    for (u32 i = 0; i < stages; ++i) {
        Stage stage;
        const u32 address = me.next(stage, layout.granules);
        u32 a = descriptor_low(address + layout.left_offset, layout.apart());
        u32 b = descriptor_low(address + layout.right_offset, layout.apart());
        me.wait(stage, layout.kind);
        arrangement.arrange(address, me);
#pragma unroll 1
        for (u32 slice = 0; slice < layout.slices; ++slice) {
            warpgroup_fence();
#pragma unroll
            for (u32 step = 0; step < DEPTH / STEP_DEPTH; ++step) {
                Product::multiply(sums, matrix_descriptor(a + step * A_STEP), matrix_descriptor(b + step * B_STEP));
            }
            warpgroup_commit();
            const u32 lane = me.lane();
            warpgroup_wait<1>();
            if (slice == 0 && i != 0) me.release_multiplied(last, layout.kind, lane);
            a += layout.left_slice >> 4;
            b += layout.right_slice >> 4;
        }
        last = stage;
    }
    const u32 lane = me.lane();
    warpgroup_wait<0>();
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; ++i) pin(sums[i]);
    if (stages != 0) me.release_multiplied(last, layout.kind, lane);
    return true;
}

// For a warpgroup that has no part in a tile.
template <class Before> DEV bool pass_by(f32 (&sums)[SUMS], const TileLayout& layout, u32 stages, Workers& me, const Before& before) {
    clear(sums);
    if (!before()) return false;
#pragma unroll 1
    for (; stages != 0; --stages) {
        Stage stage;
        me.next(stage, layout.granules);
        me.wait(stage, layout.kind);
        me.release(stage, layout.kind);
    }
    return true;
}
#endif
