"""The check of graphs: what passes may do, and every kind of damage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dla.compiler import pipeline
from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import symbol
from dla.compiler.graph import Graph, TensorType, Value
from dla.compiler.verify import verify_graph
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

F32 = DType.F32


def sound() -> Graph:
    """The output relu(x @ w + x), and a state that counts."""
    b = GraphBuilder("sound")
    x = b.input("x", F32, (symbol("batch", 4), 3))
    b.label = "product"
    product = b.matmul(x, b.constant(np.ones((3, 3), np.float32)))
    b.label = "sum"
    b.output("y", b.act("relu", b.add(product, x)))
    count = b.state("count", DType.I64, ())
    b.set_state("count", b.add(count, 1))
    return b.graph


def of(graph: Graph, op: str):
    """The node of that operator."""
    return next(n for n in graph.nodes if n.op == op)


def test_a_built_graph_is_sound() -> None:
    """What the builder makes keeps every promise."""
    verify_graph(sound())


def swapped(graph: Graph) -> None:
    """A node stands before one that it needs."""
    graph.nodes[0], graph.nodes[1] = graph.nodes[1], graph.nodes[0]


def dropped(graph: Graph) -> None:
    """A node that is needed is not listed."""
    graph.nodes.remove(of(graph, "ACT"))


def twice(graph: Graph) -> None:
    """A node is listed twice."""
    graph.nodes.append(graph.nodes[-1])


def retyped(graph: Graph) -> None:
    """A value has a type that does not follow from its node."""
    value = of(graph, "GEMM").output
    value.type = TensorType(F32, (symbol("batch", 4), 7))


def another_float(graph: Graph) -> None:
    """A comparison gives a float."""
    of(graph, "ACT").sub = "isnan"


def unknown_reader(graph: Graph) -> None:
    """A value does not know who reads it."""
    of(graph, "GEMM").output.users.clear()


def stale_reader(graph: Graph) -> None:
    """A value says that a node reads it that does not."""
    graph.outputs["y"].users.append(of(graph, "GEMM"))


def no_operator(graph: Graph) -> None:
    """A node is of no operator."""
    of(graph, "ACT").op = "ACTS"


def no_output(graph: Graph) -> None:
    """An output is a value of nowhere."""
    graph.outputs["y"] = Value(TensorType(F32, (1,)))


def state_of_another_type(graph: Graph) -> None:
    """A state becomes something that does not fit it."""
    graph.states["count"].after = graph.inputs["x"]


def name_taken(graph: Graph) -> None:
    """An input and a state have one name."""
    graph.inputs["count"] = Value(TensorType(F32, (1,)), "count")


def not_its_producer(graph: Graph) -> None:
    """A value says that something else makes it."""
    of(graph, "ACT").output.producer = of(graph, "GEMM")


def two_bounds(graph: Graph) -> None:
    """A size has two bounds."""
    graph.inputs["z"] = Value(TensorType(F32, (symbol("batch", 9),)), "z")


DAMAGE: dict[Callable[[Graph], None], str] = {
    swapped: "reads",
    dropped: "nothing makes the result 'y'",
    twice: "a second time",
    retyped: r"GEMM \(product\) makes value: f32\[batch, 7\], and should make f32\[batch, 3\]",
    another_float: r"should make bool\[batch, 3\]",
    unknown_reader: "does not know of it",
    stale_reader: "1 times, but is read by it 0 times",
    no_operator: "no such operator",
    no_output: "nothing makes the result 'y'",
    state_of_another_type: r"the state 'count' is i64\[\], and becomes f32\[batch, 3\]",
    name_taken: "an input and a state are named 'count'",
    not_its_producer: "says that something else does",
    two_bounds: "the size 'batch' has different bounds",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_damage_is_found(damage: Callable[[Graph], None]) -> None:
    """Each promise that a pass may break is checked, and the message says which."""
    graph = sound()
    damage(graph)
    with pytest.raises(ModelError, match=DAMAGE[damage]):
        verify_graph(graph)


def test_the_pass_that_did_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline asks after every pass."""

    def bad(graph: Graph) -> Graph:
        graph.sweep()
        swapped(graph)
        return graph

    monkeypatch.setitem(pipeline.PASSES, "fold", bad)
    with pytest.raises(ModelError, match="the pass 'fold' damaged the graph; please report this"):
        pipeline.compile_graph(sound())


def test_a_size_that_nobody_sets_is_named_with_the_remedy() -> None:
    """A symbol that is in no input's shape must be declared."""
    b = GraphBuilder("sizes")
    x = b.input("x", F32, (8,))
    b.output("y", b.part(x, 0, 0, symbol("used", 8)))
    with pytest.raises(ModelError, match=r"the graph 'sizes' is not sound.*'used'.*b\.symbol\('used', 8\)"):
        pipeline.compile_graph(b.graph)


def test_steps_of_loops_are_checked_too() -> None:
    """The graph of a loop's step is a graph."""
    b = GraphBuilder()
    x, start = b.input("x", F32, (4, 2)), b.input("start", F32, (2,))
    (made,), _ = b.recurrent(lambda c, s, h, o: ([c.add(h[0], s[0])],) * 2, [x], [start])
    b.output("y", made)
    verify_graph(b.graph)
    body = b.graph.nodes[0].attributes["body"].graph
    body.nodes[0].op = "nothing"
    with pytest.raises(ModelError, match="no such operator"):
        verify_graph(b.graph)


def test_readers_of_other_outputs_are_forgotten_with_their_nodes() -> None:
    """A dropped node is no user any more, also of a second output that only it read."""
    b = GraphBuilder()
    values, indices = b.topk(b.input("x", F32, (3, 5)), 2)
    b.cast(indices, DType.F32)
    b.output("y", values)
    b.graph.sweep()
    verify_graph(b.graph)
