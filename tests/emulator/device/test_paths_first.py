"""A launch that begins with a product, whose loader begins before the controller does (kernel/hopper/first.cuh)."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import layout
from dla.emulator.device.layout import PRODUCT_SCHEDULE
from dla.emulator.device.paths import tilings
from dla.emulator.device.paths.choices import Offer
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.references import compare
from dla.tests.emulator.device.test_paths_gemm import planned, product

CONV = """
.input x : bf16[{samples}, 23, 21, 72]
.input w : bf16[{outputs}, {kernel}, {kernel}, 72]
.output y : bf16[{samples}, {down}, {across}, {outputs}]
main:
    CONV y, x, w strides=[{step}, {step}] pads=[{pad}, {pad}, {pad}, {pad}]
    HALT
"""


PIXELS = """
.input x : bf16[2, 32, 32, 3]
.input w : bf16[64, 7, 7, 3]
.output y : bf16[2, 16, 16, 64]
main:
    CONV y, x, w strides=[2, 2] pads=[3, 3, 3, 3]
    HALT
"""


def of_one(shape: str, instruction: str) -> str:
    """A program of one instruction that makes y of x, of one shape."""
    return f".input x : {shape}\n.output y : {shape}\nmain:\n    {instruction}\n    HALT\n"


def behind_another(text: str) -> str:
    """The same program with an instruction in front, which does not come decoded."""
    return ".scratch s : f32[8]\n" + text.replace("main:", "main:\n    FILL s, 1.0")


WAYS = ("tiles", "halves", "halves together", "low", "low together", "boxes", "tall", "floats", "tf32")
"""Of a product, as paths.cuh counts them behind the paths."""


def added(dtype: str, rows: int, columns: int, steps: str) -> str:
    """A program of one GEMM with what `steps` says of bias q, residual r and activation."""
    text = product(f"{dtype}[{rows}, 320]", f"{dtype}[320, {columns}]", f"{dtype}[{rows}, {columns}]")
    text = text.replace("main:", f".input q : {dtype}[{columns}]\n.input r : {dtype}[{rows}, {columns}]\nmain:")
    return text.replace("y, a, b", f"y, a, b {steps}")


def conv(outputs: int, kernel: int = 3, step: int = 1, samples: int = 3) -> str:
    """A program of one CONV."""
    pad = kernel // 2
    down, across = ((size + 2 * pad - kernel) // step + 1 for size in (23, 21))
    return CONV.format(samples=samples, outputs=outputs, kernel=kernel, step=step, pad=pad, down=down, across=across)


def is_first(session: CpuSession) -> bool:
    """Whether the first instruction is loaded before it is handed out, in those blocks that have a tile of it."""
    header = session.headers()[0]
    fits = PRODUCT_SCHEDULE.values(header["detail"])["flags"] & layout.FIRST_FITS
    return session.plan.first_work == layout.FIRST_PRODUCT and bool(fits) and header["tiles"] > 0


def outputs(session: CpuSession) -> bytes:
    """Those of a run on random inputs, which are right."""
    rng, program = np.random.default_rng(5), session.program
    given = {t.name: values(rng, t.descriptor.bounds, t.descriptor.dtype) for t in program.in_segment(Segment.INPUT)}
    result = session.run(given)
    assert not [c for c in compare(program, given, result) if not c.ok]
    return result.outputs["y"].tobytes()


@pytest.mark.parametrize(
    ("way", "choice", "text"),
    [
        ("boxes", Choice(Tile(128, 256), 1), product("bf16[128, 320]", "bf16[320, 256]", "bf16[128, 256]")),  # one tile
        ("boxes", Choice(Tile(128, 256), 1), product("bf16[128, 320]", "bf16[320, 1280]", "bf16[128, 1280]")),
        ("boxes", Choice(Tile(128, 256), 1), product("f16[2200, 64]", "f16[520, 64]", "f16[2200, 520]", "y, a, b.T")),
        ("boxes", Choice(Tile(128, 256), 1, "b"), product("bf16[520, 320]", "bf16[320, 256]", "bf16[520, 256]")),
        ("boxes", Choice(Tile(128, 256), 1, "a"), product("bf16[200, 72]", "bf16[72, 520]", "bf16[200, 520]")),
        ("tiles", Choice(Tile(64, 128), 1), product("bf16[200, 320]", "bf16[320, 304]", "bf16[200, 304]")),
        ("tiles", Choice(Tile(128, 128), 2), product("bf16[200, 520]", "bf16[520, 304]", "bf16[200, 304]")),
        ("tiles", Choice(Tile(128, 128), 1), product("bf16[2200, 64]", "bf16[64, 304]", "bf16[2200, 304]")),  # bands
        ("tiles", Choice(Tile(128, 128), 2), product("bf16[2200, 128]", "bf16[128, 304]", "bf16[2200, 304]")),
        (
            "tf32",
            Choice(Tile(128, 128), 1),
            product("f32[200, 96]", "f32[96, 304]", "f32[200, 304]", "y, a, b math=tf32"),
        ),
        (
            "tiles",
            Choice(Tile(128, 128), 1),
            product("f32[200, 96]", "f32[304, 96]", "f32[200, 304]", "y, a, b.T math=tf32"),
        ),
        ("tiles", Choice(Tile(64, 128), 1), product("bf16[40, 320]", "bf16[320, 304]", "bf16[40, 304]")),  # few rows
        ("tiles", Choice(Tile(64, 64), 1), added("f16", 100, 200, "bias=q act=gelu residual=r")),
        ("halves", Choice(Tile(64, 64), 1), product("bf16[100, 320]", "bf16[320, 200]", "bf16[100, 200]")),
        ("halves", Choice(Tile(64, 64), 1), added("bf16", 100, 200, "bias=q act=gelu")),
        (
            "halves together",
            Choice(Tile(64, 64), 2, "depth"),
            product("bf16[64, 320]", "bf16[320, 64]", "bf16[64, 64]"),
        ),
        ("low", Choice(Tile(32, 64), 1), product("bf16[72, 784]", "bf16[200, 784]", "bf16[72, 200]", "y, a, b.T")),
        ("low", Choice(Tile(16, 64), 1), added("bf16", 24, 136, "bias=q act=gelu residual=r")),
        ("low together", Choice(Tile(48, 64), 2, "depth"), added("bf16", 96, 136, "bias=q act=gelu")),
        ("tall", Choice(Tile(256, 64), 1), conv(64)),
        ("tall", Choice(Tile(192, 128), 1), conv(136, 1)),
        ("boxes", Choice(Tile(128, 256), 1), conv(264, 3, 2)),
        ("tiles", Choice(Tile(64, 128), 1), conv(136, 3, 2)),
        ("tall", Choice(Tile(256, 128), 1), conv(72, 1, 2, samples=20)),  # more than a band of positions
    ],
)
@cpu_machine.needs_compiler
def test_what_a_launch_begins_with_has_the_bits_of_any_other(monkeypatch, way, choice, text):
    """Tiles of every kind, in one block and in all, one or several; loaded ahead, and behind another instruction."""
    monkeypatch.setattr(tilings, "offers", lambda *_, **__: (Offer(choice, 0.0),))
    first = CpuSession(assemble(text), hopper=True)
    later = CpuSession(assemble(behind_another(text)), hopper=True)
    assert is_first(first)
    assert not is_first(later)
    for session in (first, later):
        detail = session.headers()[session is later]["detail"]
        assert WAYS[PRODUCT_SCHEDULE.values(detail)["way"] - layout.PATH_HOST - 1] == way
    seen = set()
    for session in (first, later):
        for session.seed in range(2):
            seen.add(outputs(session))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (layout.PATH_GEMM, product("bf16[3, 100, 64]", "bf16[3, 64, 80]", "bf16[3, 100, 80]")),  # maps of five dims
        (
            layout.PATH_GEMM,  # by scratch memory
            product(
                "bf16[200, 64]", "bf16[64, 64]", "bf16[200, 64]", "y, a, b alpha=0.5 act=softplus clamp=[0.0, 1.0]"
            ),
        ),
        (layout.PATH_STREAM, product("bf16[2, 320]", "bf16[320, 304]", "bf16[2, 304]")),
        (layout.PATH_STREAM, product("bf16[9, 320]", "bf16[304, 320]", "bf16[9, 304]", "y, a, b.T")),
        (layout.PATH_PIXELS, PIXELS),
        (layout.PATH_GENERIC, of_one("bf16[3, 40]", "COPY y, x")),
        (layout.PATH_GENERIC, of_one("bf16[60, 8192]", "SOFTMAX y, x axis=-1")),  # its scratch memory is in the ring
        (layout.PATH_GENERIC, of_one("f32[40, 40]", "GEMM y, x, x")),
    ],
    ids=["batches", "scratch", "few rows", "some rows", "pixels", "copy", "softmax", "f32"],
)
@cpu_machine.needs_compiler
def test_what_a_loader_waits_for_has_the_bits_of_any_other(path, text):
    """Decoded when the program is loaded, or by the controller behind another instruction, and loaded in its turn."""
    first, later = CpuSession(assemble(text), hopper=True), CpuSession(assemble(behind_another(text)), hopper=True)
    assert (first.plan.first_work != 0, later.plan.first_work) == (True, 0)
    assert not is_first(first)
    assert [session.headers()[index]["path"] for index, session in enumerate((first, later))] == [path] * 2
    assert outputs(first) == outputs(later)


@cpu_machine.needs_compiler
def test_loaders_begin_with_what_was_worked_out_when_the_program_was_loaded(monkeypatch):
    """Were it another tile's place, the result would be there."""
    choice = Choice(Tile(128, 256), 1)
    monkeypatch.setattr(tilings, "offers", lambda *_, **__: (Offer(choice, 0.0),))
    session = CpuSession(assemble(product("bf16[256, 64]", "bf16[64, 256]", "bf16[256, 256]")), hopper=True)
    rng = np.random.default_rng(7)
    given = {"a": values(rng, (256, 64), DType.BF16), "b": values(rng, (64, 256), DType.BF16)}
    right = session.run(given).outputs["y"].copy()
    assert right[:128].any()
    tiles = (
        session.tables()["first"][layout.FIRST_WORK_BYTES :].view(np.uint32).reshape(-1, layout.FIRST_TILE_BYTES // 4)
    )
    of_first = next(tile for tile in tiles if tile[0] and tile[1] == 0)
    of_first[1] = next(tile[1] for tile in tiles if tile[0] and tile[1] != 0)
    session._segments[Segment.OUTPUT][:] = 0
    wrong = session.run(given).outputs["y"]
    assert not wrong[:128].any()


@cpu_machine.needs_compiler
def test_dims_that_registers_hold_wait_for_their_turn():
    """How many tiles there are, only the controller knows."""
    rng = np.random.default_rng(6)
    given = {"a": values(rng, (150, 64), DType.BF16), "b": values(rng, (64, 64), DType.BF16)}
    sessions = [
        CpuSession(assemble(product(f"bf16[{rows}, 64]", "bf16[64, 64]", f"bf16[{out}, 64]")), hopper=True)
        for rows, out in (("150", "150"), ("n <= 200", "n"))
    ]
    fixed, moving = (session.run(given).outputs["y"][:150].tobytes() for session in sessions)
    assert [is_first(session) for session in sessions] == [True, False]
    assert fixed == moving


def test_results_in_boxes_come_before_what_takes_more_code():
    """Of two ways that cost about the same, where a launch begins with the product; behind another one, the model's."""
    layer = """
.input x : bf16[32, 14, 14, 1024]
.input w : bf16[256, 1, 1, 1024]
.output y : bf16[32, 14, 14, 256]
{scratch}main:
{before}    CONV y, x, w
    HALT
"""
    first = planned(layer.format(scratch="", before="")).schedules[0]
    later = planned(layer.format(scratch=".scratch s : f32[8]\n", before="    FILL s, 1.0\n")).schedules[1]
    assert first.decision.choice.tile == Tile(256, 64)
    assert later.decision.choice.tile == Tile(128, 128)
