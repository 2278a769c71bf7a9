"""The builder: every method means what NumPy means by it, and mistakes are reported where they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dla.compiler.builder import GraphBuilder, Values
from dla.compiler.evaluate import evaluate
from dla.compiler.graph import Value
from dla.compiler.pipeline import compile_graph
from dla.emulator.api import Machine
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

F32, I32, I64, BOOL = DType.F32, DType.I32, DType.I64, DType.BOOL
Build = Callable[[GraphBuilder, Value, Value], Value]
Mean = Callable[[Any, Any], Any]

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms(x: np.ndarray) -> np.ndarray:
    """Scaled to a mean square of 1."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def attended(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Attention in which keys are values too."""
    return softmax(q @ k.swapaxes(-1, -2) / 2) @ k


def running(b: GraphBuilder, x: Values, states: Values, others: Values) -> tuple[Values, Values]:
    """One step of a running sum."""
    total = [b.add(states[0], x[0])]
    return total, total


METHODS: dict[str, tuple[Build, Mean]] = {
    "cast": (lambda b, x, y: b.cast(x, I32), lambda x, y: np.trunc(x).astype(np.int32)),
    "cast to itself": (lambda b, x, y: b.cast(x, F32), lambda x, y: x),
    "constant": (lambda b, x, y: b.add(x, b.constant(np.arange(4), F32)), lambda x, y: x + np.arange(4)),
    "fill": (lambda b, x, y: b.add(x, b.fill((4,), 2, F32)), lambda x, y: x + 2),
    "fill with infinity": (lambda b, x, y: b.ew("min", x, b.fill((4,), np.inf, F32)), lambda x, y: x),
    "iota": (lambda b, x, y: b.add(x, b.iota((4,), F32, start=1, step=2)), lambda x, y: x + np.arange(1, 8, 2)),
    "pad": (lambda b, x, y: b.pad(x, (0, 1, 0), (0, 0, 2), value=5),
            lambda x, y: np.pad(x, ((0, 0), (1, 0), (0, 2)), constant_values=5)),
    "pad by nothing": (lambda b, x, y: b.pad(x, (0, 0, 0), (0, 0, 0)), lambda x, y: x),
    "gather": (lambda b, x, y: b.gather(x, b.constant([2, 0]), -1), lambda x, y: x[:, :, [2, 0]]),
    "scatter": (lambda b, x, y: b.scatter("set", x, b.constant(np.full((2, 1, 4), 2)), b.part(y, 1, 0, 1), 1),
                lambda x, y: np.concatenate([x[:, :2], y[:, :1]], 1)),
    "interpolate": (lambda b, x, y: b.interpolate(x, np.array([[0, 1], [2, 3]]), np.array([[0.5, 0.5], [1, 2]]), 2),
                    lambda x, y: np.stack([(x[..., 0] + x[..., 1]) / 2, x[..., 2] + 2 * x[..., 3]], -1)),
    "reshape": (lambda b, x, y: b.reshape(x, (6, 4)), lambda x, y: x.reshape(6, 4)),
    "transpose": (lambda b, x, y: b.transpose(x, (2, 0, 1)), lambda x, y: x.transpose(2, 0, 1)),
    "swap": (lambda b, x, y: b.swap(x), lambda x, y: x.swapaxes(-1, -2)),
    "slice": (lambda b, x, y: b.slice(x, {-1: 1}, {-1: 2, 1: 2}, {-1: 2}), lambda x, y: x[:, :2, 1::2]),
    "part": (lambda b, x, y: b.part(x, 1, 1, 2), lambda x, y: x[:, 1:]),
    "expand": (lambda b, x, y: b.expand(b.part(x, 0, 0, 1), (5, 3, 4)), lambda x, y: np.repeat(x[:1], 5, 0)),
    "unsqueeze": (lambda b, x, y: b.unsqueeze(x, 0, -1), lambda x, y: x[None, ..., None]),
    "squeeze": (lambda b, x, y: b.squeeze(b.part(x, 1, 0, 1), 1), lambda x, y: x[:, 0]),
    "concat": (lambda b, x, y: b.concat([x, y], -1), lambda x, y: np.concatenate([x, y], -1)),
    "write": (lambda b, x, y: b.write(x, b.part(y, 1, 0, 1), {1: 2}),
              lambda x, y: np.concatenate([x[:, :2], y[:, :1]], 1)),
    "act": (lambda b, x, y: b.act("leaky_relu", x, 0.5), lambda x, y: np.where(x > 0, x, x / 2)),
    "ew": (lambda b, x, y: b.ew("lt", x, y), lambda x, y: x < y),
    "add, sub, mul, div": (lambda b, x, y: b.div(b.mul(b.sub(b.add(x, y), 1), 3), 2), lambda x, y: (x + y - 1) * 3 / 2),
    "a number first": (lambda b, x, y: b.sub(1, x), lambda x, y: 1 - x),
    "select": (lambda b, x, y: b.select(b.ew("gt", x, 0), x, -1), lambda x, y: np.where(x > 0, x, -1)),
    "reduce": (lambda b, x, y: b.reduce("max", x, (0, -1)), lambda x, y: x.max((0, 2))),
    "reduce to another type": (lambda b, x, y: b.reduce("argmax", x, (2,), dtype=I32),
                               lambda x, y: x.argmax(2).astype(np.int32)),
    "reduce nothing": (lambda b, x, y: b.reduce("sum", x, ()), lambda x, y: x),
    "scan": (lambda b, x, y: b.scan("sum", x, 1), lambda x, y: x.cumsum(1)),
    "softmax": (lambda b, x, y: b.softmax(x), lambda x, y: softmax(x)),
    "log softmax": (lambda b, x, y: b.softmax(x, log=True), lambda x, y: np.log(softmax(x))),
    "topk": (lambda b, x, y: b.topk(x, 2, axis=1)[0], lambda x, y: -np.sort(-x, 1)[:, :2]),
    "matmul": (lambda b, x, y: b.matmul(x, b.swap(y), alpha=2, bias=b.constant(np.ones(3, np.float32))),
               lambda x, y: 2 * x @ y.swapaxes(1, 2) + 1),
    "conv": (lambda b, x, y: b.conv(b.unsqueeze(x, -1), b.constant(np.ones((1, 2, 2, 1), np.float32))),
             lambda x, y: (x[:, 1:, 1:] + x[:, :-1, 1:] + x[:, 1:, :-1] + x[:, :-1, :-1])[..., None]),
    "pool": (lambda b, x, y: b.pool("global_max", b.unsqueeze(x, -1)), lambda x, y: x.max((1, 2))[:, None, None, None]),
    "norm": (lambda b, x, y: b.norm("rms", x), lambda x, y: rms(x)),
    "attention": (lambda b, x, y: b.squeeze(b.attention(*(b.unsqueeze(v, 1) for v in (x, y, y))), 1), attended),
    "rope": (lambda b, x, y: b.rope(x, b.fill((3, 2), 0, F32), b.fill((3, 2), 1, F32)),
             lambda x, y: np.concatenate([-x[..., 2:], x[..., :2]], -1)),
    "recurrent": (lambda b, x, y: b.recurrent(running, [x], [b.fill((3, 4), 0, F32)])[0][0],
                  lambda x, y: x.cumsum(0)),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_method_means_what_numpy_means(name: str) -> None:
    """As a graph and as a program; the type that was inferred is that of the result."""
    build, mean = METHODS[name]
    b = GraphBuilder()
    out = build(b, b.input("x", F32, X.shape), b.input("y", F32, Y.shape))
    b.output("out", out)
    expected = np.asarray(mean(X, Y))
    assert out.dims == expected.shape
    given = {"x": X, "y": Y}
    for got in (evaluate(b.graph, given)["out"], Machine("golden").run(compile_graph(b.graph).program, given)["out"]):
        assert got.dtype == out.dtype.numpy
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


MISTAKES: dict[str, tuple[Build, str]] = {
    "axis": (lambda b, x, y: b.softmax(x, 3), "axis 3 does not exist in a tensor of rank 3"),
    "inner dims": (lambda b, x, y: b.matmul(x, y), "the inner dims differ"),
    "broadcast": (lambda b, x, y: b.add(x, b.fill((5,), 0, F32)), r"shapes \[2, 3, 4\] and \[5\] do not broadcast"),
    "types": (lambda b, x, y: b.add(x, b.cast(y, I32)), "EW.add of f32 and i32"),
    "reshape": (lambda b, x, y: b.reshape(x, (5, 5)), r"f32\[2, 3, 4\] cannot be reshaped to \[5, 5\]"),
    "concat": (lambda b, x, y: b.concat([x, b.part(y, 1, 0, 1)], 2), "the other dims differ"),
    "write": (lambda b, x, y: b.write(x, b.part(x, 1, 0, 2), {1: 2}), r"WRITE of .* axis 1, 2 from 2 on .* into 3"),
    "write before": (lambda b, x, y: b.write(x, b.part(x, 0, 0, 1), {0: -1}), "axis 0, 1 from -1 on do not fit into 2"),
    "write of any size": (
        lambda b, x, y: b.write(x, b.input("z", F32, (b.symbol("n", 5), 3, 4)), {}),
        "axis 0, n from 0 on do not fit into 2\n.*lower the bounds",
    ),
    "expand": (lambda b, x, y: b.expand(x, (2, 3, 8)), "do not broadcast"),
    "function": (lambda b, x, y: b.act("rellu", x), "ACT has no function 'rellu'\n.*did you mean 'relu'"),
    "attribute": (
        lambda b, x, y: b.pool("max", b.unsqueeze(x, -1), windows=(2, 2)),
        "POOL.max has no attribute 'windows'\n.*did you mean 'window'",
    ),
    "operator": (lambda b, x, y: b.emit("CONVOLVE", [x]), "there is no operator 'CONVOLVE'"),
    "constant": (lambda b, x, y: b.constant(np.zeros(3, np.complex64)), "no place in the machine"),
    "state": (lambda b, x, y: b.set_state("nobody", x) or x, "there is no state 'nobody'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_where_it_is_made(name: str) -> None:
    """The line of the caller's program that is wrong raises, not the compilation later on."""
    build, message = MISTAKES[name]
    b = GraphBuilder()
    with pytest.raises(ModelError, match=message):
        build(b, b.input("x", F32, X.shape), b.input("y", F32, Y.shape))


def test_names_are_given_once() -> None:
    """Inputs and outputs."""
    b = GraphBuilder()
    x = b.input("x", F32, (1,))
    b.output("y", x)
    with pytest.raises(ModelError, match="named 'x'"):
        b.input("x", F32, (1,))
    with pytest.raises(ModelError, match="named 'y'"):
        b.output("y", x)


def test_a_state_keeps_its_type() -> None:
    """What it becomes has the type that it was declared with."""
    b = GraphBuilder()
    x = b.input("x", F32, (1,))
    b.state("s", F32, (2,))
    with pytest.raises(ModelError, match=r"the state 's' is f32\[2\], and cannot become f32\[1\]"):
        b.set_state("s", x)


def test_a_size_has_one_bound() -> None:
    """Asking for it again gives the same size."""
    b = GraphBuilder()
    assert b.symbol("batch", 4) == b.symbol("batch", 4)
    with pytest.raises(ModelError, match="'batch' is at most 4, and cannot be at most 5"):
        b.symbol("batch", 5)


def test_small_constants_are_shared_and_computed_at_once() -> None:
    """So shapes may depend on them."""
    b = GraphBuilder()
    one = b.constant(1, F32)
    assert b.constant(np.float32(1)) is one
    total = b.add(one, 2)
    assert total.constant == 3
    assert not b.graph.nodes


def appending() -> GraphBuilder:
    """A state that runs append to: x goes to `used`, and out comes the sum of all so far."""
    b = GraphBuilder("appending")
    used, count = b.symbol("used", 9), b.symbol("count", 4)
    after = b.write(b.state("rows", F32, (13, 2)), b.act("neg", b.input("x", F32, (count, 2))), {0: used})
    b.set_state("rows", after)
    b.output("sum", b.reduce("sum", b.part(after, 0, 0, used + count), (0,)))
    return b


def test_a_size_that_no_input_has_is_set_when_the_program_runs() -> None:
    """What is appended to a state is written there by the instruction that computes it: nothing is copied."""
    compiled = compile_graph(appending().graph)
    assert [i.name for i in compiled.program.instructions if i.row.operands] == ["ACT.neg", "REDUCE.sum"]
    session = Machine("golden").load(compiled.program)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert session.run({"x": x[:3]}, {"used": 0})["sum"].tolist() == (-x[:3].sum(0)).tolist()
    assert session.run({"x": x[3:]}, {"used": 3})["sum"].tolist() == (-x.sum(0)).tolist()
    np.testing.assert_array_equal(session.run({"x": x[:0]}, {"used": 4}).state["rows"][:4], -x)


def test_a_graph_is_evaluated_with_such_sizes_too() -> None:
    """They are given by name."""
    rows = np.arange(26, dtype=np.float32).reshape(13, 2)
    x = np.ones((1, 2), np.float32)
    found = evaluate(appending().graph, {"x": x}, {"rows": rows}, {"used": 2})
    np.testing.assert_array_equal(found["sum"], rows[:2].sum(0) - 1)


def test_a_state_that_is_read_elsewhere_keeps_its_value_until_then() -> None:
    """Its part is not written before."""
    b = GraphBuilder()
    state = b.state("s", F32, (3,))
    part = b.act("neg", b.input("x", F32, (2,)))
    b.output("old", b.mul(b.reduce("sum", state), b.reduce("sum", part)))
    b.set_state("s", b.write(state, part, {0: 1}))
    session = Machine("golden").load(compile_graph(b.graph).program)
    x = np.float32([1, 2])
    assert [float(session.run({"x": x})["old"]) for _ in range(2)] == [0, 9]


def test_what_is_written_over_repeated_rows_of_a_state_has_rows_of_its_own() -> None:
    """A state's one row is there four times, of which one is changed."""
    for count in (1, 2):
        b = GraphBuilder()
        state = b.state("s", F32, (1, 3))
        x = b.input("x", F32, (count, 3))
        b.set_state("s", b.act("neg", b.part(x, 0, 0, 1)))
        b.output("y", b.write(b.expand(state, (4, 3)), x, {0: 1}))
        y = Machine("golden").run(compile_graph(b.graph).program, {"x": np.ones((count, 3), np.float32)})["y"]
        assert y[:, 0].tolist() == [0, *[1] * count, *[0] * (3 - count)]


def test_a_part_that_is_read_again_is_not_computed_where_a_later_write_may_change_it() -> None:
    """Two parts of a state overlap, and the first one is used after the second is there."""
    b = GraphBuilder()
    first = b.act("neg", b.input("x", F32, (2,)))
    second = b.act("abs", b.input("y", F32, (2,)))
    after = b.write(b.write(b.state("s", F32, (3,)), first, {0: 0}), second, {0: 1})
    b.set_state("s", after)
    b.output("sum", b.add(first, b.part(after, 0, 0, 2)))
    result = Machine("golden").run(
        compile_graph(b.graph).program, {"x": np.float32([1, 2]), "y": np.float32([-5, -6])}
    )  # fmt: skip
    assert result["sum"].tolist() == [-2, 3]
    assert result.state["s"].tolist() == [-1, 5, 6]
