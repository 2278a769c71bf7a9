"""The driver of rewriting passes: what it promises to rules."""

from __future__ import annotations

import pytest

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Node, Value
from dla.compiler.passes.rewrite import rewrite
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError


def double_negation(node: Node, b: GraphBuilder) -> Value | None:
    """neg(neg(x)) is x."""
    source = node.inputs[0]
    assert source is not None
    inner = source.made_by("ACT", "neg") if node.sub == "neg" else None
    return inner.inputs[0] if inner else None


def negations(count: int) -> GraphBuilder:
    """abs(neg(... neg(exp(x))))."""
    b = GraphBuilder()
    x = b.input("x", DType.F32, (4,))
    y = b.act("exp", x)
    for _ in range(count):
        y = b.act("neg", y)
    b.output("y", b.act("abs", y))
    return b


@pytest.mark.parametrize(("count", "left"), [(1, 1), (2, 0), (7, 1), (8, 0)])
def test_rules_apply_until_none_fits(count: int, left: int) -> None:
    """Pairs of negations go, at whatever depth."""
    graph = rewrite(negations(count).graph, {"ACT": [double_negation]})
    assert [n.sub for n in graph.nodes] == ["exp", *["neg"] * left, "abs"]


def test_new_nodes_take_label_and_place_of_what_they_replace() -> None:
    """Messages and the order of instructions follow the source."""
    b = negations(1)
    for order, node in enumerate(b.graph.nodes):
        node.order = float(order)
    b.graph.nodes[1].label = "negation"
    graph = rewrite(b.graph, {"ACT": [lambda node, b: b.mul(node.inputs[0], -1.0) if node.sub == "neg" else None]})
    assert [n.name for n in graph.nodes] == ["ACT.exp", "EW.mul", "ACT.abs"]
    assert graph.nodes[1].label == "negation"
    assert graph.nodes[1].order == 1


def test_nodes_of_a_rule_that_gives_up_leave_no_users() -> None:
    """A rule may build first and think better of it."""
    b = negations(2)

    def gives_up(node: Node, b: GraphBuilder) -> None:
        b.act("cos", b.act("sin", node.inputs[0]))

    seen = []

    def counts_users(node: Node, b: GraphBuilder) -> None:
        seen.append(b.graph.only_user(node.inputs[0]) is not None or node.inputs[0].producer is None)

    graph = rewrite(b.graph, {"ACT": [gives_up, counts_users]})
    assert len(graph.nodes) == 4
    assert all(seen)
    assert b.graph.inputs["x"].users == [graph.nodes[0]]


def test_dead_nodes_are_not_users_while_rules_run() -> None:
    """After a negation pair is gone, the value under it has one user again."""
    b = GraphBuilder()
    x = b.act("exp", b.input("x", DType.F32, (4,)))
    b.output("y", b.add(b.act("neg", b.act("neg", x)), 1.0))
    users = []

    def look(node: Node, b: GraphBuilder) -> None:
        users.append(len(node.inputs[0].producer.outputs[0].users))

    rewrite(b.graph, {"ACT": [double_negation], "EW": [look]})
    assert users[-1] == 1


def test_rules_that_undo_each_other_are_an_error() -> None:
    """Instead of a compiler that never ends."""

    def flip(node: Node, b: GraphBuilder) -> Value:
        return b.ew(node.sub, node.inputs[1], node.inputs[0])

    b = GraphBuilder()
    b.output("y", b.add(b.input("x", DType.F32, (4,)), 1.0))
    with pytest.raises(ModelError, match="undo each other"):
        rewrite(b.graph, {"EW": [flip]})


def test_a_replacement_of_another_type_is_caught() -> None:
    """A rule that changes a type is a defect of the rule."""
    b = negations(1)
    with pytest.raises(AssertionError, match="replaces"):
        rewrite(b.graph, {"ACT": [lambda node, b: b.constant(1.0, DType.F32)]})


def test_a_rule_that_asks_for_what_no_row_does_does_not_fit() -> None:
    """Rows state their constraints once; a rule relies on them."""
    b = negations(1)

    def to_bool(node: Node, b: GraphBuilder) -> Value:
        return b.ew("and", node.inputs[0], node.inputs[0])

    graph = rewrite(b.graph, {"ACT": [to_bool]})
    assert [n.name for n in graph.nodes] == ["ACT.exp", "ACT.neg", "ACT.abs"]
