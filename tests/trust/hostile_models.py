"""The models that `fuzz_models` damages: small ones of many kinds, and some of those that ONNX comes with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def _tensor(name: str, values: Any, dtype: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def _weights(name: str, *shape: int) -> TensorProto:
    return _tensor(name, np.random.default_rng(len(name)).standard_normal(shape))


def _model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[tuple[str, int, Sequence[int | str]]],
    outputs: Sequence[str], initialisers: Sequence[TensorProto] = (), opset: int = 18,
) -> onnx.ModelProto:  # fmt: skip
    given = [helper.make_tensor_value_info(*i) for i in inputs]
    made = [helper.make_tensor_value_info(name, F32, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", given, made, list(initialisers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def cnn() -> onnx.ModelProto:
    """Windows of every kind."""
    node = helper.make_node
    return _model(
        [node("Conv", ["x", "w1", "b1"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
         node("BatchNormalization", ["c", "b1", "b1", "b1", "v"], ["n"], epsilon=1e-5),
         node("Relu", ["n"], ["r"]), node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], ceil_mode=1),
         node("ConvTranspose", ["p", "w2"], ["t"], strides=[2, 2], output_padding=[1, 1]),
         node("AveragePool", ["t"], ["a"], kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
         node("Pad", ["a", "pads"], ["d"], mode="reflect"), node("GlobalAveragePool", ["d"], ["g"]),
         node("Flatten", ["g"], ["f"], axis=1), node("Gemm", ["f", "w3", "b3"], ["y"], transB=1, alpha=0.5)],
        [("x", F32, ["batch", 3, 8, 8])], ["y"],
        [_weights("w1", 4, 3, 3, 3), _tensor("b1", np.zeros(4)), _tensor("v", np.ones(4)), _weights("w2", 4, 2, 2, 2),
         _tensor("pads", [0, 0, 1, 1, 0, 0, 1, 1], np.int64), _weights("w3", 5, 2), _tensor("b3", np.zeros(5))],
    )  # fmt: skip


def shapes() -> onnx.ModelProto:
    """Shape arithmetic, and what it is for."""
    node = helper.make_node
    return _model(
        [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["b"]), node("Unsqueeze", ["b", "axis"], ["bu"]),
         node("Concat", ["bu", "rest"], ["shape"], axis=0), node("Reshape", ["x", "shape"], ["r"]),
         node("Slice", ["r", "from", "to", "axes", "steps"], ["c"]), node("Transpose", ["c"], ["t"], perm=[0, 2, 1]),
         node("Expand", ["axisf", "shape"], ["e"]), node("Tile", ["t", "times"], ["ti"]),
         node("Split", ["ti"], ["p", "q"], axis=2, num_outputs=2), node("Squeeze", ["one"], ["sq"]),
         node("Range", ["zero", "b", "uno"], ["ra"]),
         node("ConstantOfShape", ["shape"], ["z"], value=_tensor("", [2.0])),
         node("Mul", ["e", "z"], ["ez"]), node("Resize", ["r4", "", "scales"], ["y3"], mode="linear"),
         node("Unsqueeze", ["r", "axis"], ["r4"]), node("Cast", ["ra"], ["y2"], to=1), node("Add", ["p", "q"], ["y"])],
        [("x", F32, ["batch", 12])], ["y", "y2", "ez"],
        [_tensor("zero", 0, np.int64), _tensor("uno", 1, np.int64), _tensor("axis", [0], np.int64),
         _tensor("rest", [3, 4], np.int64), _tensor("from", [0, 3], np.int64), _tensor("to", [9, -9], np.int64),
         _tensor("axes", [1, 2], np.int64), _tensor("steps", [2, -1], np.int64), _tensor("times", [1, 2, 1], np.int64),
         _tensor("axisf", [1.5]), _tensor("one", [[1.0]]), _tensor("scales", [1, 1, 2, 1.5])],
    )  # fmt: skip


def transformer() -> onnx.ModelProto:
    """A layer with attention."""
    node = helper.make_node
    heads = [n for k in "qkv" for n in (
        node("MatMul", ["h", f"w{k}"], [f"m{k}"]), node("Reshape", [f"m{k}", "split"], [f"r{k}"]),
        node("Transpose", [f"r{k}"], [k], perm=[0, 2, 1, 3]))]  # fmt: skip
    return _model(
        [node("Gather", ["table", "ids"], ["e"]), node("LayerNormalization", ["e", "g", "g"], ["h"], axis=-1), *heads,
         node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), node("MatMul", ["q", "kt"], ["s"]),
         node("Div", ["s", "two"], ["sd"]), node("Softmax", ["sd"], ["p"], axis=-1), node("MatMul", ["p", "v"], ["o"]),
         node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]), node("Reshape", ["ot", "join"], ["oj"]),
         node("Add", ["oj", "e"], ["a"]), node("Gelu", ["a"], ["ge"]), node("ReduceMean", ["ge", "last"], ["m"]),
         node("Sub", ["ge", "m"], ["d"]), node("Pow", ["d", "two"], ["y"])],
        [("ids", I64, ["batch", "seq"])], ["y"],
        [_weights("table", 10, 8), _tensor("g", np.ones(8)), *(_weights(f"w{k}", 8, 8) for k in "qkv"),
         _tensor("split", [0, 0, 2, 4], np.int64), _tensor("join", [0, 0, 8], np.int64), _tensor("two", 2.0),
         _tensor("last", [-1], np.int64)], opset=20,
    )  # fmt: skip


def recurrent(kind: str, gates: int) -> onnx.ModelProto:
    """A layer over time, both ways."""
    outputs = ["y", "h", "c"] if kind == "LSTM" else ["y", "h"]
    return _model(
        [helper.make_node(kind, ["x", "w", "r", "b", "", "h0"], outputs, hidden_size=3, direction="bidirectional")],
        [("x", F32, ["seq", 2, 4]), ("h0", F32, [2, 2, 3])], outputs,
        [_weights("w", 2, gates * 3, 4), _weights("r", 2, gates * 3, 3), _weights("b", 2, gates * 6)],
    )  # fmt: skip


def picks() -> onnx.ModelProto:
    """Indices, and tensors of few bits."""
    node = helper.make_node
    return _model(
        [node("TopK", ["x", "k"], ["v", "i"], axis=-1), node("GatherElements", ["x", "i"], ["ge"], axis=1),
         node("ScatterElements", ["x", "i", "v"], ["se"], axis=1, reduction="add"),
         node("ScatterND", ["x", "nd", "up"], ["sn"]),
         node("GatherND", ["x", "nd"], ["gn"]), node("OneHot", ["i", "depth", "on"], ["oh"], axis=-1),
         node("Einsum", ["x", "x"], ["es"], equation="bi,bj->ij"), node("ArgMax", ["x"], ["am"], axis=1, keepdims=0),
         node("CumSum", ["x", "one"], ["cs"]), node("Less", ["x", "cs"], ["less"]),
         node("Where", ["less", "x", "cs"], ["w"]),
         node("ReduceSum", ["se", "one"], ["rs"], keepdims=1), node("Trilu", ["sn", "one"], ["tr"]),
         node("QuantizeLinear", ["w", "scale", "zp"], ["qu"]), node("DequantizeLinear", ["qu", "scale", "zp"], ["dq"]),
         node("LRN", ["x4"], ["lr"], size=3), node("Unsqueeze", ["x", "axes"], ["x4"])],
        [("x", F32, [3, 5])], ["ge", "gn", "oh", "es", "am", "dq", "rs", "tr", "lr"],
        [_tensor("k", [2], np.int64), _tensor("nd", [[0], [2]], np.int64), _weights("up", 2, 5),
         _tensor("depth", 5, np.int64),
         _tensor("on", [0.0, 1.0]), _tensor("one", 1, np.int64), _tensor("scale", 0.1), _tensor("zp", 3, np.uint8),
         _tensor("axes", [0, 3], np.int64)],
    )  # fmt: skip


def control() -> onnx.ModelProto:
    """A loop and a branch."""
    node = helper.make_node
    names = [helper.make_tensor_value_info(n, t, []) for n, t in (("i", I64), ("go", TensorProto.BOOL), ("s", F32))]
    body = helper.make_graph(
        [node("Add", ["s", "x"], ["s2"]), node("Identity", ["go"], ["go2"]), node("Neg", ["s2"], ["out"])],
        "body", names,
        [helper.make_tensor_value_info(*given) for given in (("go2", TensorProto.BOOL, []), ("s2", F32, None),
                                                             ("out", F32, None))])  # fmt: skip
    result = [helper.make_tensor_value_info("t", F32, None)]
    then = helper.make_graph([node("Relu", ["ss"], ["t"])], "then", [], result)
    other = helper.make_graph([node("Exp", ["ss"], ["t"])], "else", [], result)
    return _model(
        [node("Loop", ["trips", "yes", "x"], ["ss", "all"], body=body),
         node("If", ["yes"], ["y"], then_branch=then, else_branch=other),
         node("Einsum", ["y"], ["z"], equation="ij->ji")],
        [("x", F32, ["n", 3])], ["y", "all", "z"],
        [_tensor("trips", 3, np.int64), _tensor("yes", True, np.bool_)],
    )  # fmt: skip


def models(node_tests: int) -> list[onnx.ModelProto]:
    """What is damaged: models of this file, and `node_tests` of those that ONNX comes with."""
    own = [cnn(), shapes(), transformer(), recurrent("LSTM", 4), recurrent("GRU", 3), picks(), control()]
    cases = sorted(load_model_tests(kind="node"), key=lambda case: case.name) if node_tests else []
    return own * 4 + [case.model for case in random.Random(0).sample(cases, min(node_tests, len(cases)))]
