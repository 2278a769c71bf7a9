"""Dead code: what no result needs is dropped, and what is left is put in order."""

from __future__ import annotations

from dla.compiler.graph import Graph


def run(graph: Graph) -> Graph:
    """`graph` without nodes that no output and no state needs."""
    graph.sweep()
    return graph
