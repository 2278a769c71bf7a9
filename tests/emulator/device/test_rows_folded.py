"""Rows that fold floats along an axis in vectors: REDUCE and POOL, over rows, columns, windows and all positions."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device.paths import Context, Target, schedule
from dla.isa.descriptor import Segment
from dla.isa.dtypes import BY_TEXT
from dla.isa.reach import Reach
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.test_rows import SESSIONS, check, sizes

FOLDED = """
.input x : T[3, {rows}, {columns}]
.output sum : T[3, {rows}]
.output mean : f32[3, {rows}]
.output l2 : T[3, {rows}, 1]
.output largest : i32[3, {rows}]
.output smallest : i64[3, {rows}]
.output over_first : T[{rows}, {columns}]
.output over_middle : f32[3, {columns}]
.output over_both : T[{columns}]
.output place : i64[3, {columns}]
.output least : T[1, 1, 1]
.output growth : f32[3, {rows}]
.output moved : f32[{rows}, {columns}]
main:
    REDUCE.sum sum, x axes=2
    REDUCE.mean mean, x axes=2
    REDUCE.l2 l2, x axes=2 keepdims
    REDUCE.argmax largest, x axes=2
    REDUCE.argmin smallest, x axes=2
    REDUCE.max over_first, x axes=0
    REDUCE.mean over_middle, x axes=1
    REDUCE.sum over_both, x axes=[0, 1]
    REDUCE.argmin place, x axes=1
    REDUCE.min least, x axes=[0, 1, 2] keepdims
    REDUCE.logsumexp growth, x axes=2
    REDUCE.sum moved, x.permute(1, 2, 0) axes=2
    HALT
"""
SPLIT = """
.input x : T[{rows}]
.input y : T[{columns}, 24]
.output sum : f32[1]
.output largest : i32[1]
.output first : i64[1]
.output mean : f32[24]
.output place : i64[24]
.output length : T[24]
main:
    LOOP s0, 2
    REDUCE.sum sum, x axes=0 keepdims
    REDUCE.argmax largest, x axes=0 keepdims
    REDUCE.argmin first, x axes=0 keepdims
    REDUCE.mean mean, y axes=0
    REDUCE.argmax place, y axes=0
    REDUCE.l2 length, y axes=0
    ENDLOOP
    HALT
"""
POOLED = """
.input x : T[2, {rows}, {rows}, {columns}]
.output largest : T[2, {half}, {half}, {columns}]
.output mean : f32[2, {half}, {half}, {columns}]
.output padded : T[2, {half}, {half}, {columns}]
.output wide : T[2, {rows}, {rows}, {columns}]
.output lines : T[{lines}, {half}, {columns}]
.output all : f32[2, 1, 1, {columns}]
.output top : T[2, 1, 1, {columns}]
main:
    POOL.max largest, x window=[3, 3] strides=[2, 2] pads=[1, 1, 1, 1]
    POOL.avg mean, x window=[3, 3] strides=[2, 2] pads=[1, 1, 1, 1]
    POOL.avg padded, x window=[3, 3] strides=[2, 2] pads=[1, 1, 1, 1] count_include_pad
    POOL.max wide, x window=[5, 3] strides=[1, 1] pads=[4, 2, 4, 2] dilations=[2, 2]
    POOL.max lines, x.reshape({lines}, {rows}, {columns}) window=[1, 3] strides=[1, 2] pads=[0, 1, 0, 1]
    POOL.global_avg all, x
    POOL.global_max top, x
    HALT
"""
DYNAMIC = """
.input x : bf16[rows <= 300, 136]
.output sum : f32[rows]
.output largest : i32[rows]
.output over_rows : f32[136]
main:
    REDUCE.sum sum, x axes=1
    REDUCE.argmax largest, x axes=1
    REDUCE.sum over_rows, x axes=0
    HALT
"""
ROWS, COLUMNS, WINDOWS = 1, 2, 3
needs_compiler = cpu_machine.needs_compiler


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@sizes(
    gpu=[(2, 4096), (8, 64), (6, 9), (300, 32), (1026, 72), (5000, 264), (1, 128256), (70, 16), (200, 512)],
    cpu=[(2, 4096), (8, 64), (6, 9), (300, 32), (500, 72), (1, 2056), (6, 512)],
)
def test_folds(machine, rows, columns, dtype):
    """Long rows and short ones, columns by one thread and by many, and what does not lie in vectors."""
    check(assemble(FOLDED.format(rows=rows, columns=columns).replace(": T[", f": {BY_TEXT[dtype].text}[")), machine)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@sizes(gpu=[(50257, 5000), (1000003, 100000)], cpu=[(70000, 2000), (33001, 1400)])
def test_folds_that_blocks_share(machine, rows, columns, dtype):
    """One row, with elements behind its last vector, and few columns; twice, as the counters are used again."""
    check(assemble(SPLIT.format(rows=rows, columns=columns).replace(": T[", f": {BY_TEXT[dtype].text}[")), machine)


@pytest.mark.parametrize(
    "machine", [pytest.param("gpu", marks=pytest.mark.gpu), pytest.param("portable", marks=needs_compiler)]
)
@pytest.mark.parametrize("count", [16, 2056, 70001])
def test_the_first_of_equals_and_nan(machine, count):
    """The first of the largest wins, and the first NaN before all; of nothing but -infinity or zeros, the first."""
    text = f".input x : f32[4, {count}]\n.output y : i32[4]\n.output z : i64[{count}]\nmain:\n"
    text += "    REDUCE.argmax y, x axes=1\n    REDUCE.argmin z, x axes=0\n    HALT\n"
    x = np.zeros((4, count), np.float32)
    x[0, [count - 2, count - 1]] = 1
    x[1, [9, count - 4]] = np.nan
    x[2] = -np.inf
    x[3, :11] = -1
    x[3, 11 : count - 1] = -0.0
    session = SESSIONS[machine](assemble(text))
    result = session.run({"x": x}).outputs
    np.testing.assert_array_equal(result["y"], [count - 2, 9, 0, 11])
    np.testing.assert_array_equal(result["z"], np.argmin(x, axis=0))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@sizes(gpu=[(7, 64), (112, 64), (9, 12), (1, 8)], cpu=[(7, 64), (15, 16), (5, 12), (1, 8)])
def test_pools(machine, rows, columns, dtype):
    """Windows at edges and inside, more taps than are under way at once, one spatial axis, all positions."""
    text = POOLED.format(rows=rows, columns=columns, half=(rows + 1) // 2, lines=2 * rows)
    check(assemble(text.replace(": T[", f": {BY_TEXT[dtype].text}[")), machine)


@pytest.mark.parametrize("rows", [1, 299])
@pytest.mark.parametrize(
    "machine", [pytest.param("gpu", marks=pytest.mark.gpu), pytest.param("portable", marks=needs_compiler)]
)
def test_folds_of_as_many_rows_as_there_are(machine, rows):
    """Dims that a register holds: the way is chosen anew."""
    program = assemble(DYNAMIC)
    x = np.random.default_rng(1).integers(-8, 8, (rows, 136)).astype(BY_TEXT["bf16"].numpy)
    result = SESSIONS[machine](program).run({"x": x}, {"rows": rows}).outputs
    exact = x.astype(np.float32)
    assert np.array_equal(result["sum"][:rows], exact.sum(1))
    assert np.array_equal(result["largest"][:rows], exact.argmax(1))
    assert np.array_equal(result["over_rows"], exact.sum(0))


@pytest.mark.parametrize(
    ("sub", "x", "out", "room"),
    [
        ("argmax", "f32[1, 128256]", "i32[1]", 132 * 256 * 8),
        ("sum", "bf16[1, 65536]", "f32[1]", 132 * 256 * 4),
        ("sum", "bf16[1, 2048]", "f32[1]", 0),
        ("sum", "bf16[20000, 65536]", "f32[20000]", 0),
        ("logsumexp", "f32[1, 65536]", "f32[1]", 0),
        ("sum", "i32[1, 65536]", "i32[1]", 0),
    ],
)
def test_few_folds_get_room_for_partial_results(sub, x, out, room):
    """Where blocks may share a fold, the detail names the number of partial results; else nothing is set aside."""
    program = assemble(f".input x : {x}\n.output y : {out}\nmain:\n    REDUCE.{sub} y, x axes=1\n    HALT\n")
    context = Context(Target(132), {segment: segment.value << 40 for segment in Segment}, Reach(program))
    detail = schedule(program.instructions[0], context).detail
    assert detail == ((132, 0, 0) if room else ())
    assert room <= context.workspace_bytes < room + 2048


@needs_compiler
def test_folds_are_split():
    """One row is shared by all blocks of the emulated device; few columns, too."""
    program = assemble(SPLIT.format(rows=70000, columns=2000).replace(": T[", ": f32["))
    splits = [int(detail[3]) for _, detail in CpuSession(program, hopper=False).details()]
    assert splits == [cpu_machine.BLOCKS] * 6


@needs_compiler
def test_ways_are_taken():
    """What lies in vectors is folded as such; the rest goes by elements."""
    ways = CpuSession(assemble(FOLDED.format(rows=8, columns=64).replace(": T[", ": f16[")), hopper=False).ways()
    assert [way for _, way in ways] == [ROWS] * 5 + [COLUMNS] * 4 + [ROWS] + [0] * 2
    ways = CpuSession(assemble(FOLDED.format(rows=6, columns=9).replace(": T[", ": f16[")), hopper=False).ways()
    assert [way for _, way in ways] == [0] * 9 + [ROWS] + [0] * 2
    ways = CpuSession(
        assemble(POOLED.format(rows=7, columns=64, half=4, lines=14).replace(": T[", ": f16[")), hopper=False
    ).ways()
    assert [way for _, way in ways] == [WINDOWS, 0] + [WINDOWS] * 3 + [COLUMNS] * 2  # the mean is of another type
