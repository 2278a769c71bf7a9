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


def perceptron(*, dim: str | int = "batch", external: bool = False) -> onnx.ModelProto:
    """softmax(relu(x @ w1 + b1) @ w2) for x:0 f32 [batch, 3]; its names are no identifiers."""
    rng = np.random.default_rng(1)
    weights = {"layer.1/w": (3, 4), "layer.1/b": (4,), "layer.2/w": (4, 5)}
    tensors = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    nodes = [
        helper.make_node("MatMul", ["x:0", "layer.1/w"], ["h1"], name="fc1"),
        helper.make_node("Add", ["h1", "layer.1/b"], ["h2"], name="bias"),
        helper.make_node("Relu", ["h2"], ["h3"], name="relu"),
        helper.make_node("MatMul", ["h3", "layer.2/w"], ["h4"], name="fc2"),
        helper.make_node("Softmax", ["h4"], ["y:0"], name="soft", axis=-1),
    ]
    x = helper.make_tensor_value_info("x:0", TensorProto.FLOAT, [dim, 3])
    y = helper.make_tensor_value_info("y:0", TensorProto.FLOAT, [dim, 5])
    graph = helper.make_graph(nodes, "perceptron", [x], [y], initializer=tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    if external:
        onnx.external_data_helper.convert_model_to_external_data(proto, location="weights.bin", size_threshold=0)
    return proto


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    """The file `model.onnx` in `folder`, holding `proto` as it is."""
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path
