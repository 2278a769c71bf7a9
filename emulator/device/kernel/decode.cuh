// Fetch and decode: words in chunks ahead of need, operands copied and patched with what registers hold.
#pragma once
#include "scalar.cuh"

// Eight words in the registers of one warp: lane i holds bytes 16 i .. 16 i + 15 of the chunk; the next chunk is on its way.
struct Fetcher {
    uint4 chunk;
    uint4 ahead;
    u32 index;  // of the first word of `chunk`, a multiple of CHUNK_WORDS

    DEV static uint4 load(const Launch& launch, u32 index, u32 lane) {
        // The plan pads the program with two chunks, so reading ahead stays inside.
        return __ldg(reinterpret_cast<const uint4*>(launch.words) + static_cast<u64>(index) * (WORD_BYTES / 16) + lane);
    }
    DEV void start(const Launch& launch, u32 lane) {
        index = 0;
        chunk = load(launch, 0, lane);
        ahead = load(launch, CHUNK_WORDS, lane);
    }
    // Makes the chunk that holds instruction `at` the present one.
    DEV void seek(const Launch& launch, u32 at, u32 lane) {
        const u32 wanted = at - at % CHUNK_WORDS;
        if (wanted == index) return;
        chunk = wanted == index + CHUNK_WORDS ? ahead : load(launch, wanted, lane);
        ahead = load(launch, wanted + CHUNK_WORDS, lane);
        index = wanted;
    }
    // Copies the word of instruction `at` to shared memory.
    DEV void put(u32* word, u32 at, u32 lane) const {
        const u32 first = (at - index) * (WORD_BYTES / 16);
        if (lane >= first && lane < first + WORD_BYTES / 16) reinterpret_cast<uint4*>(word)[lane - first] = chunk;
    }
};

DEV u32 opcode_of(const Work& w) { return w.word[0] & 0xff; }

// Reads the registers that `t` depends on; false if a dim or an address leaves its bounds.
DEV_CALL bool patch(Tensor& t, const Scalars& m) {
    bool fits = true, empty = false, packed = true;
    i64 last = 0, step = 1;
    for (i32 k = t.rank - 1; k >= 0; --k) {
        if (t.dim_register[k]) {
            const i64 value = m.registers.s[t.dim_register[k] - 1];
            fits &= value >= 0 && value <= t.dims[k];
            t.dims[k] = fits ? static_cast<i32>(value) : 0;
        }
        empty |= t.dims[k] == 0;
        packed &= t.dims[k] == 1 || t.strides[k] == step;
        step *= t.dims[k];
        last += (t.dims[k] - 1) * t.strides[k];
    }
    t.contiguous = packed;
    if (!fits) return false;
    if (t.offset_register) {
        // Offsets are far below 2**48; a register beyond that cannot be inside any segment.
        const i64 index = m.registers.s[t.offset_register - 1];
        if (index > (1ll << 48) || index < -(1ll << 48)) return false;
        const f64 moved = static_cast<f64>(index) * static_cast<f64>(t.offset_scale);
        if (moved > 1e15 || moved < -1e15) return false;
        t.data += index * t.offset_scale;
    }
    return empty || (t.data >= t.low && t.data + (last + 1) * t.item_bytes <= t.high);
}

// Reads the scalar operands named by the word: tag bits, then 64 value bits.
DEV void resolve_scalars(Work& w, const Scalars& m, const OpcodeInfo& info, u32 lane) {
    if (lane < info.scalars) {
        const u32 tag_bit = info.tag_bit[lane], value_bit = info.value_bit[lane];
        const u32 tag = (w.word[tag_bit / 32] >> (tag_bit % 32)) & 0xff;
        const u64 value = static_cast<u64>(w.word[value_bit / 32 + 1]) << 32 | w.word[value_bit / 32];
        const bool immediate = tag == TAG_INTEGER || tag == TAG_PRESENT_INTEGER || tag == TAG_FLOAT;
        w.scalars[lane] = immediate ? static_cast<i64>(value) : read_register(m, tag);
        w.scalar_is_float[lane] = tag == TAG_FLOAT || is_float_register(tag);
    }
}

// Fills `w` for the instruction at `at`; false if an operand's extent is wrong.
DEV bool decode(const Launch& launch, const Scalars& m, const Fetcher& fetcher, Work& w, u32 at, u32 lane) {
    __syncwarp();  // a control instruction before this one was decoded in the same place, and is done with it
    fetcher.put(w.word, at, lane);
    if (lane == 0) w.instruction = at;
    __syncwarp();
    const OpcodeInfo& info = opcode_info[opcode_of(w)];
    constexpr u32 PIECES = sizeof(Tensor) / 16;
    constexpr u32 AT_ONCE = WARP / PIECES;
    uint4 piece[MAX_OPERANDS / AT_ONCE];  // all loads are under way before the first is stored
#pragma unroll
    for (u32 i = 0; i < MAX_OPERANDS / AT_ONCE; ++i) {
        const u32 k = i * AT_ONCE + lane / PIECES;
        // Operand slots start at bit 128.
        if (k < info.operands) piece[i] = __ldg(reinterpret_cast<const uint4*>(launch.operands + w.word[4 + k]) + lane % PIECES);
    }
#pragma unroll
    for (u32 i = 0; i < MAX_OPERANDS / AT_ONCE; ++i) {
        const u32 k = i * AT_ONCE + lane / PIECES;
        if (k < info.operands) reinterpret_cast<uint4*>(&w.operands[k])[lane % PIECES] = piece[i];
    }
    constexpr u32 RECORD_PIECES = WORD_BYTES / 16;
    if (lane < info.records * RECORD_PIECES) {  // record slots are at bits 32 and 64
        const u32 slot = w.word[1 + lane / RECORD_PIECES];
        const uint4* from = reinterpret_cast<const uint4*>(launch.records) + slot * RECORD_PIECES;
        reinterpret_cast<uint4*>(w.records[lane / RECORD_PIECES])[lane % RECORD_PIECES] = __ldg(from + lane % RECORD_PIECES);
    }
    resolve_scalars(w, m, info, lane);
    __syncwarp();
    bool fits = true;
    if (lane < info.operands && w.operands[lane].present && w.operands[lane].dynamic) fits = patch(w.operands[lane], m);
    fits = __all_sync(0xffffffffu, fits);
    __syncwarp();
    return fits;
}
