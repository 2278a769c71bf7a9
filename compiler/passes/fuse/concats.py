"""Nested concatenations: where one begins with all parts of another, it takes that one as its first part.

Dense blocks join the same growing list again and again; nested, all of it is one buffer that nothing is copied into.
"""

from __future__ import annotations

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Value


def run(graph: Graph) -> Graph:
    """`graph` with concatenations that share their first parts nested in each other."""
    graph.sweep()
    b = GraphBuilder(graph=graph)
    known: dict[tuple[object, ...], Value] = {}
    counts: set[int] = set()  # of the parts of those that are known
    for node in [n for n in graph.nodes if n.op == "CONCAT"]:
        axis, parts = node.attributes["axis"], tuple(id(v) for v in node.inputs)
        whole = node.output
        for count in sorted((n for n in counts if 1 < n < len(parts)), reverse=True):
            begin = known.get((axis, *parts[:count]))
            if begin is not None:
                b.label, b.order = node.label, node.order
                whole = b.emit("CONCAT", [begin, *node.inputs[count:]], axis=axis)
                graph.replace(node.output, whole)
                break
        known[axis, *parts] = whole
        counts.add(len(parts))
    graph.sweep()
    return graph
