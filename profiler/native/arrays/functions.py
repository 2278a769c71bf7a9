"""The unary functions of ACT and of epilogues, as array libraries have them: one call, or several."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

from dla.isa.activations import ACTIVATIONS, SELU_ALPHA, SELU_GAMMA
from dla.profiler.native.arrays.given import Functions, Given

SINGLE = {
    "identity": "copy", "abs": "absolute", "neg": "negative", "round": "rint", "not": "invert", "asin": "arcsin",
    "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    **{name: name for name in ("tanh", "exp", "log", "sqrt", "sin", "cos", "floor", "ceil", "sign", "reciprocal",
                               "isnan", "isinf", "tan", "sinh", "cosh", "erf")},
}  # fmt: skip
"""One call, by what the library calls it."""


def _sigmoid(xp: Functions, x: Any) -> Any:
    return xp.reciprocal(xp.add(1, xp.exp(xp.negative(x))))


def _gelu(xp: Functions, x: Any) -> Any:
    return xp.multiply(xp.multiply(x, 0.5), xp.add(xp.erf(xp.multiply(x, sqrt(0.5))), 1))


def _gelu_tanh(xp: Functions, x: Any) -> Any:
    cubic = xp.multiply(xp.add(xp.multiply(xp.multiply(x, x), 0.044715), 1), x)
    return xp.multiply(xp.multiply(x, 0.5), xp.add(xp.tanh(xp.multiply(cubic, sqrt(2 / pi))), 1))


def _where_negative(xp: Functions, x: Any, below: Any) -> Any:
    return xp.where(xp.less(x, 0), below, x)


def _expm1(xp: Functions, x: Any) -> Any:
    return xp.expm1(xp.minimum(x, 0))


SEVERAL: dict[str, Callable[[Functions, Any, Any], Any]] = {
    "relu": lambda xp, x, a: xp.maximum(x, 0),
    "leaky_relu": lambda xp, x, a: _where_negative(xp, x, xp.multiply(x, a)),
    "sigmoid": lambda xp, x, a: _sigmoid(xp, x),
    "gelu": lambda xp, x, a: _gelu(xp, x),
    "gelu_tanh": lambda xp, x, a: _gelu_tanh(xp, x),
    "silu": lambda xp, x, a: xp.divide(x, xp.add(1, xp.exp(xp.negative(x)))),
    "mish": lambda xp, x, a: xp.multiply(x, xp.tanh(xp.logaddexp(x, 0))),
    "elu": lambda xp, x, a: _where_negative(xp, x, xp.multiply(_expm1(xp, x), a)),
    "softplus": lambda xp, x, a: xp.logaddexp(x, 0),
    "hard_swish": lambda xp, x, a: xp.multiply(x, xp.divide(xp.clip(xp.add(x, 3), 0, 6), 6)),
    "rsqrt": lambda xp, x, a: xp.reciprocal(xp.sqrt(x)),
    "hard_sigmoid": lambda xp, x, a: xp.clip(xp.add(xp.multiply(x, a), 0.5), 0, 1),
    "selu": lambda xp, x, a: xp.multiply(
        _where_negative(xp, x, xp.multiply(_expm1(xp, x), SELU_ALPHA)), SELU_GAMMA
    ),
    "celu": lambda xp, x, a: _where_negative(xp, x, xp.multiply(_expm1(xp, xp.divide(x, a)), a)),
    "softsign": lambda xp, x, a: xp.divide(x, xp.add(xp.absolute(x), 1)),
    "thresholded_relu": lambda xp, x, a: xp.where(xp.greater(x, a), x, 0),
}  # fmt: skip
"""Several calls, one after the other: (functions, x, alpha)."""


def unary(given: Given, name: str, x: Any, alpha: float | None) -> Any:
    """The function called `name` of `x`; its own `alpha` where there is none."""
    if name in SINGLE:
        return getattr(given.xp, SINGLE[name])(x)
    return SEVERAL[name](given.xp, x, ACTIVATIONS[name].alpha if alpha is None else alpha)
