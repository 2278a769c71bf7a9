"""Nodes that have not what ONNX says of their operators."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from dla.compiler.onnx.schemas import check_node
from dla.isa.errors import ModelError

NODES = {
    "too few inputs": (helper.make_node("Add", ["a"], ["y"]), "1 inputs instead of 2"),
    "too many inputs": (helper.make_node("Relu", ["a", "b"], ["y"]), "2 inputs instead of 1"),
    "too many outputs": (helper.make_node("TopK", ["a", "k"], ["y", "i", "z"]), "3 outputs instead of 2"),
    "no attribute": (helper.make_node("Concat", ["a"], ["y"]), "attribute 'axis' is missing"),
    "an attribute of another type": (helper.make_node("Concat", ["a"], ["y"], axis="0"), "attribute 'axis' is not int"),
}


@pytest.mark.parametrize(("node", "message"), NODES.values(), ids=NODES.keys())
def test_nodes_that_are_refused(node: onnx.NodeProto, message: str) -> None:
    """Before any rule sees them."""
    with pytest.raises(ModelError, match=message):
        check_node(node, 21)


def test_what_onnx_does_not_define_is_not_checked() -> None:
    """Other domains have definitions of their own, and later operator sets fewer inputs."""
    check_node(helper.make_node("Relu", ["a", "b"], ["y"], domain="mine"), 21)
    check_node(helper.make_node("Squeeze", ["a", "axes"], ["y"]), 13)
    with pytest.raises(ModelError):
        check_node(helper.make_node("Squeeze", ["a", "axes"], ["y"]), 11)
