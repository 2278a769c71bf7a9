"""Normalisations that products in low tiles do themselves, and store where others read them, too."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.conflicts import conflicts
from dla.emulator.device import plan
from dla.emulator.device.layout import PATH_GEMM
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Target, tilings
from dla.emulator.device.paths.choices import Offer
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.isa.descriptor import Segment
from dla.isa.verifier import verify
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.references import compare

BASES = {segment: segment.value << 40 for segment in Segment}
TILED = """
.input  x : bf16[{m}, {k}]
.const  w : bf16[{n}, {k}] = 0
.const  g : bf16[{k}] = 1
.scratch s : bf16[{m}, {k}]
.scratch h : bf16[{m}, {k}]
.output y : bf16[{m}, {n}]
.output z : bf16[{m}, {n}]
main:
    COPY s, x
    NORM.layer h, s, g
"""


@pytest.mark.parametrize(
    ("shape", "code", "expected"),
    [
        ((128, 1152, 768), "GEMM y, h, w.T\n GEMM z, h, w.T act=gelu", (2, 3)),
        ((100, 512, 384), "GEMM y, h, w.T act=silu\n GEMM z, h, w.T residual=y", (2, 3)),
        ((128, 1152, 832), "GEMM y, h, w.T", ()),  # too deep
        ((128, 1152, 96), "GEMM y, h, w.T", ()),  # not in whole slices
        ((128, 2304, 256), "GEMM y, h, w.T", ()),  # more tiles than blocks
        ((128, 512, 256), "GEMM y, h, w.T alpha=2.0", ()),
        ((128, 512, 256), "GEMM.glu y[:, :256], h, w.T", ()),
        ((128, 512, 256), "COPY s, x\n GEMM y, h, w.T", ()),
        ((128, 512, 256), "GEMM s, h, w[:256].T", ()),
        ((128, 512, 256), "GEMM y[64:], h[64:], w.T", ()),
    ],
)
def test_low_tiles_take_what_they_can_do(monkeypatch, shape, code, expected):
    """Rows that fit the ring as a whole, one tile for each block, and what is done in registers behind the products."""
    m, n, k = shape
    in_low_tiles(monkeypatch, 0)
    made = plan.build(assemble(TILED.format(m=m, n=n, k=k) + code + "\n HALT\n"), BASES, Target(hopper=True))
    assert made.fused == ({1: expected} if expected else {})
    assert normalising(made) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("GEMM y, h, w.T\n COPY z[:, :256], h", (2,)),
        ("GEMM y, h, w.T\n GEMM z, h, w.T residual=z\n COPY y[:, :256], h", (2, 3)),
        ("GEMM y, h, w.T\n GEMM z, h, w.T alpha=2.0\n COPY y[:, :256], h", (2,)),  # the other one waits
        ("GEMM y, h, w.T\n COPY s, x\n GEMM z, h, w.T\n COPY y[:, :256], h", (2,)),  # likewise
        ("GEMM y, h, w.T\n COPY z[:, :256], h\n COPY h, x", (2,)),
        ("COPY z[:, :256], h\n GEMM y, h, w.T", ()),  # before anyone stores it
        ("GEMM z, h, w.T alpha=2.0\n GEMM y, h, w.T", ()),
        ("GEMM y[64:], h[64:], w.T\n COPY z[:, :256], h", ()),
        ("COPY s, x\n GEMM y, h, w.T\n COPY z[:, :256], h", ()),
        ("GEMM s, h, w[:256].T\n COPY z[:, :256], h", ()),
        ("GEMM h, h, w[:256].T\n COPY z[:, :256], h", ()),
        ("NORM.layer s, s\n GEMM y, s, w.T\n COPY z[:, :256], s", ()),  # in place
    ],
)
def test_the_first_product_stores_the_result_for_others(monkeypatch, code, expected):
    """Those who read it wait for that product, which waits for what the NORM would have waited for."""
    in_low_tiles(monkeypatch, 0)
    program = assemble(TILED.format(m=128, n=512, k=256) + code + "\n HALT\n")
    made = plan.build(program, BASES, Target(hopper=True))
    assert normalising(made) == expected
    assert list(made.fused.values()) == [expected] * bool(expected)
    if not expected:
        return
    first, last = expected[0], len(program.instructions) - 2
    assert ["stores it" in schedule.summary for schedule in made.schedules].index(True) == first
    assert 0 in made.before[first]
    assert any(first in made.before[at] for at in range(first + 1, last + 1) if at not in expected)
    assert not any(1 in earlier for earlier in made.before)


ORDERED = """
.input  x   : bf16[32, 64]
.input  w   : bf16[64, 64]
.input  a   : bf16[64, 64]
.scratch s  : bf16[32, 64]
.scratch h  : bf16[32, 64]
.scratch t  : bf16[64, 64]
.output y   : bf16[32, 64]
.output z   : bf16[32, 64]
.output u   : bf16[64, 64]
.output c   : f32[8, 8]
main:
    COPY s, x
    SOFTMAX t, a axis=0
    NORM.layer h, s
    EW.add u, t.T, t
    GEMM y, h, w.T
    COPY z, h
    CALL f0
    FILL c, 1
    HALT
"""


@pytest.mark.parametrize("depth", [2, 10])
@cpu_machine.needs_compiler
def test_what_lies_between_keeps_its_order(monkeypatch, depth):
    """Also in a program of so many paths that each instruction waits for the one before: a NORM that is done later."""
    in_low_tiles(monkeypatch, 64)
    twice = (f"f{i}:\n    CALL f{i + 1}\n    CALL f{i + 1}\n    RET\n" for i in range(depth))
    program = assemble("".join([ORDERED, *twice, f"f{depth}:\n    RET\n"]))
    verify(program)
    assert list(conflicts(program)[4]) == ([3] if depth == 10 else [2])  # each for the one before, or GEMM for the NORM
    session = CpuSession(program, hopper=True)
    assert {i: tuple(p) for i, p in session.plan.fused.items()} == {2: (4,)}
    assert 1 in session.plan.before[3]
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=program.by_name[name].descriptor.bounds) for name in ("x", "w", "a")}
    given = {name: value.astype(program.by_name[name].descriptor.dtype.numpy) for name, value in given.items()}
    for session.seed in range(3):
        assert all(c.ok for c in compare(program, given, session.run(given)))


def normalising(made: plan.Plan) -> tuple[int, ...]:
    """The products that do a NORM."""
    return tuple(i for i, schedule in enumerate(made.schedules) if "does NORM" in schedule.summary)


def test_other_tiles_do_not_normalise():
    """What the cost model takes for products of more rows."""
    for rows, expected in ((64, {1: (2,)}), (128, {}), (1024, {})):
        program = assemble(TILED.format(m=rows, n=2304, k=768) + "GEMM y, h, w.T\n HALT\n")
        assert plan.build(program, BASES, Target(hopper=True)).fused == expected


SMALL_SHAPES = ((128, 1152, 768), (128, 1536, 384), (300, 512, 448), (65, 72, 192))
FEW_BLOCKS_SMALL_SHAPES = ((128, 64, 768), (40, 128, 704), (30, 200, 384), (64, 72, 192), (120, 64, 64))
SMALL_SHAPES_AND_MACHINES = pytest.mark.parametrize(
    ("shape", "on_gpu"),
    [
        pytest.param(given, True, marks=(pytest.mark.gpu, pytest.mark.hopper), id=f"gpu-{given}")
        for given in SMALL_SHAPES
    ]
    + [
        pytest.param(given, False, marks=cpu_machine.needs_compiler, id=f"cpu-{given}")
        for given in FEW_BLOCKS_SMALL_SHAPES
    ],
)
SMALL_CHAIN = """
.input x : bf16[1, {m}, {k}]
.input u : bf16[{k}, {k}]
.input w : bf16[{n}, {k}]
.input v : bf16[{k}, {n}]
.input gain : bf16[{k}]
.input bias : bf16[{k}]
.input last : bf16[{n}]
.scratch s : bf16[1, {m}, {k}]
.scratch h : bf16[{m}, {k}]
.output a : bf16[1, {m}, {n}]
.output b : bf16[{m}, {n}]
.output c : bf16[{m}, {n}]
.output d : bf16[{m}, {n}]
.output e : bf16[{m}, {n}]
.output f : bf16[{m}, {k}]
main:
    GEMM       s, x, u
    NORM.layer h, s[0], gain, bias
    GEMM       a[0], h, w.T bias=last act=gelu
    GEMM       b, h, v
    NORM.rms   h, x[0], bias eps=0.001
    GEMM       c, h, v residual=b
    NORM.layer h, s[0]
    GEMM       d, h, w.T act=relu
    NORM.layer h, s[0], bias
    GEMM       e, h, v
    COPY       f, h
    HALT
"""


def in_low_tiles(monkeypatch, columns: int) -> None:
    """Products of so many columns, of 0: all, have tiles that can normalise, where there are low tiles."""

    def offered(
        _rows: int, found: int, *_shape: int, tiles: tuple[Tile, ...], **_which: object
    ) -> tuple[Offer[Choice], ...]:
        low = Tile(32 if columns in (0, found) else 16, 64)
        return (Offer(Choice(low if low in tiles else Tile(64, 64), 1), 0.0),)

    monkeypatch.setattr(tilings, "offers", offered)


@SMALL_SHAPES_AND_MACHINES
def test_low_tiles_do_the_normalisation(monkeypatch, shape, on_gpu):
    """Whatever part of the ring their stages take, wherever the one before ended; with and without gain and bias."""
    m, n, k = shape
    in_low_tiles(monkeypatch, n)
    program = assemble(SMALL_CHAIN.format(m=m, n=n, k=k))
    session = DeviceMachine().load(program) if on_gpu else CpuSession(program, hopper=True)
    assert {i: tuple(p) for i, p in session.plan.fused.items()} == {1: (2, 3), 4: (5,), 6: (7,), 8: (9,)}
    assert normalising(session.plan) == (2, 3, 5, 7, 9)
    assert {session.plan.schedules[i].path for i in (2, 3, 5, 7, 9)} == {PATH_GEMM}
    rng = np.random.default_rng(0)
    scales = {"x": 1.0, "u": k**-0.5, "w": k**-0.5, "v": k**-0.5, "gain": 0.5, "bias": 0.5, "last": 1.0}
    given = {
        name: (rng.normal(size=program.by_name[name].descriptor.bounds) * scale).astype(
            program.by_name[name].descriptor.dtype.numpy
        )
        for name, scale in scales.items()
    }
    given["x"][0, 1:] += 3  # a mean that is not close to 0
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    if not on_gpu:
        session.seed = 1
    again = session.run(given)
    assert all(result.outputs[name].tobytes() == again.outputs[name].tobytes() for name in result.outputs)
