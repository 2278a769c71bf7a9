"""Rotary embeddings of neighbouring heads as one: those of queries and keys, which come from one joint product.

The results are slices of heads of the joint one, which are views.
"""

from __future__ import annotations

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Node, Value
from dla.compiler.operators import source

_HEADS_BEHIND = (0, 2, 1, 3)  # [B, S, H, D] -> [B, H, S, D]


def run(graph: Graph) -> Graph:
    """`graph` with neighbouring rotations joined."""
    graph.sweep()
    b = GraphBuilder(graph=graph)
    families: dict[tuple[object, ...], list[Node]] = {}
    for node in graph.nodes:
        columns = _slice(node) if node.op == "ROPE" else None
        if columns is not None and _fit_all_heads(node) and _only_attended(graph, node.output):
            tables = tuple(id(v) for v in node.inputs[1:])
            families.setdefault((id(source(columns)), *tables, node.attributes["interleaved"]), []).append(node)
    for members in families.values():
        members.sort(key=_start)
        while len(members) > 1:
            first, second, *_ = members
            members.pop(0)
            if _start(second) == _start(first) + _width(first):
                _join(b, first, second)
                members.pop(0)
    graph.sweep()
    return graph


def _slice(node: Node) -> Node | None:
    """The SLICE of columns that ROPE's input is, seen as [B, S, H, D] with heads moved before positions."""
    turn = source(node).made_by("TRANSPOSE")
    heads = source(turn).made_by("RESHAPE") if turn is not None else None
    if turn is None or heads is None or tuple(turn.attributes["perm"]) != _HEADS_BEHIND:
        return None
    columns, shape = source(heads).made_by("SLICE"), heads.output.dims
    if columns is None or columns.output.dims[:2] != shape[:2] or columns.output.rank != 3:
        return None
    given = columns.attributes
    straight = all(k == 1 for k in given["steps"]) and tuple(given["starts"][:2]) == (0, 0)
    fixed = all(isinstance(d, int) for d in (given["starts"][2], *shape[2:]))
    return columns if straight and fixed and source(columns).dims[:2] == shape[:2] else None


def _fit_all_heads(node: Node) -> bool:
    """Whether each head is turned by the same table."""
    return all(v.rank < 3 or v.dims[-3] == 1 for v in node.present if v is not source(node))


def _only_attended(graph: Graph, value: Value) -> bool:
    """Whether only an ATTENTION reads `value`: anything else may want it in a place of its own."""
    user = graph.only_user(value)
    return user is not None and user.op == "ATTENTION"


def _start(node: Node) -> int:
    found = _slice(node)
    assert found is not None, "members of a family read slices"
    return int(found.attributes["starts"][2])


def _width(node: Node) -> int:
    heads, depth = node.output.dims[1], node.output.dims[3]
    assert isinstance(heads, int), "_slice asked"
    assert isinstance(depth, int), "_slice asked"
    return heads * depth


def _join(b: GraphBuilder, first: Node, second: Node) -> None:
    columns = _slice(first)
    assert columns is not None, "members of a family read slices"
    if first.output.dims[3] != second.output.dims[3]:
        return
    b.label, b.order = f"{first.label} + {second.label}"[:200], first.order
    batch, heads, length, depth = first.output.dims
    more = second.output.dims[1]
    rows = b.part(source(columns), 2, _start(first), _width(first) + _width(second))
    x = b.transpose(b.reshape(rows, (batch, length, heads + more, depth)), _HEADS_BEHIND)
    turned = b.emit("ROPE", [x, *first.inputs[1:]], dtype=first.output.dtype, **first.attributes)
    b.graph.replace(first.output, b.part(turned, 1, 0, heads))
    b.graph.replace(second.output, b.part(turned, 1, heads, more))
