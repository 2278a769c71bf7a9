"""SELECT: choose between two tensors, element by element."""

from __future__ import annotations

import numpy as np

from dla.isa.dtypes import ALL, Array, DType
from dla.isa.table import Alias, Operand, Out, Role, Row


def semantics(out: Out, cond: Array, a: Array, b: Array) -> Array:
    """The elements of a where cond is true, of b elsewhere (own type), all broadcast to out's shape."""
    return np.asarray(np.broadcast_to(np.where(cond, a, b), out.shape))


ROW = Row(
    "SELECT", 0x22, "pointwise", "choose element by element",
    "Moves the element of a where cond is true and that of b elsewhere. Nothing is computed: NaN in the element that "
    "is not chosen does not matter.",
    types={"T": ALL},
    operands=(
        Operand("out", Role.OUT, "[B...]", "T", "the chosen elements"),
        Operand("cond", Role.IN, "~[B...]", (DType.BOOL,), "which to choose"),
        Operand("a", Role.IN, "~[B...]", "T", "chosen where cond is true"),
        Operand("b", Role.IN, "~[B...]", "T", "chosen where cond is false"),
    ),
    alias=Alias.SAME,
    raw=True,
    semantics=semantics,
    example="""
.program select
.const cond : bool[3] = [1, 0, 1]
.const a : f32[3] = [1, 2, 3]
.output y : f32[3]
main:
    SELECT y, cond, a, 0    ;! y = [1, 0, 3]
    HALT
""",
)  # fmt: skip
