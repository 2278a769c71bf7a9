"""The precision pass: which results are stored in 16 bits, and how far they may then be off."""

from __future__ import annotations

import numpy as np
import pytest
from preserved import normal, preserved

from dla.compiler.builder import GraphBuilder
from dla.compiler.passes import precision
from dla.compiler.pipeline import compile_graph
from dla.isa.dtypes import DType

F32 = DType.F32


def network() -> GraphBuilder:
    """A small transformer-like piece with folds, powers and a mask."""
    b = GraphBuilder()
    x, mask = b.input("x", F32, (2, 4, 8)), b.input("mask", DType.BOOL, (2, 1, 1, 4))
    w = b.constant(normal(8, 24))
    heads = b.transpose(b.reshape(b.matmul(x, w), (2, 4, 6, 4)), (0, 2, 1, 3))
    q, k, v = (b.part(heads, 1, 2 * i, 2) for i in range(3))
    scores = b.select(mask, b.matmul(q, b.swap(k)), b.constant(np.float32(-3e38)))
    y = b.matmul(b.softmax(scores), v)
    y = b.reshape(b.swap(y, 1, 2), (2, 4, 8))
    y = b.norm("layer", b.add(y, x), b.constant(normal(8)), b.constant(normal(8)))
    mean = b.reduce("mean", b.ew("pow", y, 2.0), [-1], keepdims=True)
    b.output("y", b.div(y, b.act("sqrt", b.add(mean, 1e-6))))
    return b


@pytest.mark.parametrize(("dtype", "within"), [(DType.F16, 0.02), (DType.BF16, 0.2)])
def test_results_stay_close_and_outputs_keep_their_type(dtype, within):
    inputs = {"x": normal(2, 4, 8), "mask": np.array([[1, 1, 1, 0], [1, 0, 1, 1]], bool).reshape(2, 1, 1, 4)}
    preserved(network(), lambda graph: precision.run(graph, dtype), rtol=within, **inputs)


def test_sensitive_results_stay_in_f32():
    graph = precision.run(network().graph, DType.BF16)
    kept = {n.name for n in graph.nodes if n.output.dtype is F32}
    assert {"EW.pow", "REDUCE.mean", "ACT.sqrt"} <= kept
    assert all(n.output.dtype is DType.BF16 for n in graph.nodes if n.op in ("GEMM", "NORM", "SOFTMAX"))


def test_the_compiled_program_is_accepted():
    compile_graph(network().graph, dtype=DType.F16)


def test_none_changes_nothing():
    graph = network().graph
    assert precision.run(graph) is graph
