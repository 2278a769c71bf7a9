"""Products of f32, exact and in tf32: every tile shape, layout of operands and way of loading them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.compare import compare
from dla.emulator.device.layout import PATH_CONV, PATH_GEMM
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import tilings
from dla.emulator.device.paths.tilings import Tile
from dla.isa.descriptor import Segment
from dla.isa.program import Program
from dla.tests.emulator.device import cpu_machine

GEMM = """
.input a : f32[{m}, {k}]
.input at : f32[{k}, {m}]
.input b : f32[{k}, {n}]
.input bt : f32[{n}, {k}]
.input wide : f32[{m}, {k2}]
.output nn : f32[{m}, {n}]
.output nt : f32[{m}, {n}]
.output tn : f32[{m}, {n}]
.output tt : f32[{m}, {n}]
.output strided : f32[{m}, {n}]
.output unaligned : f32[{m}, {n}]
main:
    GEMM nn, a, b math={math}
    GEMM nt, a, bt.T math={math} alpha=0.5
    GEMM tn, at.T, b math={math}
    GEMM tt, at.T, bt.T math={math}
    GEMM strided, wide[:, :{k2}:2][:, :{k}], b math={math}
    GEMM unaligned, wide[:, 1:{k1}], bt.T math={math}
    HALT
"""
CONV = """
.input x : f32[3, {size}, {size}, {channels}]
.input w : f32[{outputs}, 3, 3, {channels}]
.output same : f32[3, {size}, {size}, {outputs}]
.output one : f32[3, {size}, {size}, {outputs}]
main:
    CONV same, x, w pads=[1, 1, 1, 1] math={math}
    CONV one, x, w[:, 1:2, 1:2, :] math={math}
    HALT
"""
SIZES = [
    (1, 10, 64), (33, 65, 130), (128, 128, 64), (130, 257, 77), (7, 5, 0), (1100, 1030, 68), (2000, 1500, 36),
    (1100, 1028, 100), (1536, 1280, 512),
]  # fmt: skip
"""Rows, columns and depth. The last four are large enough for the larger tiles on a GPU; two of them are aligned."""
FEW_BLOCKS = [(1, 10, 64), (33, 65, 130), (130, 90, 77), (7, 5, 0), (384, 128, 212), (250, 390, 133)]
"""The same for a device of three blocks: the last ones take the large tiles, through all stages of their pipelines."""
IMAGES = [(9, 3, 16), (14, 64, 70), (60, 8, 136)]
"""Height and width, channels, outputs."""
FEW_BLOCKS_IMAGES = [(5, 3, 16), (9, 20, 70), (11, 7, 128), (9, 40, 72)]
MATH = pytest.mark.parametrize("math", ["exact", "tf32"])
BUILDS = pytest.mark.parametrize("hopper", [False, True], ids=["portable", "hopper"])
ON_CPU = cpu_machine.needs_compiler


def check(text: str, load: Callable[[Program], Any]) -> None:
    """Within the bounds of the rows, and the same bits the second time."""
    program = assemble(text)
    rng = np.random.default_rng(1)
    inputs = program.in_segment(Segment.INPUT)
    given = {t.name: rng.standard_normal(t.descriptor.bounds).astype(np.float32) for t in inputs}
    session = load(program)
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    again = session.run(given)
    assert all(result.outputs[name].tobytes() == again.outputs[name].tobytes() for name in result.outputs)


def products(m: int, n: int, k: int, math: str) -> str:
    """Every layout of the operands, and some that are neither aligned nor contiguous."""
    return GEMM.format(m=m, n=n, k=k, k1=k + 1, k2=2 * k + 2, math=math)


@pytest.mark.gpu
@MATH
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_stay_within_their_bounds(m: int, n: int, k: int, math: str) -> None:
    """On a GPU, whichever operand lies across."""
    check(products(m, n, k, math), DeviceMachine().load)


@pytest.mark.gpu
@MATH
@pytest.mark.parametrize(("size", "channels", "outputs"), IMAGES)
def test_convolutions_stay_within_their_bounds(size: int, channels: int, outputs: int, math: str) -> None:
    """On a GPU, with windows that reach over the edges, and with a single tap."""
    check(CONV.format(size=size, channels=channels, outputs=outputs, math=math), DeviceMachine().load)


@ON_CPU
@BUILDS
@MATH
@pytest.mark.parametrize(("m", "n", "k"), FEW_BLOCKS)
def test_products_on_the_cpu(m: int, n: int, k: int, math: str, hopper: bool) -> None:
    """The kernel's own code where there is no GPU."""
    check(products(m, n, k, math), partial(cpu_machine.CpuSession, hopper=hopper))


@ON_CPU
@BUILDS
@MATH
@pytest.mark.parametrize(("size", "channels", "outputs"), FEW_BLOCKS_IMAGES)
def test_convolutions_on_the_cpu(size: int, channels: int, outputs: int, math: str, hopper: bool) -> None:
    """The same for convolutions."""
    text = CONV.format(size=size, channels=channels, outputs=outputs, math=math)
    check(text, partial(cpu_machine.CpuSession, hopper=hopper))


@ON_CPU
@pytest.mark.parametrize(("m", "n", "k"), [(132, 260, 100), (20, 132, 36)])
def test_products_as_they_are_through_the_ring(monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int) -> None:
    """Aligned ones take that path wherever it is thought quicker than the handler: here always."""
    monkeypatch.setattr(tilings, "HANDLER_TILES", ((Tile(32, 32), 10**6),))
    paths = []

    def load(program: Program) -> cpu_machine.CpuSession:
        session = cpu_machine.CpuSession(program, hopper=True)
        paths.extend(s.path for s in session.plan.schedules)
        return session

    check(products(m, n, k, "exact"), load)
    assert paths.count(PATH_GEMM) == 4
    check(CONV.format(size=9, channels=40, outputs=70, math="exact"), load)
    assert paths.count(PATH_CONV) == 1
    assert paths.count(PATH_GEMM) == 5
