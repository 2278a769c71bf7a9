"""Rows that read elements from places of their own: ROPE, GATHER, RESIZE and TOPK, with and without whole vectors."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.isa.dtypes import BY_TEXT, FLOATS
from dla.isa.errors import Trap
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.references import compare
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
RESIZED = """
.input x : T[2, {rows}, 5, {columns}]
.const near : i32[7, 1] = [[0], [0], [1], [2], [2], [3], [4]]
.const one : f32[7, 1] = [[1], [1], [1], [1], [1], [1], [1]]
.const pairs : i64[3, 2] = [[0, 1], [1, 2], [4, 3]]
.const ends : i32[3, 2] = [[0, 1], [1, 0], [1, 1]]
.const shares : f32[3, 2] = [[0.25, 0.75], [0.5, 0.5], [1, 0]]
.const many : i32[2, 5] = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]
.const parts : f32[2, 5] = [[0.125, 0.5, 0, 0.25, 0.125], [-0.5, 1, 1, -0.25, 0]]
.output nearest : T[2, {rows}, 7, {columns}]
.output linear : f32[2, {rows}, 3, {columns}]
.output wide : T[2, {rows}, 2, {columns}]
.output across : T[2, {rows}, {columns}, 3]
.output first : T[3, {rows}, 5, {columns}]
main:
    RESIZE nearest, x, near, one axis=2
    RESIZE linear, x, pairs, shares axis=2
    RESIZE wide, x, many, parts axis=2
    RESIZE across, x.permute(0, 1, 3, 2), pairs, shares axis=3
    RESIZE first, x, ends, shares axis=0
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
APART = """
.input x : T[40, 13]
.input few : i32[5]
.input many : i32[1500]
.const pairs : i32[3, 2] = [[0, 1], [1, 2], [39, 3]]
.const shares : f32[3, 2] = [[0.25, 0.75], [0.5, 0.5], [1, 0]]
.output first : T[5, 8]
.output all : T[1500, 8]
.output mixed : T[3, 8]
.output mean : T[1, 5, 8]
.output top : T[1, 1, 1, 8]
main:
    GATHER first, x[:, :8], few axis=0
    GATHER all, x[:, :8], many axis=0
    RESIZE mixed, x[:, :8], pairs, shares axis=0
    POOL.avg mean, x.reshape(1, 40, 13)[:, :, :8] window=[1, 3] strides=[1, 8]
    POOL.max top, x.reshape(1, 8, 5, 13)[:, :, :, :8] window=[8, 5]
    HALT
"""
needs_compiler = cpu_machine.needs_compiler


@pytest.mark.parametrize("dtype", [d.text for d in FLOATS])
@sizes(
    gpu=[(1, 64), (40, 64), (1000, 64), (1000, 80), (9, 20), (9, 22)],
    cpu=[(1, 64), (60, 64), (60, 80), (9, 20), (9, 22)],
)
def test_turned_rows(machine, rows, columns, dtype):
    """One position and many; elements beyond the pairs; pairs and rows that are no whole vectors; in place."""
    text = TURNED.format(rows=rows, columns=columns, pairs={64: 32, 80: 16, 20: 8, 22: 11}[columns])
    check(assemble(text.replace(": T[", f": {BY_TEXT[dtype].text}[")), machine)


@pytest.mark.parametrize(
    "machine", [pytest.param("gpu", marks=pytest.mark.gpu), pytest.param("hopper", marks=needs_compiler)]
)
def test_rows_without_pairs_are_copied(machine):
    """There is no angle to turn anything by, also where what is left is made of whole vectors."""
    text = ".input x : f16[4, 16]\n.input angle : f16[4, 8]\n.output y : f16[4, 16]\nmain:\n"
    check(assemble(text + "    ROPE y, x, angle[:, :0], angle[:, :0]\n    HALT\n"), machine)


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


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@sizes(gpu=[(1, 16), (40, 64), (300, 256), (9, 12), (7, 5)], cpu=[(1, 16), (40, 64), (9, 12), (7, 5)])
def test_resized(machine, rows, columns, dtype):
    """One term, two, more than are fetched ahead; the last axis, whose neighbours are no results of one position."""
    check(assemble(RESIZED.format(rows=rows, columns=columns).replace(": T[", f": {BY_TEXT[dtype].text}[")), machine)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    "machine", [pytest.param("gpu", marks=pytest.mark.gpu), pytest.param("hopper", marks=needs_compiler)]
)
def test_vectors_of_which_only_the_first_is_aligned(machine, dtype):
    """Results that lie in vectors, of elements of x that an index or a window picks, at odd distances."""
    rng = np.random.default_rng(1)
    program = assemble(APART.replace(": T[", f": {dtype}["))
    given = {"x": rng.integers(-100, 100, (40, 13)).astype(BY_TEXT[dtype].numpy)}
    given |= {"few": rng.integers(0, 40, 5).astype(np.int32), "many": rng.integers(0, 40, 1500).astype(np.int32)}
    result = SESSIONS[machine](program).run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []


@needs_compiler
def test_whole_vectors_are_moved_as_such():
    """Where rows consist of aligned vectors, the handlers take them; else they go by elements."""
    text = TURNED.format(rows=4, columns=64, pairs=32).replace(": T[", ": f16[")
    ways = CpuSession(assemble(text), hopper=False).ways()
    assert [way for _, way in ways] == [1, 1, 1, 1, 0]
    ways = CpuSession(assemble(PICKED.format(rows=4, columns=64, half=32, begin=32, dtype="f16")), hopper=False).ways()
    assert [way for _, way in ways] == [1, 1, 0, 1]
    ways = CpuSession(assemble(RESIZED.format(rows=4, columns=16).replace(": T[", ": f16[")), hopper=False).ways()
    assert [way for _, way in ways] == [1, 1, 1, 0, 1]


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


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
@pytest.mark.parametrize("spread", ["random", "few values", "sorted", "nan"])
@pytest.mark.parametrize(
    "machine", [pytest.param("gpu", marks=pytest.mark.gpu), pytest.param("portable", marks=needs_compiler)]
)
def test_the_best_of_long_rows(machine, spread, dtype):
    """Most elements are left out after one look; or few, as of many equals, and then the best are found one by one."""
    length, wanted = 9001, 40
    rng = np.random.default_rng(1)
    x = rng.integers(-4000, 4000, (2, length)) if dtype == "i32" else rng.standard_normal((2, length))
    x = {"few values": np.sign(x), "sorted": np.sort(x)}.get(spread, x).astype(BY_TEXT[dtype].numpy)
    if spread == "nan" and dtype != "i32":
        x[0, [5, 8000]] = np.nan
    text = f".input x : {dtype}[2, {length}]\n.output y : {dtype}[2, {wanted}]\n.output i : i32[2, {wanted}]\nmain:\n"
    result = SESSIONS[machine](assemble(text + "    TOPK y, x indices=i\n    HALT\n")).run({"x": x}).outputs
    order = np.argsort(np.where(np.isnan(x), -np.inf, -x.astype(np.float64)), axis=1, kind="stable")[:, :wanted]
    assert np.array_equal(result["i"], order)
    assert np.array_equal(
        result["y"].astype(np.float64), np.take_along_axis(x, order, 1).astype(np.float64), equal_nan=True
    )
