"""The ways that the device has for convolutions: few channels, single channels, many channels."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from dla.emulator.device.machine import DeviceMachine
from dla.emulator.golden.machine import GoldenMachine
from dla.isa import windows
from dla.isa.descriptor import Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction
from dla.isa.typing import check
from dla.tests.emulator.device.random_batch import Batch
from dla.tests.emulator.device.random_instructions import Draft, Rng
from dla.tests.emulator.device.test_differential import report, run, violations

CHANNELS = {"narrow": (1, 2, 3, 4, 8, 16), "depthwise": (8, 16, 40, 264), "wide": (8, 24, 64, 72, 128, 200)}
"""Numbers of input channels that lead to each way."""
OUTPUTS = {"narrow": (8, 12, 32, 64, 72), "wide": (8, 40, 64, 72, 136, 256)}
EPILOGUES: tuple[tuple[str, ...], ...] = (
    (),
    ("bias",),
    ("bias", "act"),
    ("bias", "residual", "act"),
    ("gate", "clamp"),
)


def draw(rng: Rng, way: str, dtype: DType) -> Draft:
    """A valid CONV of the kind that takes `way` where its operands have no gaps: one or two axes, ragged sizes."""
    row = BY_MNEMONIC["CONV"]
    while True:
        spatial = int(rng.choice([1, 2, 2, 2]))
        lead = (1,) * (2 - spatial)
        channels = int(rng.choice(CHANNELS[way]))
        outputs = channels if way == "depthwise" else int(rng.choice(OUTPUTS[way]))
        taps = tuple(int(v) for v in rng.integers(1, 6, spatial))
        sizes = tuple(int(v) for v in rng.choice([5, 8, 14, 16, 24, 33, 56], spatial))
        strides = (*lead, *(int(v) for v in rng.choice([1, 1, 2, 3], spatial)))
        dilations = (*lead, *(int(v) for v in rng.choice([1, 1, 1, 2], spatial)))
        pads = tuple(0 if k % 2 < 2 - spatial else int(rng.integers(0, 4)) for k in range(4))
        attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
        positions = windows.geometry(attributes | {"window": (1, 1)}, spatial, taps).output(sizes)
        if positions is None or min(positions) < 1:
            continue
        batch = int(rng.choice([1, 2, 3, 5]))
        out = (batch, *positions, outputs)
        shapes = {
            "out": out,
            "x": (batch, *sizes, channels),
            "w": (outputs, *taps, 1 if way == "depthwise" else channels),
        }
        steps = EPILOGUES[int(rng.integers(len(EPILOGUES)))]
        shapes |= {"bias": (outputs,)} if "bias" in steps else {}
        shapes |= {name: out for name in ("residual", "gate") if name in steps}
        attributes |= {"steps": steps, "groups": channels if way == "depthwise" else 1}
        attributes |= {"act": str(rng.choice(["relu", "silu"]))} if "act" in steps else {}
        attributes |= {"clamp_low": -0.5, "clamp_high": 2.0} if "clamp" in steps else {}
        types = dict.fromkeys(shapes, dtype)
        placed = tuple(
            contiguous(Segment.SCRATCH, dtype, shapes[o.name]) if o.name in shapes else None for o in row.operands
        )
        if not check(Instruction(row, "", placed, attributes)):
            return Draft(row, "", shapes, types, attributes, {})


def batch(way: str, dtype: DType, count: int) -> Batch:
    """`count` random convolutions, half of them of plain tensors; the same every time."""
    rng = np.random.default_rng(zlib.crc32(f"{way}-{dtype.text}".encode()))
    made = Batch(rng)
    for _ in range(count):
        made.add(draw(rng, way, dtype))
    return made


@pytest.mark.parametrize("way", CHANNELS)
def test_the_golden_machine_stays_within_the_bound(way):
    """The drawn programs are right where there is no GPU."""
    made = batch(way, DType.BF16, 4)
    assert violations(made, run(GoldenMachine(accumulate="f32", watch=False).load(made.program()), made)) == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F32], ids=lambda d: d.text)
@pytest.mark.parametrize("way", CHANNELS)
def test_every_way_stays_within_the_bound_and_repeats(way, dtype):
    """Results within the row's bound; a second run gives the same bits."""
    made = batch(way, dtype, 40)
    session = DeviceMachine().load(made.program())
    first = run(session, made)
    found = violations(made, first)
    assert not found, report(found)
    second = run(session, made)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.mark.gpu
@pytest.mark.parametrize("way", CHANNELS)
def test_the_checked_build_finds_no_access_out_of_bounds(way):
    """The same by the build that looks at every address."""
    made = batch(way, DType.BF16, 12)
    found = violations(made, run(DeviceMachine(checked=True).load(made.program()), made))
    assert not found, report(found)
