"""Wrappers of the warpgroup's matrix products (PTX ISA, `wgmma.mma_async`): generated, as each names its registers."""

from __future__ import annotations

from collections.abc import Iterator

COLUMNS = (32, 64, 128, 256)
"""Widths of a product that the machine uses; the instruction has every multiple of 8 up to 256."""
TYPES = {"Bf16": "bf16", "F16": "f16"}
"""Element types: their struct in matrix.cuh, and PTX's name."""


def cuda() -> str:
    """The text of `wgmma.cuh`: `Wgmma<T, COLUMNS, A_ACROSS, B_ACROSS>::multiply(sums, a, b)`.

    It adds a[64, 16] * b[COLUMNS, 16] to the first COLUMNS / 2 of `sums`. a and b are descriptors of shared memory; an
    operand that lies across has neighbours along its rows (M, N) next to each other, not along the depth.
    """
    lines = ["#pragma once", '#include "matrix.cuh"', "#ifdef HOPPER"]
    lines += ["template <class T, u32 COLUMNS, bool A_ACROSS, bool B_ACROSS> struct Wgmma;"]
    for name, ptx in TYPES.items():
        for columns in COLUMNS:
            for across in range(4):
                lines += _wrapper(name, ptx, columns, across >> 1, across & 1)
    return "\n".join([*lines, "#endif", ""])


def _wrapper(name: str, ptx: str, columns: int, a_across: int, b_across: int) -> Iterator[str]:
    count = columns // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    sums = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    across = ", ".join("true" if flag else "false" for flag in (a_across, b_across))
    yield f"template <> struct Wgmma<{name}, {columns}, {across}> {{"
    yield "    template <u32 SIZE> static DEV void multiply(f32 (&d)[SIZE], u64 a, u64 b) {"
    yield '        asm volatile("{\\n.reg .pred add;\\nsetp.eq.u32 add, 0, 0;\\n"'
    yield f'                     "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{ptx}.{ptx} "'
    yield f'                     "{{{registers}}}, %{count}, %{count + 1}, add, 1, 1, {a_across}, {b_across};\\n}}"'
    yield f'                     : {sums} : "l"(a), "l"(b) : "memory");'
    yield "    }"
    yield "};"
