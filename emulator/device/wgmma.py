"""Wrappers of the warpgroup's matrix products (PTX ISA, `wgmma.mma_async`): generated, as each names its registers."""

from __future__ import annotations

from collections.abc import Iterator

COLUMNS = (16, 32, 48, 64, 72, 128, 136, 192, 256)
"""Widths of a product that the machine uses; the instruction has every multiple of 8 up to 256."""
TF32_COLUMNS = (64, 128, 256)
SETTABLE = (128, 136, 192, 256)
"""Widths that have `multiply_if`."""
TYPES = {"Bf16": "bf16", "F16": "f16"}
"""Element types of 16 bits: their struct in matrix.cuh, and PTX's name."""
A_REGISTERS = ", ".join(f'"r"(a[{i}])' for i in range(4))
"""An a that mma.sync would take."""


def cuda() -> str:
    """The text of `wgmma.cuh`: `Wgmma<T, COLUMNS, A_ACROSS, B_ACROSS>::multiply(sums, a, b)`.

    It adds a[64, 16] * b[COLUMNS, 16] to the first COLUMNS / 2 of `sums`. a and b are descriptors of shared memory; an
    operand that lies across has neighbours along its rows (M, N) next to each other, not along the depth. An a that
    does not may also be in registers, as mma.sync has it. `start` sets the sums instead, and so does
    `multiply_if(..., adds)` where `adds` is 0. Of `Tf32`, which reads the upper 19 bits of f32 elements, the depth is
    8, and no operand in shared memory can lie across.
    """
    lines = ["#pragma once", '#include "matrix.cuh"', "#ifdef HOPPER"]
    lines += ["template <class T, u32 COLUMNS, bool A_ACROSS, bool B_ACROSS> struct Wgmma;"]
    for name, ptx in TYPES.items():
        for columns in COLUMNS:
            for across in range(4):
                lines += _wrapper(name, ptx, columns, across >> 1, across & 1)
    for columns in TF32_COLUMNS:
        lines.append(f"template <> struct Wgmma<Tf32, {columns}, false, false> {{")
        lines += _function("multiply", "1", "tf32", columns, "", "u64 a", '"l"(a)')
        lines += _function("multiply", "1", "tf32", columns, "", "const u32 (&a)[4]", A_REGISTERS)
        lines.append("};")
    return "\n".join([*lines, "#endif", ""])


def _wrapper(name: str, ptx: str, columns: int, a_across: int, b_across: int) -> Iterator[str]:
    across = ", ".join("true" if flag else "false" for flag in (a_across, b_across))
    yield f"template <> struct Wgmma<{name}, {columns}, {across}> {{"
    for function, adds in (("multiply", "1"), ("start", "0"), *((("multiply_if", ""),) if columns in SETTABLE else ())):
        yield from _function(function, adds, ptx, columns, f", {a_across}, {b_across}", "u64 a", '"l"(a)')
        if not a_across:
            yield from _function(function, adds, ptx, columns, f", {b_across}", "const u32 (&a)[4]", A_REGISTERS)
    yield "};"


def _function(name: str, adds: str, ptx: str, columns: int, across: str, a: str, a_input: str) -> Iterator[str]:
    count, a_count, depth = columns // 2, a_input.count("(a"), 8 if ptx == "tf32" else 16
    registers = ", ".join(f"%{i}" for i in range(count))
    a_registers = ", ".join(f"%{count + i}" for i in range(a_count))
    if a_count > 1:
        a_registers = f"{{{a_registers}}}"
    sums = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    asked, asked_input = ("", "") if adds else (", u32 adds", ', "r"(adds)')
    yield f"    template <u32 SIZE> static DEV void {name}(f32 (&d)[SIZE], {a}, u64 b{asked}) {{"
    yield f'        asm volatile("{{\\n.reg .pred add;\\nsetp.ne.u32 add, {adds or f"%{count + a_count + 1}"}, 0;\\n"'
    yield f'                     "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{ptx}.{ptx} "'
    yield f'                     "{{{registers}}}, {a_registers}, %{count + a_count}, add, 1, 1{across};\\n}}"'
    yield f'                     : {sums} : {a_input}, "l"(b){asked_input} : "memory");'
    yield "    }"
