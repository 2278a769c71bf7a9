"""What holds for every file in `programs/`: it is accepted, and no legal order of its instructions changes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dla.emulator.api import Machine
from dla.isa.descriptor import Dynamic, Segment
from dla.isa.program import Program
from dla.isa.verifier import verify

PROGRAMS = Path(__file__).parents[2] / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.dla"))
SIZE = 5  # of every named dim


def random_inputs(program: Program, seed: int) -> Mapping[str, np.ndarray]:
    """An array for each input: normal floats, integers from 0 to 9."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for tensor in program.in_segment(Segment.INPUT):
        dtype = tensor.descriptor.dtype
        shape = [SIZE if isinstance(d, Dynamic) else d for d in tensor.descriptor.dims]
        values = rng.standard_normal(shape) if dtype.is_float else rng.integers(0, 10, shape)
        inputs[tensor.name] = values.astype(dtype.numpy)
    return inputs


@pytest.mark.parametrize("name", NAMES)
def test_every_program_is_accepted_by_the_verifier(program, name):
    """The verifier rejects nothing in `programs/`, and each file is named after its program."""
    verify(program(name))
    assert program(name).name == name


def test_every_lesson_and_network_is_there():
    """Twelve lessons, three networks, and six programs of several ranks."""
    assert len(NAMES) >= 21


@pytest.mark.parametrize("name", NAMES)
def test_no_legal_order_changes_a_program(program, name):
    """In two shuffled orders of the dependency graph every output is bit-equal to program order's."""
    inputs = random_inputs(program(name), seed=1)
    expected = Machine("golden").run(program(name), inputs)
    for seed in (1, 2):
        shuffled = Machine("golden", shuffle=seed).run(program(name), inputs)
        for key, value in expected.outputs.items():
            np.testing.assert_array_equal(shuffled[key], value, strict=True)
        for key, value in expected.state.items():
            np.testing.assert_array_equal(shuffled.state[key], value, strict=True)
