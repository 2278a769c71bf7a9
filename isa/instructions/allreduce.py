"""ALLREDUCE: fold the tensors of all ranks into one that each of them gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dla.isa.bounds import F32_EPSILON, ErrorBound
from dla.isa.dtypes import FLOATS, Array, DType
from dla.isa.ranks import GROUP, Member
from dla.isa.table import Alias, Constraint, Operand, Out, Role, Row, Site, Sub

TYPES = (*FLOATS, DType.I32)
"""What can be folded over ranks."""
SUBS = (
    Sub("sum", 0, "sum"), Sub("mean", 1, "sum divided by the number of ranks; floats"), Sub("max", 2, "largest"),
    Sub("min", 3, "smallest"), Sub("prod", 4, "product"),
)  # fmt: skip


def larger(a: Array, b: Array) -> Array:
    """Elements of b where they are larger, or NaN, else those of a: of equal ones (0 and -0) the first."""
    return np.where((b > a) | (b != b), b, a)  # NaN alone differs from itself


def smaller(a: Array, b: Array) -> Array:
    """Elements of b where they are smaller, or NaN, else those of a."""
    return np.where((b < a) | (b != b), b, a)


_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add, "mean": np.add, "max": larger, "min": smaller, "prod": np.multiply,
}  # fmt: skip


def fold(sub: str, x: Sequence[Array] | Array) -> Array:
    """x[0], x[1], ... folded from the left: rank after rank in ascending order, in the accumulator's type.

    Arrays of NumPy, or of a library that NumPy's functions know.
    """
    result = x[0]
    with np.errstate(all="ignore"):
        for one in x[1:]:
            result = _FUNCTIONS[sub](result, one)
        return result / result.dtype.type(len(x)) if sub == "mean" else result


def slack(sub: str, x: Array, reference: Array) -> Array | float:
    """How far `fold` may be off: as far as any sum or product of so many terms."""
    relative = (len(x) + 4) * 2 * F32_EPSILON
    if sub in ("sum", "mean"):
        return np.asarray(relative * np.sum(np.abs(x), axis=0) / (len(x) if sub == "mean" else 1))
    return np.asarray(relative * np.abs(reference)) if sub == "prod" else 0.0


BOUND = ("n ranks: sum (n + 4) * 2**-23 * sum(|x|), mean that / n, prod (n + 4) * 2**-23 * |result|, max, min 0; "
         "then one rounding; integers equal")  # fmt: skip


def mean_of_floats(site: Site) -> bool:
    """The rule that only floats have a mean."""
    return site.sub != "mean" or site.types["T"].is_float


def semantics(out: Out, x: Array, *, sub: str, group: Member) -> Array:
    """`sub` of what the ranks bring, the same for each of them."""
    return np.asarray(fold(sub, x))


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array | float:
    return slack(attributes["sub"], operands["x"], reference)


ROW = Row(
    "ALLREDUCE", 0x70, "collectives", "fold over ranks, for all",
    "Every rank of the group gets x of all of them, folded element by element: from the left, in ascending order of "
    "ranks, in the accumulator's type, and rounded once. So all get the same bits, whatever connects them. max and min "
    "give NaN if an element is NaN, and of equal ones (0 and -0) that of the first rank. Integers wrap.",
    since="1.3",
    subs=SUBS,
    types={"T": TYPES},
    operands=(
        Operand("out", Role.OUT, "[B...]", "T", "the result"),
        Operand("x", Role.IN, "[B...]", "T", "what this rank brings"),
    ),
    attributes=(GROUP,),
    constraints=(Constraint(1, "mean is of floats", mean_of_floats),),
    alias=Alias.SAME,
    semantics=semantics,
    alike=True,
    error=ErrorBound(BOUND, _slack),
    flops=lambda dims, attributes: dims["x"],
    flops_text="elements of x",
    example="""
.program allreduce
.world 2
.const x : f32[1, 3] = [[1, 2, 3], [10, 20, 30]] shard axis=0
.output y : f32[3]
.output z : f32[3]
main:
    ALLREDUCE.sum  y, x[0]      ;! y = [[11, 22, 33], [11, 22, 33]]
    ALLREDUCE.mean z, x[0]      ;! z = [[5.5, 11, 16.5], [5.5, 11, 16.5]]
    HALT
""",
)  # fmt: skip
