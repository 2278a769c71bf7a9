"""Loops that carry tensors along: what is written where it lies, and what must not be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dla.compiler.builder import GraphBuilder, Turn, Values
from dla.compiler.dims import Dim, symbol
from dla.compiler.evaluate import evaluate
from dla.compiler.graph import Graph
from dla.compiler.pipeline import compile_graph
from dla.emulator.api import Machine
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError
from dla.isa.program import Program

COUNT = symbol("count", 6)
ROWS = 8


def _append(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """A row of the buffer follows from the one before it."""
    new = b.matmul(b.part(held[0], 0, turn, 1), others[0])
    return [b.write(held[0], new, {0: turn + 1}), held[1]], []


def _placed(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """Nothing reads the buffer before it is written."""
    after = b.write(held[0], b.matmul(b.part(held[1], 0, 1, 1), others[0]), {0: turn})
    return [after, b.add(held[1], b.part(after, 0, turn, 1))], []


def _flat(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """The buffer is written as another shape; what is written reaches into the row after it."""
    flat = b.reshape(held[0], (1, ROWS * 4))
    row = b.matmul(b.part(held[1], 0, 0, 1), b.concat([others[0], others[0]], 1))
    flat = b.write(flat, row, {1: turn * 4})
    return [b.reshape(flat, (ROWS, 4)), b.add(held[1], b.part(flat, 1, (turn + 1) * 4, 4))], []


def _old_is_read(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """The old value is read after the new one is there."""
    after = b.write(held[0], b.matmul(b.part(held[1], 0, 0, 1), others[0]), {0: turn})
    return [after, b.add(held[0], after)], [b.part(held[0], 0, turn, 1)]


def _over_others(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """What is written over a tensor of all turns is there in this turn only."""
    changed = b.write(others[0], b.part(held[0], 0, 0, 1), {0: 1})
    return [b.matmul(held[0], changed), b.matmul(held[1], others[0])], []


def _swapped(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """Two buffers change places, and one is written."""
    return [b.write(held[1], b.part(held[0], 0, turn, 1), {0: turn + 1}), held[0]], [b.part(held[1], 0, 0, 2)]


def _twice(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """A product is written, and then changed where it lies; both by way of the buffer."""
    made = b.matmul(b.part(held[1], 0, 1, 1), others[0])
    row = b.concat([b.part(made, 1, 0, 1), b.act("tanh", b.part(made, 1, 1, 3))], 1)
    after = b.write(held[0], row, {0: turn + 1})
    return [after, b.add(held[1], b.part(after, 0, turn + 1, 1))], []


def _by_turns(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """A loop in a loop, whose turns are numbered by themselves."""

    def inner(c: GraphBuilder, at: Dim, rows: Values, rest: Values) -> tuple[Values, Values]:
        return [c.write(rows[0], c.mul(c.part(rows[0], 0, turn, 1), 0.5), {0: turn + at})], []

    _, (after,) = b.repeat(inner, 2, [held[0]])
    return [after, held[1]], []


def _aside(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """What is written over a buffer is a result of the turn alone, and the buffer becomes something else."""
    changed = b.write(held[0], b.part(held[1], 0, turn, 1), {0: 2})
    return [b.matmul(held[1], others[0]), b.mul(held[1], 0.5)], [changed]


def _aside_later(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """The same, where what becomes of the buffers is there already."""
    changed = b.write(held[0], b.part(held[1], 0, turn, 1), {0: 2})
    return [others[1], held[1]], [changed, b.act("neg", changed)]


def _repeated(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
    """A row of the buffer is there in all its rows, and one of these is written."""
    rows = b.expand(b.part(held[0], 0, 0, 1), (ROWS, 4))
    return [b.write(rows, b.part(held[1], 0, 1, 2), {0: turn + 1}), held[1]], []


TURNS = [
    _append,
    _placed,
    _flat,
    _old_is_read,
    _over_others,
    _swapped,
    _twice,
    _by_turns,
    _aside,
    _aside_later,
    _repeated,
]


def _graph(turn: Turn, count: Dim, *, kept: bool) -> Graph:
    """The loop; its first state is a state of the program if it is `kept`."""
    b = GraphBuilder("loop")
    given = [b.input(name, DType.F32, (ROWS, 4)) for name in ("s", "t")]
    weights = b.input("w", DType.F32, (4, 4))
    if isinstance(count, int):
        b.symbol("count", 6)
    else:
        b.graph.sizes |= count.symbols
    first = b.write(b.state("kept", DType.F32, (ROWS, 4)), b.part(given[0], 0, 0, 2), {0: 0}) if kept else given[0]
    made, final = b.repeat(turn, count, [first, given[1]], [weights, given[0]])
    if kept:
        b.set_state("kept", final[0])
    for k, value in enumerate([*made, *final]):
        b.output(f"o{k}", value)
    return b.graph


def _compare(program: Program, graph: Graph, count: int) -> None:
    rng = np.random.default_rng(count)
    inputs = {name: rng.standard_normal((ROWS, 4)).astype(np.float32) for name in ("s", "t")}
    inputs["w"] = rng.standard_normal((4, 4)).astype(np.float32)
    found = Machine("golden").run(program, inputs, {"count": count}).outputs
    for name, wanted in evaluate(graph, inputs, sizes={"count": count}).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept", [False, True], ids=["of the loop", "of the program"])
@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.__name__.strip("_"))
def test_turns(turn: Turn, kept: bool) -> None:
    """Programs give what the graph means, for as many turns as are asked for, also for none."""
    for bound, counts in ((5, [5]), (COUNT, [0, 1, 6])):
        program = compile_graph(_graph(turn, bound, kept=kept)).program
        for count in counts:
            _compare(program, _graph(turn, bound, kept=kept), count)


def _inside(program: Program) -> list[str]:
    names = [i.name for i in program.instructions]
    return [n for n in names[names.index("LOOP") + 1 : names.index("ENDLOOP")] if not n.startswith("ALU")]


@pytest.mark.parametrize(
    ("turn", "expected"),
    [(_placed, ["GEMM", "EW.add"]), (_twice, ["GEMM", "ACT.tanh", "EW.add"])],
    ids=["at once", "and changed"],
)
def test_what_is_written_over_a_state_is_computed_there(turn: Turn, expected: list[str]) -> None:
    """Without copies: of a program's state, and of a loop's."""
    for kept in (False, True):
        assert _inside(compile_graph(_graph(turn, COUNT, kept=kept)).program) == expected


def test_a_first_value_and_those_after_it_are_one_tensor() -> None:
    """Where both are parts of one CONCAT, the loop reads and writes there."""
    b = GraphBuilder("counting")
    first = b.act("neg", b.input("x", DType.F32, (2,)))
    step: Callable[..., tuple[Values, Values]] = lambda c, turn, held, others: 2 * ([c.add(held[0], 1.0)],)  # noqa: E731
    (rest,), _ = b.repeat(step, b.symbol("count", 6) - 1, [first])
    b.output("y", b.swap(b.concat([b.reshape(first, (1, 2)), rest], 0)))
    program = compile_graph(b.graph).program
    assert [i.name for i in program.instructions if i.row.operands] == ["ACT.neg", "EW.add"]
    found = Machine("golden").run(program, {"x": np.float32([1, 2])}, {"count": 4})["y"]
    np.testing.assert_array_equal(found, [[-1, 0, 1, 2], [-2, -1, 0, 1]])


def test_a_turn_knows_its_number_and_nobody_else_does() -> None:
    """A size of one turn is none of the program."""
    b = GraphBuilder("leak")
    seen: list[Dim] = []

    def turn(c: GraphBuilder, number: Dim, held: Values, others: Values) -> tuple[Values, Values]:
        seen.append(number)
        return [c.add(held[0], c.fill((2,), number, DType.F32))], []  # type: ignore[arg-type]

    _, (last,) = b.repeat(turn, 4, [b.input("x", DType.F32, (2,))])
    b.output("y", last)
    np.testing.assert_array_equal(evaluate(b.graph, {"x": np.zeros(2, np.float32)})["y"], [6, 6])
    b.output("z", b.fill((2,), seen[0], DType.F32))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="needs the size 'leak#0'"):
        compile_graph(b.graph)
