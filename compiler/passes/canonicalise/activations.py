"""Activations written out: each is a polynomial of x and of a curve of x, in whatever order sums and products are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.match import below, clamped, polynomial, same

_Terms = Mapping[tuple[int, ...], float]

_CUBE = 0.044715
_ROOT = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Formula:
    """`kind` is `outer` (a polynomial of x and the curve's value) of `curve` (a function) of `inner` (one of x)."""

    kind: str
    curve: str
    inner: _Terms
    outer: _Terms
    alpha: float | None = None


_HALVES: _Terms = {(1, 0): 0.5, (1, 1): 0.5}  # x / 2 + x / 2 * curve
_TIMES: _Terms = {(1, 1): 1.0}  # x * curve
_X: _Terms = {(1,): 1.0}
_SIXTH = 1 / 6

FORMULAS = (
    Formula("gelu", "erf", {(1,): math.sqrt(0.5)}, _HALVES),
    Formula("gelu_tanh", "tanh", {(1,): _ROOT, (3,): _ROOT * _CUBE}, _HALVES),
    Formula("gelu_tanh", "sigmoid", {(1,): 2 * _ROOT, (3,): 2 * _ROOT * _CUBE}, _TIMES),
    Formula("sigmoid", "tanh", {(1,): 0.5}, {(0, 0): 0.5, (0, 1): 0.5}),
    Formula("silu", "sigmoid", _X, _TIMES),
    Formula("mish", "tanh softplus", _X, _TIMES),
    Formula("hard_swish", "clip 0 6", {(1,): 1.0, (0,): 3.0}, {(1, 1): _SIXTH}),
    Formula("hard_swish", "clip 0 1", {(1,): _SIXTH, (0,): 0.5}, _TIMES),
    Formula("hard_swish", f"hard_sigmoid {_SIXTH:.4f}", _X, _TIMES),
    Formula("hard_sigmoid", "clip 0 6", {(1,): 1.0, (0,): 3.0}, {(0, 1): _SIXTH}, alpha=_SIXTH),
)


def activation(node: Node, b: GraphBuilder) -> Value | None:
    """A product or a sum that is one of FORMULAS."""
    if node.sub not in ("add", "mul", "div") or not node.output.dtype.is_float:
        return None
    for value in below(node.output):
        curve = _curve(value) if value is not node.output and len(value.users) == 1 else None
        for formula in FORMULAS if curve else ():
            if curve and curve[0] == formula.curve:
                x = _argument(node.output, value, curve[1], formula)
                if x is not None:
                    return b.act(formula.kind, x, formula.alpha)
    return None


def hard_sigmoid(node: Node, b: GraphBuilder) -> Value | None:
    """clip(alpha * x + 1 / 2, 0, 1)."""
    clip = clamped(node.output) if node.output.dtype.is_float else None
    if clip is None or clip[1:] != (0.0, 1.0):
        return None
    for x in reversed(list(below(clip[0]))):
        slope = polynomial(clip[0], [x])
        if x.type == node.output.type and slope is not None and slope.keys() == {(0,), (1,)} and slope[(0,)] == 0.5:
            return b.act("hard_sigmoid", x, slope[(1,)])
    return None


def sigmoid(node: Node, b: GraphBuilder) -> Value | None:
    """1 / (1 + exp(-x))."""
    return _of_exponential(node, b, "sigmoid", -1.0) if node.sub == "reciprocal" else None


def softplus(node: Node, b: GraphBuilder) -> Value | None:
    """log(1 + exp(x))."""
    return _of_exponential(node, b, "softplus", 1.0) if node.sub == "log" else None


def _of_exponential(node: Node, b: GraphBuilder, kind: str, factor: float) -> Value | None:
    total = source(node)
    for e in below(total):
        exponential = e.made_by("ACT", "exp")
        if exponential is None or not same(polynomial(total, [e]), {(0,): 1.0, (1,): 1.0}, e.dtype):
            continue
        exponent = source(exponential)
        for x in reversed(list(below(exponent))):
            if x.type == node.output.type and same(polynomial(exponent, [x]), {(1,): factor}, x.dtype):
                return b.act(kind, x)
    return None


def _argument(whole: Value, curve: Value, inner: Value, formula: Formula) -> Value | None:
    """x, if `whole` is the formula of x with this curve."""
    for x in _candidates(inner, formula):
        if x.type != whole.type or not same(polynomial(inner, [x]), formula.inner, x.dtype):
            continue
        if same(polynomial(whole, [x, curve]), formula.outer, x.dtype):
            return x
    return None


def _candidates(inner: Value, formula: Formula) -> Iterator[Value]:
    """As x itself may be a sum or a product, every part of `inner` is a candidate."""
    return iter([inner]) if formula.inner == _X else below(inner)


def _curve(value: Value) -> tuple[str, Value] | None:
    """The name of the function that makes `value`, as FORMULAS call it, and its argument."""
    clip = clamped(value)
    if clip is not None:
        return f"clip {clip[1]:g} {clip[2]:g}", clip[0]
    node = value.made_by("ACT", "erf", "tanh", "sigmoid", "hard_sigmoid")
    if node is None:
        return None
    inner = source(node)
    if node.sub == "hard_sigmoid":
        return f"hard_sigmoid {node.attributes.get('alpha', _SIXTH):.4f}", inner
    softplus_node = inner.made_by("ACT", "softplus") if node.sub == "tanh" else None
    return ("tanh softplus", source(softplus_node)) if softplus_node is not None else (node.sub, inner)


RULES = {"EW": (activation, hard_sigmoid), "ACT": (sigmoid, softplus)}
