"""Small models of large work: refused by one clear error, or left to the machine; never computed while compiling."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_bodies import compiled

from dla.compiler.api import compile_model
from dla.compiler.onnx import importer
from dla.isa.errors import ModelError

REFUSED = {
    "shape arithmetic on": """(float[B, 2] x) => (float y) {
        s = Shape (x)  many = Constant <value_ints = [8589934592]> ()  v = Tile (s, many)  y = Cast <to = 1> (v) }""",
    "formula of more than": """(float[B, S] x) => (float y) {
        s = Shape (x)  one = Constant <value_int = 1> ()  p = ReduceProd <keepdims = 0> (s)
        a = Add (p, one)  b = Mul (a, a)  c = Add (b, one)  d = Mul (c, c)  e = Add (d, one)  f = Mul (e, e)
        g = Add (f, one)  h = Mul (g, g)  i = Add (h, one)  j = Mul (i, i)  y = Cast <to = 1> (j) }""",
    "beyond i64": """(float[B, 1000] x) => (float y) {
        s = Shape (x)  a = Mul (s, s)  b = Mul (a, a)  c = Mul (b, b)  last = Constant <value_int = 1> ()
        d = Gather (c, last)  y = Cast <to = 1> (d) }""",
    "cannot be resized": """(float[1, 1, 4, 4] x) => (float y) {
        none = Constant <value_floats = [0.0]> ()  s = Constant <value_floats = [1.0, 1.0, 1048576.0, 1048576.0]> ()
        y = Resize <mode = "linear"> (x, , s) }""",
    "a program's have at most": """(float[2] x) => (float y) {
        s = Constant <value_ints = [1048576, 1048576]> ()  z = ConstantOfShape (s)  r = ReduceSum (z)
        y = Add (x, r) }""",
}


@pytest.mark.parametrize("message", REFUSED)
def test_bombs_are_refused(message: str):
    """The message says what is too much."""
    with pytest.raises(ModelError, match=message):
        compiled(REFUSED[message])


def nested_loops(depth: int) -> onnx.NodeProto:
    """Loops of 1,000 steps each, one in the other."""
    inner = helper.make_node("Neg", [f"s{depth}"], [f"r{depth}"])
    for level in range(depth, -1, -1):
        given = [helper.make_tensor_value_info(f"{name}{level}", kind, []) for name, kind in (
            ("i", TensorProto.INT64), ("go", TensorProto.BOOL), ("s", TensorProto.FLOAT))]  # fmt: skip
        made = [helper.make_tensor_value_info(name, kind, None) for name, kind in (
            (f"on{level}", TensorProto.BOOL), (f"r{level}", TensorProto.FLOAT))]  # fmt: skip
        nodes = [inner, helper.make_node("Identity", [f"go{level}"], [f"on{level}"])]
        body = helper.make_graph(nodes, "body", given, made)
        start, result = (f"s{level - 1}", f"r{level - 1}") if level else ("x", "y")
        inner = helper.make_node("Loop", ["trips", "yes", start], [result], body=body)
    return inner


def test_loops_in_loops_are_not_written_out_for_ever(monkeypatch: pytest.MonkeyPatch):
    """All nodes that loops make count, also those of a loop in a loop."""
    monkeypatch.setattr(importer, "MOST_NODES", 2000)
    values = [numpy_helper.from_array(np.array(1000), "trips"), numpy_helper.from_array(np.array(True), "yes")]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([nested_loops(2)], "g", [x], [y], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(ModelError, match="more than 2,000 nodes"):
        compile_model(model)


def test_constants_do_not_grow_while_compiling():
    """Of 2 * 32768 numbers 4 GiB could be made; the machine makes it when it runs."""
    column, row = (numpy_helper.from_array(np.ones(shape, np.float32), name)
                   for name, shape in (("c", (2**15, 1)), ("r", (1, 2**15))))  # fmt: skip
    nodes = [helper.make_node("MatMul", ["c", "r"], ["z"]), helper.make_node("ReduceMax", ["z"], ["m"], keepdims=0),
             helper.make_node("Add", ["x", "m"], ["y"])]  # fmt: skip
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [column, row])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    names = [i.name for i in compile_model(model).program.instructions]
    assert "GEMM" in names
