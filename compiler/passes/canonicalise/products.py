"""Factors of matrix products: a GEMM multiplies by its alpha."""

from __future__ import annotations

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.match import bare_product, scaled, seen_again, under_views


def scaled_operand(node: Node, b: GraphBuilder) -> Value | None:
    """(c * a) @ b is c * (a @ b); c * a may be reshaped or transposed on the way."""
    alpha = node.attributes.get("alpha", 1.0)
    inputs = list(node.inputs)
    for index in (0, 1):
        factor, plain = _scaled_view(source(node, index), b)
        if factor not in (0.0, 1.0):
            alpha, inputs[index] = alpha * factor, plain
    if inputs == list(node.inputs) or node.sub:
        return None
    return b.emit("GEMM", inputs, dtype=node.output.dtype, **{**node.attributes, "alpha": alpha})


def _scaled_view(value: Value, b: GraphBuilder) -> tuple[float, Value]:
    """The c and x where `value` is c * x and x is built anew where c was under views."""
    inner, views = under_views(value)
    factor, plain = scaled(inner)
    return (1.0, value) if factor in (0.0, 1.0) else (factor, seen_again(plain, views, b))


def scaled_product(node: Node, b: GraphBuilder) -> Value | None:
    """A multiple of a @ b, if nothing is added to the product."""
    factor, product = scaled(node.output)
    gemm = bare_product(product)
    if gemm is None or factor in (0.0, 1.0) or not b.graph.only_user(product) or product.type != node.output.type:
        return None
    alpha = gemm.attributes.get("alpha", 1.0) * factor
    return b.emit("GEMM", gemm.inputs, dtype=node.output.dtype, **{**gemm.attributes, "alpha": alpha})


RULES = {"GEMM": (scaled_operand,), "EW": (scaled_product,)}
