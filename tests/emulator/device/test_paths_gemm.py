"""GEMM on wgmma: what the path takes, its tiles and tensor maps; and the path itself on the emulated device."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import layout, plan
from dla.emulator.device.layout import PATH_GEMM, PATH_GENERIC, PRODUCT_SCHEDULE
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Schedule, Target, tilings
from dla.emulator.device.paths.choices import Offer
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.program import Program
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.references import compare

BASES = {segment: 2**30 * segment.value for segment in Segment}


def planned(text: str) -> plan.Plan:
    """The plan of an H200 for `text`."""
    return plan.build(assemble(text), BASES, Target(132, hopper=True))


def first_schedule(text: str) -> Schedule:
    """That of the first instruction."""
    return planned(text).schedules[0]


def fields(schedule: Schedule) -> dict[str, int]:
    """The numbers of a schedule by their names."""
    return PRODUCT_SCHEDULE.values(schedule.detail)


def product(a: str, b: str, out: str, arguments: str = "y, a, b") -> str:
    """A program of one GEMM."""
    return f".input a : {a}\n.input b : {b}\n.output y : {out}\nmain:\n    GEMM {arguments}\n    HALT\n"


# ---- what the path takes ----


@pytest.mark.parametrize(
    "text",
    [
        product("f32[64, 64]", "f32[64, 64]", "f32[64, 64]"),  # small, and as it is: the handler is quicker
        product("f32[64, 66]", "f32[66, 64]", "f32[64, 64]", "y, a, b math=tf32"),  # rows of a are not aligned
        product("bf16[16, 60]", "bf16[60, 64]", "bf16[16, 64]"),  # few rows are streamed, but these are not aligned
        product("bf16[64, 63]", "bf16[63, 64]", "bf16[64, 64]"),  # rows of a begin at odd addresses
        product("bf16[64, 64]", "bf16[64, 63]", "bf16[64, 63]"),
        product("i8[64, 64]", "i8[64, 64]", "i32[64, 64]"),
    ],
)
def test_what_tensor_maps_cannot_describe_is_left_to_the_handler(text):
    """Other types, few rows, misaligned rows."""
    assert first_schedule(text).path == PATH_GENERIC


LARGE = ("bf16[4096, 4096]", "bf16[4096, 4096]", "bf16[4096, 4096]")


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        (product(*LARGE), True),
        (product(*LARGE, "y, a, b act=gelu"), True),
        (product(*LARGE, "y, a, b residual=a"), False),  # a call, or code that reads the residual
        (product(*LARGE, "y, a, b act=silu"), False),
        (product(*LARGE, "y, a, b alpha=0.5"), False),
        (product("bf16[n <= 4096, 4096]", LARGE[1], "bf16[n, 4096]"), False),  # the map has all rows
        (product("bf16[4096, 64]", "bf16[64, 4096]", LARGE[2]), True),  # one stage
        (product(LARGE[0], "bf16[4100, 4096]", "bf16[4096, 4100]", "y, a, b.T"), False),  # no whole chunks
    ],
)
def test_results_of_large_tiles_leave_in_boxes(text, boxes):
    """And by a map of 16 rows by 64 columns; nothing else does."""
    made = planned(text)
    schedule = fields(made.schedules[0])
    assert bool(schedule["flags"] & layout.OUT_IN_BOXES) == boxes
    if boxes:
        assert (schedule["tile_rows"], schedule["tile_columns"], schedule["slices"]) == (128, 256, 1)
        out = made.maps[schedule["out_map"]]
        assert out.box == (64, 16)
        assert out.strides == (2 * out.dims[0],)


def test_transposed_views_lie_across():
    """a.T has neighbouring rows, b neighbouring columns; b.T neighbouring depth."""
    plain = fields(first_schedule(product("bf16[64, 72]", "bf16[72, 80]", "bf16[64, 80]")))
    turned = fields(first_schedule(product("bf16[72, 64]", "bf16[80, 72]", "bf16[64, 80]", "y, a.T, b.T")))
    across = layout.A_ACROSS | layout.B_ACROSS
    assert plain["flags"] & across == layout.B_ACROSS
    assert turned["flags"] & across == layout.A_ACROSS


def test_the_maps_of_a_plain_product():
    """Dims innermost first, strides in bytes, boxes of 64 elements of depth."""
    a, b = planned(product("f16[100, 72]", "f16[72, 80]", "f16[100, 80]")).maps
    assert (a.dtype, a.dims, a.strides, a.box) == (DType.F16, (72, 100, 1), (144, 16), (64, 16, 1))
    assert (b.dims, b.strides, b.box) == ((80, 72, 1), (160, 16), (64, 64, 1))
    assert a.address == BASES[Segment.INPUT]


def test_one_copy_brings_all_of_a_stage():
    """Where lines of 64 elements can be counted by a dim of the map; a stage of a small tile has several slices."""
    found = planned(product("f16[512, 1024]", "f16[1024, 1024]", "f16[512, 1024]"))
    a, b = found.maps
    made = fields(found.schedules[0])
    slices, rows, columns = (made[name] for name in ("slices", "tile_rows", "tile_columns"))
    assert slices > 1
    assert made["stages"] == 1024 // (64 * slices)
    if made["flags"] & layout.A_SHARED:
        rows //= 2
    if made["flags"] & layout.B_SHARED:
        columns //= 2
    assert (a.dims, a.strides, a.box) == ((64, 512, 16), (2048, 128), (64, rows, slices))
    assert (b.dims, b.strides, b.box) == ((64, 1024, 16), (2048, 128), (64, 64 * slices, columns // 64))
    assert made["flags"] & layout.A_WHOLE
    assert made["flags"] & layout.B_WHOLE


TF32 = "y, a, b math=tf32"


def test_the_maps_of_a_product_in_tf32():
    """A slice has 32 of the depth. A b that lies across is on the left: in squares of 32 x 32, swizzled."""
    found = planned(product("f32[100, 72]", "f32[72, 96]", "f32[100, 96]", TF32))
    left, right = found.maps
    assert (left.dims, left.strides, left.box, left.swizzle) == ((32, 72, 3), (384, 128), (32, 32, 2), 128)
    assert (right.dims, right.strides, right.swizzle) == ((72, 100, 1), (288, 16), 128)
    made = fields(found.schedules[0])
    assert right.box == (32, made["tile_columns"], 1)
    assert (
        made["flags"] & (layout.TRANSPOSED | layout.A_ACROSS | layout.B_ACROSS) == layout.TRANSPOSED | layout.A_ACROSS
    )


def test_where_a_of_tf32_lies_across_too_both_are_turned():
    """By the workers, who want squares as they lie in memory."""
    found = planned(product("f32[72, 128]", "f32[72, 96]", "f32[128, 96]", "y, a.T, b math=tf32"))
    assert [m.swizzle for m in found.maps] == [0, 0]
    assert not fields(found.schedules[0])["flags"] & layout.TRANSPOSED


@pytest.mark.parametrize(
    ("out", "arguments", "expected"),
    [
        ("f32[4, 50, 96]", "y, a, b", True),
        ("f32[4, 50, 96]", "y, a, b c=c bias=p residual=r", True),
        ("f32[4, 50, 96]", "y, a, b residual=s[:, 0:50, :]", False),  # rows of samples do not follow each other
        ("bf16[4, 50, 96]", "y, a, b", False),
        ("f32[4, 50, 96]", "y, a, b act=mish", False),
        ("f32[4, 50, 96]", "y, a, w.T", False),
    ],
)
def test_products_are_transposed_where_the_epilogue_allows(out, arguments, expected):
    """Results of f32, in registers, with rows of all operands at one distance."""
    shapes = {"c": "4, 50, 96", "p": "96", "r": "4, 50, 96", "s": "4, 100, 96", "w": "96, 72"}
    operands = "".join(f".input {name} : f32[{shape}]\n" for name, shape in shapes.items())
    text = operands + product("f32[4, 50, 72]", "f32[72, 96]", out, arguments + " math=tf32")
    assert bool(fields(first_schedule(text))["flags"] & layout.TRANSPOSED) == expected


def test_batches_that_share_b_are_rows():
    """[4, 50, 72] @ [72, 64] is one product of 200 rows."""
    found = planned(product("bf16[4, 50, 72]", "bf16[72, 64]", "bf16[4, 50, 64]"))
    assert found.maps[0].dims == (72, 200, 1)
    assert not fields(found.schedules[0])["flags"] & layout.BATCHED


def test_batches_have_coordinates_and_broadcast_ones_are_held():
    """Two batch axes at one distance are one coordinate; b, which has the outer one only once, keeps two."""
    found = planned(product("bf16[2, 3, 64, 72]", "bf16[1, 3, 72, 64]", "bf16[2, 3, 64, 64]"))
    a, b = found.maps
    assert a.dims == (72, 64, 3, 2, 1)
    assert b.dims == (64, 72, 3, 1, 1)
    assert fields(found.schedules[0])["flags"] & layout.BATCHED


def test_rare_epilogues_go_through_scratch_memory():
    """Mish is not among the activations that are done in registers; gelu is."""
    head = product("bf16[64, 64]", "bf16[64, 64]", "bf16[64, 64]", "y, a, b act={}")
    assert fields(first_schedule(head.format("mish")))["scratch"] > 0
    assert fields(first_schedule(head.format("gelu")))["scratch"] == 0


@pytest.mark.parametrize(
    ("out", "arguments", "pitch"),
    [
        ("bf16[100, 80]", "y, a, b", 160),
        ("bf16[100, 80]", "y, a, b bias=p act=gelu", 160),
        ("bf16[100, 80]", "y, a, b bias=p residual=r act=relu", 160),
        ("bf16[100, 80]", "y, a, b bias=p act=relu residual=r", 160),
        ("bf16[100, 160]", "y[:, 80:160], a, b", 320),  # a part of each row
        ("bf16[100, 81]", "y[:, 0:80], a, b", 162),  # rows begin at odd addresses
        ("bf16[100, 81]", "y[:, 0:80], a, b residual=r", 0),  # and the residual's do not
        ("bf16[100, 80]", "y, a, b residual=s", 0),  # the residual is one row for all
        ("bf16[100, 80]", "y, a, b act=relu bias=p", 0),  # bias is not the first step
        ("bf16[100, 80]", "y, a, b alpha=0.5 bias=p", 0),
        ("bf16[100, 80]", "y, a, b act=relu clamp=[0.0, 1.0]", 0),
        ("f32[100, 80]", "y, a, b", 0),
    ],
)
def test_results_go_in_whole_lines_where_a_little_epilogue_will_do(out, arguments, pitch):
    """Rows at one distance; bias, activation, and a residual that lies as the result does, in chunks of 16 bytes."""
    operands = ".input p : bf16[80]\n.input r : bf16[100, 80]\n.input s : bf16[1, 80]\n"
    found = fields(first_schedule(operands + product("bf16[100, 72]", "bf16[72, 80]", out, arguments)))
    assert found["pitch"] == pitch
    assert bool(found["flags"] & layout.OUT_IN_LINES) == bool(pitch)
    assert bool(found["flags"] & layout.OUT_IN_CHUNKS) == (pitch != 0 and pitch % 16 == 0)


LINES = """
.input a : T[90, 72]
.input b : T[81, 72]
.input c : T[10, 72]
.input d : T[136, 72]
.input p : T[10]
.input q : T[136]
.input r : T[90, 136]
.output u : T[90, 81]
.output v : T[90, 10]
.output w : T[90, 83]
.output x : T[90, 136]
.output y : T[90, 136]
.output z : T[90, 136]
main:
    FILL w, 0
    GEMM u, a, b.T
    GEMM v, a, c.T bias=p act=relu
    GEMM w[:, 1:82], a, b.T act=gelu
    GEMM x, a, d.T bias=q act=gelu_tanh
    GEMM y, a, d.T bias=q residual=r act=relu
    GEMM z, a, d.T act=silu residual=r
    HALT
"""


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("tile", [Tile(128, 256), Tile(64, 128), Tile(64, 64), Tile(32, 64), Tile(16, 64)], ids=str)
@cpu_machine.needs_compiler
def test_every_epilogue_in_lines_stays_within_the_bound(monkeypatch, dtype, tile):
    """Rows that begin anywhere and end anywhere; activations and residuals, each by the code that is its own."""
    force(monkeypatch, Choice(tile, 1), 1)
    made = assemble(LINES.replace(": T[", f": {dtype}["))
    session = CpuSession(made, hopper=True, seed=tile.columns)
    assert all(fields(s)["flags"] & layout.OUT_IN_LINES for s in session.plan.schedules[1:-1])
    assert not failures(made, session)


def test_large_products_of_f32_as_it_is_are_done_by_multiply_add():
    """In the largest tiles; one slice of each operand per stage, and scratch memory for the sums."""
    found = first_schedule(product("f32[4096, 4096]", "f32[4096, 4096]", "f32[4096, 4096]"))
    assert found.summary == "multiply-add, tiles of 128 x 256"
    assert fields(found)["flags"] & layout.EXACT
    assert fields(found)["stages"] == 4096 // 32
    assert fields(found)["scratch"] == 17


# ---- the path itself ----

PROGRAM = """
.input x : T[152, 136]
.input w : T[136, 200]
.input v : T[200, 136]
.input u : T[136, 152]
.input q : T[2, 3, 40, 72]
.input k : T[1, 3, 72, 88]
.input bias : T[200]
.input more : T[152, 200]
.input gate : f32[152, 200]
.output a : T[152, 200]
.output b : T[152, 200]
.output c : f32[152, 200]
.output d : T[152, 100]
.output e : T[2, 3, 40, 88]
.output f : T[152, 200]
main:
    GEMM     a, x, w bias=bias act=gelu residual=more
    GEMM     b, x, v.T c=more beta=0.5 alpha=2.0 act=silu gate=gate
    GEMM     c, u.T, w clamp=[-1.0, 1.0]
    GEMM.glu d, x, v.T unit=silu
    GEMM     e, q, k act=tanh
    GEMM     f, x, w bias=bias act=mish
    HALT
"""


WHOLE = {"152": "192", "136": "192", "200": "256", "72": "64", "88": "64", "100": "128"}
"""Sizes of which 64 is a divisor, so that one copy brings all of a stage."""


def program(dtype: str, *, whole: bool = False) -> Program:
    """PROGRAM with elements of type `dtype`, and the sizes of WHOLE; "tf32" is f32 with math=tf32."""
    stored, math = ("f32", " math=tf32") if dtype == "tf32" else (dtype, "")
    lines = PROGRAM.replace(": T[", f": {stored}[").splitlines()
    text = "\n".join(line + math if "GEMM" in line else line for line in lines)
    return assemble(re.sub(r"\d{2,}", lambda m: WHOLE.get(m[0], m[0]), text) if whole else text)


def failures(made: Program, session: Any) -> list[Any]:
    """The outputs of a run on random inputs that are outside of their bound."""
    rng = np.random.default_rng(3)
    inputs = made.in_segment(Segment.INPUT)
    given = {t.name: values(rng, t.descriptor.bounds, t.descriptor.dtype) for t in inputs}
    return [c for c in compare(made, given, session.run(given)) if not c.ok]


def force(monkeypatch: pytest.MonkeyPatch, choice: Choice, slices: int) -> None:
    """Let the path take `choice`, where it can, with so many slices in a stage."""
    real = tilings.slices_of

    def forced(*_shape, tiles=tilings.TILES, split=True, pairs=False, **_costs):
        tile = next((tile for tile in (choice.tile, Tile(64, 64)) if tile in tiles), tiles[-1])
        shared = choice.shared if pairs and tile == choice.tile else ""
        return (Offer(Choice(tile, choice.splits if split else 1, shared), 0.0),)

    def forced_slices(made, _total, *, b_across):
        return min(slices if made == choice else 1, real(made, 10**6, b_across=b_across))

    monkeypatch.setattr(tilings, "offers", forced)
    monkeypatch.setattr(tilings, "slices_of", forced_slices)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32"])
@pytest.mark.parametrize("whole", [False, True], ids=["ragged", "whole"])
@pytest.mark.parametrize(
    ("tile", "splits", "slices"),
    [
        (Tile(128, 256), 1, 1),
        (Tile(128, 192), 1, 1),
        (Tile(128, 128), 2, 1),
        (Tile(128, 128), 1, 2),
        (Tile(128, 64), 3, 1),
        (Tile(64, 256), 2, 1),
        (Tile(64, 128), 1, 2),
        (Tile(64, 64), 4, 1),
        (Tile(64, 64), 1, 4),
    ],
    ids=str,
)
@cpu_machine.needs_compiler
def test_every_tile_shape_stays_within_the_bound(monkeypatch, dtype, whole, tile, splits, slices):
    """Ragged shapes, transposed operands, batches and every kind of epilogue, for each tile shape and type."""
    force(monkeypatch, Choice(tile, splits), slices)
    made = program(dtype, whole=whole)
    session = CpuSession(made, hopper=True, seed=tile.columns + splits)
    assert {s.path for s in session.plan.schedules[:-1]} == {PATH_GEMM}
    assert not failures(made, session)


@pytest.mark.parametrize("whole", [False, True], ids=["ragged", "whole"])
@pytest.mark.parametrize(
    ("choice", "slices"),
    [
        (Choice(Tile(128, 256), 1, "b"), 1),
        (Choice(Tile(128, 192), 1, "a"), 1),
        (Choice(Tile(128, 128), 1, "b"), 2),
        (Choice(Tile(128, 128), 2, "b"), 1),
        (Choice(Tile(64, 128), 1, "b"), 2),
        (Choice(Tile(128, 64), 1, "a"), 2),
        (Choice(Tile(128, 128), 2, "a"), 1),
    ],
    ids=str,
)
@cpu_machine.needs_compiler
def test_pairs_of_blocks_share_an_operand(monkeypatch, choice, slices, whole):
    """The same where each block brings half of a or b to both; products in scratch memory come between."""
    force(monkeypatch, choice, slices)
    made = program("bf16", whole=whole)
    session = CpuSession(made, hopper=True, seed=choice.tile.rows + choice.splits)
    flags = [fields(s)["flags"] for s in session.plan.schedules if s.path == PATH_GEMM]
    assert any(f & (layout.A_SHARED | layout.B_SHARED) for f in flags)
    assert not failures(made, session)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32"])
def test_the_gpu_stays_within_the_bound(dtype):
    """The same program with the tiles that the plan chooses."""
    made = program(dtype)
    assert not failures(made, DeviceMachine().load(made))
