"""Low tiles of products: where they are offered, and what becomes of them on the emulated device."""

from __future__ import annotations

import pytest

from dla.assembler import assemble
from dla.emulator.device.paths import tilings
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.test_paths_gemm import failures, fields, first_schedule, force, product

LOW = """
.input a : T[90, K]
.input b : T[136, K]
.input c : T[K, 136]
.input q : T[136]
.input r : T[90, 136]
.output t : T[90, 136]
.output u : T[90, 136]
.output v : T[90, 304]
.output w : T[90, 136]
.output x : T[90, 136]
.output y : T[90, 136]
.input d : T[10, K]
.input e : T[10]
.output f : T[90, 10]
.output g : T[90, 83]
.output z : T[90, 68]
main:
    FILL v, 0
    FILL g, 0
    GEMM t, a, b.T
    GEMM f, a, d.T bias=e act=relu
    GEMM g[:, 1:82], a, b[0:81, :].T act=silu
    GEMM u, t, c[0:136, :] bias=q act=relu
    GEMM v[:, 8:144], a, b.T bias=q act=gelu
    GEMM w, a, c bias=q residual=r
    GEMM x, a, b.T bias=q act=gelu_tanh residual=r
    GEMM y, a, b.T alpha=0.5
    GEMM.glu z, a, b.T unit=silu
    HALT
"""


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(
    ("rows", "depth", "slices"),
    [(16, 200, 1), (16, 512, 4), (32, 200, 2), (32, 328, 4), (48, 200, 4), (72, 328, 1), (72, 200, 2)],
)
@cpu_machine.needs_compiler
def test_low_tiles_stay_within_the_bound(monkeypatch, dtype, rows, depth, slices):
    """Fewer rows than tensor cores take; weights along the depth and across; and what low tiles cannot do."""
    force(monkeypatch, Choice(Tile(rows, 64), 1), slices)
    made = assemble(LOW.replace(": T[", f": {dtype}[").replace("K", str(depth)))
    session = CpuSession(made, hopper=True, seed=rows + depth)
    found = [fields(s)["tile_rows"] for s in session.plan.schedules[2:-1]]
    assert found == [rows] * 7 + [64] * 2
    assert not failures(made, session)


@pytest.mark.parametrize(
    "text",
    [
        product("bf16[2, 90, 72]", "bf16[2, 72, 80]", "bf16[2, 90, 80]"),
        product("bf16[72, 96]", "bf16[72, 80]", "bf16[96, 80]", "y, a.T, b"),
        product("f32[90, 72]", "f32[72, 80]", "f32[90, 80]", "y, a, b math=tf32"),
        product("bf16[90, 72]", "bf16[72, 80]", "f32[90, 80]"),
        product("bf16[90, 72]", "bf16[72, 80]", "bf16[90, 80]", "y, a, b act=relu clamp=[0.0, 1.0]"),
    ],
)
def test_low_tiles_are_for_single_products_in_lines(text):
    """Not of batches, where a lies across, of f32, nor of an epilogue that leaves in another way."""
    decision = first_schedule(text).decision
    assert decision is not None
    assert not any(offer.choice.tile.low for offer in decision.offers)


@pytest.mark.parametrize("limit", [64, 128])
def test_low_tiles_lie_where_the_loader_can_tell(monkeypatch, limit):
    """They have no other way to finish than in lines, which results beyond that are not stored in."""
    monkeypatch.setattr(tilings, "CORNER_COLUMNS", limit)
    decision = first_schedule(product("bf16[20, 64]", "bf16[64, 128]", "bf16[20, 128]")).decision
    assert decision is not None
    assert any(offer.choice.tile.low for offer in decision.offers) == (limit >= 128)
