// Fetch and decode: images of instructions on their way ahead of need, operands patched with what registers hold.
#pragma once
#include "scalar.cuh"

// The next IMAGES_AHEAD instructions in the order of the program: one is present, the others are on their way. They have places in a
// ring, in turns. What lies behind the end of the program is empty.
struct Fetcher {
    u32 at = 0;  // piece where the present one begins

    // What a launch begins with: asks for the first instructions, without a look at the table of places; but not for one that comes decoded.
    DEV static void begin(const Launch& launch, uint4* ring, u32 lane) {
        u32 begin = 0;
#pragma unroll
        for (u32 i = 0; i < IMAGES_AHEAD; ++i) {
            ask(launch, ring + i * IMAGE_PIECES, begin, i == 0 && has_first(launch) ? 0 : launch.first_pieces[i], lane);
            begin += launch.first_pieces[i];
        }
    }
    // Whether the first instruction of this launch comes decoded (hopper/first.cuh).
    DEV static bool has_first(const Launch& launch) {
#ifdef HOPPER
        return launch.first_work != 0;
#else
        return false;
#endif
    }
    // Makes the image of instruction `index` the present one: after a jump.
    DEV void jump(u32 index, u32 lane) {
        at = 0;
        ask_anew(index, lane);
    }
    // The same for the instruction behind the present one, in whose place comes another one, of which its head tells.
    DEV void advance(const Launch& launch, uint4* ring, u32 ahead_begin, u32 ahead_pieces, u32 lane) {
        uint4* const place = ring + at;
        at = at == (IMAGES_AHEAD - 1) * IMAGE_PIECES ? 0 : at + IMAGE_PIECES;
        ask(launch, place, ahead_begin, ahead_pieces, lane);
        arrive();
    }
    // Waits for the present one.
    DEV static void arrive() {
        copy_async_wait<IMAGES_AHEAD - 1>();
        __syncwarp();
    }

  private:
    // A call, so that the code that a launch fetches first lies together.
    DEV_CALL static void ask_anew(u32 index, u32 lane) {
        Shared& shared = shared_state();
        copy_async_wait<0>();  // what was asked for in vain must not land later
#pragma unroll
        for (u32 i = 0; i < IMAGES_AHEAD; ++i) {  // the plan pads the table by as many
            const uint2 place = __ldg(reinterpret_cast<const uint2*>(shared.launch->image_places) + index + i);
            ask(*shared.launch, shared.images + i * IMAGE_PIECES, place.x, place.y, lane);
        }
        arrive();
    }
    DEV static void ask(const Launch& launch, uint4* place, u32 begin, u32 pieces, u32 lane) {
        const uint4* const image = reinterpret_cast<const uint4*>(launch.images) + (begin + lane);
#pragma unroll
        for (u32 i = 0; i < IMAGE_PIECES; i += WARP) {
            if (i + lane < pieces) copy_async_16(place + lane + i, image + i, PIECE_BYTES);
        }
        copy_async_commit();
    }
};

DEV u32 opcode_of(const Work& w) { return w.word[0] & 0xff; }

// Reads the registers that `t` depends on; false if a dim or an address leaves its bounds.
DEV_CALL bool patch(Tensor& t, const Scalars& m) {
    u32 fits = 1, packed = 1;  // not predicates: those of the caller take most
    i64 last = 0, step = 1;
    for (i32 k = t.rank - 1; k >= 0; --k) {
        if (t.dim_register[k]) {
            const i64 value = m.registers.s[t.dim_register[k] - 1];
            fits = anew(fits & static_cast<u32>(value >= 0 && value <= t.dims[k]));
            t.dims[k] = fits ? static_cast<i32>(value) : 0;
        }
        packed = anew(packed & static_cast<u32>(t.dims[k] == 1 || t.strides[k] == step));
        step *= t.dims[k];
        last += (t.dims[k] - 1) * t.strides[k];
    }
    t.contiguous = packed;
    t.count = step;
    if (!fits || step == 0) return fits;  // where nothing lies does not matter
    if (t.offset_register) {
        // Offsets are far below 2**48; a register beyond that cannot be inside any segment.
        const i64 index = m.registers.s[t.offset_register - 1];
        if (index > (1ll << 48) || index < -(1ll << 48)) return false;
        const f64 moved = static_cast<f64>(index) * static_cast<f64>(t.offset_scale);
        if (moved > 1e15 || moved < -1e15) return false;
        t.data += index * t.offset_scale;
    }
    return t.data >= t.low && t.data + (last + 1) * t.item_bytes <= t.high;
}

// Reads the scalar operands named by the word: tag bits, then 64 value bits.
DEV void resolve_scalars(Work& w, const Scalars& m, u32 scalars, u32 lane) {
    const OpcodeInfo& info = opcode_info[opcode_of(w)];
    if (lane < scalars) {
        const u32 tag_bit = info.tag_bit[lane], value_bit = info.value_bit[lane];
        const u32 tag = (w.word[tag_bit / 32] >> (tag_bit % 32)) & 0xff;
        const u64 value = static_cast<u64>(w.word[value_bit / 32 + 1]) << 32 | w.word[value_bit / 32];
        const bool immediate = tag == TAG_INTEGER || tag == TAG_PRESENT_INTEGER || tag == TAG_FLOAT;
        w.scalars[lane] = immediate ? static_cast<i64>(value) : read_register(m, tag);
        w.scalar_is_float[lane] = tag == TAG_FLOAT || is_float_register(tag);
    }
}

// What the controller goes by: three pieces of an image, asked for all at once instead of one field after another.
struct Head {
    u32 ahead_begin, ahead_pieces, tiles, path, first_block, signal, waits, present, dynamic, scalar_count;

    DEV explicit Head(const uint4* image) {
        constexpr u32 ORDER = 1 + 3 * WORD_BYTES / PIECE_BYTES;  // behind the word and two records
        const uint4 first = image[0], order = image[ORDER], kind = image[ORDER + 1];
        ahead_begin = first.y;
        ahead_pieces = first.z;
        tiles = first.w;
        path = order.x;
        first_block = order.y;
        signal = order.z;
        waits = order.w;
        present = kind.x;
        dynamic = kind.y & 0xffff;
        scalar_count = kind.w;
    }
    // Whether there is more to do than to hand it out. One question, as most instructions have none of it.
    DEV bool special() const {
#ifdef DLA_RANKS
        if (path == PATH_HOST) return true;
#endif
        return dynamic | scalar_count | (waits > MAX_WAITS);
    }
};

// Fills `w` for the instruction at `at` from its image: all of it, unless registers or scalars take part.
DEV void copy_image(const uint4* image, const Head& head, Work& w, u32 at, u32 lane) {
    if (lane < HEADER_PIECES) reinterpret_cast<uint4*>(&w)[lane] = image[lane];
    constexpr u32 AT_ONCE = WARP / TENSOR_PIECES;
    static_assert(WARP % TENSOR_PIECES == 0 && MAX_OPERANDS % AT_ONCE == 0, "each lane has as many");
#pragma unroll
    for (u32 first = 0; first < MAX_OPERANDS; first += AT_ONCE) {
        const u32 k = first + lane / TENSOR_PIECES, before = __popc(head.present & (1u << k) - 1), piece = lane % TENSOR_PIECES;
        const bool present = head.present >> k & 1;
        reinterpret_cast<uint4*>(&w.operands[k])[piece] =
            present ? image[HEADER_PIECES + before * TENSOR_PIECES + piece] : make_uint4(0, 0, 0, 0);
    }
    if (lane == 0) {
        w.instruction = at;
        w.last = 0;
    }
    __syncwarp();
}

// Then fills in what these say; false if an operand's extent is wrong.
DEV bool resolve(const Scalars& m, const Head& head, Work& w, u32 lane) {
    if (const u32 scalars = head.scalar_count % CONTROLLER_ONLY) {
        resolve_scalars(w, m, scalars, lane);
        __syncwarp();
    }
    if (!head.dynamic) return true;
    bool fits = true;
    if (lane < MAX_OPERANDS && w.operands[lane].present && w.operands[lane].dynamic) fits = patch(w.operands[lane], m);
    fits = __all_sync(0xffffffffu, fits);
    __syncwarp();
    return fits;
}
