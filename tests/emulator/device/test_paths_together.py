"""Tiles whose depth the blocks of a pair share (kernel/hopper/together.cuh)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import layout
from dla.emulator.device.paths import tilings
from dla.emulator.device.paths.choices import Measured, fields_of
from dla.emulator.device.paths.tilings import Choice, Tile, clocks, offers
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.errors import Trap
from dla.isa.program import Program
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.test_paths_gemm import failures, fields

PRODUCTS = """
.input x : T[100, 328]
.input w : T[328, 128]
.input v : T[128, 328]
.input u : T[328, 104]
.input q : T[2, 48, 264]
.input k : T[2, 264, 64]
.input bias : T[128]
.input more : T[100, 128]
.scratch s : T[100, 128]
.scratch t : T[100, 128]
.output a : T[100, 128]
.output b : T[100, 128]
.output c : T[104, 128]
.output d : T[2, 48, 64]
.output e : T[100, 128]
main:
    GEMM     s, x, w bias=bias act=gelu
    GEMM     a, s, v[:, :128]
    GEMM     t, x, v.T bias=bias residual=more
    GEMM     b, t, v.T[:128] act=tanh
    GEMM     c, u.T, w act=relu
    GEMM     d, q, k
    EW.add   s, s, t
    GEMM     e, s, v[:, 8:136] residual=more act=silu
    HALT
"""
SMALL = """
.input x : T[R, 328]
.input w : T[328, 64]
.input v : T[64, 328]
.input u : T[328, 72]
.input q : T[2, 48, 264]
.input k : T[2, 264, 64]
.input bias : T[64]
.input more : T[R, 64]
.scratch s : T[R, 328]
.output a : T[R, 64]
.output b : T[R, 64]
.output c : T[R, 56]
.output d : T[2, 48, 64]
.output e : T[72, 64]
main:
    GEMM     a, x, w bias=bias act=gelu
    EW.add   s, x, x
    GEMM     b, s, v.T bias=bias residual=more act=relu
    GEMM     c, s, w[:, :56] act=tanh
    GEMM     a, s, w residual=a act=silu
    GEMM     d, q, k
    GEMM     e, u.T, w act=gelu_tanh
    HALT
"""
WINDOWS = """
.input x : T[1, 5, 6, 72]
.input w : T[64, 3, 3, 72]
.input v : T[64, 3, 3, 64]
.input z : T[64, 1, 1, 72]
.input bias : T[64]
.output y : T[1, 5, 6, 64]
.output o : T[1, 5, 6, 64]
main:
    CONV y, x, w pads=[1, 1, 1, 1] bias=bias act=relu
    CONV y, y, v pads=[1, 1, 1, 1] residual=y
    CONV o, x, z
    HALT
"""
WAYS = {f"{tile.rows}x{tile.columns}": Choice(tile, 2, "depth") for tile in tilings.TOGETHER_TILES}
HALVED, *SMALLER = WAYS.values()


class Preferred:
    """Choices, as if `choice` had been measured to be the quickest everywhere; of products of 64 rows, `small`."""

    def __init__(self, choice: Choice, small: Choice | None = None) -> None:
        self.choice, self.small = choice, small

    def measured(self, key: str) -> Measured:
        """Of the instruction that `key` describes."""
        return Measured(fields_of(self.small if self.small and "[64,64]" in key else self.choice), 0.0)


def halved(session: Any) -> int:
    """Products whose depth pairs share."""
    paths = (layout.PATH_GEMM, layout.PATH_CONV)
    flags = [fields(s)["flags"] for s in session.plan.schedules if s.path in paths]
    return sum(1 for f in flags if f & layout.DEPTH_SHARED)


def text(program: str, dtype: str) -> Program:
    """`program` with elements of type `dtype`."""
    return assemble(program.replace(": T[", f": {dtype}["))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@cpu_machine.needs_compiler
def test_blocks_put_their_halves_together(dtype):
    """Each kind of epilogue, operands that lie along and across, batches; some take what others have made."""
    made = text(PRODUCTS, dtype)
    for seed in range(3):
        session = CpuSession(made, hopper=True, seed=seed, choices=Preferred(HALVED))
        assert halved(session) == 7
        assert not failures(made, session)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("way", SMALLER, ids=list(WAYS)[1:])
@cpu_machine.needs_compiler
def test_so_do_those_whose_warpgroups_share_the_depth_too(way, dtype):
    """Of one tile, and of two; low ones have rows that lie along the depth, and no batches."""
    for seed, rows in enumerate((way.tile.rows + 5, max(17, way.tile.rows - 3))):
        made = text(SMALL.replace("R,", f"{rows},"), dtype)
        session = CpuSession(made, hopper=True, seed=seed, choices=Preferred(way))
        assert halved(session) == (4 if way.tile.low else 6)
        assert not failures(made, session)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@cpu_machine.needs_compiler
def test_convolutions_do_so_too(way):
    """Of windows, and of 1 x 1; one in place."""
    made = text(WINDOWS, "bf16")
    session = CpuSession(made, hopper=True, seed=1, choices=Preferred(way))
    assert halved(session) == 3
    assert not failures(made, session)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@cpu_machine.needs_compiler
def test_runs_give_the_same_bits(way):
    """Whichever half comes first: the sum of two numbers does not depend on that."""
    made = text(PRODUCTS if way is HALVED else SMALL.replace("R,", f"{way.tile.rows + 5},"), "bf16")
    rng = np.random.default_rng(3)
    given = {t.name: values(rng, t.descriptor.bounds, t.descriptor.dtype) for t in made.in_segment(Segment.INPUT)}
    runs = (CpuSession(made, hopper=True, seed=seed, choices=Preferred(way)).run(given).outputs for seed in (1, 2))
    first, second = runs
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


TRAPPED = """
.input x : bf16[R, 264]
.input w : bf16[264, C]
.input a : bf16[64, 512]
.input b : bf16[512, 64]
.input i : i32[R]
.scratch s : bf16[R, 264]
.output y : bf16[R, C]
.output z : bf16[64, 64]
main:
    GATHER s, x, i axis=0
    GEMM   y, s, w
    GEMM   z, a, b
    GEMM   y, s, w
    HALT
"""


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@cpu_machine.needs_compiler
def test_a_trap_elsewhere_ends_the_wait_for_the_other_block(way):
    """What the other block gives so late does not harm the works behind; and the next run is right."""
    rows, columns = 21 if way.tile.rows == 16 else way.tile.rows - 3, way.tile.columns * (2 if way is HALVED else 1)
    made = assemble(TRAPPED.replace("[R", f"[{rows}").replace("C]", f"{columns}]"))
    shapes = {"x": (rows, 264), "w": (264, columns), "a": (64, 512), "b": (512, 64)}
    given = {name: np.ones(shape, DType.BF16.numpy) for name, shape in shapes.items()}
    given |= {"i": np.arange(rows, dtype=np.int32)}
    outside = given | {"i": np.where(np.arange(rows) == rows - 3, rows, 0).astype(np.int32)}
    for seed in range(8):
        session = CpuSession(made, hopper=True, seed=seed, choices=Preferred(way, Choice(Tile(64, 64), 2)))
        assert halved(session) == 2
        with pytest.raises(Trap):
            session.run(outside)
        assert (session.run(given).outputs["y"] == 264).all()


UNRELATED = """
.input x : bf16[61, 2048]
.input w : bf16[2048, 64]
.input i0 : i32[61]
.scratch i : i32[13, 61]
.output s : bf16[61, 2048]
.output y : bf16[61, 64]
.output z : bf16[61, 64]
main:
    EW.add i[0], i0, i0
    GEMM   y, x, w
    GATHER s, x, i[LAST] axis=0
    GEMM   z, x, w
    GEMM   y, x, w
    GEMM   z, x, w
    HALT
"""


@pytest.mark.parametrize("steps", [2, 12])
@cpu_machine.needs_compiler
def test_a_trap_elsewhere_may_come_at_any_time(steps):
    """While loaders wait for room, and what a block gives is on its way: nothing is left for what comes behind."""
    doubled = "".join(f"    EW.add i[{n}], i[{n - 1}], i[{n - 1}]\n" for n in range(1, steps))
    made = assemble(UNRELATED.replace("    GEMM ", f"{doubled}    GEMM ", 1).replace("LAST", str(steps - 1)))
    given = {"x": np.ones((61, 2048), DType.BF16.numpy), "w": np.ones((2048, 64), DType.BF16.numpy)}
    first, outside = np.zeros((2, 61), np.int32)
    outside[58] = 1000
    for seed in range(20):
        session = CpuSession(made, hopper=True, seed=seed, choices=Preferred(HALVED))
        with pytest.raises(Trap):
            session.run(given | {"i0": outside})
        assert (session.run(given | {"i0": first}).outputs["y"] == 2048).all()


def test_it_is_offered_where_half_of_the_blocks_would_be_idle():
    """And there is an even number of them, and a depth to share."""
    found = offers(128, 4096, 1, 132, 4096, pairs=True, together=True)
    ways = {o.choice for o in found}
    assert HALVED in ways  # of 64 tiles
    assert not any(o.choice.shared == "depth" for o in offers(1024, 4096, 1, 132, 4096, pairs=True, together=True))
    assert not any(o.choice.shared == "depth" for o in offers(128, 4096, 1, 131, 4096, pairs=True, together=True))
    assert not any(o.choice.shared == "depth" for o in offers(128, 4096, 1, 132, 64, pairs=True, together=True))


def test_few_rows_of_a_long_depth_take_less():
    """1.3 times as many bytes go into tiles of 64 x 64 of the whole depth."""
    ways = Choice(Tile(64, 64), 1), HALVED
    alone, together = (clocks(way, 128, 1024, 1, 132, 8192) for way in ways)
    assert together < alone


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("", True),
        (" bias=bias act=gelu", True),
        (" residual=more act=relu", True),
        (" act=relu residual=more", False),
        (" alpha=2.0", False),
    ],
)
def test_epilogues_that_can_be_finished_so(steps, expected):
    """Not what comes behind an activation, or in front of all else."""
    made = text(PRODUCTS.split("main:")[0] + f"main:\n    GEMM a, x, w{steps}\n    HALT\n", "bf16")
    context = SimpleNamespace(target=SimpleNamespace(blocks=132), workspace_bytes=0, first=None)
    found = tilings.ways(
        made.instructions[0], made.instructions[0].operand("a").dtype, (100, 128, 1), 6, context, in_chunks=True
    )
    assert any(o.choice.shared == "depth" for o in found[0]) == expected
