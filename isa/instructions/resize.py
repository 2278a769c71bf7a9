"""RESIZE: weighted sums of a few elements along one axis, as interpolation is."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.attributes import Axis
from dla.isa.bounds import F32_EPSILON, ErrorBound
from dla.isa.dtypes import FLOATS, INDEXES, Array, DType
from dla.isa.errors import Trap
from dla.isa.table import Constraint, Operand, Out, Role, Row, Site, axis_below_rank


def interpolate(x: Array, indices: Array, weights: Array, axis: int) -> Array:
    """Sums over k of weights [P, K] times the slices of x at indices [P, K] along axis, which becomes P long."""
    positions, terms = indices.shape
    total: Array = np.zeros((*x.shape[:axis], positions, *x.shape[axis + 1 :]), x.dtype)
    for k in range(terms):
        weight = weights[:, k].reshape(-1, *(1,) * (x.ndim - 1 - axis))
        # Not just a product with 0: the element that a left-out term names may be infinite or NaN.
        total += np.where(weight == 0, 0, weight * np.take(x, indices[:, k], axis=axis)).astype(x.dtype)
    return total


def semantics(out: Out, x: Array, indices: Array, weights: Array, *, axis: int) -> Array:
    """The x with axis resampled by tables [P, K] of indices and weights, in the accumulator type."""
    n = x.shape[axis]
    outside = (indices < 0) | (indices >= n)
    if 0 in out.shape:
        return np.zeros(out.shape, x.dtype)
    if np.any(outside):
        raise Trap("index", f"RESIZE: index {indices[outside].flat[0]} is not from 0 to {n - 1}")
    with np.errstate(all="ignore"):
        return interpolate(x, indices, weights, axis)


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
    x, indices, weights = operands["x"], operands["indices"], operands["weights"]
    if not reference.size:
        return np.zeros(reference.shape)
    sizes = interpolate(np.abs(x), indices, np.abs(weights), attributes["axis"])
    return np.asarray((indices.shape[1] + 4) * 2 * F32_EPSILON * sizes)


def _shape_fits(site: Site) -> bool:
    x, axis = site.dims.prefixes["X"], site.attributes["axis"]
    return site.dims.prefixes["O"] == (*x[:axis], site.dims.dims["P"], *x[axis + 1 :])


ROW = Row(
    "RESIZE", 0x3D, "convolution", "resample along an axis by a table",
    "Each slice of out along the axis is a weighted sum of K slices of x: out[a..., p, b...] = sum over k of "
    "weights[p, k] * x[a..., indices[p, k], b...]. Two taps interpolate linearly, four cubically, one picks the "
    "nearest; other tables shrink with antialiasing. Several axes take one instruction each. The terms are added in "
    "the order of k; a weight of 0 leaves its term out, whatever the element is, so tables can be padded. Traps with "
    'category "index" if out has elements and an index is negative or not less than x\'s size along the axis.',
    since="1.1",
    types={"T": FLOATS, "O": FLOATS, "I": INDEXES},
    operands=(
        Operand("out", Role.OUT, "[O...]", "O", "the result"),
        Operand("x", Role.IN, "[X...]", "T", "what is resampled"),
        Operand("indices", Role.IN, "[P, K]", "I", "slices of x that each slice of out is made of"),
        Operand("weights", Role.IN, "[P, K]", (DType.F32,), "their weights"),
    ),
    attributes=(Axis("axis", 16, "axis of x that is resampled", default=0, of="x"),),
    constraints=(
        Constraint(1, "axis is an axis of x", axis_below_rank("x")),
        Constraint(2, "out's dims are those of x with P in the place of the axis", _shape_fits),
    ),
    semantics=semantics,
    error=ErrorBound("(K + 4) * 2**-23 * RESIZE(|x|, |weights|), then one rounding", _slack),
    flops=lambda dims, attributes: 2 * dims["out"] * dims["K"],
    flops_text="2 * elements of out * K",
    example="""
.program resize
.const x     : f32[2, 3] = [[1, 2, 3], [10, 20, 30]]
.const taps  : i32[4, 2] = [[0, 0], [0, 1], [1, 2], [2, 2]]
.const parts : f32[4, 2] = [[1, 0], [0.5, 0.5], [0.5, 0.5], [1, 0]]
.output y : f32[2, 4]
main:
    RESIZE y, x, taps, parts axis=1    ;! y = [[1, 1.5, 2.5, 3], [10, 15, 25, 30]]
    HALT
""",
)  # fmt: skip
