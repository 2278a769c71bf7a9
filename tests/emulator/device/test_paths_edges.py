"""Products that end within a tile: boxes of what exists, tiles that begin earlier, and that nothing else changes."""

from __future__ import annotations

import pytest

from dla.assembler import assemble
from dla.emulator.device import layout
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.test_paths_gemm import failures, fields, first_schedule, force, planned, product

OVERLAPPING = layout.OVERLAPPING_DOWN | layout.OVERLAPPING_ACROSS
SHORT = layout.A_SHORT | layout.B_SHORT


def flags(text: str) -> int:
    """Those of the first instruction's edges."""
    return fields(first_schedule(text))["flags"] & (OVERLAPPING | SHORT)


@pytest.mark.parametrize(
    ("rows", "columns", "more", "expected"),
    [
        (128, 128, "", 0),
        (129, 128, "", layout.OVERLAPPING_DOWN),
        (129, 136, "", OVERLAPPING),
        (129, 132, "", layout.OVERLAPPING_DOWN),  # a tile's first column is a chunk's first
        (129, 136, " residual=r", OVERLAPPING),
        (129, 136, " residual=y", 0),  # who comes second would read what is there by then
        (57, 128, "", 0),  # all groups of 8 rows have one
        (56, 128, "", layout.A_SHORT),
        (128, 10, "", layout.B_SHORT),
        (20, 57, "", layout.A_SHORT),
        (20, 56, "", SHORT),
        (200, 10, "", layout.OVERLAPPING_DOWN | layout.B_SHORT),
    ],
)
def test_no_box_has_more_than_there_is(monkeypatch, rows, columns, more, expected):
    """In tiles of 64 x 64."""
    force(monkeypatch, Choice(Tile(64, 64), 1), 1)
    text = product(f"bf16[{rows}, 64]", f"bf16[{columns}, 64]", f"bf16[{rows}, {columns}]", f"y, a, b.T{more}")
    assert flags(text.replace(".output", f".input r : bf16[{rows}, {columns}]\n.output")) == expected


@pytest.mark.parametrize(
    "text",
    [
        product("bf16[n <= 20, 64]", "bf16[10, 64]", "bf16[n, 10]", "y, a, b.T"),  # the map has all rows
        product("bf16[64, 24]", "bf16[10, 64]", "bf16[24, 10]", "y, a.T, b.T"),  # rows of boxes are the depth
        product("f32[20, 64]", "f32[10, 64]", "f32[20, 10]", "y, a, b.T math=tf32"),
    ],
)
def test_boxes_of_as_many_rows_as_ever(monkeypatch, text):
    """But of the other operand."""
    force(monkeypatch, Choice(Tile(128, 64), 1), 1)
    assert not flags(text) & layout.A_SHORT


def test_short_boxes(monkeypatch):
    """Of whole groups of 8 lines."""
    force(monkeypatch, Choice(Tile(64, 64), 1), 2)
    a, b = planned(product("bf16[20, 128]", "bf16[10, 128]", "bf16[20, 10]", "y, a, b.T")).maps
    assert (a.box, b.box) == ((64, 24, 2), (64, 16, 2))


EDGES = """
.input a : bf16[{m}, {k}]
.input b : bf16[{n}, {k}]
.input c : bf16[{k}, 136]
.input q : bf16[{n}]
.input r : bf16[{m}, {n}]
.output t : bf16[{m}, {n}]
.output u : bf16[{m}, {n}]
.output v : bf16[{m}, {n}]
.output w : bf16[{m}, 136]
.output x : f32[{m}, {n}]
.output y : bf16[3, {m}, {n}]
.input d : bf16[3, {n}, {k}]
main:
    GEMM t, a, b.T
    GEMM u, a, b.T bias=q act=relu residual=r
    COPY v, r
    GEMM v, a, b.T residual=v
    GEMM w, a, c
    GEMM x, a, b.T
    GEMM y, a[None, :], d.permute(0, 2, 1)
    HALT
"""


@pytest.mark.parametrize(
    ("tile", "splits", "rows", "columns", "depth", "slices"),
    [
        ((64, 64), 1, 20, 24, 200, 2),
        ((64, 64), 1, 70, 72, 128, 2),
        ((64, 64), 2, 20, 136, 512, 2),
        ((128, 64), 1, 130, 200, 128, 1),
        ((64, 128), 1, 33, 200, 192, 2),
        ((128, 128), 2, 150, 24, 256, 1),
        ((72, 64), 1, 20, 80, 256, 2),
        ((48, 64), 1, 100, 24, 128, 2),
    ],
)
@cpu_machine.needs_compiler
def test_edges_stay_within_the_bound(monkeypatch, tile, splits, rows, columns, depth, slices):
    """Fewer rows or columns than a tile has, or some more; in place, in batches, and stored in other ways."""
    force(monkeypatch, Choice(Tile(*tile), splits), slices)
    made = assemble(EDGES.format(m=rows, n=columns, k=depth))
    session = CpuSession(made, hopper=True, seed=rows)
    assert fields(session.plan.schedules[0])["flags"] & (OVERLAPPING | SHORT)
    assert not failures(made, session)
