"""Loops over time: whatever a step does with its states, the program does what the graph means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dla.compiler.builder import GraphBuilder, Values
from dla.compiler.dims import Dim, symbol
from dla.compiler.evaluate import evaluate
from dla.compiler.graph import Graph
from dla.compiler.pipeline import Compiled, compile_graph
from dla.emulator.api import Machine
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

Step = Callable[[GraphBuilder, Values, Values, Values], tuple[Values, Values]]
T, N = symbol("T", 6), symbol("N", 3)


def _sum(b: GraphBuilder, x: Values, states: Values, others: Values) -> tuple[Values, Values]:
    total = b.add(states[0], x[0])
    return [total, states[1]], [total]


def _swap(b: GraphBuilder, x: Values, states: Values, others: Values) -> tuple[Values, Values]:
    return [states[1], states[0]], [b.add(states[0], x[0])]


def _rotate_by_views(b: GraphBuilder, x: Values, states: Values, others: Values) -> tuple[Values, Values]:
    flat = b.reshape(states[1], (states[1].dims[0], 2, 2))
    return [b.reshape(b.swap(flat), states[0].dims), b.add(states[0], x[0])], [states[1]]


def _old_and_new(b: GraphBuilder, x: Values, states: Values, others: Values) -> tuple[Values, Values]:
    new = b.mul(b.add(states[0], x[0]), 0.5)
    late = b.add(states[0], new)  # reads the old state after the new one is there
    return [new, late], [late, states[0]]


def _products(b: GraphBuilder, x: Values, states: Values, others: Values) -> tuple[Values, Values]:
    h = b.act("tanh", b.matmul(states[0], others[0], c=x[0]))
    return [h, b.matmul(states[1], others[0])], [h, h]


def _constants(b: GraphBuilder, x: Values, states: Values, others: Values) -> tuple[Values, Values]:
    one = b.constant(np.ones((1, 4), np.float32))
    return [b.expand(one, states[0].dims), b.add(states[1], states[0])], [b.expand(others[1], x[0].dims)]


def _nested(b: GraphBuilder, x: Values, states: Values, others: Values) -> tuple[Values, Values]:
    def inner(c: GraphBuilder, rows: Values, held: Values, rest: Values) -> tuple[Values, Values]:
        new = c.add(c.mul(held[0], rest[0]), rows[0])
        return [new], [new]

    (made,), (last,) = b.recurrent(inner, [b.swap(others[0])], [b.reshape(others[1], (4,))], [others[1]], reverse=True)
    return [b.add(states[0], last), b.matmul(states[1], made)], [x[0]]


STEPS = [_sum, _swap, _rotate_by_views, _old_and_new, _products, _constants, _nested]


def _graph(step: Step, steps: Dim, *, reverse: bool, results: bool = True) -> Graph:
    b = GraphBuilder()
    x = b.input("x", DType.F32, (steps, N, 4))
    start = [b.input(name, DType.F32, (N, 4)) for name in ("s", "t")]
    others = [b.input("w", DType.F32, (4, 4)), b.input("v", DType.F32, (4,))]
    made, final = b.recurrent(step, [x], start, others, reverse=reverse)
    for k, value in enumerate([*(made if results else []), *final]):
        b.output(f"o{k}", value)
    return b.graph


def _check(graph: Graph, compiled: Compiled, steps: int, samples: int) -> None:
    rng = np.random.default_rng(steps)
    shapes = {"x": (steps, samples, 4), "s": (samples, 4), "t": (samples, 4), "w": (4, 4), "v": (4,)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found = Machine("golden").run(compiled.program, inputs).outputs
    for name, wanted in evaluate(graph, inputs).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__.strip("_"))
def test_steps(step: Step, reverse: bool) -> None:
    """Programs of constant and of symbolic length give what the graph means, also for no step at all."""
    for steps, lengths in ((5, [5]), (1, [1]), (T, [0, 1, 6])):
        compiled = compile_graph(_graph(step, steps, reverse=reverse))
        for length in lengths:
            _check(_graph(step, steps, reverse=reverse), compiled, length, 2)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__.strip("_"))
def test_results_that_nobody_wants(step: Step) -> None:
    """Nothing is stacked then."""
    compiled = compile_graph(_graph(step, T, reverse=False, results=False))
    _check(_graph(step, T, reverse=False, results=False), compiled, 4, 3)


def test_registers_of_loops_are_their_own() -> None:
    """A size that is computed at the start, but needed after a loop only, is not in a register that the loop uses."""

    def graph() -> Graph:
        b = GraphBuilder()
        x, start = b.input("x", DType.F32, (T, N, 4)), b.input("s", DType.F32, (N, 4))
        others = [b.input("t", DType.F32, (N, 4)), b.input("w", DType.F32, (4, 4)), b.input("v", DType.F32, (4,))]
        made, last = b.recurrent(lambda c, x, s, o: ([c.add(s[0], x[0])], [x[0]]), [x], [start], reverse=True)
        back, _ = b.recurrent(lambda c, x, s, o: ([c.add(s[0], x[0])], [s[0]]), made, last, reverse=True)
        b.output("o0", b.fill((2, 1), T * N + T, DType.I64))
        b.output("o1", b.concat([back[0], x, x], 0))
        b.output("o2", b.add(others[0], b.reduce("sum", b.mul(others[1], others[2]))))
        return b.graph

    _check(graph(), compile_graph(graph()), 5, 2)


def test_text_shows_the_step() -> None:
    """A loop's step is written below it."""
    lines = str(_graph(_swap, T, reverse=True)).splitlines()
    loop = next(k for k, line in enumerate(lines) if "RECURRENT" in line)
    assert "reverse=True" in lines[loop]
    assert lines[loop + 1] == "    graph model#0"


def test_types_must_fit() -> None:
    """A state that becomes another type is refused where it is built."""
    b = GraphBuilder()
    x = b.input("x", DType.F32, (3, 4))
    with pytest.raises(ModelError, match="its step is for other types"):
        b.recurrent(lambda c, x, s, o: ([c.cast(s[0], DType.F16)], []), [x], [b.constant(np.zeros(4, np.float32))])


@pytest.mark.parametrize("read", ["as states", "as another input too", "elsewhere too"])
def test_states_are_filled_where_they_lie(read: str) -> None:
    """A number that two states begin with is no tensor of its own, unless something else reads it."""
    b = GraphBuilder("filled")
    x, start = b.input("x", DType.F32, (T, N, 4)), b.fill((N, 4), 0.5, DType.F32)

    def step(c: GraphBuilder, slices: Values, states: Values, others: Values) -> tuple[Values, Values]:
        total = c.add(states[0], slices[0])
        return [total, c.mul(states[1], total if not others else c.add(total, others[0]))], []

    _, (first, second) = b.recurrent(step, [x], [start, start], [start] if "another" in read else [])
    b.output("first", first)
    b.output("second", second)
    if "elsewhere" in read:
        b.output("start", start)
    given = {"x": np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)}
    expected = evaluate(b.graph, given)
    program = compile_graph(b.graph).program
    result = Machine("golden").run(program, given)
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-6)
    before = [i.row.mnemonic for i in program.instructions]
    before = before[: before.index("LOOP")]
    assert before == (["FILL"] * 2 if read == "as states" else ["FILL", "COPY", "COPY"])
