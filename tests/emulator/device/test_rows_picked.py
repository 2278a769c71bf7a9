"""Rows that read elements from places of their own: ROPE and GATHER, with and without whole vectors."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.isa.dtypes import BY_TEXT, FLOATS
from dla.isa.errors import Trap
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.test_rows import SESSIONS, check, sizes

TURNED = """
.input x : T[2, {rows}, 3, {columns}]
.input angle : T[{rows}, {pairs}]
.input other : T[{rows}, {pairs}]
.input each : T[2, 3, {rows}, {pairs}]
.output halves : T[2, 3, {rows}, {columns}]
.output pairs : T[2, 3, {rows}, {columns}]
.output wide : f32[2, 3, {rows}, {columns}]
.output mixed : T[2, 3, {rows}, {columns}]
main:
    ROPE halves, x.permute(0, 2, 1, 3), angle, other
    ROPE pairs, x.permute(0, 2, 1, 3), angle, other interleaved
    ROPE wide, halves, each, each
    ROPE wide, wide, each, each interleaved
    ROPE mixed, pairs, each, angle
    HALT
"""
PICKED = """
.input x : {dtype}[3, {rows}, {columns}]
.input few : i64[2, 5]
.input many : i32[300]
.output middle : {dtype}[3, 2, 5, {columns}]
.output first : {dtype}[300, {rows}, {columns}]
.output last : {dtype}[3, {rows}, 300]
.output part : {dtype}[3, 300, {half}]
main:
    GATHER middle, x, few axis=1
    GATHER first, x, many axis=0
    GATHER last, x, many axis=2
    GATHER part, x[:, :, {begin}:], many axis=1
    HALT
"""
MOVING = """
.input table : f16[300, 64]
.input letters : i32[12]
.input angle : f32[20, 16]
.output x : f16[8, 64]
.output y : f16[8, 2, 32]
main:
    MOV s1, 0
    LOOP s0, 4
    ALU.mul s1, s0, 2
    GATHER x[s1:s1+2], table, letters[s1+1:s1+3]
    ROPE y[s1:s1+2].permute(1, 0, 2), x.reshape(8, 2, 32)[s1:s1+2].permute(1, 0, 2), angle[s1:s1+2], angle[s1+2:s1+4]
    ENDLOOP
    HALT
"""
needs_compiler = pytest.mark.skipif(cpu_machine.COMPILER is None, reason="no g++, which compiles the kernel")


@pytest.mark.parametrize("dtype", [d.text for d in FLOATS])
@sizes(
    gpu=[(1, 64), (40, 64), (1000, 64), (1000, 80), (9, 20), (9, 22)],
    cpu=[(1, 64), (60, 64), (60, 80), (9, 20), (9, 22)],
)
def test_turned_rows(machine, rows, columns, dtype):
    """One position and many; elements beyond the pairs; pairs and rows that are no whole vectors; in place."""
    text = TURNED.format(rows=rows, columns=columns, pairs={64: 32, 80: 16, 20: 8, 22: 11}[columns])
    check(assemble(text.replace(": T[", f": {BY_TEXT[dtype].text}[")), machine)


@pytest.mark.parametrize("dtype", ["u8", "bf16", "f32", "i64"])
@sizes(gpu=[(4, 64), (600, 512), (5, 33)], cpu=[(4, 64), (6, 32), (5, 33)])
def test_picked_slices(machine, rows, columns, dtype):
    """Slices of whole vectors, single elements, and slices that do not begin at a multiple of 16 bytes."""
    half = columns // 2
    program = assemble(PICKED.format(rows=rows, columns=columns, half=half, begin=columns - half, dtype=dtype))
    rng = np.random.default_rng(1)
    x = rng.integers(0, 100, (3, rows, columns)).astype(BY_TEXT[dtype].numpy)
    few, many = rng.integers(0, 3, (2, 5)), rng.integers(0, 3, 300).astype(np.int32)
    result = SESSIONS[machine](program).run({"x": x, "few": few, "many": many}).outputs
    assert np.array_equal(result["middle"], x[:, few])
    assert np.array_equal(result["first"], x[many])
    assert np.array_equal(result["last"], x[:, :, many])
    assert np.array_equal(result["part"], x[:, :, columns - half :][:, many])


@needs_compiler
def test_whole_vectors_are_moved_as_such():
    """Where rows consist of aligned vectors, the handlers take them; else they go by elements."""
    text = TURNED.format(rows=4, columns=64, pairs=32).replace(": T[", ": f16[")
    ways = CpuSession(assemble(text), hopper=False).ways()
    assert [way for _, way in ways] == [1, 1, 1, 1, 0]
    ways = CpuSession(assemble(PICKED.format(rows=4, columns=64, half=32, begin=32, dtype="f16")), hopper=False).ways()
    assert [way for _, way in ways] == [1, 1, 0, 1]


@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize(
    "machine", [pytest.param("gpu", marks=pytest.mark.gpu), pytest.param("hopper", marks=needs_compiler)]
)
@pytest.mark.parametrize("index", [-1, 40])
def test_indices_outside_trap(machine, count, index):
    """Few slices, which are read at once, and many, which are fetched ahead."""
    program = assemble(f".input x : f32[40, 16]\n.input i : i32[{count}]\n.output y : f32[{count}, 16]\n"
                       "main:\n    GATHER y, x, i\n    HALT\n")  # fmt: skip
    with pytest.raises(Trap) as raised:
        SESSIONS[machine](program).run({"x": np.ones((40, 16), np.float32), "i": np.full(count, index, np.int32)})
    assert (raised.value.category, raised.value.instruction) == ("index", 0)


@pytest.mark.parametrize(
    "machine", [pytest.param("gpu", marks=pytest.mark.gpu), pytest.param("hopper", marks=needs_compiler)]
)
def test_rows_that_registers_move(machine):
    """The handlers choose their way anew each time: views that a register moves."""
    check(assemble(MOVING), machine)
