"""Epilogues: what follows a matrix product or convolution element by element moves into its last step, before rounding.

    act(x @ w + bias) + residual         GEMM ... steps=[bias, act, residual]

A product's own node stays where it is in the source order of the *last* fused node, because that one's other operands
must be there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Node, Value
from dla.compiler.operators import row_of, source
from dla.compiler.passes.match import clamped, commuted
from dla.compiler.passes.rewrite import Replacement, rewrite
from dla.compiler.shapes import inverse
from dla.isa.activations import ACTIVATIONS
from dla.isa.table import Role

MAX_STEPS = 4
_NO_STEP = ("isnan", "isinf", "not", "identity")


def run(graph: Graph) -> Graph:
    """`graph` with biases, activations, residuals, gates and clamps inside its products."""
    return rewrite(graph, {"ACT": [activation], "EW": [clamp, term_or_factor, transposed_term_or_factor]})


@dataclass(frozen=True)
class Step:
    """One more step of an epilogue: the operand that it reads, and its attributes."""

    name: str
    operand: Value | None = None
    attributes: Mapping[str, Any] | None = None


def _product(b: GraphBuilder, value: Value, user: Node) -> Node | None:
    """The product that makes `value`, if `user` alone reads it and it has room for a step."""
    found = _product_alone(b, value, user)
    return found if found is not None and user.output.type == found.output.type else None


def _product_alone(b: GraphBuilder, value: Value, user: Node) -> Node | None:
    """`_product`, whatever shape `user` gives."""
    node = value.producer
    if node is None or node.op not in ("GEMM", "CONV") or value is not node.output:
        return None
    full = len(node.attributes.get("steps", ())) == MAX_STEPS
    return None if full or not value.dtype.is_float or b.graph.only_user(value) is not user else node


def _with(b: GraphBuilder, product: Node, step: Step) -> Value | None:
    """`product` with one more step; None where it has one of that kind already."""
    steps = product.attributes.get("steps", ())
    row = row_of(product.op)
    if step.name in steps or row is None:
        return None
    names = [o.name for o in row.operands if o.role is Role.IN]
    inputs = list(product.inputs)
    if step.operand is not None:
        inputs[names.index(step.name)] = step.operand
    attributes = {**product.attributes, "steps": (*steps, step.name), **(step.attributes or {})}
    return b.node(product.op, inputs, sub=product.sub, dtype=product.output.dtype, **attributes).output


def activation(node: Node, b: GraphBuilder) -> Replacement:
    """A unary function of a product."""
    product = _product(b, source(node), node)
    if product is None or node.sub in _NO_STEP or node.sub not in ACTIVATIONS:
        return None
    alpha = node.attributes.get("alpha")
    extra = {"act": node.sub} | ({} if alpha is None else {"act_alpha": alpha})
    return _with(b, product, Step("act", None, extra))


def clamp(node: Node, b: GraphBuilder) -> Replacement:
    """min(max(product, low), high), in either order, for two numbers."""
    found = clamped(node.output)
    if found is None:
        return None
    x, low, high = found
    inner = b.graph.only_user(x)
    if inner is None or b.graph.only_user(inner.output) is not node:
        return None
    product = _product(b, x, inner)
    if product is None or not -math.inf < low <= high < math.inf:
        return None
    return _with(b, product, Step("clamp", None, {"clamp_low": low, "clamp_high": high}))


def term_or_factor(node: Node, b: GraphBuilder) -> Replacement:
    """A product plus or times something: of two products, the later one takes the other as its operand."""
    for x, other in _pairs(node):
        product = _product(b, x, node)
        if product is not None and x is not other and other.dtype.is_float:
            fused = _joined(b, product, _KINDS[node.sub](x, other), other)
            if fused is not None:
                return fused
    return None


def transposed_term_or_factor(node: Node, b: GraphBuilder) -> Replacement:
    """transpose(product) plus or times something as large: that is transposed instead, which costs nothing.

    Attention that puts the sequence before the batch ends so.
    """
    for x, other in _pairs(node):
        view = x.producer
        if view is None or view.op != "TRANSPOSE" or b.graph.only_user(x) is not node or other.type != x.type:
            continue
        product = _product_alone(b, source(view), view)
        if product is not None and other.dtype.is_float and node.output.type == x.type:
            perm = view.attributes["perm"]
            moved = b.transpose(other, inverse(perm))
            fused = _joined(b, product, _KINDS[node.sub](x, other), moved)
            if fused is not None:
                return b.transpose(fused, perm)
    return None


def _pairs(node: Node) -> list[tuple[Value, Value]]:
    """The operands of EW.add and EW.mul in both orders, the one made later first; none of another EW."""
    return sorted(
        commuted(node.output, *_KINDS), key=lambda pair: -(pair[0].producer.order if pair[0].producer else -1.0)
    )


def _terms(x: Value, other: Value) -> tuple[str, ...]:
    """The steps that can add `other`, the usual one first: both broadcast it, so one stands in for the other."""
    return ("residual", "bias") if other.dims == x.dims else ("bias", "residual")


def _joined(b: GraphBuilder, product: Node, names: tuple[str, ...], operand: Value) -> Value | None:
    """`product` with `operand` in the first of these steps that it does not have yet; None if it has all."""
    for name in names:
        fused = _with(b, product, Step(name, operand))
        if fused is not None:
            return fused
    return None


_KINDS: dict[str, Callable[[Value, Value], tuple[str, ...]]] = {"add": _terms, "mul": lambda x, other: ("gate",)}
