"""ACT: a function of one tensor, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.activations import ACTIVATIONS, QUESTIONS, activate
from dla.isa.attributes import F32
from dla.isa.bounds import ErrorBound
from dla.isa.dtypes import ALL, Array, DType, ulp
from dla.isa.table import Alias, Constraint, Operand, Out, Role, Row, Site, Sub, only_for

INTEGER_KINDS = ("identity", "relu", "abs", "neg", "sign")
"""Kinds that integers may take as well as floats."""
WITH_ALPHA = tuple(a.name for a in ACTIVATIONS.values() if a.alpha)


def semantics(out: Out, x: Array, *, sub: str, alpha: float | None) -> Array:
    """`sub` of x, broadcast to out's shape, in the accumulator type."""
    return np.asarray(np.broadcast_to(activate(sub, x, alpha), out.shape))


def _types_fit(site: Site) -> bool:
    given, result = site.types["T"], site.types["O"]
    if site.sub in QUESTIONS:
        return given.is_float and result is DType.BOOL
    if site.sub == "not":
        return not given.is_float and result is given
    if given.is_float:
        return result.is_float
    return site.sub in INTEGER_KINDS and given is not DType.BOOL and result is given


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
    kind = ACTIVATIONS[attributes["sub"]]
    return np.asarray(kind.ulps * ulp(reference, DType.F32) + kind.absolute)


def _doc(name: str) -> str:
    kind = ACTIVATIONS[name]
    bound = f"; {kind.ulps} ULP" + (f" + {kind.absolute:g}" if kind.absolute else "") if kind.ulps else ""
    return kind.formula + (f" (alpha {kind.alpha:g} by default)" if kind.alpha else "") + bound


ROW = Row(
    "ACT", 0x20, "pointwise", "unary function, element by element",
    "Computes a function of x, broadcast to out's shape. Floats may give another float type. Outside its domain a "
    "function gives what IEEE 754 says: log(-1) and asin(2) are NaN, reciprocal(0) is infinite. alpha is a parameter "
    "of some functions, each with a value of its own where it is not written: the slope of leaky_relu for negative x "
    "and of hard_sigmoid in the middle, the limit of elu and celu toward -infinity (negated), the threshold of "
    "thresholded_relu (which gives 0 for NaN). isinf and the functions after it are there since ISA 1.1.",
    subs=tuple(Sub(a.name, a.code, _doc(a.name)) for a in ACTIVATIONS.values()),
    types={"T": ALL, "O": ALL},
    operands=(
        Operand("out", Role.OUT, "[B...]", "O", "the result"),
        Operand("x", Role.IN, "~[B...]", "T", "the argument"),
    ),
    attributes=(
        F32("alpha", 384, "parameter of the functions that have one; absent: each its own", default=None,
            optional=True),
    ),
    constraints=(
        Constraint(1, "floats give a float type; isnan and isinf take floats and give bool; not takes and gives "
                      "one integer type or bool; integers are otherwise for identity, relu, abs, neg and sign only and "
                      "give their own type", _types_fit),
        Constraint(2, f"alpha is written for {', '.join(WITH_ALPHA[:-1])} and {WITH_ALPHA[-1]} only",
                   only_for("alpha", *WITH_ALPHA)),
    ),
    alias=Alias.SAME,
    semantics=semantics,
    error=ErrorBound("the ULPs of f32 (and absolute error) listed beside each function, then one rounding; integers "
                     "and bools equal", _slack),
    flops=lambda dims, attributes: dims["out"],
    flops_text="elements of out",
    example="""
.program act
.const x : f32[4] = [-2, -1, 0, 3]
.output r : f32[4]
.output l : f32[4]
.output a : f32[4]
.output n : bool[4]
main:
    ACT.relu       r, x             ;! r = [0, 0, 0, 3]
    ACT.leaky_relu l, x alpha=0.5   ;! l = [-1, -0.5, 0, 3]
    ACT.abs        a, x             ;! a = [2, 1, 0, 3]
    ACT.isnan      n, x             ;! n = [0, 0, 0, 0]
    HALT
""",
)  # fmt: skip
