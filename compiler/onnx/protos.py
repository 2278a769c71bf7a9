"""What is asked of ONNX's messages in several places. Nothing here needs the package onnx itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

Key = tuple[str, str, str]
"""Domain, operator and overload: what a node's call and a function's definition are matched by."""


def domain_of(name: str) -> str:
    """The name of a domain; the default one has two."""
    return "" if name == "ai.onnx" else name


def key_of(call: onnx.NodeProto) -> Key:
    """The operator that a node calls."""
    return _key(call, call.op_type)


def key_of_function(function: onnx.FunctionProto) -> Key:
    """The operator that a function defines."""
    return _key(function, function.name)


def _key(proto: Any, name: str) -> Key:
    return domain_of(proto.domain), name, getattr(proto, "overload", "")  # overloads came with onnx 1.16


def graphs_of(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that an attribute holds."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """`nodes`, each followed by those of the graphs inside it."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in graphs_of(attribute):
                yield from all_nodes(graph.node)
