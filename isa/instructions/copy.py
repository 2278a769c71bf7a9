"""COPY: move or convert a tensor."""

from __future__ import annotations

from dla.isa import dtypes
from dla.isa.dtypes import ALL, Array
from dla.isa.table import Alias, Operand, Out, Role, Row


def semantics(out: Out, x: Array) -> Array:
    """The elements of x (own type), converted to out's type (equal types: every bit kept), in out's shape."""
    return dtypes.broadcast(dtypes.convert(x, out.dtype), out.shape)


ROW = Row(
    "COPY", 0x10, "data", "copy or convert a tensor",
    "Copies x, broadcast to out's shape. Equal types move bits. Others convert: to a float by rounding to "
    "nearest even, from float to integer by truncation with saturation (NaN becomes 0), between integers by keeping "
    "the low bits, to bool by comparison with 0. Transposes, slices and broadcasts are views and need no instruction "
    "of their own.",
    types={"O": ALL, "T": ALL},
    operands=(
        Operand("out", Role.OUT, "[B...]", "O", "the copy"),
        Operand("x", Role.IN, "~[B...]", "T", "what is copied"),
    ),
    alias=Alias.SAME,
    raw=True,
    semantics=semantics,
    example="""
.program copy
.const x : f32[2, 3] = [[1.5, -2.5, 3], [4, 5, 300]]
.output t : f32[3, 2]
.output i : i8[2, 3]
main:
    COPY t, x.T     ;! t = [[1.5, 4], [-2.5, 5], [3, 300]]
    COPY i, x       ;! i = [[1, -2, 3], [4, 5, 127]]
    HALT
""",
)  # fmt: skip
