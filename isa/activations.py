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
from dla.isa.error_function import erf

BLOCK = 1 << 14
"""Elements that a function takes at a time: they and its temporaries stay in a core's second-level cache."""


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


SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875
"""As ONNX has them, exact in f32 (Klambauer et al., "Self-Normalizing Neural Networks", 2017, gives more digits)."""


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))))


def _relu(x: Array) -> Array:
    return np.asarray(np.where(x > 0, x, np.where(np.isnan(x), x, 0)))


def _selu(x: Array) -> Array:
    return np.asarray(SELU_GAMMA * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0))))


def _celu(x: Array, alpha: float) -> Array:
    return np.asarray(np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha)))


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
    ("isinf", 28, "whether x is infinite (bool result)", lambda x, a: np.isinf(x), 0),
    ("tan", 29, "tangent; x in radians", lambda x, a: np.tan(x), 8, 1e-6),
    ("asin", 30, "arc sine, in radians", lambda x, a: np.arcsin(x), 4),
    ("acos", 31, "arc cosine, in radians", lambda x, a: np.arccos(x), 4),
    ("atan", 32, "arc tangent, in radians", lambda x, a: np.arctan(x), 4),
    ("sinh", 33, "hyperbolic sine", lambda x, a: np.sinh(x), 8),
    ("cosh", 34, "hyperbolic cosine", lambda x, a: np.cosh(x), 8),
    ("asinh", 35, "inverse hyperbolic sine", lambda x, a: np.arcsinh(x), 8),
    ("acosh", 36, "inverse hyperbolic cosine", lambda x, a: np.arccosh(x), 8),
    ("atanh", 37, "inverse hyperbolic tangent", lambda x, a: np.arctanh(x), 8),
    ("hard_sigmoid", 38, "clip(alpha * x + 0.5, 0, 1)", lambda x, a: np.clip(a * x + 0.5, 0, 1), 2, 1e-7, 1 / 6),
    ("selu", 39, "1.050701 * (x if x > 0 else 1.673263 * (exp(x) - 1))", lambda x, a: _selu(x), 8),
    ("celu", 40, "x if x >= 0 else alpha * (exp(x / alpha) - 1)", lambda x, a: _celu(x, a), 8, 1e-30, 1.0),
    ("softsign", 41, "x / (1 + |x|)", lambda x, a: x / (1 + np.abs(x)), 4),
    ("thresholded_relu", 42, "x if x > alpha else 0", lambda x, a: np.where(x > a, x, 0), 0, 0.0, 1.0),
]  # fmt: skip

ACTIVATIONS = {entry[0]: Activation(*entry) for entry in _F}
ACTIVATION_CODES = {a.name: a.code for a in ACTIVATIONS.values()}
QUESTIONS = ("isnan", "isinf")
"""Those that say yes or no of a float: their results are bools."""


def activate(name: str, x: Array, alpha: float | None) -> Array:
    """Apply activation `name` to `x` (any shape, accumulator type) with parameter `alpha`; None: the kind's own."""
    activation = ACTIVATIONS[name]
    parameter = activation.alpha if alpha is None else alpha
    with np.errstate(all="ignore"):
        if x.size <= BLOCK:
            return np.asarray(activation.function(x, parameter))
        flat = np.ascontiguousarray(x).reshape(-1)
        first = np.asarray(activation.function(flat[:BLOCK], parameter))
        result = np.empty(flat.shape, first.dtype)
        result[:BLOCK] = first
        for at in range(BLOCK, flat.size, BLOCK):
            result[at : at + BLOCK] = activation.function(flat[at : at + BLOCK], parameter)
        return result.reshape(x.shape)
