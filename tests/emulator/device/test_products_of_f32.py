"""Products of f32, exact and in tf32: every tile shape, layout of operands and way of loading them."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.compare import compare
from dla.emulator.device.machine import DeviceMachine
from dla.isa.descriptor import Segment

pytestmark = pytest.mark.gpu

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
SIZES = [(1, 10, 64), (33, 65, 130), (128, 128, 64), (130, 257, 77), (7, 5, 0), (1100, 1030, 68), (2000, 1500, 36)]
"""The last ones are large enough for the larger tiles."""
IMAGES = [(9, 3, 16), (14, 64, 70), (60, 8, 136)]
"""(height and width, channels, outputs)"""


def run(text: str) -> None:
    """Within the bounds of the rows, and the same bits the second time."""
    program = assemble(text)
    rng = np.random.default_rng(1)
    inputs = program.in_segment(Segment.INPUT)
    given = {t.name: rng.standard_normal(t.descriptor.bounds).astype(np.float32) for t in inputs}
    session = DeviceMachine().load(program)
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    again = session.run(given)
    assert all(result[name].tobytes() == again[name].tobytes() for name in result.outputs)


@pytest.mark.parametrize("math", ["exact", "tf32"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_stay_within_their_bounds(m: int, n: int, k: int, math: str) -> None:
    """Whichever operand lies across, or is neither aligned nor contiguous."""
    run(GEMM.format(m=m, n=n, k=k, k1=k + 1, k2=2 * k + 2, math=math))


@pytest.mark.parametrize("math", ["exact", "tf32"])
@pytest.mark.parametrize(("size", "channels", "outputs"), IMAGES)
def test_convolutions_stay_within_their_bounds(size: int, channels: int, outputs: int, math: str) -> None:
    """With windows that reach over the edges, and with a single tap."""
    run(CONV.format(size=size, channels=channels, outputs=outputs, math=math))
