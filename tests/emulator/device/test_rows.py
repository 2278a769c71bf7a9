"""Rows that are bound by memory, at sizes around the limits of their vector paths: ragged, sliced, broadcast."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import shares
from dla.isa.dtypes import BY_TEXT, FLOATS
from dla.isa.program import Program
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.references import compare
from dla.tests.emulator.device.test_large import inputs

POINTWISE = """
.input x : T[{rows}, {columns}]
.input row : T[{columns}]
.input column : T[{rows}, 1]
.output relu : T[{rows}, {columns}]
.output gelu : T[{rows}, {columns}]
.output tanh : f32[{rows}, {columns}]
.output with_row : T[{rows}, {columns}]
.output with_column : T[{rows}, {columns}]
.output with_one : T[{rows}, {columns}]
.output left : T[{rows}, 8]
main:
    ACT.relu relu, x
    ACT.gelu gelu, x
    ACT.gelu_tanh tanh, x
    EW.add with_row, x, row
    EW.mul with_column, x, column
    EW.max with_one, x, 0.25
    EW.div left, x[:, :8], column
    HALT
"""
EVERY_NUMBER = """
.input x : T[65536]
.output tanh : T[65536]
.output gelu : T[65536]
.output gelu_tanh : T[65536]
.output silu : T[65536]
.output sigmoid : T[65536]
main:
    ACT.tanh tanh, x
    ACT.gelu gelu, x
    ACT.gelu_tanh gelu_tanh, x
    ACT.silu silu, x
    ACT.sigmoid sigmoid, x
    HALT
"""
LINES = """
.input x : T[{rows}, {columns}]
.input gain : T[{columns}]
.output soft : T[{rows}, {columns}]
.output log : f32[{rows}, {columns}]
.output layer : T[{rows}, {columns}]
.output rms : T[{rows}, {columns}]
main:
    SOFTMAX soft, x axis=-1
    SOFTMAX.log log, x axis=-1
    NORM.layer layer, x, gain, gain
    NORM.rms rms, x, gain
    HALT
"""
WRITTEN_CHANNELS = """
.input x : T[{rows}, {columns}]
.input gain : T[{columns}]
.scratch more : T[{columns}]
.scratch h : T[{rows}, {columns}]
.output layer : T[{rows}, {columns}]
.output rms : T[{rows}, {columns}]
main:
    EW.add more, gain, 1
    NORM.layer h, x, more, gain
    NORM.layer layer, h, gain, more
    EW.add more, more, 1
    NORM.rms rms, layer, more
    HALT
"""
ROWS_APART = """
.input x : T[3, {rows}, 2, {columns}]
.input gain : T[{columns}]
.input wide : f32[{columns}]
.output soft : T[3, 2, {rows}, {columns}]
.output layer : T[3, {rows}, {columns}]
.output rms : T[3, 2, {rows}, {columns}]
.output mixed : T[3, {rows}, 2, {columns}]
main:
    SOFTMAX soft, x.permute(0, 2, 1, 3) axis=-1
    NORM.layer layer, x[:, :, 1, :], bias=gain
    NORM.rms rms, x.permute(0, 2, 1, 3), gain
    NORM.layer mixed, x, wide, gain
    HALT
"""
CLAIMED = """
.input x : T[{rows}, {columns}]
.input t : T[{lines}, 1160]
.input gain : T[{columns}]
.scratch kept : T[1160, {lines}]
.output soft : T[{rows}, {columns}]
.output layer : T[{rows}, {columns}]
.output turned : T[{lines}, 1160]
main:
    LOOP s0, 2
    SOFTMAX soft, x axis=-1
    NORM.layer layer, x, gain, gain
    COPY kept, t.T
    COPY turned, kept.T
    ENDLOOP
    HALT
"""
EXTREMES = """
.input x : {dtype}[{rows}, {columns}]
.output soft : {dtype}[{rows}, {columns}]
.output log : {dtype}[{rows}, {columns}]
main:
    SOFTMAX soft, x axis=-1
    SOFTMAX.log log, x axis=-1
    HALT
"""
UNITS_CLAIMED = """
.input x : T[{rows}, {columns}]
.input row : T[{columns}]
.output relu : T[{rows}, {columns}]
.output sum : T[{rows}, {columns}]
main:
    LOOP s0, 2
    ACT.relu relu, x
    EW.add sum, relu, row
    ENDLOOP
    HALT
"""
MOVES = """
.input x : {dtype}[3, {rows}, 2, {columns}]
.output turned : {dtype}[3, {columns}, 2, {rows}]
.output heads : {dtype}[3, 2, {rows}, {columns}]
.output part : {dtype}[3, {rows}, 2, 16]
.output plain : {dtype}[3, {rows}, 2, {columns}]
.output repeated : {dtype}[5, 3, {rows}, 2, {columns}]
main:
    COPY turned, x.permute(0, 3, 2, 1)
    COPY heads, x.permute(0, 2, 1, 3)
    COPY part, x[:, :, :, {first}:]
    COPY plain, x
    COPY repeated, x
    HALT
"""


DYNAMIC = """
.input x : f32[rows <= 600, 264]
.output relu : f32[rows, 264]
.output twice : f32[rows, 264]
.output half : f16[rows, 264]
.output turned : f32[264, rows]
.output soft : f32[rows, 264]
.output rms : f32[rows, 264]
main:
    ACT.relu relu, x
    EW.add twice, x, x
    COPY half, x
    COPY turned, x.permute(1, 0)
    SOFTMAX soft, x axis=-1
    NORM.rms rms, x
    HALT
"""
SESSIONS = {
    "gpu": lambda program: DeviceMachine().load(program),
    "portable": lambda program: CpuSession(program, hopper=False, seed=1),
    "hopper": lambda program: CpuSession(program, hopper=True, seed=1),
}


def sizes(gpu: list[tuple[int, int]], cpu: list[tuple[int, int]]) -> pytest.MarkDecorator:
    """Parameters `machine`, `rows`, `columns`: sizes for the GPU, and smaller ones for the kernel on the CPU."""
    no_compiler = cpu_machine.needs_compiler
    cases = [pytest.param("gpu", *size, marks=pytest.mark.gpu) for size in gpu]
    cases += [pytest.param(name, *size, marks=no_compiler) for name in ("portable", "hopper") for size in cpu]
    return pytest.mark.parametrize(("machine", "rows", "columns"), cases)


def check(program: Program, machine: str) -> None:
    """Every output lies within the bound that follows from the rows; a second run gives the same bits."""
    given = inputs(program)
    session = SESSIONS[machine](program)
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    again = session.run(given)
    assert all(result.outputs[n].tobytes() == again.outputs[n].tobytes() for n in result.outputs)


@pytest.mark.parametrize("dtype", [d.text for d in FLOATS])
@sizes(
    gpu=[(1, 8), (1, 2049), (3, 17), (129, 768), (700, 520), (2112, 264)],
    cpu=[(1, 8), (1, 2049), (3, 17), (16, 384), (65, 520)],
)
def test_pointwise_rows(machine, rows, columns, dtype):
    """One unit, a rest behind the last unit, rows that are no whole units, and more than one turn of every thread."""
    check(assemble(POINTWISE.format(rows=rows, columns=columns).replace(": T[", f": {BY_TEXT[dtype].text}[")), machine)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@sizes(gpu=[(1, 65536)], cpu=[(1, 65536)])
def test_activations_of_every_number(machine, rows, columns, dtype):
    """All numbers of 16 bits, infinities and NaN among them."""
    program = assemble(EVERY_NUMBER.replace(": T[", f": {dtype}["))
    x = np.arange(rows * columns, dtype=np.uint16).view(BY_TEXT[dtype].numpy)
    with np.errstate(invalid="ignore"):  # some NaN signal
        given = {"x": np.where(np.isnan(x), np.full_like(x, np.nan), x)}
    result = SESSIONS[machine](program).run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []


@pytest.mark.parametrize("dtype", [d.text for d in FLOATS])
@sizes(
    gpu=[
        *[(1, 8), (5, 256), (1100, 264), (133, 1024), (3, 1032)],
        *[(140, 2056), (2, 4104), (2, 8192), (1200, 8192), (300, 3072), (2, 8200), (2, 66000), (2, 8191)],
        *[(1, 2048), (128, 384), (4096, 768), (2200, 712), (4200, 400), (200, 760), (520, 512)],
    ],
    cpu=[
        *[(1, 8), (5, 256), (133, 264), (3, 1032), (7, 2048), (5, 2056), (2, 4104), (4, 8192), (26, 8192)],
        *[(70, 400), (70, 712), (40, 1000), (2, 8200), (2, 66000), (2, 8191), (30, 400), (20, 712), (9, 1000)],
    ],
)
def test_rows_of_neighbours(machine, rows, columns, dtype):
    """Rows held or streamed, by one to eight warps, one each or several; rows that are too long or ragged for that."""
    check(assemble(LINES.format(rows=rows, columns=columns).replace(": T[", f": {BY_TEXT[dtype].text}[")), machine)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@sizes(gpu=[(1, 2048), (128, 384), (140, 8192)], cpu=[(1, 2048), (5, 384)])
def test_channels_that_the_program_writes(machine, rows, columns, dtype):
    """They are not read before they are there; those of inputs are, whatever the row waits for."""
    check(assemble(WRITTEN_CHANNELS.format(rows=rows, columns=columns).replace(": T[", f": {dtype}[")), machine)


@pytest.mark.parametrize("dtype", [d.text for d in FLOATS])
@sizes(gpu=[(2, 64), (700, 264), (30, 2056)], cpu=[(2, 64), (30, 264), (3, 2056)])
def test_rows_along_several_axes(machine, rows, columns, dtype):
    """Rows that do not lie at one distance from each other, and channels of another type than the row."""
    check(assemble(ROWS_APART.format(rows=rows, columns=columns).replace(": T[", f": {BY_TEXT[dtype].text}[")), machine)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@sizes(gpu=[(1200, 8192), (4300, 4104), (9000, 2048)], cpu=[(80, 4104), (200, 2048)])
def test_shares_that_blocks_claim(monkeypatch, machine, rows, columns, dtype):
    """Rows of teams of several warps, and planes, each twice in a run, in many more shares than blocks."""
    monkeypatch.setattr(shares, "WORTH", 0)
    check(
        assemble(
            CLAIMED.format(rows=rows, columns=columns, lines=640 if rows < 1000 else 12000).replace(
                ": T[", f": {dtype}["
            )
        ),
        machine,
    )


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@sizes(gpu=[(10, 264), (10, 2056), (10, 4104), (10, 8192)], cpu=[(10, 264), (10, 2056), (10, 4104)])
def test_softmax_of_extremes(machine, rows, columns, dtype):
    """Warps of one row whose largest elements are far apart, infinite, or too large to be multiplied."""
    program = assemble(EXTREMES.format(dtype=dtype, rows=rows, columns=columns))
    x = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    x[1] = -np.inf
    x[2, : columns // 2] = -np.inf
    x[3] += 1000
    x[4, columns // 3] = 3e38
    x[5] = -3e38
    x[5, columns - 1] = -2.9e38
    x[6] = 3e38
    x[7, 5] = np.inf
    x[8, ::2] -= 500
    x[9, columns // 2] = 1e12
    x = x.astype(BY_TEXT[dtype].numpy)
    result = SESSIONS[machine](program).run({"x": x}).outputs
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64)
        top = exact.max(axis=1, keepdims=True)
        moved = exact - np.where(top == -np.inf, 0, top)
        total = np.exp(moved).sum(axis=1, keepdims=True)
        soft, log = np.exp(moved) / np.where(total == 0, 1, total), moved - np.log(np.where(total == 0, 1, total))
    close = 1e-5 if dtype == "f32" else 1e-2
    assert np.allclose(result["soft"].astype(np.float64), soft, rtol=close, atol=1e-30, equal_nan=True)
    assert np.allclose(result["log"].astype(np.float64), log, rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@sizes(gpu=[(1300, 8200)], cpu=[(97, 8200)])
def test_units_that_blocks_claim(monkeypatch, machine, rows, columns, dtype):
    """Units of one and of two tensors, one the same in all rows, each twice in a run: the last share is not whole."""
    monkeypatch.setattr(shares, "WORTH", 0)
    check(assemble(UNITS_CLAIMED.format(rows=rows, columns=columns).replace(": T[", f": {dtype}[")), machine)


@pytest.mark.parametrize("dtype", ["i8", "f16", "f32", "i64"])
@sizes(
    gpu=[(1, 16), (16, 16), (48, 80), (400, 144), (15, 32), (7, 17), (16, 4112), (4112, 16), (2064, 1040)],
    cpu=[(1, 16), (16, 16), (48, 80), (15, 32), (7, 17), (16, 1040), (1040, 16), (288, 272)],
)
def test_moves(machine, rows, columns, dtype):
    """Squares turned in registers, in tiles of every shape, at planes' edges; units of 16 bytes; what fits neither."""
    program = assemble(MOVES.format(rows=rows, columns=columns, first=columns - 16, dtype=dtype))
    rng = np.random.default_rng(1)
    x = rng.integers(-100, 100, (3, rows, 2, columns)).astype(BY_TEXT[dtype].numpy)
    result = SESSIONS[machine](program).run({"x": x}).outputs
    assert np.array_equal(result["turned"], x.transpose(0, 3, 2, 1))
    assert np.array_equal(result["heads"], x.transpose(0, 2, 1, 3))
    assert np.array_equal(result["part"], x[..., columns - 16 :])
    assert np.array_equal(result["plain"], x)
    assert np.array_equal(result["repeated"], np.broadcast_to(x, (5, *x.shape)))


@sizes(gpu=[(600, 264)], cpu=[(600, 264)])
def test_ways_are_chosen_anew_when_dims_change(machine, rows, columns):
    """One program at its bound, at few rows, at a number that no vectors take, and at none."""
    session = SESSIONS[machine](assemble(DYNAMIC))
    rng = np.random.default_rng(1)
    for present in (rows, 4, 37, 0, rows):
        x = rng.standard_normal((present, columns)).astype(np.float32)
        result = {name: array[:present] for name, array in session.run({"x": x}).outputs.items() if name != "turned"}
        assert np.array_equal(result["relu"], np.maximum(x, 0))
        assert np.array_equal(result["twice"], x + x)
        assert np.array_equal(result["half"], x.astype(np.float16))
        powers = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
        np.testing.assert_allclose(result["soft"], powers / powers.sum(-1, keepdims=True), rtol=1e-5)
        np.testing.assert_allclose(result["rms"], x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5), rtol=1e-4)
        assert np.array_equal(session.run({"x": x}).outputs["turned"].reshape(columns, -1)[:, :present], x.T)
