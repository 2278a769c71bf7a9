"""Small ONNX models for tests, whole and broken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


def model(
    nodes: Sequence[onnx.NodeProto],
    initialisers: Sequence[TensorProto] = (),
    *,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    opset: int = OPSET,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model whose inputs and outputs are all f32 [2, 3]."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in outputs],
        initializer=initialisers,
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def relu() -> onnx.ModelProto:
    """One node, Relu."""
    return model([helper.make_node("Relu", ["x"], ["y"], name="r")])


def with_tensor(tensor: TensorProto) -> onnx.ModelProto:
    """One node, which adds `tensor`, an initialiser, to x."""
    return model([helper.make_node("Add", ["x", tensor.name], ["y"], name="a")], [tensor])


def mlp() -> onnx.ModelProto:
    """Two layers, with a weight of each kind of storage, an attribute of each common kind, and an If."""
    rng = np.random.default_rng(0)
    w1 = numpy_helper.from_array(rng.standard_normal((3, 4), np.float32), "w1")
    w2 = helper.make_tensor("w2", TensorProto.FLOAT, [4, 3], rng.standard_normal(12).tolist())
    k = helper.make_tensor("k", TensorProto.INT64, [2], [-1, 3])
    cond = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    branch = [
        helper.make_graph([helper.make_node(op, ["h2"], [f"{op}_out"])], op,
                          [], [helper.make_tensor_value_info(f"{op}_out", TensorProto.FLOAT, None)])
        for op in ("Relu", "Tanh")
    ]  # fmt: skip
    nodes = [
        helper.make_node("Constant", [], ["half"], value=numpy_helper.from_array(np.array(0.5, np.float32))),
        helper.make_node("Gemm", ["x", "w1"], ["h1"], name="fc1", alpha=1.0, transA=0),
        helper.make_node("Mul", ["h1", "half"], ["h1s"], name="scale"),
        helper.make_node("MatMul", ["h1s", "w2"], ["h2"], name="fc2"),
        helper.make_node("If", ["c"], ["h3"], name="if", then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("Reshape", ["h3", "k"], ["y"], name="out"),
    ]
    return model(nodes, [w1, w2, k, cond])


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    """The file `model.onnx` in `folder`, holding `proto` as it is."""
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path
