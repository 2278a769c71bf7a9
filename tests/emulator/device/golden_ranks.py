"""Golden ranks beside those on GPUs, whatever connects them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dla.assembler import assemble
from dla.emulator.api import Machine
from dla.emulator.random_inputs import random_inputs
from dla.isa.program import Program

PROGRAMS = Path(__file__).parents[3] / "programs"
NAMES = (
    "data_parallel", "tensor_parallel_mlp", "tensor_parallel_transformer", "pipeline", "expert_parallel",
    "ring_allreduce",
)  # fmt: skip


def golden(program: Program, **options: Any) -> Any:
    """The golden machine that rounds as this one does."""
    return Machine("golden", accumulate="f32", watch=False, **options).load(program)


def assert_is_as_golden(load: Callable[..., Any], name: str) -> None:
    """A program that comes with the project has on GPUs what golden ranks have, but for rounding."""
    program = assemble((PROGRAMS / f"{name}.dla").read_text(), folder=PROGRAMS)
    ranks = program.world or 4
    inputs = random_inputs(program, 1, {})
    got, wanted = load(program, ranks).run(inputs), golden(program, ranks=ranks).run(inputs)
    for output, array in wanted.outputs.items():
        np.testing.assert_allclose(
            got[output].astype(np.float64), array.astype(np.float64), rtol=2e-2, atol=1e-3, err_msg=output
        )
