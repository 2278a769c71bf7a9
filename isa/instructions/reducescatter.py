"""REDUCESCATTER: fold the tensors of all ranks, and give each rank its part of the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.bounds import ErrorBound
from dla.isa.dtypes import Array
from dla.isa.instructions.allreduce import BOUND, SUBS, TYPES, fold, mean_of_floats, slack
from dla.isa.ranks import GROUP, Member
from dla.isa.table import Constraint, Operand, Out, Role, Row


def semantics(out: Out, x: Array, *, sub: str, group: Member) -> Array:
    """`sub` of what the ranks bring for this one, folded as ALLREDUCE does it."""
    return np.asarray(fold(sub, x[:, group.place]))


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array | float:
    return slack(attributes["sub"], operands["x"][:, attributes["group"].place], reference)


ROW = Row(
    "REDUCESCATTER", 0x72, "collectives", "fold over ranks, a part for each",
    "The k-th rank of the group gets x[k] of all of them, folded element by element: from the left, in ascending order "
    "of ranks, in the accumulator's type, and rounded once. An ALLGATHER of the results is what ALLREDUCE gives.",
    since="1.3",
    subs=SUBS,
    default_sub="sum",
    types={"T": TYPES},
    operands=(
        Operand("out", Role.OUT, "[B...]", "T", "this rank's part of the result"),
        Operand("x", Role.IN, "[R, B...]", "T", "what this rank brings for each of the R ranks of the group"),
    ),
    attributes=(GROUP,),
    constraints=(Constraint(1, "mean is of floats", mean_of_floats),),
    semantics=semantics,
    error=ErrorBound(BOUND, _slack),
    flops=lambda dims, attributes: dims["x"],
    flops_text="elements of x",
    example="""
.program reducescatter
.world 2
.const x : f32[2, 3] = [[1, 2, 3], [4, 5, 6], [10, 20, 30], [40, 50, 60]] shard axis=0
.output y : f32[3]
main:
    REDUCESCATTER.sum y, x      ;! y = [[11, 22, 33], [44, 55, 66]]
    HALT
""",
)  # fmt: skip
