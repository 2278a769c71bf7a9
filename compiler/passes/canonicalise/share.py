"""Equal nodes computed once: exporters write the same mask, and the same table, for every layer."""

from __future__ import annotations

from typing import Any

from dla.compiler.fold import SMALL
from dla.compiler.graph import Graph, Node, Value

_OWN = ("WRITE",)
"""Operators that lowering does in place: sharing one would make it copy."""


def share(graph: Graph) -> Graph:
    """`graph` with one constant for equal ones, and one node for all that have equal operators, inputs and attributes.

    It is swept before and after.
    """
    graph.sweep()
    seen: dict[Any, Node] = {}
    constants: dict[Any, Value] = {}
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            if value is not None and value.constant is not None:
                graph.set_input(node, index, constants.setdefault(_identity(value), value))
        if node.op in _OWN:
            continue
        inputs = tuple(None if v is None else _identity(v) for v in node.inputs)
        attributes = tuple(sorted((k, repr(v)) for k, v in node.attributes.items()))
        types = tuple(v.type for v in node.outputs)
        first = seen.setdefault((node.op, node.sub, inputs, attributes, types), node)
        if first is not node:
            for old, new in zip(node.outputs, first.outputs, strict=True):
                graph.replace(old, new)
    graph.sweep()
    return graph


def _identity(value: Value) -> Any:
    """Equal for values that are surely equal: the same one, or small constants with the same bits."""
    array = value.constant
    return id(value) if array is None or array.size > SMALL else (array.dtype.str, array.shape, array.tobytes())
