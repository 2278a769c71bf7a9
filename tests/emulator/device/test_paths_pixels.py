"""Convolutions of images, three channels wide: pairs of pixels, spread to four elements, on wgmma."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import plan
from dla.emulator.device.layout import PATH_PIXELS, PIXEL_SCHEDULE
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import GENERIC, Target
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.descriptor import Segment
from dla.isa.program import Program
from dla.report_plan import planned
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.references import compare

GIVEN = {
    "n": 2,
    "height": 37,
    "width": 41,
    "outputs": 64,
    "down": 7,
    "across": 7,
    "stride": 2,
    "dilation": 1,
    "pads": 3,
}
CASES: list[dict[str, Any]] = [
    {},
    {"height": 33, "width": 300, "epilogue": " bias=b act=relu"},
    {"n": 3, "outputs": 32, "down": 3, "across": 3, "pads": 1, "width": 130, "epilogue": " act=relu"},
    {"n": 1, "outputs": 40, "down": 2, "across": 4, "pads": 0, "stride": 1, "epilogue": " bias=b"},
    {"outputs": 8, "down": 3, "across": 8, "pads": 5, "dilation": 2, "stride": 3},
]


def program_of(dtype: str = "bf16", epilogue: str = "", **sizes: int) -> Program:
    """One convolution with windows two pixels apart; `stride`, `dilation`: from line to line."""
    s = GIVEN | sizes
    lines = (s["height"] + 2 * s["pads"] - s["dilation"] * (s["down"] - 1) - 1) // s["stride"] + 1
    positions = (s["width"] + 2 * s["pads"] - s["across"]) // 2 + 1
    return assemble(f""".program pixels
.input x : {dtype}[{s["n"]}, {s["height"]}, {(s["width"] + 7) // 8 * 8}, 3]
.input w : {dtype}[{s["outputs"]}, {s["down"]}, {s["across"]}, 3]
.input b : {dtype}[{s["outputs"]}]
.scratch h : {dtype}[{s["n"]}, {lines}, {positions}, {s["outputs"]}]
.output y : {dtype}[{s["n"]}, {lines}, {positions}, {s["outputs"]}]
main:
    CONV h, x[:, :, :{s["width"]}], w strides=[{s["stride"]}, 2] dilations=[{s["dilation"]}, 1] \
pads=[{s["pads"]}, {s["pads"]}, {s["pads"]}, {s["pads"]}]{epilogue}
    EW.add y, h, h
    HALT
""")


def inputs_of(program: Program) -> dict[str, Any]:
    """Random ones."""
    rng = np.random.default_rng(7)
    return {
        name: values(rng, program.by_name[name].descriptor.bounds, program.by_name[name].descriptor.dtype)
        for name in "xwb"
    }


@cpu_machine.needs_compiler
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: ",".join(f"{k}={v}" for k, v in case.items()) or "7 x 7")
def test_images_where_there_is_no_gpu(case, dtype):
    """The kernel itself on the emulated device, in two orders of warps and copies."""
    program = program_of(dtype, **case)
    session = CpuSession(program, hopper=True)
    assert session.plan.schedules[0].path == PATH_PIXELS
    inputs, seen = inputs_of(program), []
    for session.seed in range(2):
        result = session.run(inputs)
        assert all(c.ok for c in compare(program, inputs, result))
        seen.append(result.outputs["y"].tobytes())
    assert seen[0] == seen[1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("case", [*CASES, {"n": 9, "height": 224, "width": 224}], ids=str)
def test_images(case, dtype):
    """The same on a GPU: within the bound, and the same bits again."""
    program = program_of(dtype, **case)
    session, inputs = DeviceMachine().load(program), inputs_of(program)
    first, second = session.run(inputs), session.run(inputs)
    assert all(c.ok for c in compare(program, inputs, first))
    assert first.outputs["y"].tobytes() == second.outputs["y"].tobytes()


@cpu_machine.needs_compiler
def test_what_a_window_does_not_see_does_not_matter():
    """Pixels that are no numbers reach the windows that they are in, and no others."""
    program = program_of()
    inputs = inputs_of(program)
    inputs["x"][0, 20, 17] = np.nan
    inputs["x"][1, 11, 20, 1] = np.inf
    with np.errstate(all="ignore"):
        want = GoldenMachine(accumulate="f32", watch=False).load(program).run(inputs).outputs["y"].astype(np.float32)
    got = CpuSession(program, hopper=True).run(inputs).outputs["y"].astype(np.float32)
    assert not np.isfinite(want).all()
    assert (np.isnan(got) == np.isnan(want)).all()
    assert (np.isinf(got) == np.isinf(want)).all()


def scheduled(program: Program, hopper: bool = True) -> Any:
    """The schedule of its first instruction."""
    bases = {segment: (k + 1) << 32 for k, segment in enumerate(Segment)}
    return plan.build(program, bases, Target(132, hopper=hopper)).schedules[0]


def test_the_first_layer_of_a_network():
    """One line for each block where there is one image; several of many images. All of it fits the ring."""
    names = [name for name, *_ in PIXEL_SCHEDULE.fields]
    photos = {"height": 224, "width": 224}
    one, many = (scheduled(program_of(n=n, **photos)) for n in (1, 32))
    assert (one.path, many.path) == (PATH_PIXELS, PATH_PIXELS)
    assert (one.tiles, many.tiles) == (112, 32 * 28)
    fields = dict(zip(names, many.detail, strict=True))
    assert (fields["lines"], fields["rows"], fields["pairs"], fields["span"], fields["depth"]) == (4, 13, 4, 131, 28)
    assert fields["granules"] <= 24


@pytest.mark.parametrize(
    ("epilogue", "sizes"),
    [
        (" act=silu", {}),
        (" residual=y", {}),
        ("", {"across": 5}),
        ("", {"outputs": 72}),
        ("", {"outputs": 20}),
        ("", {"width": 4000}),
    ],
    ids=["silu", "residual", "three pairs", "many outputs", "no chunks", "wide"],
)
def test_what_does_not_fit_is_left_to_the_handler(epilogue, sizes):
    """Other steps, kernels whose pairs are no even number, outputs, and what the ring has no room for."""
    assert scheduled(program_of(epilogue=epilogue, **sizes)) is GENERIC
    assert scheduled(program_of(), hopper=False) is GENERIC
    assert scheduled(program_of("f32")) is GENERIC


def test_the_plan_of_it_can_be_shown():
    """Every path has a name there."""
    made, steps = planned(program_of(), 132, hopper=True)
    assert (made.schedules[0].path, steps[0].path) == (PATH_PIXELS, "pixels")
