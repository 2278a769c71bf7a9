"""The unary functions of ACT and of the `act` step of an epilogue: one line each, used by every backend.

`alpha` is the function's parameter. Errors are in ULPs of the result type beyond the final rounding and hold for
the device's f32 arithmetic (CUDA C++ Programming Guide, "Mathematical Functions").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.isa.dtypes import Array


@dataclass(frozen=True)
class Activation:
    """One unary function: `function(x, alpha)`, elementwise, in the accumulator's type."""

    name: str
    code: int
    formula: str
    function: Callable[[Array, float], Array]
    ulps: int = 4  # allowed error in f32 ULPs of the result, before rounding to the output type
    absolute: float = 0.0  # allowed absolute error where cancellation makes ULPs meaningless
    alpha: float = 0.0  # value of alpha where none is written


_erf_scalar = np.vectorize(math.erf, otypes=[np.float64])


def erf(x: Array) -> Array:
    """Gauss error function, elementwise; Abramowitz and Stegun 7.1.1 as computed by C's `erf`."""
    return np.asarray(_erf_scalar(x)).astype(x.dtype) if x.size else x


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _relu(x: Array) -> Array:
    return np.asarray(np.where(x > 0, x, np.where(np.isnan(x), x, 0)))


_F: list[tuple[Any, ...]] = [
    ("identity", 0, "x", lambda x, a: x, 0),
    ("relu", 1, "max(x, 0)", lambda x, a: _relu(x), 0),
    ("leaky_relu", 2, "x if x >= 0 else alpha * x", lambda x, a: np.where(x >= 0, x, a * x), 1, 0.0, 0.01),
    ("sigmoid", 3, "1 / (1 + exp(-x))", lambda x, a: _sigmoid(x), 8),
    ("tanh", 4, "tanh(x)", lambda x, a: np.tanh(x), 8),
    ("gelu", 5, "x / 2 * (1 + erf(x / sqrt(2)))", lambda x, a: 0.5 * x * (1 + erf(x / math.sqrt(2))), 16, 1e-6),
    ("gelu_tanh", 6, "x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))", lambda x, a: _gelu_tanh(x), 16, 1e-6),
    ("silu", 7, "x * sigmoid(x)", lambda x, a: x * _sigmoid(x), 16, 1e-7),
    ("mish", 8, "x * tanh(softplus(x))", lambda x, a: x * np.tanh(_softplus(x)), 32, 1e-6),
    ("elu", 9, "x if x >= 0 else alpha * (exp(x) - 1)",
     lambda x, a: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))), 8, 0.0, 1.0),
    ("softplus", 10, "log(1 + exp(x))", lambda x, a: _softplus(x), 16),
    ("hard_swish", 11, "x * clip(x + 3, 0, 6) / 6", lambda x, a: x * np.clip(x + 3, 0, 6) / 6, 8, 1e-6),
    ("exp", 12, "e**x", lambda x, a: np.exp(x), 8),
    ("log", 13, "natural logarithm", lambda x, a: np.log(x), 4, 1e-7),
    ("sqrt", 14, "square root", lambda x, a: np.sqrt(x), 2),
    ("rsqrt", 15, "1 / sqrt(x)", lambda x, a: 1 / np.sqrt(x), 4),
    ("erf", 16, "Gauss error function", lambda x, a: erf(x), 8),
    ("sin", 17, "sine; x in radians", lambda x, a: np.sin(x), 4, 1e-6),
    ("cos", 18, "cosine; x in radians", lambda x, a: np.cos(x), 4, 1e-6),
    ("abs", 19, "|x|", lambda x, a: np.abs(x), 0),
    ("neg", 20, "-x", lambda x, a: -x, 0),
    ("floor", 21, "largest integer <= x", lambda x, a: np.floor(x), 0),
    ("ceil", 22, "smallest integer >= x", lambda x, a: np.ceil(x), 0),
    ("round", 23, "nearest integer, ties to even", lambda x, a: np.rint(x), 0),
    ("sign", 24, "-1, 0 or 1", lambda x, a: np.sign(x), 0),
    ("reciprocal", 25, "1 / x", lambda x, a: 1 / x, 2),
    ("isnan", 26, "whether x is NaN (bool result)", lambda x, a: np.isnan(x), 0),
    ("not", 27, "logical not of a bool, bitwise not of an integer", lambda x, a: ~x, 0),
]  # fmt: skip

ACTIVATIONS = {entry[0]: Activation(*entry) for entry in _F}
ACTIVATION_CODES = {a.name: a.code for a in ACTIVATIONS.values()}


def activate(name: str, x: Array, alpha: float | None) -> Array:
    """Apply activation `name` to `x` (any shape, accumulator type) with parameter `alpha`; None: the kind's own."""
    activation = ACTIVATIONS[name]
    with np.errstate(all="ignore"):
        return np.asarray(activation.function(x, activation.alpha if alpha is None else alpha))
