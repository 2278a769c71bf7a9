"""SCATTER: write elements or slices to places given by index, as a gradient of GATHER and a cache update do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dla.isa.attributes import Axis
from dla.isa.bounds import F32_EPSILON, ErrorBound
from dla.isa.descriptor import Dim, Dynamic, bound_of
from dla.isa.dtypes import ALL, INDEXES, Array, DType
from dla.isa.errors import Trap
from dla.isa.table import Constraint, Operand, Out, Role, Row, Site, Sub, axis_below_rank

FOLDS: dict[str, Callable[[Array, Array], Array]] = {
    "set": lambda present, update: update,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def fold(x: Array, indices: Array, updates: Array, sub: str, axis: int) -> Array:
    """Fold updates [I...] into x at `indices` [I...], one step along the axis after the other: duplicates fold."""
    result = x.copy()
    reached = result[tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(indices.shape))]
    for step in range(indices.shape[axis]):
        at = np.take(indices, [step], axis)
        changed = FOLDS[sub](np.take_along_axis(reached, at, axis), np.take(updates, [step], axis))
        np.put_along_axis(reached, at, changed, axis)
    return result


def semantics(out: Out, x: Array, indices: Array, updates: Array, *, sub: str, axis: int) -> Array:
    """The x [X...] with updates [I...] folded in at `indices` [I...] along axis, in the accumulator type."""
    n = x.shape[axis]
    outside = (indices < 0) | (indices >= n)
    if np.any(outside):
        raise Trap("index", f"SCATTER: index {indices[outside].flat[0]} is not from 0 to {n - 1}")
    with np.errstate(all="ignore"):
        return fold(x, indices, updates, sub, axis)


def _reaches(part: Dim, whole: Dim) -> bool:
    """Whether `part` never exceeds `whole`."""
    return part == whole or (not isinstance(whole, Dynamic) and bound_of(part) <= whole)


def _shape_fits(site: Site) -> bool:
    x, indices, axis = site.dims.prefixes["X"], site.dims.prefixes["I"], site.attributes["axis"]
    return len(x) == len(indices) and all(
        k == axis or _reaches(part, whole) for k, (part, whole) in enumerate(zip(indices, x, strict=True))
    )


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array | float:
    sub, axis, indices, x = attributes["sub"], attributes["axis"], operands["indices"], operands["x"]
    if sub not in ("add", "mul"):
        return 0.0
    terms = fold(np.ones(x.shape), indices, np.ones(indices.shape), "add", axis)
    sizes = np.abs(reference)
    if sub == "add":
        sizes = fold(np.abs(x), indices, np.abs(operands["updates"]), "add", axis)
    return np.asarray((terms + 4) * 2 * F32_EPSILON * sizes)


ROW = Row(
    "SCATTER", 0x15, "data", "write to places given by index",
    "Copies x to out, then goes through the positions p of indices in row-major order: the element of out at p, with "
    "the axis entry replaced by indices[p], becomes updates[p] (set), or its sum, product, maximum or minimum with "
    "updates[p]. So of several updates of one element, set keeps the last. Along the other axes indices may be "
    "shorter than x: what lies beyond is copied only. Whole slices are written by indices that repeat along the other "
    "axes (stride 0). Floats are folded in the accumulator type and rounded once; integers wrap; max and min give NaN "
    'if an element is NaN. Traps with category "index" if an index is negative or not less than x\'s size along the '
    "axis.",
    since="1.1",
    subs=(
        Sub("set", 0, "the update"), Sub("add", 1, "sum; not bool"), Sub("mul", 2, "product; not bool"),
        Sub("max", 3, "larger one; not bool"), Sub("min", 4, "smaller one; not bool"),
    ),
    types={"T": ALL, "I": INDEXES},
    operands=(
        Operand("out", Role.OUT, "[X...]", "T", "the result"),
        Operand("x", Role.IN, "[X...]", "T", "what is changed", may_be_output=True),
        Operand("indices", Role.IN, "[I...]", "I", "places along the axis"),
        Operand("updates", Role.IN, "[I...]", "T", "what is written there"),
    ),
    attributes=(Axis("axis", 16, "axis of x that is indexed", default=0, of="x"),),
    constraints=(
        Constraint(1, "axis is an axis of x", axis_below_rank("x")),
        Constraint(2, "indices has the rank of x and, but for the axis, no dim larger than that of x", _shape_fits),
        Constraint(3, "bool has no add, mul, max and min",
                   lambda site: site.sub == "set" or site.types["T"] is not DType.BOOL),
    ),
    semantics=semantics,
    error=ErrorBound("u updates of an element, n = u + 1 terms: add (n + 4) * 2**-23 * (|x| + sum(|updates|)), mul "
                     "(n + 4) * 2**-23 * |result|; set, max, min 0; then one rounding; integers equal", _slack),
    flops=lambda dims, attributes: dims["updates"],
    flops_text="elements of updates",
    example="""
.program scatter
.const x   : f32[3, 2] = [[1, 2], [3, 4], [5, 6]]
.const row : i32[1, 1] = 2
.const new : f32[1, 2] = [[7, 8]]
.const ids : i64[4, 1] = [[2], [0], [2], [0]]
.const g   : f32[4, 1] = [[10], [20], [30], [40]]
.output y : f32[3, 2]
.output z : f32[3, 2]
main:
    SCATTER.set y, x, row.broadcast(1, 2), new   ;! y = [[1, 2], [3, 4], [7, 8]]
    SCATTER.add z, x, ids, g                   ;! z = [[61, 2], [3, 4], [45, 6]]
    HALT
""",
)  # fmt: skip
