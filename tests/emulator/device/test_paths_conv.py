"""The ways that the device has for convolutions: few channels, single channels, many channels."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import plan
from dla.emulator.device.layout import PATH_CONV, PATH_GEMM
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import GENERIC, Target, conv, tilings
from dla.emulator.device.paths.choices import Offer
from dla.emulator.device.paths.tensor_map import Im2colMap
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.emulator.golden.machine import GoldenMachine
from dla.isa import windows
from dla.isa.descriptor import Descriptor, Dim, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction
from dla.isa.typing import check
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_batch import Batch
from dla.tests.emulator.device.random_instructions import Draft, Rng, Shape, values
from dla.tests.emulator.device.references import compare
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
        attributes |= {"math": "tf32"} if dtype is DType.F32 and rng.random() < 0.5 else {}
        types = dict.fromkeys(shapes, dtype)
        placed = tuple(
            contiguous(Segment.SCRATCH, dtype, shapes[o.name]) if o.name in shapes else None for o in row.operands
        )
        if not check(Instruction(row, "", placed, attributes)):
            return Draft(row, "", shapes, types, attributes, {})


class PlainBatch(Batch):
    """Every operand is a whole tensor."""

    def _view(
        self, segment: Segment, dtype: DType, dims: tuple[Dim, ...], *, repeat: bool, repeated_axes: Shape = ()
    ) -> Descriptor:
        base = self._tensor(segment, dtype, contiguous(segment, dtype, dims).bounds).descriptor
        return Descriptor(segment, dtype, dims, base.strides, base.offset)


def batch(way: str, dtype: DType, count: int, *, plain: bool = False) -> Batch:
    """`count` random convolutions of all kinds of views, or of `plain` tensors; the same every time."""
    rng = np.random.default_rng(zlib.crc32(f"{way}-{dtype.text}".encode()))
    made = PlainBatch(rng) if plain else Batch(rng)
    for _ in range(count):
        made.add(draw(rng, way, dtype))
    return made


@pytest.mark.parametrize("way", CHANNELS)
def test_the_golden_machine_stays_within_the_bound(way):
    """The drawn programs are right where there is no GPU."""
    made = batch(way, DType.BF16, 4)
    assert violations(made, run(GoldenMachine(accumulate="f32", watch=False).load(made.program()), made)) == []


@cpu_machine.needs_compiler
@pytest.mark.parametrize("hopper", [False, True], ids=["portable", "hopper"])
@pytest.mark.parametrize("plain", [False, True], ids=["views", "plain"])
@pytest.mark.parametrize("way", CHANNELS)
def test_every_way_is_right_where_there_is_no_gpu(way, plain, hopper):
    """The kernel itself on the emulated device, in two orders of warps and copies."""
    made = batch(way, DType.BF16, 3 if way == "wide" else 6, plain=plain)
    session = CpuSession(made.program(), hopper=hopper, seed=1)
    first = run(session, made)
    found = violations(made, first)
    assert not found, report(found)
    session.seed = 2
    second = run(session, made)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F32], ids=lambda d: d.text)
@pytest.mark.parametrize("plain", [False, True], ids=["views", "plain"])
@pytest.mark.parametrize("way", CHANNELS)
def test_every_way_stays_within_the_bound_and_repeats(way, plain, dtype):
    """Results within the row's bound; a second run gives the same bits."""
    made = batch(way, dtype, 40, plain=plain)
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
    made = batch(way, DType.BF16, 12, plain=True)
    found = violations(made, run(DeviceMachine(checked=True).load(made.program()), made))
    assert not found, report(found)


CUT = """
.input x : bf16[2, 9, 11, 72]
.input u : bf16[1, 13, 64]
.input w : bf16[72, 3, 3, 72]
.input v : bf16[136, 5, 64]
.input p : bf16[64, 1, 1, 72]
.input bias : bf16[72]
.output a : bf16[2, 9, 11, 72]
.output b : bf16[1, 5, 136]
.output c : bf16[2, 5, 6, 64]
.output d : bf16[2, 9, 11, 72]
main:
    CONV a, x, w pads=[1, 1, 1, 1] bias=bias act=gelu residual=x
    CONV b, u, v strides=[1, 2] pads=[0, 1, 0, 0] act=relu
    CONV c, x, p strides=[2, 2]
    CONV d, x, w pads=[2, 2, 2, 2] dilations=[2, 2] bias=bias residual=x act=silu
    HALT
"""


@cpu_machine.needs_compiler
@pytest.mark.parametrize(
    ("tile", "splits", "slices"),
    [
        (Tile(64, 64), 1, 4),
        (Tile(64, 64), 4, 2),
        (Tile(64, 64), 3, 3),
        (Tile(128, 64), 2, 2),
        (Tile(64, 128), 4, 1),
        (Tile(128, 128), 2, 2),
        (Tile(32, 64), 1, 4),
        (Tile(16, 64), 1, 3),
    ],
    ids=str,
)
def test_parts_of_the_depth_are_brought_and_added_up(monkeypatch, tile, splits, slices):
    """Several slices in a stage, the last of which lie behind the depth's end, and parts of it in several blocks."""
    monkeypatch.setattr(tilings, "offers", lambda *_, **__: (Offer(Choice(tile, splits), 0.0),))
    monkeypatch.setattr(conv, "_slices", lambda *_: slices)
    program = assemble(CUT)
    session = CpuSession(program, hopper=True, seed=splits + slices)
    assert {s.path for s in session.plan.schedules[:-1]} == {PATH_CONV}
    rng = np.random.default_rng(tile.rows + slices)
    inputs = program.in_segment(Segment.INPUT)
    given = {t.name: values(rng, t.descriptor.bounds, t.descriptor.dtype) for t in inputs}
    for _ in range(2):  # the second time, the workspace is as the first run left it
        assert not [c for c in compare(program, given, session.run(given)) if not c.ok]


# ---- what the plan decides ----

WIDE = """
.input x : bf16[{n}, {size}, {size}, {channels}]
.input w : bf16[{outputs}, {taps}, {taps}, {channels}]
.output y : bf16[{n}, {positions}, {positions}, {outputs}]
main:
    CONV y, x, w strides=[{stride}, {stride}] pads=[{pad}, {pad}, {pad}, {pad}] dilations=[{dilation}, {dilation}]
    HALT
"""


def planned(hopper: bool = True, **sizes: int) -> Any:
    """The schedule of one convolution, and the map of its x."""
    given = {"n": 2, "size": 14, "channels": 64, "outputs": 64, "taps": 3, "stride": 1, "pad": 1, "dilation": 1} | sizes
    reach = given["dilation"] * (given["taps"] - 1) + 1
    given["positions"] = (given["size"] + 2 * given["pad"] - reach) // given["stride"] + 1
    program = assemble(WIDE.format(**given))
    bases = {segment: (k + 1) << 32 for k, segment in enumerate(Segment)}
    made = plan.build(program, bases, Target(132, hopper=hopper))
    schedule = made.schedules[0]
    return schedule, made.maps[schedule.detail[0]] if schedule.detail else None


def test_windows_are_gathered_by_the_copy_engine():
    """Corners, distances and box of the map of x follow from pads, strides, dilations and the tile."""
    schedule, x_map = planned(size=15, taps=3, stride=2, pad=2, dilation=2)
    assert schedule.path == PATH_CONV
    assert isinstance(x_map, Im2colMap)
    assert x_map.dims == (64, 15, 15, 2)
    assert x_map.lower == (-2, -2)
    assert x_map.upper == (-2, -2)
    assert x_map.step == (2, 2)
    assert x_map.box[0] == 64


def test_a_pointwise_convolution_is_a_plain_product():
    """Each position sees its own pixel: the rows of x are those of a matrix."""
    schedule, x_map = planned(taps=1, pad=0)
    assert schedule.path == PATH_GEMM
    assert x_map.dims == (64, 2 * 14 * 14, 1)
    assert planned(taps=1, pad=0, stride=2)[0].path == PATH_CONV


@pytest.mark.parametrize(
    "sizes",
    [
        {"channels": 3},
        {"channels": 36},
        {"stride": 9, "size": 30},
        {"taps": 2, "dilation": 130, "pad": 130},
    ],
    ids=["few", "unaligned", "far apart", "far corner"],
)
def test_what_the_copy_engine_cannot_gather_has_no_schedule(sizes):
    """Few or unaligned channels, distances and corners beyond what a map holds."""
    assert planned(**sizes)[0] is GENERIC


def test_no_other_gpu_has_the_path():
    """Without Hopper's copy engine the row's handler does it."""
    assert planned(hopper=False)[0] is GENERIC


def test_few_positions_split_the_depth():
    """One image of 7 x 7: the depth goes to many blocks, so that all have work."""
    assert planned(n=1, size=7, channels=512, outputs=512)[0].summary.endswith("depth shared by pairs")
