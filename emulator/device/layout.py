"""Sizes and structs that host and kernel share: written here once, generated into CUDA as `layout.cuh`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dla.isa.descriptor import MAX_RANK
from dla.isa.encoding import WORD_BYTES
from dla.isa.table import MAX_OPERANDS

COUNTERS = 1024
TURN_AT = 2 * COUNTERS
COUNTER_WORDS = TURN_AT + 4
MAX_WAITS = 32
PATH_DETAIL = 16
CLAIMS_AT = 13
PARTY_AT = 14
MOST_RANKS = 8
CARD_PLACES, CARD_PLACE_BYTES, DIRECT_BYTES = 2, 16384, 16384
IMAGES_AHEAD = 3
PATH_GENERIC, PATH_GEMM, PATH_STREAM, PATH_CONV, PATH_FLASH, PATH_PIXELS, PATH_HOST = range(7)
PATHS = ("generic", "gemm", "stream", "conv", "flash", "pixels", "host")  # their names
TENSOR_MAP_BYTES, FIRST_WORK_BYTES, FIRST_TILE_BYTES = 128, 1440, 144
FIRST_DECODED, FIRST_PRODUCT = 1, 2
MAX_SPLITS = 6
A_ACROSS, B_ACROSS, HALF_FLOATS, BATCHED, B_CONSTANT, BIAS_EARLY = (1 << i for i in range(6))
OUT_IN_LINES, A_WHOLE, B_WHOLE, A_SHARED, B_SHARED = (1 << i for i in range(6, 11))
FLOATS, EXACT, BY_PIECES, OUT_IN_CHUNKS, OUT_IN_BOXES, TRANSPOSED = (1 << i for i in range(11, 17))
OVERLAPPING_DOWN, OVERLAPPING_ACROSS, A_SHORT, B_SHORT, DEPTH_SHARED = (1 << i for i in range(17, 22))
ONE_BAND, FIRST_FITS = 1 << 29, 1 << 30
PAIR = 2
FLASH_WIDE, FLASH_F16, FLASH_HALVES = 1, 2, 4
NORM_ROWS, NORM_CENTRED, NORM_GAIN, NORM_BIAS, BIAS_FIRST, NORM_OF_ONE, NORM_STORED = (1 << i for i in range(7))
PRODUCT_NORM_AT, PRODUCT_NORM_BITS, MAX_NORM_SLICES = 22, 7, 12
STREAM_NORM_ELEMENTS = 4096
NORMALISED_SLOT, CHANNELS_SLOT = MAX_OPERANDS - 2, MAX_OPERANDS - 1
TABLES_SLOT = MAX_OPERANDS - 2
WAIT_FOR_ALL = 0xFFFFFFFF
PLAIN_FEW, PLAIN_UNITS = 8, 16
TRIP_SETS = 4
CONTROLLER_ONLY = 0x100
CONTROLLER_WARPS = 4
WORKER_WARPS = 8
WARP = 32
BLOCK_THREADS = (CONTROLLER_WARPS + WORKER_WARPS) * WARP

CONSTANTS: dict[str, tuple[int, str]] = {
    "MAX_RANK": (MAX_RANK, "dims of a tensor"),
    "MAX_OPERANDS": (MAX_OPERANDS, "operands of an instruction"),
    "WORD_BYTES": (WORD_BYTES, "size of an instruction word, and of a record"),
    "COUNTERS": (COUNTERS, "completion counters; instructions share them round-robin"),
    "TURN_AT": (TURN_AT, "behind the counters: blocks that have ended, modulo those of two launches"),
    "MAX_WAITS": (MAX_WAITS, "dependencies of one instruction: one lane polls each"),
    "WAIT_FOR_ALL": (WAIT_FOR_ALL, "number of waits that means: until everything before is done"),
    "PLAIN_FEW": (PLAIN_FEW, "in a StreamSchedule's plain: no block has more results than a warp has lanes"),
    "PLAIN_UNITS": (PLAIN_UNITS, "the same"),
    "TRIP_SETS": (TRIP_SETS, "of results that are taken as they come in a loop: trips use them in turns"),
    "PATH_GENERIC": (PATH_GENERIC, "a handler for each row"),
    "PATH_GEMM": (PATH_GEMM, "matrix products by wgmma"),
    "PATH_STREAM": (PATH_STREAM, "products of few rows, at the speed of memory"),
    "PATH_CONV": (PATH_CONV, "convolutions by wgmma"),
    "PATH_FLASH": (PATH_FLASH, "attention by wgmma"),
    "PATH_PIXELS": (PATH_PIXELS, "convolutions of images by wgmma"),
    "PATH_HOST": (PATH_HOST, "collectives that the host executes, between two launches"),
    "PATH_DETAIL": (PATH_DETAIL, "numbers that a path keeps of an instruction"),
    "CLAIMS_AT": (CLAIMS_AT, "the number of a handler's detail that the plan gives: where its shares are claimed"),
    "PARTY_AT": (PARTY_AT, "likewise, of collectives: the ranks of its group; and what they are to each other"),
    "MOST_RANKS": (MOST_RANKS, "that run a program together"),
    "CARD_PLACES": (CARD_PLACES, "for cards of a block that are on their way to another rank"),
    "CARD_PLACE_BYTES": (CARD_PLACE_BYTES, "that a card takes, with a number beside each three words"),
    "DIRECT_BYTES": (DIRECT_BYTES, "of a block's share times members: ranks reach into memory where it is more"),
    "IMAGES_AHEAD": (IMAGES_AHEAD, "instructions asked for by the controller, the present one included"),
    "CONTROLLER_ONLY": (CONTROLLER_ONLY, "flag of instructions that the controller executes itself"),
    "TENSOR_MAP_BYTES": (TENSOR_MAP_BYTES, "CUtensorMap"),
    "FIRST_PRODUCT": (FIRST_PRODUCT, "a Launch's first_work: it is a GEMM or CONV on a hot path"),
    "FIRST_WORK_BYTES": (FIRST_WORK_BYTES, "DecodedWork"),
    "FIRST_TILE_BYTES": (FIRST_TILE_BYTES, "what a block's loader begins with (kernel/hopper/first.cuh)"),
    "MAX_SPLITS": (MAX_SPLITS, "parts of the depth of a product"),
    "A_ACROSS": (A_ACROSS, "flags of a ProductSchedule: the rows of a are neighbours in memory, not its columns"),
    "B_ACROSS": (B_ACROSS, "the columns of b are neighbours"),
    "HALF_FLOATS": (HALF_FLOATS, "f16, else bf16"),
    "FLOATS": (FLOATS, "f32: as tf32,"),
    "EXACT": (EXACT, "or as it is, by multiply-add"),
    "BY_PIECES": (BY_PIECES, "of those: the epilogue is not the portable one, although the sums are in scratch memory"),
    "TRANSPOSED": (TRANSPOSED, "b.T and a.T are multiplied; the sums are the result's, transposed"),
    "OVERLAPPING_DOWN": (OVERLAPPING_DOWN, "the last tile down ends with the last row: it has some of the one before"),
    "OVERLAPPING_ACROSS": (OVERLAPPING_ACROSS, "the last tile across ends with the last column"),
    "A_SHORT": (A_SHORT, "there are fewer rows than a tile has, and copies bring no more of a"),
    "B_SHORT": (B_SHORT, "the same of columns, and b"),
    "BATCHED": (BATCHED, "tensor maps have three coordinates for batches"),
    "B_CONSTANT": (B_CONSTANT, "nothing in the program writes b"),
    "BIAS_EARLY": (BIAS_EARLY, "bias: 16-bit, one row for all, pairs aligned"),
    "OUT_IN_LINES": (OUT_IN_LINES, "the epilogue is one of those of kernel/hopper/finish_lines.cuh"),
    "OUT_IN_CHUNKS": (OUT_IN_CHUNKS, "of those: lines of the result are made of whole, aligned chunks of 16 bytes"),
    "OUT_IN_BOXES": (OUT_IN_BOXES, "of those: the copy engine takes them to memory (kernel/hopper/boxes.cuh)"),
    "A_WHOLE": (A_WHOLE, "one box brings all of a's part of a stage: 64 of its inner dim are a dim of the map"),
    "B_WHOLE": (B_WHOLE, "the same of b"),
    "A_SHARED": (A_SHARED, "the blocks of a pair have tiles side by side, and share a"),
    "B_SHARED": (B_SHARED, "the blocks of a pair have tiles one below the other, and share b"),
    "DEPTH_SHARED": (DEPTH_SHARED, "the blocks of a pair have half of a tile's depth each"),
    "ONE_BAND": (ONE_BAND, "the kernel's: tiles are one band of one product, and the depth is in two parts at most"),
    "FIRST_FITS": (FIRST_FITS, "the kernel's: it can be loaded before it is handed out (kernel/hopper/first.cuh)"),
    "FLASH_WIDE": (FLASH_WIDE, "flags of a FlashSchedule: more than 64 columns of q, k or v"),
    "FLASH_F16": (FLASH_F16, "f16, else bf16"),
    "FLASH_HALVES": (FLASH_HALVES, "tiles of half as many queries, for one of the warpgroups"),
    "NORM_ROWS": (NORM_ROWS, "flags of a StreamSchedule's norm: rows of a are those of a NORM's x,"),
    "NORM_CENTRED": (NORM_CENTRED, "of a NORM.layer,"),
    "NORM_GAIN": (NORM_GAIN, "with a gain"),
    "NORM_BIAS": (NORM_BIAS, "and a bias,"),
    "BIAS_FIRST": (BIAS_FIRST, "which is the first of the channels; else the gain is"),
    "NORM_OF_ONE": (NORM_OF_ONE, "of one row, in which no thread has more than a vector"),
    "NORM_STORED": (NORM_STORED, "which others read, too: so they are stored"),
    "PRODUCT_NORM_AT": (PRODUCT_NORM_AT, "where in those of a product flags of the NORM begin that tiles do,"),
    "PRODUCT_NORM_BITS": (PRODUCT_NORM_BITS, "how many they are,"),
    "MAX_NORM_SLICES": (MAX_NORM_SLICES, "of rows of so many slices"),
    "STREAM_NORM_ELEMENTS": (STREAM_NORM_ELEMENTS, "of the rows that a streamed product may normalise"),
    "NORMALISED_SLOT": (NORMALISED_SLOT, "operand of such a product, which has no gate, where it stores its rows"),
    "CHANNELS_SLOT": (CHANNELS_SLOT, "operand of such a product that is no operand of GEMM: gain and bias, a row each"),
    "TABLES_SLOT": (TABLES_SLOT, "and the next: of an ATTENTION that rotates what it takes, cosines and sines"),
    "WARP": (WARP, "threads of a warp"),
    "CONTROLLER_WARPS": (CONTROLLER_WARPS, "a whole warpgroup, so that registers can move between roles"),
    "WORKER_WARPS": (WORKER_WARPS, "warps that execute tiles"),
    "BLOCK_THREADS": (BLOCK_THREADS, "threads of a block"),
}


@dataclass(frozen=True)
class Struct:
    """A struct on both sides: fields of (name, NumPy type, count, CUDA type, meaning)."""

    name: str
    fields: tuple[tuple[str, str | np.dtype[Any], int, str, str], ...]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy record type, packed as the CUDA compiler packs it."""
        return np.dtype([(n, t, c) if c > 1 else (n, t) for n, t, c, _, _ in self.fields], align=True)

    def words(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """The struct as words of 32 bits; fields that `values` does not have are 0. Raises OverflowError."""
        record = np.zeros(1, self.dtype)
        for name, value in values.items():
            record[name] = value
        return tuple(map(int, record.view("<u4")))

    def values(self, words: Sequence[int]) -> dict[str, int]:
        """The fields of a struct of numbers, from its words."""
        (record,) = np.array(words, "<u4").view(self.dtype)
        return {name: int(record[name]) for name, *_ in self.fields}

    def cuda(self) -> Iterator[str]:
        """The CUDA definition, with its size asserted."""
        yield f"struct {self.name} {{"
        for name, _, count, cuda_type, meaning in self.fields:
            yield f"    {cuda_type} {name}{f'[{count}]' if count > 1 else ''};  // {meaning}"
        yield "};"
        yield f'static_assert(sizeof({self.name}) == {self.dtype.itemsize}, "host and kernel agree on {self.name}");'


TENSOR = Struct(
    "TensorFields",
    (
        ("data", "<u8", 1, "char*", "first element"),
        ("offset_scale", "<i8", 1, "i64", "bytes per unit of the offset register"),
        ("strides", "<i8", MAX_RANK, "i64", "elements"),
        ("dims", "<i4", MAX_RANK, "i32", "sizes; bounds until the controller has read the registers"),
        ("low", "<u8", 1, "char*", "every element lies in [low, high)"),
        ("high", "<u8", 1, "char*", ""),
        ("dtype", "u1", 1, "u8", "DTYPE_..."),
        ("rank", "u1", 1, "u8", ""),
        ("contiguous", "u1", 1, "u8", "row-major without gaps at its present dims"),
        ("dynamic", "u1", 1, "u8", "a register takes part"),
        ("offset_register", "u1", 1, "u8", "0 none, else index + 1"),
        ("dim_register", "u1", MAX_RANK, "u8", "0 constant, else index + 1"),
        ("present", "u1", 1, "u8", "0 for an operand that the instruction does not have"),
        ("item_bytes", "u1", 1, "u8", "bytes per element"),
        ("constant", "u1", 1, "u8", "nothing in the program writes there: it may be read before the work may begin"),
        ("reserved", "u1", 2, "u8", ""),
        ("count", "<i8", 1, "i64", "elements"),
    ),
)
IMAGE_HEADER = Struct(
    "ImageHeader",
    (
        ("units", "<u4", 1, "u32", "where each is one thread's: how many, filled in as tiles; else 0 (NextWork)"),
        ("ahead_begin", "<u4", 1, "u32", "where the image IMAGES_AHEAD instructions on begins, in 16 bytes"),
        ("ahead_pieces", "<u4", 1, "u32", "and its length; 0 behind the end of the program"),
        ("tiles", "<u4", 1, "u32", "1 + number of tiles, filled in by dla_prepare; 0 where registers take part"),
        ("word", "<u4", WORD_BYTES // 4, "u32", "the instruction; its operand slots are not used"),
        ("records", "<u4", 2 * WORD_BYTES // 4, "u32", "attribute records, defaults written out"),
        ("path", "<u4", 1, "u32", "PATH_...: how the machine executes it"),
        ("first_block", "<u4", 1, "u32", "that its first tile goes to"),
        (
            "signal",
            "<u4",
            1,
            "u32",
            "counter that counts the blocks that are done; COUNTERS where nobody waits for them",
        ),
        ("waits", "<u4", 1, "u32", "number of counters to wait for, or WAIT_FOR_ALL"),
        ("present", "<u4", 1, "u32", "a bit for each operand: whether the instruction has it"),
        ("dynamic", "<u2", 1, "u16", "whether a register takes part in an operand"),
        ("handler", "<u2", 1, "u16", "HANDLER_... of the row; 0: workers have no part"),
        ("granules", "<u4", 1, "u32", "of scratch memory in the ring, filled in by dla_prepare with the tiles"),
        ("scalar_count", "<u4", 1, "u32", "scalar operands; CONTROLLER_ONLY is added where the workers have no part"),
        ("wait_counter", "<u2", MAX_WAITS, "u16", "counters waited for"),
        ("detail", "<u4", PATH_DETAIL, "u32", "the path's own; of PATH_GENERIC what its handler prepared"),
    ),
)
PRODUCT_SCHEDULE = Struct(
    "ProductSchedule",
    (
        ("a_map", "<u4", 1, "u32", "index of the tensor map"),
        ("b_map", "<u4", 1, "u32", ""),
        ("pitch", "<u4", 1, "u32", "bytes between rows of the result, within a batch, where it is stored in lines"),
        ("flags", "<u4", 1, "u32", "A_ACROSS and so on"),
        (
            "tile_rows",
            "<u2",
            1,
            "u16",
            "of 64, the warpgroups stand side by side; of 64 x 64 and of low tiles, they share the depth",
        ),
        ("tile_columns", "<u2", 1, "u16", "of sums"),
        ("slices", "u1", 1, "u8", "of 64 of the depth, in a stage"),
        ("splits", "u1", 1, "u8", "parts of the depth, of different blocks"),
        ("scratch", "u1", 1, "u8", "granules for a tile's sums where the portable epilogue finishes it, else 0"),
        ("granules", "u1", 1, "u8", "of a stage: the kernel's"),
        ("a_groups", "u1", 1, "u8", "of 8 lines, that copies bring of a to each slice of a stage: the kernel's"),
        ("b_groups", "u1", 1, "u8", "of b, likewise"),
        ("way", "<u2", 1, "u16", "of the workers (kernel/paths.cuh), likewise"),
        ("stages", "<u4", 1, "u32", "that the whole depth takes"),
        (
            "axes",
            "<u4",
            1,
            "u32",
            "4 bits each: first axes of three groups of batches, and of the rows; a bit each: a, b have no such group",
        ),
        ("sums", "<u4", 1, "u32", "where partial sums are in the workspace, in 1024 bytes"),
        ("rows", "<u4", 1, "u32", "of the result at its present dims, in a batch: the kernel's"),
        ("batches", "<u4", 1, "u32", "likewise"),
        ("down", "<u4", 1, "u32", "tiles of a batch, one below the other (pairs count once), likewise"),
        ("across", "<u4", 1, "u32", "and side by side"),
        ("what", "<u4", 1, "u32", "that happens to results stored in lines (hopper/finish_lines.cuh): the kernel's"),
        (
            "out_map",
            "<u4",
            1,
            "u32",
            "of the result, where the copy engine takes it to memory; or the bits of a NORM's eps",
        ),
    ),
)
FLASH_SCHEDULE = Struct(
    "FlashSchedule",
    (
        ("q_map", "<u4", 1, "u32", "index of the tensor map: columns, queries, heads, samples, places"),
        ("k_map", "<u4", 1, "u32", ""),
        ("v_map", "<u4", 1, "u32", ""),
        ("flags", "<u4", 1, "u32", "FLASH_WIDE and so on"),
        ("paired_heads", "<u4", 1, "u32", "whose tiles go in pairs of a heavy and a light one"),
    ),
)
PIXEL_SCHEDULE = Struct(
    "PixelSchedule",
    (
        ("lines", "<u4", 1, "u32", "of the result, in a tile"),
        ("bands", "<u4", 1, "u32", "tiles of a sample"),
        ("rows", "<u4", 1, "u32", "of x that a tile sees"),
        ("pairs", "<u4", 1, "u32", "of pixels, in a row of the kernel"),
        ("span", "<u4", 1, "u32", "pairs of pixels that a tile keeps of a row of x"),
        ("pitch", "<u4", 1, "u32", "bytes that a row of x takes as it comes"),
        ("depth", "<u4", 1, "u32", "pairs of pixels, in a kernel"),
        ("granules", "<u4", 1, "u32", "of shared memory"),
        ("flags", "<u4", 1, "u32", "HALF_FLOATS, B_CONSTANT: as of a ProductSchedule"),
        ("out_map", "<u4", 1, "u32", "index of the tensor map of the result"),
    ),
)
STREAM_SCHEDULE = Struct(
    "StreamSchedule",
    (
        ("map", "<u4", 1, "u32", "index of b's tensor map"),
        ("unit", "<u4", 1, "u32", "columns that a block takes at a time: 8 if packed, 16 or 32 if b lies across"),
        ("constant", "<u4", 1, "u32", "whether nothing in the program writes b"),
        ("half_floats", "<u4", 1, "u32", "f16, else bf16"),
        ("panels", "<u4", 1, "u32", "parts of the depth, each a stage of every unit: 2048, or across 16384 / unit"),
        ("granules", "<u4", 1, "u32", "of a stage"),
        (
            "boxes",
            "<u4",
            1,
            "u32",
            "copies that fill a stage: 1, one for each 64 of the depth, or across one a granule",
        ),
        ("pitch", "<u4", 1, "u32", "bytes between the places that a register moves b to: columns if packed; else 0"),
        ("base", "<u4", 2, "u32", "address of the map, low half first"),
        ("norm", "<u4", 1, "u32", "NORM_ROWS and so on; 0: a is multiplied as it is"),
        ("eps", "<f4", 1, "f32", "of the NORM"),
        ("gives", "<u4", 1, "u32", "where in the exchange the result is left as it comes, in 16 bytes, plus 1; or 0"),
        ("takes", "<u4", 1, "u32", "the same of a: where it comes"),
        (
            "plain",
            "<u4",
            1,
            "u32",
            "0; or for PlainStream: 1, 2 log rows, maybe PLAIN_FEW, PLAIN_UNITS times units of all blocks",
        ),
        ("spared", "<u4", 1, "u32", "of its blocks, the last so many have no units; not where b lies across"),
    ),
)
REPORT = Struct(
    "Report",
    (
        ("claimed", "<u4", 1, "u32", "set by the first thread that traps"),
        ("category", "<u4", 1, "u32", "TRAP_..."),
        ("instruction", "<u4", 1, "u32", "index of the one that trapped"),
        ("detail", "<u4", 5, "u32", "timeout: what, counter, value, target; otherwise the handler's own"),
        ("registers", "<i8", 32, "i64", "s0..s31 at HALT"),
    ),
)
PROBE = Struct(
    "ProbeRecord",
    (
        ("order", "<u8", 1, "u64", "0: this PROBE was not reached; else it was this many instructions into the run"),
        ("count", "<u8", 1, "u64", "elements"),
        ("nans", "<u8", 1, "u64", ""),
        ("infinities", "<u8", 1, "u64", ""),
        ("minimum", "<f8", 1, "f64", "of the finite elements; NaN where there is none"),
        ("maximum", "<f8", 1, "f64", ""),
        ("mean", "<f8", 1, "f64", ""),
    ),
)
PAUSE = Struct(
    "Pause",
    (
        ("instruction", "<u4", 1, "u32", "the collective that the launch ended at; behind the last one: at none"),
        ("steps", "<u8", 1, "u64", "instructions executed so far, by earlier launches of the run, too"),
        ("operands", TENSOR.dtype, 2, "TensorFields", "of the collective, resolved: out and x"),
        ("scalars", "<u4", 156, "u32", "the scalar unit's Scalars"),
    ),
)
MAILBOX = Struct(
    "Mailbox",
    (
        ("mail", "<u8", 1, "char*", "of a rank: where others put what is for it; channels, then places (mail.cuh)"),
        ("abort", "<u8", 1, "u32*", "its Launch's"),
        ("resumes", "<u8", 1, "const Pause*", "for itself: where its launch before paused; 0: this one begins a run"),
        ("pauses", "<u8", 1, "Pause*", "where this one tells where it ends; 0: there are no pauses"),
    ),
)
CHANNEL = Struct(
    "Channel",
    (
        ("taken_there", "<u4", 1, "u32", "cards to the other rank that it has taken: it says so"),
        ("sent", "<u4", 1, "u32", "cards to the other rank"),
        ("taken", "<u4", 1, "u32", "cards from the other rank"),
        ("reserved", "<u4", 1, "u32", ""),
    ),
)
LAUNCH = Struct(
    "Launch",
    (
        ("images", "<u8", 1, "char*", "for each instruction its ImageHeader, then the operands that it has"),
        ("image_places", "<u8", 1, "const u32*", "per instruction: where its image begins and its length, in 16 bytes"),
        ("maps", "<u8", 1, "const char*", "tensor maps of the hot paths, 128 bytes each"),
        ("workspace", "<u8", 1, "char*", "memory of the hot paths, zero at the start of the first launch"),
        ("counters", "<u8", 1, "u32*", "two sets of COUNTERS completion counters; at TURN_AT, which is whose turn"),
        ("exchange", "<u8", 1, "char*", "two sets of results that are taken as they come; all ones: none yet"),
        ("abort", "<u8", 1, "u32*", "set: every wait gives up"),
        ("report", "<u8", 1, "Report*", ""),
        ("probes", "<u8", 1, "ProbeRecord*", ""),
        ("initial_registers", "<u8", 1, "const i64*", "s0..s31"),
        ("timeout_ns", "<u8", 1, "u64", "longest time that one wait may take"),
        ("instructions", "<u4", 1, "u32", "length of the program"),
        ("first_pieces", "<u4", IMAGES_AHEAD, "u32", "lengths of the first images, in 16 bytes"),
        ("pairs", "<u4", 1, "u32", "whether the blocks of a pair work together anywhere in the program"),
        ("first_work", "<u4", 1, "u32", "where it comes decoded, 1, or FIRST_PRODUCT; else 0"),
        ("exchange_bytes", "<u4", 1, "u32", "of a set, in whole 16 bytes"),
        ("expected_base", "<u4", 1, "u32", "0; the tests plant a hang with anything else"),
        ("rank", "<u4", 1, "u32", ""),
        ("world", "<u4", 1, "u32", ""),
        ("code", "<u8", 1, "const char*", "where the machine's own code lies,"),
        ("code_bytes", "<u4", 1, "u32", "and its length; 0: not known"),
        ("trace_room", "<u4", 1, "u32", "spans that each block may note in the traced build"),
        ("trace", "<u8", 1, "char*", "and where: blocks, then spans"),
        ("mailboxes", "<u8", 1, "const Mailbox*", "of each rank of the world, in the build for several ranks"),
        ("first", "<u8", 1, "char*", "that work, FIRST_WORK_BYTES; then for each block FIRST_TILE_BYTES"),
    ),
)
TRACE_BLOCK = Struct(
    "TraceBlock",
    (
        ("began_clock", "<u8", 1, "u64", "of its multiprocessor"),
        ("began_ns", "<u8", 1, "u64", "the same time on the clock that all have"),
        ("ended_clock", "<u8", 1, "u64", ""),
        ("ended_ns", "<u8", 1, "u64", ""),
        ("multiprocessor", "<u4", 1, "u32", ""),
        ("works", "<u4", 1, "u32", "that it had, also those without room"),
    ),
)
TRACE_SPAN = Struct(
    "TraceSpan",
    (
        ("decoded", "<u8", 1, "u64", "clock, as all of these"),
        ("ready", "<u8", 1, "u64", ""),
        ("loaded", "<u8", 1, "u64", "0: not known"),
        ("done", "<u8", 1, "u64", ""),
        ("signalled", "<u8", 1, "u64", ""),
        ("order", "<u4", 1, "u32", "instructions executed so far, this one included"),
        ("instruction", "<u4", 1, "u32", ""),
        ("tiles", "<u4", 1, "u32", "as a Work's"),
        ("first_tile", "<u4", 1, "u32", ""),
    ),
)
STRUCTS = (
    TENSOR,
    IMAGE_HEADER,
    PRODUCT_SCHEDULE,
    FLASH_SCHEDULE,
    PIXEL_SCHEDULE,
    STREAM_SCHEDULE,
    REPORT,
    PROBE,
    PAUSE,
    MAILBOX,
    CHANNEL,
    LAUNCH,
    TRACE_BLOCK,
    TRACE_SPAN,
)


def mail_bytes(blocks: int, world: int) -> int:
    """The memory that a rank of `world` has for mail: for each of its blocks, from each rank (kernel/mail.cuh)."""
    return blocks * world * (CHANNEL.dtype.itemsize + CARD_PLACES * CARD_PLACE_BYTES)


def cuda() -> str:
    """The text of `layout.cuh`."""
    lines = ["#pragma once", '#include "types.cuh"']
    lines += [f"constexpr u32 {name} = {value:#x}u;  // {meaning}" for name, (value, meaning) in CONSTANTS.items()]
    for struct in STRUCTS:
        lines += struct.cuda()
    return "\n".join([*lines, ""])
