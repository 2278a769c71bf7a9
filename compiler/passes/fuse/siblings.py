"""Products of one input by several constant matrices as one product: queries, keys and values, above all.

The results are slices of the joint one, which are views.
"""

from __future__ import annotations

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Node
from dla.compiler.operators import source
from dla.compiler.passes.match import constant_array

_BIASED = ("bias",)


def run(graph: Graph) -> Graph:
    """`graph` with sibling products joined."""
    graph.sweep()
    b = GraphBuilder(graph=graph)
    families: dict[tuple[object, ...], list[Node]] = {}
    for node in graph.nodes:
        key = _family(node)
        if key is not None:
            families.setdefault(key, []).append(node)
    for members in families.values():
        if len(members) > 1:
            _join(b, members)
    graph.sweep()
    return graph


def _family(node: Node) -> tuple[object, ...] | None:
    """What products must share to be joined; None for those that cannot be."""
    if node.op != "GEMM" or node.sub or set(node.attributes) - {"steps", "alpha"} or node.inputs[2] is not None:
        return None
    steps = node.attributes.get("steps", ())
    weights, bias = source(node, 1), node.inputs[3]
    if weights.rank != 2 or constant_array(weights) is None or steps not in ((), _BIASED):
        return None
    if bias is not None and (bias.constant is None or bias.rank != 1 or bias.dims != weights.dims[1:]):
        return None
    return id(node.inputs[0]), weights.dims[0], weights.dtype, node.output.dtype, steps, node.attributes.get("alpha")


def _join(b: GraphBuilder, members: list[Node]) -> None:
    first = members[0]
    b.label, b.order = " + ".join(dict.fromkeys(m.label for m in members))[:200], first.order
    weights = [constant_array(source(m, 1)) for m in members]
    joined = b.constant(np.concatenate([w for w in weights if w is not None], axis=1), name=_name(members, 1))
    bias = None
    if first.inputs[3] is not None:
        biases = [m.inputs[3].constant for m in members if m.inputs[3] is not None]
        bias = b.constant(np.concatenate([v for v in biases if v is not None]), name=_name(members, 3))
    product = b.emit("GEMM", [first.inputs[0], joined, None, bias, None, None], dtype=first.output.dtype,
                     **first.attributes)  # fmt: skip
    position = 0
    for member in members:
        size = member.output.dims[-1]
        assert isinstance(size, int), "constant weights have constant sizes"
        b.graph.replace(member.output, b.part(product, -1, position, size))
        position += size


def _name(members: list[Node], index: int) -> str:
    names = [v.name for m in members if (v := m.inputs[index]) is not None and v.name]
    return "+".join(names)[:80]
