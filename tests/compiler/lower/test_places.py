"""A CONCAT of parts of one value, some of them changed, is that value changed where it lies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dla.compiler.builder import GraphBuilder
from dla.compiler.evaluate import evaluate
from dla.compiler.graph import Value
from dla.compiler.pipeline import compile_graph
from dla.emulator.api import Machine
from dla.isa.dtypes import DType

Build = Callable[[GraphBuilder, Value], Value]


def _halves(b: GraphBuilder, x: Value) -> tuple[Value, Value]:
    return b.part(x, 1, 0, 4), b.part(x, 1, 4, 4)


def _second(b: GraphBuilder, x: Value) -> Value:
    kept, changed = _halves(b, x)
    return b.concat([kept, b.act("tanh", changed)], 1)


def _both(b: GraphBuilder, x: Value) -> Value:
    first, second = _halves(b, x)
    return b.concat([b.act("tanh", first), b.softmax(second)], 1)


def _heads(b: GraphBuilder, x: Value) -> Value:
    kept, changed = _halves(b, x)
    heads = b.transpose(b.reshape(changed, (3, 2, 2)), (1, 0, 2))
    turned = b.softmax(heads)
    return b.concat([kept, b.reshape(b.transpose(turned, (1, 0, 2)), (3, 4))], 1)


def _exchanged(b: GraphBuilder, x: Value) -> Value:
    first, second = _halves(b, x)
    return b.concat([b.act("tanh", second), first], 1)


def _mixed(b: GraphBuilder, x: Value) -> Value:
    """Columns of a head become those of another: nothing may be written where it is read."""
    kept, changed = _halves(b, x)
    heads = b.softmax(b.reshape(changed, (3, 2, 2)))
    return b.concat([kept, b.reshape(b.transpose(heads, (0, 2, 1)), (3, 4))], 1)


def _read_again(b: GraphBuilder, x: Value) -> Value:
    kept, changed = _halves(b, x)
    return b.mul(b.concat([kept, b.act("tanh", changed)], 1), x)


def _part_read_again(b: GraphBuilder, x: Value) -> Value:
    kept, changed = _halves(b, x)
    return b.mul(b.concat([kept, b.act("tanh", changed)], 1), b.reduce("sum", changed, (1,), keepdims=True))


def _overlapping(b: GraphBuilder, x: Value) -> Value:
    return b.concat([b.part(x, 1, 0, 4), b.act("tanh", b.part(x, 1, 3, 4))], 1)


def _a_sum(b: GraphBuilder, x: Value) -> Value:
    first, second = _halves(b, x)
    return b.concat([first, b.add(second, first)], 1)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (_second, ["GEMM", "ACT.tanh"]),
        (_both, ["GEMM", "ACT.tanh", "SOFTMAX.soft"]),
        (_heads, ["GEMM", "SOFTMAX.soft"]),
        (_exchanged, ["GEMM", "ACT.tanh", "COPY"]),
        (_mixed, None),
        (_read_again, None),
        (_part_read_again, None),
        (_overlapping, None),
        (_a_sum, None),
    ],
    ids=lambda given: given.__name__.strip("_") if callable(given) else "",
)
def test_parts_of_one_product(build: Build, expected: list[str] | None) -> None:
    """In place where that is right, and right wherever it is not."""
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((3, 5)).astype(np.float32)}
    weights = rng.standard_normal((5, 8)).astype(np.float32)
    for written in (False, True):
        b = GraphBuilder()
        y = build(b, b.matmul(b.input("x", DType.F32, (3, 5)), b.constant(weights, name="w")))
        if written:
            b.set_state("s", b.write(b.state("s", DType.F32, (7, 8)), y, {0: 2}))
            b.output("y", b.act("neg", b.graph.states["s"].after))
        else:
            b.output("y", b.act("neg", y))
        compiled = compile_graph(b.graph)
        if expected is not None:
            names = [i.name for i in compiled.program.instructions if i.row.operands]
            assert sorted(names) == sorted([*expected, "ACT.neg"])
        found = Machine("golden").run(compiled.program, inputs)["y"]
        np.testing.assert_allclose(found, evaluate(compiled.graph, inputs)["y"], rtol=1e-5, atol=1e-6)
