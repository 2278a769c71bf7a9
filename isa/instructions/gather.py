"""GATHER: pick slices by index, as an embedding does."""

from __future__ import annotations

import numpy as np

from dla.isa.attributes import Axis
from dla.isa.dtypes import ALL, INDEXES, Array
from dla.isa.errors import Trap
from dla.isa.table import Constraint, Operand, Out, Role, Row, Site, axis_below_rank


def semantics(out: Out, x: Array, indices: Array, *, axis: int) -> Array:
    """The slices of x (own type) at `indices` along axis: shape x[:axis] + indices.shape + x[axis + 1:]."""
    n = x.shape[axis]
    outside = (indices < 0) | (indices >= n)
    if np.any(outside):
        raise Trap("index", f"GATHER: index {indices[outside].flat[0]} is not from 0 to {n - 1}")
    return np.take(x, indices, axis=axis)


def _shape_fits(site: Site) -> bool:
    x, axis = site.dims.prefixes["X"], site.attributes["axis"]
    return site.dims.prefixes["O"] == x[:axis] + site.dims.prefixes["I"] + x[axis + 1 :]


ROW = Row(
    "GATHER", 0x14, "data", "pick slices by index",
    "Replaces one axis of x by the axes of indices: out[a..., i..., b...] = x[a..., indices[i...], b...]. Traps with "
    'category "index" if an index is negative or not less than x\'s size along the axis.',
    types={"T": ALL, "I": INDEXES},
    operands=(
        Operand("out", Role.OUT, "[O...]", "T", "the slices"),
        Operand("x", Role.IN, "[X...]", "T", "what is picked from"),
        Operand("indices", Role.IN, "[I...]", "I", "which slices"),
    ),
    attributes=(Axis("axis", 16, "axis of x that is indexed", default=0, of="x"),),
    constraints=(
        Constraint(1, "axis is an axis of x", axis_below_rank("x")),
        Constraint(2, "out's dims are those of x with the axis replaced by the dims of indices", _shape_fits),
    ),
    raw=True,
    picked="x",
    semantics=semantics,
    example="""
.program gather
.const table : f32[3, 2] = [[1, 2], [3, 4], [5, 6]]
.const ids   : i32[4] = [2, 0, 0, 1]
.const pick  : i64[] = 1
.output y : f32[4, 2]
.output z : f32[3]
main:
    GATHER y, table, ids            ;! y = [[5, 6], [1, 2], [1, 2], [3, 4]]
    GATHER z, table, pick axis=1    ;! z = [2, 4, 6]
    HALT
""",
)  # fmt: skip
