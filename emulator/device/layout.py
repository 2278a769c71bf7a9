"""Sizes and structs that host and kernel share: written here once, generated into CUDA as `layout.cuh`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dla.isa.descriptor import MAX_RANK
from dla.isa.encoding import WORD_BYTES
from dla.isa.table import MAX_OPERANDS

COUNTERS = 1024
MAX_WAITS = 32
CHUNK_WORDS = 8
WAIT_FOR_ALL = 0xFFFFFFFF
CONTROLLER_WARPS = 4
WORKER_WARPS = 8
WARP = 32
BLOCK_THREADS = (CONTROLLER_WARPS + WORKER_WARPS) * WARP

CONSTANTS: dict[str, tuple[int, str]] = {
    "MAX_RANK": (MAX_RANK, "dims of a tensor"),
    "MAX_OPERANDS": (MAX_OPERANDS, "operands of an instruction"),
    "WORD_BYTES": (WORD_BYTES, "size of an instruction word, and of a record"),
    "COUNTERS": (COUNTERS, "completion counters; instructions share them round-robin"),
    "MAX_WAITS": (MAX_WAITS, "dependencies of one instruction: one lane polls each"),
    "WAIT_FOR_ALL": (WAIT_FOR_ALL, "number of waits that means: until everything before is done"),
    "CHUNK_WORDS": (CHUNK_WORDS, "instruction words fetched by one load of the controller warp"),
    "WARP": (WARP, "threads of a warp"),
    "CONTROLLER_WARPS": (CONTROLLER_WARPS, "one in use; a whole warpgroup, so that registers can move between roles"),
    "WORKER_WARPS": (WORKER_WARPS, "warps that execute tiles"),
    "BLOCK_THREADS": (BLOCK_THREADS, "threads of a block"),
}


@dataclass(frozen=True)
class Struct:
    """A struct on both sides: fields of (name, NumPy type, count, CUDA type, meaning)."""

    name: str
    fields: tuple[tuple[str, str, int, str, str], ...]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy record type, packed as the CUDA compiler packs it."""
        return np.dtype([(n, t, c) if c > 1 else (n, t) for n, t, c, _, _ in self.fields], align=True)

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
        ("reserved", "u1", 11, "u8", ""),
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
LAUNCH = Struct(
    "Launch",
    (
        ("words", "<u8", 1, "const u32*", "the program, padded by two chunks"),
        ("records", "<u8", 1, "const u32*", "entry 0 is unused"),
        ("operands", "<u8", 1, "const TensorFields*", "entry 0 is an absent operand"),
        ("waits", "<u8", 1, "const u32*", "per instruction: first wait, number of waits, signal counter, first block"),
        ("wait_lists", "<u8", 1, "const u32*", "counters waited for"),
        ("counters", "<u8", 1, "u32*", "COUNTERS completion counters, then the number of blocks that left"),
        ("abort", "<u8", 1, "u32*", "set: every wait gives up"),
        ("report", "<u8", 1, "Report*", ""),
        ("probes", "<u8", 1, "ProbeRecord*", ""),
        ("initial_registers", "<u8", 1, "const i64*", "s0..s31"),
        ("timeout_ns", "<u8", 1, "u64", "longest time that one wait may take"),
        ("instructions", "<u4", 1, "u32", "length of the program"),
        ("expected_base", "<u4", 1, "u32", "0; the tests plant a hang with anything else"),
        ("rank", "<u4", 1, "u32", ""),
        ("world", "<u4", 1, "u32", ""),
    ),
)
STRUCTS = (TENSOR, REPORT, PROBE, LAUNCH)


def cuda() -> str:
    """The text of `layout.cuh`."""
    lines = ["#pragma once", '#include "types.cuh"']
    lines += [f"constexpr u32 {name} = {value:#x}u;  // {meaning}" for name, (value, meaning) in CONSTANTS.items()]
    for struct in STRUCTS:
        lines += struct.cuda()
    return "\n".join([*lines, ""])
