"""Rewriting by rules: the driver of the passes that replace patterns of nodes.

A rule looks at one node, the last of its pattern, and gives what to read instead of the node's outputs, or None where
the pattern is not there:

    def double_negation(node: Node, b: GraphBuilder) -> Value | None:
        inner = node.inputs[0].made_by("ACT", "neg") if node.sub == "neg" else None
        return inner.inputs[0] if inner else None

    def run(graph: Graph) -> Graph:
        return rewrite(graph, {"ACT": [double_negation]})

Rules are found by the node's `op`; the first that fits wins, and rules are tried again on what it made, and on all
nodes until nothing changes. Nodes that a rule makes with `b` get the label and the order of the node that they
replace. Nodes that nobody reads any more, in the pattern or made by a rule that then gave None, are dropped at once,
so `b.graph.only_user` tells the truth. A rule need not repeat the constraints of the rows that it makes: where the
builder raises ModelError, the pattern counts as not there. Three duties of a rule:

- The replacement has exactly the type (element type and dims) of what it replaces.
- It must not make the graph larger for ever, or undo what another rule of the pass does.
- Where a pattern's inner value has other users (`b.graph.only_user(value) is None`), its nodes stay: fuse only if
  computing them twice costs nothing, as with views.

`graph.nodes` may be out of order while rules run; sweep() restores the order before `rewrite` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Node, Value
from dla.isa.errors import ModelError

Replacement = Value | tuple[Value, ...] | None
"""What to read instead of a node's outputs, or None for no change."""

Rule = Callable[[Node, GraphBuilder], Replacement]

Rules = Mapping[str, Sequence[Rule]]
"""Rules by the `op` of the node that they look at."""

REWRITES_PER_NODE = 50
"""More rewritings than this per node of the graph mean that two rules undo each other."""


def rewrite(graph: Graph, rules: Rules) -> Graph:
    """`graph` with `rules` applied until none fits any more, swept."""
    b = GraphBuilder(graph=graph)
    left = REWRITES_PER_NODE * (len(graph.nodes) + 20)
    changed = True
    while changed:
        changed = False
        graph.sweep()
        for node in list(graph.nodes):
            waiting = [node]
            while waiting:
                found = _apply(waiting.pop(), b, rules)
                if found is not None:
                    changed = True
                    waiting += reversed(found)
                    left -= 1
                    if left < 0:
                        raise ModelError("two rewriting rules undo each other; please report this")
    graph.sweep()
    return graph


def _apply(node: Node, b: GraphBuilder, rules: Rules) -> list[Node] | None:
    """Let the first rule that fits replace `node`. Returns the new nodes, or None where no rule fits."""
    graph = b.graph
    if node.op not in rules or not _is_used(graph, node):
        return None
    b.label, b.order = node.label, node.order
    for rule in rules[node.op]:
        before = len(graph.nodes)
        try:
            given = rule(node, b)
        except ModelError:  # the machine has no such row: its dims are not static, or its types do not fit
            given = None
        made = graph.nodes[before:]
        if given is None:
            for extra in reversed(made):
                release(graph, extra)
            del graph.nodes[before:]
            continue
        values = (given,) if isinstance(given, Value) else given
        for old, new in zip(node.outputs, values, strict=True):
            name = getattr(rule, "__name__", "a rule")
            assert old.type == new.type, f"{name} replaces {old.type} by {new.type}"
            graph.replace(old, new)
        for dead in (node, *reversed(made)):
            release(graph, dead)
        return made
    return None


def release(graph: Graph, node: Node) -> None:
    """Let `node`, if nobody reads its outputs, not be a user of its inputs any more; so on for what made these."""
    stack = [node]
    while stack:
        dead = stack.pop()
        if _is_used(graph, dead):
            continue
        for value in dead.present:
            if dead in value.users:
                value.users.remove(dead)
                if value.producer is not None:
                    stack.append(value.producer)


def _is_used(graph: Graph, node: Node) -> bool:
    return any(v.users or graph.is_result(v) for v in node.outputs)
