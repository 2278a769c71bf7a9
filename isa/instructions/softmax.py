"""SOFTMAX: exponentials that sum to one along an axis, or their logarithms."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.attributes import Axis
from dla.isa.bounds import ErrorBound
from dla.isa.dtypes import FLOATS, Array
from dla.isa.table import Alias, Constraint, Operand, Out, Role, Row, Sub, axis_below_rank


def _shift(x: Array, axis: int) -> Array:
    """Subtract from x its maximum along axis, so that exp cannot overflow; a row of -infinity stays as it is."""
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(x - np.where(np.isneginf(top), 0, top))


def semantics(out: Out, x: Array, *, sub: str, axis: int) -> Array:
    """exp(x) / sum(exp(x)) along axis, or its logarithm, in the accumulator type."""
    with np.errstate(all="ignore"):
        shifted = _shift(x, axis)
        total = np.sum(np.exp(shifted), axis=axis, keepdims=True)
        total = np.where(total == 0, 1, total)  # a row of -infinity
        return np.asarray(shifted - np.log(total) if sub == "log" else np.exp(shifted) / total)


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
    """The difference x - max is off by half an ULP of itself, exp by 2 ULP, a sum of n terms by n roundings."""
    x, axis = operands["x"], attributes["axis"]
    with np.errstate(all="ignore"):
        distance = np.abs(_shift(x, axis))
    relative = (x.shape[axis] + 16) * 2.0**-23 + 2.0**-22 * np.where(np.isfinite(distance), distance, 0)
    return np.asarray(relative + 2**-22 * np.abs(reference) if attributes["sub"] == "log" else relative * reference)


ROW = Row(
    "SOFTMAX", 0x42, "normalisation", "softmax and its logarithm",
    "soft: exp(x - m) / sum(exp(x - m)) along the axis, with m the largest element; SOFTMAX alone means it. log: x - m "
    "- log(sum(exp(x - m))). A row of -infinity only (everything masked) gives 0 for soft and -infinity for log. A row "
    "with NaN or +infinity gives NaN.",
    subs=(Sub("soft", 0, "probabilities"), Sub("log", 1, "their logarithms")),
    default_sub="soft",
    types={"O": FLOATS, "T": FLOATS},
    operands=(
        Operand("out", Role.OUT, "[B...]", "O", "the result"),
        Operand("x", Role.IN, "[B...]", "T", "logits"),
    ),
    attributes=(Axis("axis", 16, "axis along which the exponentials sum to one", of="x"),),
    constraints=(Constraint(1, "axis is an axis of x", axis_below_rank("x")),),
    alias=Alias.SAME,
    semantics=semantics,
    error=ErrorBound("n elements along the axis, r = (n + 16) * 2**-23 + 2**-22 * |x - m|: soft r * result; log r + "
                     "2**-22 * |result|; then one rounding", _slack),
    flops=lambda dims, attributes: 5 * dims["out"],
    flops_text="5 * elements of out",
    example="""
.program softmax
.const x : f32[2, 2] = [[0, 0], [5, -1e30]]
.output y : f32[2, 2]
.output z : f32[2, 2]
main:
    SOFTMAX     y, x axis=1         ;! y = [[0.5, 0.5], [1, 0]]
    SOFTMAX.log z, x axis=-1        ;! z = [[-0.6931472, -0.6931472], [0, -1e30]]
    HALT
""",
)  # fmt: skip
