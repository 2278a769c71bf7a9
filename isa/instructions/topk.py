"""TOPK: the largest or smallest elements of each row, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dla.isa.attributes import Flag
from dla.isa.dtypes import INDEXES, NUMBERS, Array
from dla.isa.errors import Trap
from dla.isa.table import Constraint, Operand, Out, Role, Row, Site


def semantics(out: Out, x: Array, *, smallest: bool) -> tuple[Array, Array]:
    """The K extreme elements of each row of x [B..., N], sorted, and their i64 indices: both [B..., K]."""
    count = out.shape[-1]
    if count > x.shape[-1]:
        raise Trap("extent", f"TOPK: {count} of {x.shape[-1]} elements")
    nan = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, dtype=bool)
    ascending = x if smallest else -x if x.dtype.kind == "f" else ~x  # ~x reverses the order and cannot overflow
    order = np.lexsort((ascending, nan if smallest else ~nan), axis=-1)  # stable: of equals, the lower index first
    indices = order[..., :count]
    return np.take_along_axis(x, indices, axis=-1), indices


def _count_fits(site: Site) -> bool:
    return site["K"] <= site["N"]


def _flops(dims: Mapping[str, int], attributes: Mapping[str, Any]) -> int:
    return dims["x"]


ROW = Row(
    "TOPK", 0x58, "selection", "largest elements of each row",
    "Writes the K largest (or smallest) elements of each row in order, and their indices where asked. Of equal "
    "elements the one with the lower index comes first (0 and -0 are equal). NaN counts as larger than everything. "
    'Traps with category "extent" if K exceeds N when it runs.',
    types={"T": NUMBERS, "I": INDEXES},
    operands=(
        Operand("out", Role.OUT, "[B..., K]", "T", "the elements, best first"),
        Operand("x", Role.IN, "[B..., N]", "T", "rows to choose from"),
        Operand("indices", Role.OUT, "[B..., K]", "I", "where in its row each element was", optional=True),
    ),
    attributes=(Flag("smallest", 16, "the smallest elements instead, smallest first"),),
    constraints=(Constraint(1, "K <= N", _count_fits),),
    semantics=semantics,
    flops=_flops,
    flops_text="elements of x",
    example="""
.program topk
.const x : f32[2, 4] = [[1, 9, 9, 3], [4, 2, 1, 8]]
.output y : f32[2, 2]
.output i : i32[2, 2]
.output s : f32[2, 1]
main:
    TOPK y, x indices=i     ;! y = [[9, 9], [8, 4]]
    TOPK s, x smallest      ;! s = [[1], [1]]
    HALT                    ;! i = [[1, 2], [3, 0]]
""",
)  # fmt: skip
