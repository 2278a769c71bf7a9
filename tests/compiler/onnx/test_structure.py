"""Graphs whose names do not fit together, and those that are only out of order."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model, relu

from dla.compiler.onnx.loader import from_proto
from dla.isa.errors import ModelError

node = helper.make_node


def refused(proto: onnx.ModelProto) -> str:
    """The message with which the model is refused."""
    with pytest.raises(ModelError) as caught:
        from_proto(proto)
    return str(caught.value)


def operators(proto: onnx.ModelProto) -> list[str]:
    """Of the accepted model's nodes, in order."""
    return [found.op_type for found in from_proto(proto).proto.graph.node]


def branch(nodes: Sequence[onnx.NodeProto], output: str) -> onnx.GraphProto:
    """A graph for an attribute."""
    return helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


# -- order


def test_nodes_out_of_order_are_sorted() -> None:
    """Otherwise they stay as they are."""
    nodes = [
        node("Tanh", ["b"], ["y"]),
        node("Relu", ["x"], ["a"]),
        node("Neg", ["a"], ["b"]),
        node("Abs", ["x"], ["z"]),
    ]
    assert operators(model(nodes)) == ["Relu", "Neg", "Tanh", "Abs"]
    assert operators(model(nodes[1:3] + nodes[:1] + nodes[3:])) == ["Relu", "Neg", "Tanh", "Abs"]


def test_what_a_graph_inside_a_node_reads_comes_before_the_node() -> None:
    """Such a value is no input of the node."""
    inside = branch([node("Neg", ["a"], ["i"])], "i")
    nodes = [node("If", ["x"], ["y"], then_branch=inside, else_branch=inside), node("Relu", ["x"], ["a"])]
    assert operators(model(nodes)) == ["Relu", "If"]


def test_nodes_of_a_graph_inside_a_node_are_sorted() -> None:
    """They are nodes as any other."""
    inside = branch([node("Neg", ["i"], ["j"]), node("Abs", ["x"], ["i"])], "j")
    proto = from_proto(model([node("If", ["x"], ["y"], then_branch=inside)])).proto
    assert [found.op_type for found in proto.graph.node[0].attribute[0].g.node] == ["Abs", "Neg"]


def test_a_cycle_is_refused_with_its_nodes() -> None:
    """Only those in the cycle, not what leads into it or out of it."""
    nodes = [
        node("Relu", ["x"], ["s"], name="start"),
        node("Add", ["s", "b"], ["a"], name="one"),
        node("Neg", ["a"], ["b"], name="two"),
        node("Tanh", ["b"], ["y"], name="end"),
    ]
    message = refused(model(nodes))
    assert "the graph has a cycle: " in message
    assert sorted(message.split(": ")[1].split(", ")) == ["Add node 'one'", "Neg node 'two'"]


def test_a_node_that_reads_itself() -> None:
    """The shortest cycle."""
    assert refused(model([node("Add", ["x", "y"], ["y"])])) == "the graph has a cycle: Add node number 0"


def test_a_long_cycle_is_named_in_part() -> None:
    """A message is no listing."""
    nodes = [node("Add", [f"v{(i + 1) % 5000}", "x"], [f"v{i}"], name=f"n{i}") for i in range(5000)]
    assert refused(model(nodes, outputs=["v0"])).endswith("and 4995 more")


# -- names


def test_an_input_that_nothing_makes() -> None:
    """Named, with its reader."""
    assert refused(model([node("Relu", ["z"], ["y"], name="r")])) == "Relu node 'r' reads 'z', which nothing makes"


def test_an_input_that_nothing_makes_inside_a_node() -> None:
    """The reader is the inner node."""
    inside = branch([node("Neg", ["a"], ["i"], name="n")], "i")
    proto = model([node("If", ["x"], ["y"], name="if", then_branch=inside)])
    assert refused(proto) == "If node 'if' reads 'a', which nothing makes"


def test_an_output_that_nothing_makes() -> None:
    """Of the graph."""
    assert refused(model([], outputs=["y"])) == "an output of the graph is 'y', which nothing makes"


def test_no_outputs() -> None:
    """Nothing to compute."""
    assert refused(model([node("Relu", ["x"], ["y"])], outputs=[])) == "the graph has no outputs"


def test_inputs_left_out_have_no_name() -> None:
    """As ONNX writes optional inputs and outputs."""
    assert operators(model([node("Clip", ["x", "", ""], ["y", "", ""])])) == ["Clip"]


def test_a_value_made_by_two_nodes() -> None:
    """Both are named."""
    proto = model([node("Relu", ["x"], ["y"], name="a"), node("Neg", ["x"], ["y"], name="b")])
    assert refused(proto) == "'y' is made twice: by Relu node 'a' and by Neg node 'b'"


def test_a_value_made_by_a_node_and_given() -> None:
    """An input cannot be written."""
    assert refused(model([node("Relu", ["x"], ["x"])], outputs=["x"])) == (
        "'x' is made twice: by an input or initialiser and by Relu node number 0"
    )


def test_two_inputs_of_one_name() -> None:
    """It would not be clear which one is meant."""
    assert "two inputs of the graph have the same name" in refused(model([], inputs=["x", "x"], outputs=["x"]))


def test_two_initialisers_of_one_name() -> None:
    """It would not be clear which one is meant."""
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    assert refused(model([], [tensor, tensor], outputs=["w"])) == "initialiser 'w' is there twice"


def test_an_initialiser_without_a_name() -> None:
    """Nobody could read it."""
    assert "has no name" in refused(model([], [helper.make_tensor("", TensorProto.FLOAT, [1], [1.0])], outputs=["x"]))


def test_an_initialiser_may_be_the_default_of_an_input() -> None:
    """Old exporters list every weight among the inputs."""
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [2, 3], [1.0] * 6)
    proto = model([node("Add", ["x", "w"], ["y"])], [tensor], inputs=["x", "w"])
    assert operators(proto) == ["Add"]


def test_control_characters_in_names_are_escaped() -> None:
    """A message drives no terminal."""
    message = refused(model([node("Relu\x1b[2J", ["\x07\n"], ["y"], name="\x1b]0;x\x07")]))
    assert message == r"Relu\x1b[2J node '\x1b]0;x\x07' reads '\x07\n', which nothing makes"


@pytest.mark.parametrize("name", ["op_type", "name", "domain", "input", "output", "attribute"])
def test_names_that_are_not_utf8(name: str) -> None:
    """The parser gives such names as bytes, which nobody expects."""
    found = node("Relu", ["x"], ["y"], name="n", domain="d", a=1)
    numbers = {field.name: field.number for field in onnx.NodeProto.DESCRIPTOR.fields}
    value = b"\xff\xfe" if name != "attribute" else b"\x0a\x02\xff\xfe"
    broken = onnx.NodeProto.FromString(found.SerializeToString() + bytes([numbers[name] << 3 | 2, len(value)]) + value)
    assert "UTF-8" in refused(model([broken]))


def test_names_of_dims_that_are_not_utf8() -> None:
    """Symbolic dims are names too."""
    proto = relu()
    data = proto.graph.input[0].type.tensor_type.shape.dim[0]
    data.MergeFromString(b"\x12\x02\xff\xfe")
    assert "the name of a dim of 'x' is not UTF-8 text" in refused(proto)


# -- nodes


def test_a_node_without_an_operator() -> None:
    """Nothing to look up."""
    assert "has no operator" in refused(model([node("", ["x"], ["y"])]))


def test_an_attribute_given_twice() -> None:
    """It would not be clear which one is meant."""
    found = node("LeakyRelu", ["x"], ["y"], name="l", alpha=0.1)
    found.attribute.append(helper.make_attribute("alpha", 0.2))
    assert "LeakyRelu node 'l' has attribute 'alpha' twice" in refused(model([found]))


def test_an_attribute_without_a_type() -> None:
    """Its value could be any of its fields."""
    found = node("LeakyRelu", ["x"], ["y"], name="l")
    found.attribute.add(name="alpha")
    assert refused(model([found])) == "attribute 'alpha' of LeakyRelu node 'l' has no type"


def test_a_broken_tensor_in_an_attribute() -> None:
    """Found before anybody evaluates it; the node is named."""
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[2**40])
    message = refused(model([node("Constant", [], ["y"], name="k", value=tensor)]))
    assert message.startswith("Constant node 'k', attribute 'value': tensor 't' of shape [1099511627776] needs")


def test_a_sparse_initialiser() -> None:
    """Clear, with a way out."""
    proto = relu()
    proto.graph.sparse_initializer.add().values.name = "s"
    assert "initialiser 's' is sparse, which dla does not read" in refused(proto)


# -- functions


def function(name: str, calls: Sequence[str]) -> onnx.FunctionProto:
    """A function that calls others one after another."""
    values = ["a", *(f"v{i}" for i in range(len(calls)))]
    nodes = [node(call, [values[i]], [values[i + 1]], domain="d") for i, call in enumerate(calls)]
    return helper.make_function("d", name, ["a"], [values[-1]], nodes, [helper.make_opsetid("", 17)])


def calling(name: str, functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
    """A model of one node that calls a function."""
    return model([node(name, ["x"], ["y"], domain="d")], functions=functions)


def test_functions_are_accepted() -> None:
    """A chain of them may be long."""
    chain = [function(f"f{i}", [f"f{i + 1}"]) for i in range(2000)]
    assert operators(calling("f0", [*chain, function("f2000", [])])) == ["f0"]


def test_a_function_that_calls_itself() -> None:
    """By way of another, or of a graph inside one of its nodes."""
    assert refused(calling("f", [function("f", ["g"]), function("g", ["f"])])) == "function 'f' calls itself"
    inner = function("f", [])
    inside = branch([node("f", ["a"], ["i"], domain="d")], "i")
    inner.node.append(node("If", ["a"], ["v"], then_branch=inside))
    assert refused(calling("f", [inner])) == "function 'f' calls itself"


def test_functions_that_multiply() -> None:
    """Forty functions, each calling the next twice, would be a million million nodes."""
    doubling = [function(f"f{i}", [f"f{i + 1}"] * 2) for i in range(40)]
    assert "expand to more than 1,000,000 nodes" in refused(calling("f0", [*doubling, function("f40", ["leaf"])]))


def test_a_function_defined_twice() -> None:
    """It would not be clear which one is meant."""
    assert (
        refused(calling("f", [function("f", []), function("f", [])])) == "function 'f' of domain 'd' is defined twice"
    )


def test_a_function_that_reads_what_is_not_there() -> None:
    """A body sees its own inputs and nothing around it."""
    body = helper.make_function("d", "f", ["a"], ["b"], [node("Relu", ["x"], ["b"])], [helper.make_opsetid("", 17)])
    assert "reads 'x', which nothing in function 'f' makes" in refused(calling("f", [body]))
