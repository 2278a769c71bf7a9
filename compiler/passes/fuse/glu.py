"""Gated linear units: unit(x @ w1) * (x @ w2) as one product with interleaved columns.

Shazeer, "GLU Variants Improve Transformer" (2020). Column 2j of the joint weights is column j of w1, 2j + 1 that of w2.
"""

from __future__ import annotations

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.match import bare_product, commuted, constant_array
from dla.compiler.passes.rewrite import Replacement, rewrite

UNITS = ("identity", "sigmoid", "silu", "gelu", "gelu_tanh", "relu")


def run(graph: Graph) -> Graph:
    """`graph` with its gated linear units as GEMM.glu."""
    return rewrite(graph, {"EW": [gated]})


def gated(node: Node, b: GraphBuilder) -> Replacement:
    """The product of two plain GEMMs of one input, the first by way of an activation."""
    for gate, up in commuted(node.output, "mul"):
        found = gate.made_by("ACT", *UNITS)
        if found is None or b.graph.only_user(gate) is not node:
            continue
        left, right = _plain(b, source(found), found), _plain(b, up, node)
        if left is None or right is None or left.inputs[0] is not right.inputs[0]:
            continue
        first, second = source(left, 1), source(right, 1)
        if first.type == second.type and node.output.type == left.output.type:
            return b.emit("GEMM", [left.inputs[0], _interleaved(b, first, second), None, None, None, None], sub="glu",
                          unit=found.sub, dtype=node.output.dtype)  # fmt: skip
    return None


def _plain(b: GraphBuilder, value: Value, user: Node) -> Node | None:
    """The GEMM with constant weights and no extras that makes `value` for `user` alone."""
    node = bare_product(value)
    if node is None or node.attributes.get("alpha", 1.0) != 1.0 or b.graph.only_user(value) is not user:
        return None
    weights = source(node, 1)
    return node if weights.rank == 2 and constant_array(weights) is not None else None


def _interleaved(b: GraphBuilder, first: Value, second: Value) -> Value:
    a, c = constant_array(first), constant_array(second)
    assert a is not None, "checked before"
    assert c is not None, "checked before"
    joined = np.empty((a.shape[0], 2 * a.shape[1]), a.dtype)
    joined[:, 0::2], joined[:, 1::2] = a, c
    return b.constant(joined, name=f"{first.name or 'gate'}.glu")
