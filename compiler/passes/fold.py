"""Constant folding: nodes whose inputs are all known are computed now.

Views of constants stay views, because a descriptor says them for nothing; but kernels of a convolution and parts that
are joined are laid out as they are read.
"""

from __future__ import annotations

from dla.compiler.fold import fold
from dla.compiler.graph import Graph, Node
from dla.compiler.operators import VIEWS


def run(graph: Graph) -> Graph:
    """`graph` without nodes that compute constants."""
    graph.sweep()
    for node in graph.nodes:
        if all(v.constant is not None for v in node.present) and not _stays(node):
            fold(node)
    graph.nodes = [n for n in graph.nodes if n.output.constant is None]
    graph.sweep()
    return graph


def _stays(node: Node) -> bool:
    """Whether `node` is a view that costs nothing where it is read."""
    if node.op not in VIEWS:
        return node.op in ("FILL", "IOTA")
    if node.op == "EXPAND":
        return True
    return not any(user.op in ("CONV", "CONCAT", "NORM") or user.op in VIEWS for user in node.output.users)
