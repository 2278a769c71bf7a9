"""IOTA: an arithmetic progression along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.attributes import Axis
from dla.isa.bounds import ErrorBound
from dla.isa.dtypes import NUMBERS, Array, broadcast
from dla.isa.scalar_attributes import ScalarValue
from dla.isa.table import Constraint, Operand, Out, Role, Row, axis_below_rank


def semantics(out: Out, *, start: int | float, step: int | float, axis: int) -> Array:
    """The sum start + step * (index along axis), in i64 if both are integers, else in f64."""
    wide: type[Any] = np.int64 if isinstance(start, int) and isinstance(step, int) else np.float64
    index = np.arange(out.shape[axis], dtype=wide)
    column = [1] * len(out.shape)
    column[axis] = out.shape[axis]
    with np.errstate(over="ignore", invalid="ignore"):
        return broadcast((wide(start) + wide(step) * index).reshape(column), out.shape)


ROW = Row(
    "IOTA", 0x12, "data", "count along an axis",
    "Writes start + step * index, where index counts from 0 along the axis. Computed in i64 (which wraps) if start and "
    "step are integers, else in f64, and converted to out's type as COPY converts.",
    types={"O": NUMBERS},
    operands=(Operand("out", Role.OUT, "[B...]", "O", "the progression"),),
    attributes=(
        ScalarValue("start", 16, "first number", value_at=384),
        ScalarValue("step", 24, "difference of neighbours", value_at=448, default=1),
        Axis("axis", 96, "axis that counts", default=0, of="out"),
    ),
    constraints=(Constraint(1, "axis is an axis of out", axis_below_rank("out")),),
    semantics=semantics,
    error=ErrorBound("one rounding; integers equal", lambda reference, operands, attributes: 0.0),
    flops=lambda dims, attributes: dims["out"],
    flops_text="elements of out",
    example="""
.program iota
.output y : i32[4]
.output z : f32[2, 3]
main:
    IOTA y                              ;! y = [0, 1, 2, 3]
    IOTA z, start=1 step=0.5 axis=1     ;! z = [[1, 1.5, 2], [1, 1.5, 2]]
    HALT
""",
)  # fmt: skip
