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
    scores = b.select(mask, b.matmul(q, b.swap(k)), b.constant(np.finfo(np.float32).min))
    y = b.matmul(b.softmax(scores), v)
    y = b.reshape(b.swap(y, 1, 2), (2, 4, 8))
    y = b.norm("layer", b.add(y, x), b.constant(normal(8)), b.constant(normal(8)))
    mean = b.reduce("mean", b.ew("pow", y, 2.0), [-1], keepdims=True)
    b.output("y", b.div(y, b.act("sqrt", b.add(mean, 1e-6))))
    return b


@pytest.mark.parametrize(("dtype", "within"), [(DType.F16, 0.02), (DType.BF16, 0.2)])
def test_results_stay_close_and_outputs_keep_their_type(dtype, within):
    """A mask at the end of the range stays finite."""
    inputs = {"x": normal(2, 4, 8), "mask": np.array([[1, 1, 1, 0], [1, 0, 1, 1]], bool).reshape(2, 1, 1, 4)}
    preserved(network(), lambda graph: precision.run(graph, dtype), rtol=within, **inputs)


def test_sensitive_results_stay_in_f32():
    """Powers, folds and roots; products do not."""
    graph = precision.run(network().graph, DType.BF16)
    kept = {n.name for n in graph.nodes if n.output.dtype is F32}
    assert {"EW.pow", "REDUCE.mean", "ACT.sqrt"} <= kept
    assert all(n.output.dtype is DType.BF16 for n in graph.nodes if n.op in ("GEMM", "NORM", "SOFTMAX"))


def test_masks_stay_finite():
    """The smallest f32 is no bf16: rounded, it would be infinite, and a sum of it with infinity no number."""
    b = GraphBuilder()
    b.output("y", b.add(b.input("x", F32, (2,)), b.constant(np.full(2, np.finfo(np.float32).min, np.float32))))
    graph = precision.run(b.graph, DType.BF16)
    assert all(np.isfinite(v.constant.astype(np.float32)).all() for v in graph.constants())


def test_constants_of_the_other_half_are_converted():
    """What is f16 fits bf16, whose limits are no f16; an infinite mask stays so."""
    b = GraphBuilder()
    given = np.array([[-np.inf, np.finfo(np.float16).max]], np.float16)
    b.output("y", b.matmul(b.input("x", DType.F16, (2, 1)), b.constant(given)))
    (found,) = [v for v in precision.run(b.graph, DType.BF16).constants() if v.dtype is DType.BF16]
    np.testing.assert_array_equal(found.constant.astype(np.float32), [[-np.inf, 65536]])


def test_loops_over_time_keep_their_types():
    """What a loop holds stays in the types that its step was made for."""

    def network():
        b = GraphBuilder()
        x, w = b.input("x", F32, (3, 2, 4)), b.input("w", F32, (4, 4))
        (y,), _ = b.recurrent(lambda c, s, h, o: ([c.matmul(h[0], o[0], c=s[0])], [h[0]]), [b.matmul(x, w)],
                              [b.fill((2, 4), 1, F32)], [w])  # fmt: skip
        b.output("y", b.act("tanh", y))
        return b

    preserved(network(), lambda graph: precision.run(graph, DType.F16), rtol=0.02, x=normal(3, 2, 4), w=normal(4, 4))
    compile_graph(network().graph, dtype=DType.F16)


def test_the_compiled_program_is_accepted():
    """Types fit the rows."""
    compile_graph(network().graph, dtype=DType.F16)


def test_none_changes_nothing():
    """The model says what it computes in."""
    graph = network().graph
    assert precision.run(graph) is graph


@pytest.mark.parametrize(("dtype", "expected"), [(None, "tf32"), (F32, "tf32"), (DType.F16, "exact")])
def test_products_of_f32_take_the_mode(dtype, expected):
    """Those that another type has replaced do not, and neither does anything else."""
    b = network()
    b.output("z", b.matmul(b.input("v", F32, (2, 3)), b.constant(normal(3, 4))))
    nodes = compile_graph(b.graph, dtype=dtype, math="tf32").program.instructions
    modes = {i.row.mnemonic: i.attributes.get("math", "exact") for i in nodes if "math" in i.row.all_attributes}
    assert modes == {"GEMM": expected}


def test_products_of_loops_take_the_mode_too():
    """A step is a graph of its own."""
    b = GraphBuilder()
    w = b.constant(normal(4, 4))
    _, (last,) = b.repeat(lambda c, turn, held, others: ([c.matmul(held[0], w)], []), 3, [b.input("x", F32, (2, 4))])
    b.output("y", last)
    found = compile_graph(b.graph, math="tf32").program.instructions
    assert [i.attributes.get("math") for i in found if i.row.mnemonic == "GEMM"] == ["tf32"]
