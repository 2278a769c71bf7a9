"""The unary functions of ACT and of epilogues in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

from dla.isa.activations import ACTIVATIONS

Unary = Callable[[torch.Tensor, float | None], torch.Tensor]


def _plain(function: Callable[[torch.Tensor], torch.Tensor]) -> Unary:
    return lambda x, alpha: function(x)


def _with_alpha(name: str, function: Callable[[torch.Tensor, float], torch.Tensor]) -> Unary:
    own = ACTIVATIONS[name].alpha
    return lambda x, alpha: function(x, own if alpha is None else alpha)


def _hard_sigmoid(x: torch.Tensor, alpha: float) -> torch.Tensor:
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6):  # the only slope that PyTorch knows
        return F.hardsigmoid(x)
    return (x * alpha + 0.5).clamp(0, 1)


FUNCTIONS: dict[str, Unary] = {
    "identity": _plain(torch.clone),
    "gelu_tanh": _plain(lambda x: F.gelu(x, approximate="tanh")),
    "leaky_relu": _with_alpha("leaky_relu", F.leaky_relu),
    "elu": _with_alpha("elu", F.elu),
    "celu": _with_alpha("celu", F.celu),
    "thresholded_relu": _with_alpha("thresholded_relu", lambda x, a: F.threshold(x, a, 0)),
    "hard_sigmoid": _with_alpha("hard_sigmoid", _hard_sigmoid),
    "softplus": _plain(lambda x: F.softplus(x, threshold=40)),
    "not": _plain(torch.bitwise_not),
    **{name: _plain(getattr(F, name)) for name in ("gelu", "silu", "mish", "selu", "softsign")},
    "hard_swish": _plain(F.hardswish),
    **{name: _plain(getattr(torch, name)) for name in (
        "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "abs", "neg", "floor", "ceil",
        "round", "sign", "reciprocal", "isnan", "isinf", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
        "acosh", "atanh",
    )},
}  # fmt: skip
"""By the name of the sub-operation: all of them."""
