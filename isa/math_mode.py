"""The math mode of GEMM and CONV: how precisely a machine multiplies f32 operands.

`tf32` is no element type: tensors stay f32 in memory. Each operand is rounded to 10 explicit bits of mantissa on its
way into the product (with the range of f32), and sums are kept in f32 as ever. Tensor cores take such operands several
times faster than scalar units multiply whole ones.
"""

from __future__ import annotations

import numpy as np

from dla.isa.attributes import Enum
from dla.isa.dtypes import Array, DType
from dla.isa.table import Constraint, Site

MODES = {"exact": 0, "tf32": 1}
TF32_ERROR = 2.0**-9 + 2.0**-18
"""Largest relative difference between a product of truncated operands and one of rounded operands.

Truncation moves an operand by less than one unit in the last place, 2**-10 of it at most, from where rounding would:
|a b| (2 * 2**-10) and terms of second order, which 2**-18 covers.
"""
DESCRIPTION = (
    "math=tf32 rounds each f32 operand of the product to 10 explicit bits of mantissa, to nearest, ties away from zero "
    "(as PTX's cvt.rna.tf32), for tensor cores; a machine may cut the other bits off instead, and may compute exactly."
)
TF32_TEXT = "2**-9 + 2**-18"
_DROPPED = 13  # bits of an f32 mantissa that tf32 lacks


def attribute(at: int) -> Enum:
    """The attribute `math`, at bit `at`."""
    doc = "`exact`, or `tf32`: f32 operands are rounded to 10 explicit bits of mantissa; since ISA 1.2"
    return Enum("math", at, doc, choices=MODES, default="exact")


def constraint(number: int, variable: str = "T") -> Constraint:
    """The rule that only products of f32 have a mode."""

    def holds(site: Site) -> bool:
        return site.attributes["math"] == "exact" or site.types[variable] is DType.F32

    return Constraint(number, "math is exact unless the operands are f32", holds)


def operand(values: Array, mode: str) -> Array:
    """`values` (any shape) as a product in `mode` sees them, in the type that they come in.

    tf32: round to nearest, ties away from zero, as PTX's `cvt.rna.tf32.f32`; values that would round beyond the largest
    finite number are cut off, and infinities and NaN stay.
    """
    if mode == "exact":
        return values
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    kept = np.uint32(-1 << _DROPPED & 0xFFFFFFFF)
    rounded = ((bits + np.uint32(1 << (_DROPPED - 1))) & kept).view(np.float32)
    cut = np.where(np.isfinite(values), (bits & kept).view(np.float32), values)
    return np.asarray(np.where(np.isfinite(values) & np.isfinite(rounded), rounded, cut)).astype(values.dtype)


def error(mode: str) -> float:
    """What `mode` adds to the error of a product, relative to its magnitude."""
    return TF32_ERROR if mode == "tf32" else 0.0
