"""FILL: set every element to one number."""

from __future__ import annotations

import numpy as np

from dla.isa.dtypes import ALL, Array
from dla.isa.scalar_attributes import ScalarValue
from dla.isa.table import Operand, Out, Role, Row


def semantics(out: Out, *, value: int | float | bool) -> Array:
    """An array of out's shape, full of `value` (i64, f64 or bool, as the number or register is)."""
    return np.full(out.shape, value)


ROW = Row(
    "FILL", 0x11, "data", "set every element to a number",
    "Writes a number or a register, converted to out's type as COPY converts, to every element of out.",
    types={"O": ALL},
    operands=(Operand("out", Role.OUT, "[B...]", "O", "the tensor filled"),),
    attributes=(
        ScalarValue("value", 16, "number or register written", value_at=384, classes="sfp", default=None),
    ),
    positional=("out", "value"),
    semantics=semantics,
    example="""
.program fill
.output y : f32[2, 2]
.output n : i32[3]
main:
    FILL y, 0.5     ;! y = [[0.5, 0.5], [0.5, 0.5]]
    MOV  s0, 7
    FILL n, s0      ;! n = [7, 7, 7]
    HALT
""",
)  # fmt: skip
