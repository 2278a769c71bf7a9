"""Rows that need something of every column: NORM.batch and group, and SOFTMAX over an axis whose elements are apart."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.isa.dtypes import BY_TEXT, FLOATS
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.references import compare
from dla.tests.emulator.device.test_large import inputs
from dla.tests.emulator.device.test_rows import SESSIONS, check, sizes

CHANNELS = """
.input x : T[2, {rows}, {columns}]
.input mean : T[{columns}]
.input var : f32[{columns}]
.input gain : T[{columns}]
.input bias : f32[{columns}]
.output all : T[2, {rows}, {columns}]
.output plain : f32[2, {rows}, {columns}]
.output moved : T[{rows}, 2, {columns}]
.output part : T[2, {rows}, {half}]
main:
    NORM.batch all, x, gain, bias mean=mean var=var
    NORM.batch plain, x mean=mean var=var eps=0.5
    NORM.batch moved, x.permute(1, 0, 2), bias=bias mean=mean var=var
    NORM.batch part, x[:, :, {half}:], gain[{half}:] mean=mean[{half}:] var=var[{half}:]
    HALT
"""
SETS = """
.input x : T[2, {rows}, {columns}]
.input y : T[2, {rows}, 3, {columns}]
.input gain : T[{columns}]
.output soft : T[2, {rows}, {columns}]
.output log : f32[2, {rows}, {columns}]
.output first : T[2, {rows}, {columns}]
.output middle : T[2, {rows}, 3, {columns}]
.output groups : T[2, {rows}, 3, {columns}]
.output single : f32[2, {rows}, 3, {columns}]
.output rows : T[2, {columns}]
main:
    SOFTMAX soft, x axis=1
    SOFTMAX.log log, x axis=1
    SOFTMAX first, x axis=0
    SOFTMAX middle, y axis=2
    NORM.group groups, y, gain, gain groups={groups}
    NORM.group single, y groups={columns}
    NORM.group rows, x[:, 0, :], bias=gain groups={groups}
    HALT
"""
CHANNEL_WAY, SET_WAY = 3, 4


@pytest.mark.parametrize("dtype", [d.text for d in FLOATS])
@sizes(gpu=[(1, 64), (33, 64), (5000, 136), (9, 20), (3, 4104)], cpu=[(1, 64), (33, 64), (90, 144), (9, 20), (3, 4104)])
def test_channels(machine, rows, columns, dtype):
    """One vector to a thread, channels in shared memory, and channels that are too many or no whole vectors."""
    text = CHANNELS.format(rows=rows, columns=columns, half=columns // 2)
    program = assemble(text.replace(": T[", f": {BY_TEXT[dtype].text}["))
    given = inputs(program)
    given["var"] = np.abs(given["var"]) + np.float32(0.1)
    result = SESSIONS[machine](program).run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []


@pytest.mark.parametrize("dtype", [d.text for d in FLOATS])
@sizes(
    gpu=[(8, 64), (300, 80), (4096, 320), (40, 1280), (70, 24), (9, 20)],
    cpu=[(8, 64), (300, 80), (5, 320), (20, 1280), (70, 24), (9, 20)],
)
def test_sets_of_columns(machine, rows, columns, dtype):
    """Few elements and many, groups that no vector ends with, a tile of columns that ends before it is full."""
    text = SETS.format(rows=rows, columns=columns, groups={20: 2, 24: 2, 64: 8, 80: 8, 320: 32, 1280: 32}[columns])
    check(assemble(text.replace(": T[", f": {BY_TEXT[dtype].text}[")), machine)


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param("gpu", marks=pytest.mark.gpu),
        pytest.param(
            "portable",
            marks=cpu_machine.needs_compiler,
        ),
    ],
)
def test_columns_of_nothing_but_minus_infinity(machine):
    """They give 0, and the others what they would without them."""
    program = assemble(".input x : f32[40, 16]\n.output y : f32[40, 16]\nmain:\n    SOFTMAX y, x axis=0\n    HALT\n")
    x = np.random.default_rng(1).standard_normal((40, 16)).astype(np.float32)
    x[:, 3] = -np.inf
    x[:30, 5] = -np.inf
    y = SESSIONS[machine](program).run({"x": x}).outputs["y"]
    powers = np.exp(x - np.where(np.isfinite(x.max(0)), x.max(0), 0))
    np.testing.assert_allclose(y, powers / np.maximum(powers.sum(0), 1e-30), rtol=1e-5)
    assert not y[:, 3].any()


@cpu_machine.needs_compiler
def test_ways_are_taken():
    """What lies in vectors is done as such; the rest goes by elements."""
    ways = CpuSession(
        assemble(CHANNELS.format(rows=8, columns=64, half=32).replace(": T[", ": f16[")), hopper=False
    ).ways()
    assert [way for _, way in ways] == [CHANNEL_WAY] * 4
    ways = CpuSession(
        assemble(SETS.format(rows=8, columns=80, groups=8).replace(": T[", ": f16[")), hopper=False
    ).ways()
    assert [way for _, way in ways] == [SET_WAY] * 7
    ways = CpuSession(
        assemble(SETS.format(rows=8, columns=20, groups=2).replace(": T[", ": f16[")), hopper=False
    ).ways()
    assert [way for _, way in ways] == [0, 0, SET_WAY, 0, 0, 0, 0]  # over the first axis, all 160 others are columns


@cpu_machine.needs_compiler
def test_groups_of_no_channels_have_nothing_to_share_out():
    """An empty last axis is no reason to divide by its size."""
    text = ".input x : bf16[2, 3, 0]\n.output y : bf16[2, 3, 0]\nmain:\n    NORM.group y, x groups=1\n    HALT\n"
    session = CpuSession(assemble(text), hopper=True)
    assert session.run({"x": np.zeros((2, 3, 0), BY_TEXT["bf16"].numpy)}).outputs["y"].shape == (2, 3, 0)
