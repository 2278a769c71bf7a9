"""Ranks that reach into each other's memory, where collectives are hardly large enough: every block has a part."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device.layout import DIRECT_BYTES
from dla.emulator.device.machine import DeviceMachine
from dla.isa.dtypes import BY_TEXT
from dla.tests.emulator.device import emulated_gpus
from dla.tests.emulator.device.cpu_machine import needs_compiler
from dla.tests.emulator.device.golden_ranks import golden
from dla.tests.emulator.golden.test_ranks import assert_same, text, values

BLOCKS = 4  # of each rank: cards of 4 KB would be fewer
CHUNK = 16


@needs_compiler
@pytest.mark.parametrize("operation", ["ALLREDUCE.max", "ALLGATHER", "REDUCESCATTER.mean", "ALLTOALL"])
@pytest.mark.parametrize("world", [3, 6, 8])
def test_just_large_enough(monkeypatch, world, operation):
    """A few chunks below the limit, where cards go, and above it: what is brought is whole."""
    emulated_gpus.install(monkeypatch, blocks=BLOCKS * world)
    limit = BLOCKS * DIRECT_BYTES // world // CHUNK * CHUNK
    parts = (world,) if operation.partition(".")[0] in ("REDUCESCATTER", "ALLTOALL") else ()
    for size in (limit - 3 * CHUNK, limit + 3 * CHUNK):
        elements = size // 4
        program = assemble(text(operation, [list(range(world))], [[0, 0]], 0, "f32", (elements,), in_place=False))
        session = DeviceMachine(ranks=world).load(program)
        assert session.blocks == BLOCKS
        rng = np.random.default_rng(world)
        x = np.stack([values(rng, (*parts, elements), BY_TEXT["f32"]) for _ in range(world)])
        assert_same(session.run({"x": x})["y"], golden(program).run({"x": x})["y"])
