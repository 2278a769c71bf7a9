"""What the tests of `programs/` share: every test runs on the golden machine and, where there is one, on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dla.assembler import assemble_file
from dla.emulator.api import Machine
from dla.emulator.backend import Session
from dla.isa.program import Program

PROGRAMS = Path(__file__).parents[2] / "programs"
assembled = cache(assemble_file)


@pytest.fixture(scope="session")
def program() -> Callable[[str], Program]:
    """Assembles `programs/<name>.dla`, once."""
    return lambda name: assembled(PROGRAMS / f"{name}.dla")


@pytest.fixture(scope="session", params=["golden", pytest.param("gpu", marks=pytest.mark.gpu)])
def load(request: pytest.FixtureRequest) -> Callable[[str], Session]:
    """Loads (and so verifies) `programs/<name>.dla` on a machine, with fresh state."""
    machine = Machine(request.param)
    return lambda name: machine.load(assembled(PROGRAMS / f"{name}.dla"))


@pytest.fixture(scope="session")
def run(load: Callable[[str], Session]) -> Callable[..., Mapping[str, np.ndarray]]:
    """Runs a program of `programs/` once: `run("saxpy", a=a, x=x, y=y)["z"]`."""
    return lambda name, **inputs: load(name).run(inputs).outputs
