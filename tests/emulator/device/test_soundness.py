"""What the verifier accepts never faults on a GPU: random programs on the build that checks every address."""

from __future__ import annotations

import random

import numpy as np
import pytest
from trust.soundness import DATA_TRAPS, NAMED_DIM, ProgramWriter

from dla.emulator.device.machine import DeviceMachine
from dla.isa.descriptor import Segment
from dla.isa.errors import Trap, VerifyError
from dla.isa.program import Program
from dla.isa.verifier import verify

ACCEPTED, PARTS = 2000, 8


def accepted_program(seed: int) -> Program | None:
    """The random program of `seed`, or None where the verifier refuses it."""
    program = ProgramWriter(random.Random(f"gpu/{seed}")).program()
    try:
        verify(program)
    except VerifyError:
        return None
    return program


def outcome(machine: DeviceMachine, program: Program, dim: int) -> str:
    """What a run comes to: the category of its trap, or "ran"."""
    inputs = {
        t.name: np.zeros(t.descriptor.bounds, t.descriptor.dtype.numpy) for t in program.in_segment(Segment.INPUT)
    }
    try:
        machine.load(program).run(inputs, {NAMED_DIM.name: dim})
    except Trap as trap:
        return trap.category
    return "ran"


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(PARTS))
def test_accepted_programs_do_not_fault(part):
    """2,000 accepted programs, in parts, end, or trap for a reason in their data; no address leaves its segment."""
    machine = DeviceMachine(checked=True, timeout=5.0)
    ran = accepted = 0
    for seed in range(part, 10 * ACCEPTED, PARTS):
        program = accepted_program(seed)
        if program is None:
            continue
        accepted += 1
        category = outcome(machine, program, seed % (NAMED_DIM.bound + 1))
        assert category in {"ran", *DATA_TRAPS}, f"program {seed}"
        ran += category == "ran"
        if accepted == ACCEPTED // PARTS:
            break
    assert accepted == ACCEPTED // PARTS
    assert ran > accepted // 2
