"""ROPE: rotary position embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.attributes import Flag
from dla.isa.bounds import ErrorBound
from dla.isa.dtypes import FLOATS, Array
from dla.isa.table import Alias, Constraint, Operand, Out, Role, Row


def split(x: Array, pairs: int, interleaved: bool) -> tuple[Array, Array]:
    """First and second element of each rotated pair: views [B..., S, R] of x [B..., S, D]."""
    if interleaved:
        return x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    return x[..., :pairs], x[..., pairs : 2 * pairs]


def semantics(out: Out, x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """Turn each pair (a, b) of x [B..., S, D] to (a cos - b sin, b cos + a sin); cos and sin [~B..., S, R]."""
    y = x.copy()
    a, b = split(x, cos.shape[-1], interleaved)
    first, second = split(y, cos.shape[-1], interleaved)
    with np.errstate(all="ignore"):
        first[...] = a * cos - b * sin
        second[...] = b * cos + a * sin
    return y


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
    x, cos, sin = np.abs(operands["x"]), np.abs(operands["cos"]), np.abs(operands["sin"])
    magnitude = np.zeros_like(x)
    a, b = split(x, cos.shape[-1], attributes["interleaved"])
    first, second = split(magnitude, cos.shape[-1], attributes["interleaved"])
    first[...] = a * cos + b * sin
    second[...] = b * cos + a * sin
    return np.asarray(2.0**-22 * magnitude)


ROW = Row(
    "ROPE", 0x4A, "attention", "rotary position embedding",
    "Rotates R pairs of elements in each row by the angles whose cosines and sines are given per position. The pairs "
    "are (i, i + R), or (2i, 2i + 1) with `interleaved`. Elements beyond 2 R are copied. Positions are chosen by views "
    "of the tables: `cos[s1:s1+1]`. Tables with leading axes, for samples at positions of their own, are read since "
    "ISA 1.1.",
    types={"O": FLOATS, "T": FLOATS, "C": FLOATS},
    operands=(
        Operand("out", Role.OUT, "[B..., S, D]", "O", "the result"),
        Operand("x", Role.IN, "[B..., S, D]", "T", "rows to rotate"),
        Operand("cos", Role.IN, "[~B..., S, R]", "C", "cosine of each position's angles"),
        Operand("sin", Role.IN, "[~B..., S, R]", "C", "sine of each position's angles"),
    ),
    attributes=(Flag("interleaved", 16, "pairs are neighbours instead of halves"),),
    static=("D", "R"),
    constraints=(Constraint(1, "2 * R <= D", lambda site: 2 * site["R"] <= site["D"]),),
    alias=Alias.SAME,
    semantics=semantics,
    error=ErrorBound("2**-22 * (|a cos| + |b sin|) and likewise for b; then one rounding", _slack),
    flops=lambda dims, attributes: 3 * dims["out"],
    flops_text="3 * elements of out",
    example="""
.program rope
.const x   : f32[2, 5] = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]
.const cos : f32[2, 2] = [[1, 1], [0, 0]]
.const sin : f32[2, 2] = [[0, 0], [1, 1]]
.output y : f32[2, 5]
.output z : f32[2, 5]
main:
    ROPE y, x, cos, sin                 ;! y = [[1, 2, 3, 4, 5], [-3, -4, 1, 2, 5]]
    ROPE z, x, cos, sin interleaved     ;! z = [[1, 2, 3, 4, 5], [-2, 1, -4, 3, 5]]
    HALT
""",
)  # fmt: skip
