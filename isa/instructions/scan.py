"""SCAN: running folds along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.attributes import Axis, Flag
from dla.isa.bounds import F32_EPSILON, ErrorBound
from dla.isa.dtypes import NUMBERS, Array, DType
from dla.isa.table import Alias, Constraint, Operand, Out, Role, Row, Site, Sub, axis_below_rank

FUNCTIONS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def identity(sub: str, dtype: DType) -> float | int:
    """What an exclusive scan over `dtype` begins with."""
    if sub in ("sum", "prod"):
        return 0 if sub == "sum" else 1
    if dtype.is_float:
        return -np.inf if sub == "max" else np.inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if sub == "max" else limits.max)


def semantics(out: Out, x: Array, *, sub: str, axis: int, exclusive: bool, reverse: bool) -> Array:
    """The running `sub` of x along axis, in the accumulator type; shape of x."""
    x = np.flip(x, axis) if reverse else x
    if exclusive and x.shape[axis]:
        first = np.full_like(np.take(x, [0], axis), identity(sub, out.dtype))
        x = np.concatenate([first, np.delete(x, -1, axis)], axis)
    with np.errstate(all="ignore"):
        scanned = np.asarray(FUNCTIONS[sub].accumulate(x, axis=axis))
    return np.flip(scanned, axis) if reverse else scanned


def _types_fit(site: Site) -> bool:
    given, result = site.types["T"], site.types["O"]
    return result.is_float if given.is_float else result is given


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array | float:
    x, axis, sub = operands["x"], attributes["axis"], attributes["sub"]
    relative = (x.shape[axis] + 4) * 2 * F32_EPSILON
    if sub == "sum":
        # Elements before an infinite one still have finite sums.
        return np.asarray(relative * np.sum(np.abs(x), axis=axis, keepdims=True, where=np.isfinite(x)))
    return np.asarray(relative * np.abs(reference)) if sub == "prod" else 0.0


ROW = Row(
    "SCAN", 0x24, "pointwise", "running fold along an axis",
    "out[i] is the fold of x[0] to x[i] along the axis; with `exclusive` of x[0] to x[i - 1], beginning with the "
    "fold's identity (0, 1, -infinity, infinity, or the integer type's limit); with `reverse` from the end. max and "
    "min give NaN once an element is NaN. Integers wrap.",
    subs=(Sub("sum", 0, "running sum"), Sub("prod", 1, "running product"),
          Sub("max", 2, "largest so far"), Sub("min", 3, "smallest so far")),
    types={"O": NUMBERS, "T": NUMBERS},
    operands=(
        Operand("out", Role.OUT, "[B...]", "O", "the running folds"),
        Operand("x", Role.IN, "[B...]", "T", "what is folded"),
    ),
    attributes=(
        Axis("axis", 16, "axis along which the fold runs", of="x"),
        Flag("exclusive", 24, "leave out the element itself"),
        Flag("reverse", 25, "run from the last element to the first"),
    ),
    constraints=(
        Constraint(1, "axis is an axis of x", axis_below_rank("x")),
        Constraint(2, "floats give a float type, integers their own type", _types_fit),
    ),
    alias=Alias.SAME,
    semantics=semantics,
    error=ErrorBound("n elements along the axis: sum (n + 4) * 2**-23 * sum(|x|); prod (n + 4) * 2**-23 * |result|; "
                     "max, min 0; then one rounding; integers equal", _slack),
    flops=lambda dims, attributes: dims["x"],
    flops_text="elements of x",
    example="""
.program scan
.const x : i32[4] = [1, 2, 3, 4]
.output a : i32[4]
.output b : i32[4]
.output c : i32[4]
main:
    SCAN.sum a, x axis=0                ;! a = [1, 3, 6, 10]
    SCAN.sum b, x axis=0 exclusive      ;! b = [0, 1, 3, 6]
    SCAN.max c, x axis=0 reverse        ;! c = [4, 4, 4, 4]
    HALT
""",
)  # fmt: skip
