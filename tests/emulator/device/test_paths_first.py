"""A launch that begins with a product in boxes, whose loader begins before the controller does."""

from __future__ import annotations

import pytest

from dla.assembler import assemble
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.test_paths_gemm import failures, force, product


@pytest.mark.parametrize("columns", [256, 1280])
@cpu_machine.needs_compiler
def test_blocks_with_a_single_tile_go_on(monkeypatch, columns):
    """One tile, of more stages than the ring holds, is all that the loader has, and was begun ahead of the work."""
    force(monkeypatch, Choice(Tile(128, 256), 1), 1)
    made = assemble(product("bf16[128, 320]", f"bf16[320, {columns}]", f"bf16[128, {columns}]"))
    assert not failures(made, CpuSession(made, hopper=True, seed=1))
