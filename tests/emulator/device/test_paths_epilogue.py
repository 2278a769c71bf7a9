"""What follows a product's sums: what registers may do, and who has to read an operand in another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device.layout import PATH_GEMM, PATH_PIXELS, PRODUCT_SCHEDULE
from dla.isa.descriptor import Segment
from dla.isa.program import Program
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.references import compare

emulated = cpu_machine.needs_compiler


def inputs_of(program: Program) -> dict[str, Any]:
    """Random ones."""
    rng = np.random.default_rng(3)
    found = {t.name: t.descriptor for t in program.tensors if t.descriptor.segment is Segment.INPUT}
    return {name: values(rng, d.bounds, d.dtype) for name, d in found.items()}


def assert_within_the_bound(program: Program, session: CpuSession) -> None:
    """On the emulated device."""
    inputs = inputs_of(program)
    assert all(c.ok for c in compare(program, inputs, session.run(inputs)))


@emulated
@pytest.mark.parametrize(("dtype", "other"), [("bf16", "f16"), ("f16", "bf16")])
def test_a_bias_of_the_other_type_of_16_bits_keeps_its_own(dtype, other):
    """Results in lines take the bias to be of their type; so these are not stored in lines."""
    program = assemble(f""".input a : {dtype}[64, 64]
.input b : {dtype}[64, 64]
.input c : {other}[64]
.output y : {dtype}[64, 64]
main:
    GEMM y, a, b bias=c
    HALT
""")
    session = CpuSession(program, hopper=True)
    schedule = session.plan.schedules[0]
    assert schedule.path == PATH_GEMM
    assert PRODUCT_SCHEDULE.values(schedule.detail)["pitch"] == 0
    assert_within_the_bound(program, session)


IMAGES = """.input x : bf16[1, 9, 16, 3]
.input w : bf16[16, 3, 3, 3]
.input same : bf16[16]
.input one : bf16[1]
.input wide : bf16[32]
.input other : f16[16]
.output y : bf16[1, 4, 7, 16]
main:
    CONV y, x, w strides=[2, 2] bias={bias}
    HALT
"""


@emulated
@pytest.mark.parametrize(
    ("bias", "pixels"), [("same", True), ("one", False), ("wide[::2]", False), ("wide[1:17]", False), ("other", False)]
)
def test_convolutions_of_images_take_a_bias_whose_pairs_are_one_access(bias, pixels):
    """One that is broadcast, has gaps, begins at an odd element or is of another type is the handler's business."""
    program = assemble(IMAGES.format(bias=bias))
    session = CpuSession(program, hopper=True)
    assert (session.plan.schedules[0].path == PATH_PIXELS) == pixels
    assert_within_the_bound(program, session)
