"""Rotary position embedding: x * cos + rotated(x) * sin, where `rotated` turns pairs (a, b) to (-b, a).

Tables that have every angle twice, once for each of a pair, lose the copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.match import DEPTH, commuted, number, scaled
from dla.compiler.shapes import inverse
from dla.isa.dtypes import Array


def whole(node: Node, b: GraphBuilder) -> Value | None:
    """Recognise x * cos + rotated(x) * sin with tables as wide as x."""
    if node.sub != "add":
        return None
    for left, right in commuted(node.output, "add"):
        for x, cos in commuted(left, "mul"):
            for turned, sin in commuted(right, "mul"):
                if x.type == turned.type == node.output.type:
                    for interleaved in (False, True):
                        if _is_turned(turned, x, interleaved):
                            return _rope(x, cos, sin, interleaved, b)
    return None


def parts(node: Node, b: GraphBuilder) -> Value | None:
    """The rotated halves put together: CONCAT(x1 * cos - x2 * sin, x2 * cos + x1 * sin); halves or neighbours."""
    stack, interleaved = node, False
    if node.op == "RESHAPE":  # [..., R, 2] -> [..., 2 R]
        found = source(node).made_by("CONCAT")
        if found is None:
            return None
        stack, interleaved = found, True
    axis = stack.attributes["axis"]
    width = node.output.dims[-1]
    if len(stack.inputs) != 2 or axis != stack.output.rank - 1 or not isinstance(width, int) or width % 2:
        return None
    if interleaved and stack.output.dims != (*node.output.dims[:-1], width // 2, 2):
        return None
    first, second = (_squeezed(v, interleaved) for v in stack.present)
    found_pair = _turned_pair(first, second)
    if found_pair is None:
        return None
    a, other, cos, sin = found_pair
    expected = np.arange(1, width + 1)
    halves = (expected[0::2], expected[1::2]) if interleaved else (expected[: width // 2], expected[width // 2 :])
    for x in _sources(a):
        orders = zip((signed_order(v, x) for v in (a, other)), halves, strict=True)
        if x.type == node.output.type and all(o is not None and np.array_equal(o, h) for o, h in orders):
            return _placed(x, cos, sin, interleaved, b)
    return None


def partial(node: Node, b: GraphBuilder) -> Value | None:
    """A CONCAT of the rotated first columns and the others: ROPE copies the others."""
    if len(node.inputs) != 2 or node.attributes["axis"] != node.output.rank - 1:
        return None
    turned, rest = source(node), source(node, 1).made_by("SLICE")
    rope = turned.made_by("ROPE")
    first = source(rope).made_by("SLICE") if rope is not None else None
    if rope is None or first is None or rest is None or source(first) is not source(rest):
        return None
    x, width = source(first), turned.dims[-1]
    if x.type != node.output.type or source(rope, 1).dims[-1] * 2 != width or b.graph.only_user(turned) is not node:
        return None
    for part, start in ((first, 0), (rest, width)):
        given = part.attributes
        if tuple(given["starts"]) != (*(0,) * (x.rank - 1), start) or any(k != 1 for k in given["steps"]):
            return None
    return b.emit("ROPE", [x, *rope.inputs[1:]], dtype=node.output.dtype, **rope.attributes)


_MOST_COLUMNS = 2**16
"""Of a rotated row; heads have some hundred."""


def signed_order(value: Value, x: Value, depth: int = DEPTH) -> Array | None:
    """Which elements of a row of `x` those of `value` are: 1 for the first, negative where the sign is turned.

    `value` has x's axes but the last, and then the axes of the result; it is made by views, CONCAT and negation.
    """
    width, lead = x.dims[-1], x.rank - 1
    if value is x:
        return np.arange(1, width + 1) if isinstance(width, int) and width <= _MOST_COLUMNS else None
    node = value.producer
    if node is None or depth == 0 or value.dims[:lead] != x.dims[:lead]:
        return None
    if node.op in ("ACT", "EW"):
        factor, inner = scaled(value)
        order = signed_order(inner, x, depth - 1) if factor == -1.0 else None
        return -order if order is not None else None
    if node.op not in ("RESHAPE", "SLICE", "CONCAT", "TRANSPOSE"):
        return None
    orders = [signed_order(v, x, depth - 1) for v in node.present]
    given = [o for o in orders if o is not None]
    return _moved(node, given, lead) if len(given) == len(orders) else None


def _moved(node: Node, orders: Sequence[Array], lead: int) -> Array | None:
    """What a view or CONCAT makes of the rows' axes; None where it moves others."""
    given, tail = node.attributes, node.output.dims[lead:]
    if node.op == "CONCAT":
        return np.concatenate(orders, axis=given["axis"] - lead) if given["axis"] >= lead else None
    if node.op == "TRANSPOSE":
        perm = given["perm"]
        return orders[0].transpose([p - lead for p in perm[lead:]]) if list(perm[:lead]) == [*range(lead)] else None
    if not all(isinstance(d, int) for d in tail):
        return None
    if node.op == "RESHAPE":
        return orders[0].reshape([int(str(d)) for d in tail])
    starts, steps = given["starts"], given["steps"]
    if any(s != 0 for s in starts[:lead]) or any(k != 1 for k in steps[:lead]):
        return None
    cuts = zip(starts[lead:], tail, steps[lead:], strict=True)
    return orders[0][tuple(slice(s, s + (n - 1) * k + 1, k) for s, n, k in cuts)]


def _is_turned(turned: Value, x: Value, interleaved: bool) -> bool:
    """Whether `turned` is (-b, a) for each pair of `x`; both may be views of the same tensor."""
    for root in _sources(x):
        given, found = signed_order(x, root), signed_order(turned, root)
        if given is None or found is None or given.ndim != 1 or given.shape != found.shape or len(given) % 2:
            continue
        half = len(given) // 2
        if interleaved:
            wanted = np.stack([-given[1::2], given[0::2]], -1).reshape(-1)
        else:
            wanted = np.concatenate([-given[half:], given[:half]])
        if np.array_equal(found, wanted):
            return True
    return False


def _rope(x: Value, cos: Value, sin: Value, interleaved: bool, b: GraphBuilder) -> Value | None:
    """ROPE with tables that repeat their angles."""
    once = [halved(table, x.dims[-1], interleaved, b) for table in (cos, sin)]
    if once[0] is None or once[1] is None:
        return None
    return _placed(x, once[0], once[1], interleaved, b)


def _placed(x: Value, cos: Value, sin: Value, interleaved: bool, b: GraphBuilder) -> Value | None:
    """ROPE of `x` with tables that broadcast to it but for the last axis; positions are moved to the last but one."""
    if cos.dims != sin.dims or cos.dtype is not sin.dtype or cos.rank > x.rank or x.rank < 2:
        return None
    shape = (*(1,) * (x.rank - cos.rank), *cos.dims)
    if any(d not in (1, x.dims[k]) for k, d in enumerate(shape[:-1])):
        return None
    varying = [k for k in range(x.rank - 1) if shape[k] != 1]
    position = varying[-1] if varying else x.rank - 2
    perm = [*(k for k in range(x.rank - 1) if k != position), position, x.rank - 1]
    tables = (b.transpose(b.reshape(table, shape), perm) for table in (cos, sin))
    result = b.rope(b.transpose(x, perm), *(_rows(t, x.dims[position], b) for t in tables), interleaved=interleaved)
    return b.transpose(result, inverse(perm))


def _rows(table: Value, rows: Dim, b: GraphBuilder) -> Value:
    """`table` with all its rows, and no axes of size 1 in front."""
    front = next((k for k, d in enumerate(table.dims[:-2]) if d != 1), table.rank - 2)
    short = b.reshape(table, table.dims[front:])
    return b.expand(short, (*short.dims[:-2], rows, short.dims[-1]))


def halved(value: Value, width: object, interleaved: bool, b: GraphBuilder, depth: int = DEPTH) -> Value | None:
    """The table of half the width whose columns `value` has twice; None where that cannot be seen.

    Twice is: as two equal halves, or for `interleaved` each column beside its copy.
    """
    if not value.dims or value.dims[-1] != width or not isinstance(width, int) or width % 2:
        return None
    if value.constant is not None:
        table = value.constant
        pair = (table[..., 0::2], table[..., 1::2]) if interleaved else np.split(table, 2, -1)
        return b.constant(np.ascontiguousarray(pair[0])) if np.array_equal(*pair) else None
    node = value.producer
    if node is None or depth == 0:
        return None
    twin = _twins(node, interleaved, b)
    if twin is not None:
        return twin
    if node.op in ("RESHAPE", "TRANSPOSE", "SLICE", "EXPAND", "ACT", "COPY", "GATHER"):
        inner = halved(source(node), width, interleaved, b, depth - 1)
        return _applied(node, [inner, *node.inputs[1:]], width, b) if inner is not None else None
    if node.op != "EW":
        return None
    given = [v if number(v) is not None and v.dims[-1:] != (width,) else halved(v, width, interleaved, b, depth - 1)
             for v in node.present]  # fmt: skip
    known = [v for v in given if v is not None]
    return _applied(node, known, width, b) if len(known) == 2 else None


def _applied(node: Node, given: Sequence[Value | None], width: int, b: GraphBuilder) -> Value | None:
    """`node` on tables of half the width, if it leaves the columns as they are."""
    attributes, rank = dict(node.attributes), node.output.rank
    old, half = source(node), width // 2
    if node.op == "TRANSPOSE" and attributes["perm"][-1] != rank - 1:
        return None
    if node.op in ("RESHAPE", "EXPAND"):
        attributes["shape"] = (*node.output.dims[:-1], half)
    if node.op == "SLICE":
        if attributes["starts"][-1] != 0 or attributes["steps"][-1] != 1:
            return None
        attributes["sizes"] = (*node.output.dims[:-1], half)
    if node.op == "GATHER" and attributes["axis"] == old.rank - 1:
        return None
    return b.emit(node.op, given, sub=node.sub, dtype=node.output.dtype, **attributes)


def _twins(node: Node, interleaved: bool, b: GraphBuilder) -> Value | None:
    """The x where the node puts x beside itself."""
    if not interleaved:
        equal = node.op == "CONCAT" and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
        return source(node) if equal and node.attributes["axis"] == node.output.rank - 1 else None
    pairs = source(node) if node.op == "RESHAPE" else None
    maker = pairs.producer if pairs is not None else None
    if pairs is None or maker is None or maker.op not in ("CONCAT", "EXPAND"):
        return None
    column, width = source(maker), node.output.dims[-1]
    if pairs.dims[-1] != 2 or column.dims != (*pairs.dims[:-1], 1) or any(v is not column for v in maker.present):
        return None
    if column.rank < 2 or width != 2 * column.dims[-2]:
        return None
    return b.reshape(column, (*node.output.dims[:-1], column.dims[-2]))


def _squeezed(value: Value, interleaved: bool) -> Value:
    """`value` before an axis of size 1 was put in at the end, for neighbours."""
    node = value.made_by("RESHAPE") if interleaved else None
    same = node is not None and (*source(node).dims, 1) == value.dims
    return source(node) if node is not None and same else value


def _turned_pair(first: Value, second: Value) -> tuple[Value, Value, Value, Value] | None:
    """a, b, cos, sin, where `first` is a * cos - b * sin and `second` is b * cos + a * sin."""
    difference = first.made_by("EW", "sub")
    if difference is None:
        return None
    for a, cos in commuted(source(difference), "mul"):
        for other, sin in commuted(source(difference, 1), "mul"):
            for left, right in commuted(second, "add"):
                straight = any(p is other and q is cos for p, q in commuted(left, "mul"))
                if straight and any(p is a and q is sin for p, q in commuted(right, "mul")):
                    return a, other, cos, sin
    return None


def _sources(value: Value) -> list[Value]:
    """`value` and what it is a view of."""
    found = [value]
    while (node := found[-1].producer) is not None and node.op in ("SLICE", "RESHAPE") and len(found) < DEPTH:
        found.append(source(node))
    return found


RULES = {"EW": (whole,), "CONCAT": (parts, partial), "RESHAPE": (parts,)}
