"""What the tests of `programs/` share: a fixture that assembles, verifies and runs one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dla.assembler import assemble_file
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.program import Program
from dla.isa.verifier import verify

PROGRAMS = Path(__file__).parents[2] / "programs"


@cache
def _load(name: str) -> Program:
    program = assemble_file(PROGRAMS / f"{name}.dla")
    verify(program)
    return program


@pytest.fixture(scope="session")
def load() -> Callable[[str], Program]:
    """Assembles `programs/<name>.dla` and verifies it."""
    return _load


@pytest.fixture(scope="session")
def run() -> Callable[..., Mapping[str, np.ndarray]]:
    """Outputs of `programs/<name>.dla` on the golden machine, as in run("saxpy", a=a, x=x, y=y)."""

    def run_once(name: str, **inputs: np.ndarray) -> Mapping[str, np.ndarray]:
        return GoldenMachine().load(_load(name)).run(inputs).outputs

    return run_once
