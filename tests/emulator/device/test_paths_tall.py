"""Convolutions of few outputs in tall tiles: what fits, and the kernel on the emulated device."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import plan
from dla.emulator.device.layout import OUT_IN_BOXES, PATH_CONV, PATH_GEMM, PRODUCT_SCHEDULE
from dla.emulator.device.paths import Target, tilings
from dla.emulator.device.paths.choices import Offer
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.isa.descriptor import Segment
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.references import compare

LAYERS = """
.input x : {dtype}[3, 23, 21, {channels}]
.input w : {dtype}[{outputs}, 3, 3, {channels}]
.input p : {dtype}[{outputs}, 1, 1, {channels}]
.input bias : {dtype}[{outputs}]
.output a : {dtype}[3, 23, 21, {outputs}]
.output b : {dtype}[3, 23, 21, {outputs}]
.output c : {dtype}[3, 12, 11, {outputs}]
main:
    CONV a, x, w pads=[1, 1, 1, 1]{epilogue}
    CONV b, x, p{epilogue}
    CONV c, b[:, :, :, :{channels}], w strides=[2, 2] pads=[1, 1, 1, 1]
    HALT
"""


@cpu_machine.needs_compiler
@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "channels", "outputs", "epilogue"),
    [
        (256, 64, "bf16", 64, 64, ""),
        (256, 64, "f16", 40, 72, " bias=bias act=gelu"),
        (256, 128, "bf16", 72, 136, " bias=bias act=relu"),
        (256, 128, "f16", 64, 64, " bias=bias"),
        (256, 128, "bf16", 24, 40, " act=gelu_tanh"),
        (192, 128, "bf16", 72, 136, " bias=bias act=relu"),
        (192, 128, "f16", 64, 64, " act=gelu"),
    ],
)
def test_tall_tiles(monkeypatch, rows, columns, dtype, channels, outputs, epilogue):
    """Ragged rows and columns, one stage or several in a tile, several tiles in a block, one layer after the other."""
    monkeypatch.setattr(tilings, "offers", lambda *_, **__: (Offer(Choice(Tile(rows, columns), 1), 0.0),))
    program = assemble(LAYERS.format(dtype=dtype, channels=channels, outputs=outputs, epilogue=epilogue))
    session = CpuSession(program, hopper=True)
    assert [schedule.path for schedule in session.plan.schedules[:3]] == [PATH_CONV, PATH_GEMM, PATH_CONV]
    assert all(schedule.detail[3] & OUT_IN_BOXES for schedule in session.plan.schedules[:3])
    rng = np.random.default_rng(columns + outputs)
    given = {t.name: values(rng, t.descriptor.bounds, t.descriptor.dtype) for t in program.in_segment(Segment.INPUT)}
    seen = []
    for session.seed in range(2):
        result = session.run(given)
        assert not [c for c in compare(program, given, result) if not c.ok]
        seen.append([result.outputs[name].tobytes() for name in "abc"])
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("changes", "tall"),
    [
        ({}, True),
        ({"epilogue": " bias=bias act=relu"}, True),
        ({"epilogue": " act=silu"}, False),
        ({"epilogue": " bias=bias residual=a"}, False),
        ({"out": 60}, False),
    ],
    ids=["plain", "bias", "silu", "residual", "chunks"],
)
def test_which_layers_are_offered_tall_tiles(changes, tall):
    """Those that the copy engine can store: see is_in_boxes."""
    given = {"epilogue": "", "out": 64} | changes
    program = assemble(f"""
.input x : bf16[32, 28, 28, 64]
.input w : bf16[{given["out"]}, 3, 3, 64]
.input bias : bf16[{given["out"]}]
.input a : bf16[32, 28, 28, {given["out"]}]
.output y : bf16[32, 28, 28, {given["out"]}]
main:
    CONV y, x, w pads=[1, 1, 1, 1]{given["epilogue"]}
    HALT
""")
    bases = {segment: (k + 1) << 32 for k, segment in enumerate(Segment)}
    schedule = plan.build(program, bases, Target(132, hopper=True)).schedules[0]
    assert schedule.path == PATH_CONV
    assert (PRODUCT_SCHEDULE.values(schedule.detail)["tile_rows"] == 256) == tall
