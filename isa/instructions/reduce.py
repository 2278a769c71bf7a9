"""REDUCE: fold a tensor along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dla.isa.attributes import Axes, Flag
from dla.isa.bounds import F32_EPSILON, ErrorBound
from dla.isa.descriptor import bound_of
from dla.isa.dtypes import INDEXES, NUMBERS, Array
from dla.isa.errors import Trap
from dla.isa.table import Constraint, Operand, Out, Role, Row, Site, Sub

INDEX_SUBS = ("argmax", "argmin")
NEED_ELEMENTS = ("max", "min", *INDEX_SUBS)
FLOAT_ONLY = ("mean", "logsumexp", "l2")


def _logsumexp(x: Array, axis: tuple[int, ...]) -> Array:
    """log(sum(exp(x))), shifted by the maximum so that exp neither overflows nor loses everything."""
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    return np.asarray(np.log(np.sum(np.exp(x - top), axis=axis)) + np.squeeze(top, axis=axis))


FUNCTIONS: dict[str, Callable[[Array, tuple[int, ...]], Any]] = {
    "sum": lambda x, axes: np.sum(x, axis=axes),
    "mean": lambda x, axes: np.sum(x, axis=axes) / np.asarray(_count(x, axes), x.dtype),
    "max": lambda x, axes: np.max(x, axis=axes),
    "min": lambda x, axes: np.min(x, axis=axes),
    "prod": lambda x, axes: np.prod(x, axis=axes),
    "argmax": lambda x, axes: np.argmax(x, axis=axes[0]),
    "argmin": lambda x, axes: np.argmin(x, axis=axes[0]),
    "logsumexp": _logsumexp,
    "l2": lambda x, axes: np.sqrt(np.sum(x * x, axis=axes)),
}


def _count(x: Array, axes: tuple[int, ...]) -> int:
    return int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))


def semantics(out: Out, x: Array, *, sub: str, axes: tuple[int, ...], keepdims: bool) -> Array:
    """`sub` of x over `axes`, in the accumulator type; argmax and argmin give i64."""
    if sub in NEED_ELEMENTS and _count(x, axes) == 0:
        raise Trap("extent", f"REDUCE.{sub} of no elements")
    with np.errstate(all="ignore"):
        return np.asarray(FUNCTIONS[sub](x, axes)).reshape(out.shape)


def _axes_fit(site: Site) -> bool:
    axes, x = site.attributes["axes"], site.dims.prefixes["X"]
    return bool(axes) and max(axes) < len(x) and (len(axes) == 1 or site.sub not in INDEX_SUBS)


def _shape_fits(site: Site) -> bool:
    axes, x = site.attributes["axes"], site.dims.prefixes["X"]
    if site.attributes["keepdims"]:
        return site.dims.prefixes["O"] == tuple(1 if k in axes else d for k, d in enumerate(x))
    return site.dims.prefixes["O"] == tuple(d for k, d in enumerate(x) if k not in axes)


def _has_elements(site: Site) -> bool:
    x = site.dims.prefixes["X"]
    return site.sub not in NEED_ELEMENTS or all(bound_of(x[k]) > 0 for k in site.attributes["axes"] if k < len(x))


def _types_fit(site: Site) -> bool:
    given, result = site.types["T"], site.types["O"]
    if site.sub in INDEX_SUBS:
        return result in INDEXES
    if given.is_float:
        return result.is_float
    return site.sub not in FLOAT_ONLY and result is given


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array | float:
    sub, axes, x = attributes["sub"], attributes["axes"], operands["x"]
    terms = _count(x, axes)
    relative = (terms + 4) * 2 * F32_EPSILON
    if sub in ("sum", "mean"):
        error = relative * np.sum(np.abs(x), axis=axes) / (max(terms, 1) if sub == "mean" else 1)
        return np.asarray(error).reshape(np.shape(reference))
    if sub in ("prod", "l2"):
        return np.asarray(relative * np.abs(reference))
    if sub == "logsumexp":
        largest = np.max(np.where(np.isfinite(x), np.abs(x), 0), axis=axes, initial=0)
        return np.asarray((relative + 2.0**-20) + 2.0**-22 * np.asarray(largest)).reshape(np.shape(reference))
    return 0.0


ROW = Row(
    "REDUCE", 0x23, "pointwise", "fold along axes",
    "Folds x along `axes`; the other axes stay (keepdims leaves the folded ones as 1). max and min give NaN if an "
    "element is NaN. argmax and argmin fold one axis and give the index of the largest or smallest element, the first "
    "one if several are equal; NaN counts as larger (argmax) or smaller (argmin) than everything. Of no elements the "
    "sum is 0, the product 1, the mean NaN, l2 0 and logsumexp -infinity; max, min, argmax and argmin trap with "
    'category "extent". Integers wrap.',
    subs=(
        Sub("sum", 0, "sum"), Sub("mean", 1, "sum divided by the number of elements; floats"),
        Sub("max", 2, "largest"), Sub("min", 3, "smallest"), Sub("prod", 4, "product"),
        Sub("argmax", 5, "index of the largest"), Sub("argmin", 6, "index of the smallest"),
        Sub("logsumexp", 7, "log(sum(exp(x))), without overflow; floats"), Sub("l2", 8, "sqrt(sum(x * x)); floats"),
    ),
    types={"O": NUMBERS, "T": NUMBERS},
    operands=(
        Operand("out", Role.OUT, "[O...]", "O", "the result"),
        Operand("x", Role.IN, "[X...]", "T", "what is folded"),
    ),
    attributes=(
        Axes("axes", 16, "axes of x to fold", of="x"),
        Flag("keepdims", 24, "leave folded axes as 1"),
    ),
    constraints=(
        Constraint(1, "axes names at least one axis of x, and exactly one for argmax and argmin", _axes_fit),
        Constraint(2, "out's dims are those of x without the axes, or with 1 there if keepdims", _shape_fits),
        Constraint(3, "max, min, argmax and argmin fold axes of more than 0 elements", _has_elements),
        Constraint(4, "argmax and argmin give i32 or i64; floats give a float type; integers give their own type, and "
                      "have no mean, logsumexp and l2", _types_fit),
    ),
    semantics=semantics,
    error=ErrorBound("n elements: sum (n + 4) * 2**-23 * sum(|x|), mean that / n; prod, l2 (n + 4) * 2**-23 * "
                     "|result|; logsumexp (n + 12) * 2**-23 + 2**-22 * max(|x|); max, min 0; then one rounding; "
                     "integers equal",
                     _slack),
    flops=lambda dims, attributes: dims["x"],
    flops_text="elements of x",
    example="""
.program reduce
.const x : f32[2, 3] = [[1, 2, 3], [4, 9, 6]]
.output rows : f32[2]
.output top  : i32[2]
.output all  : f32[1, 1]
main:
    REDUCE.sum    rows, x axes=[1]                  ;! rows = [6, 19]
    REDUCE.argmax top,  x axes=[1]                  ;! top = [2, 1]
    REDUCE.max    all,  x axes=[0, 1] keepdims      ;! all = [[9]]
    HALT
""",
)  # fmt: skip
