"""Unflattening: a product of rows that were flattened before and unflattened after takes them as they are.

    reshape([batch, seq, k] -> [batch * seq, k]) @ w      is      reshape([batch, seq, k] @ w)

Exporters flatten because their matrix products are two-dimensional. Rows of symbolic length cannot be joined by a
view, and patterns are easier to see without the reshapes; where a view can join them, lowering does it again.
"""

from __future__ import annotations

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Node
from dla.compiler.passes.canonicalise.views import double_reshape
from dla.compiler.passes.rewrite import Replacement, rewrite


def run(graph: Graph) -> Graph:
    """`graph` with reshapes of rows after products instead of before them."""
    return rewrite(graph, {"GEMM": [product], "RESHAPE": [double_reshape]})


def product(node: Node, b: GraphBuilder) -> Replacement:
    """A product of flattened rows with one matrix; biases are vectors."""
    a, matrix, *rest = node.inputs
    flattened = a.made_by("RESHAPE") if a is not None else None
    if a is None or matrix is None or flattened is None or a.rank != 2 or matrix.rank != 2 or node.sub:
        return None
    (x,) = flattened.present
    rows = next((k for k in range(x.rank) if dims.product(x.dims[k:]) == a.dims[-1]), 0)
    if rows < 2 or any(v is not None and v.rank > 1 for v in rest):
        return None
    x = b.reshape(x, (*x.dims[:rows], a.dims[-1]))
    made = b.node("GEMM", [x, matrix, *rest], dtype=node.output.dtype, **node.attributes).output
    return b.reshape(made, node.output.dims)
