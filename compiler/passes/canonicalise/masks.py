"""Masks of ATTENTION: causal ones and windows become attributes, those of -infinity bools, and none is expanded."""

from __future__ import annotations

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.canonicalise.linear import Linear, half_plane, half_planes, two_valued
from dla.compiler.passes.match import commuted, number, seen_again, under_views
from dla.isa.dtypes import DType

MASKED = -1e4
"""Scores from here on down stand for -infinity, if a row has larger ones."""
_MASK = 3


def causal_position(mask: Value) -> Dim | None:
    """p, where query i sees key j exactly if j <= i + p, by a bool mask or one that is added, [..., queries, keys].

    A finite number for "hidden" is as good as -infinity only where each query sees a key.
    """
    found = two_valued(mask)
    if found is None or found.where is None:
        return None
    shown, hidden = (1.0, 0.0) if mask.dtype is DType.BOOL else (0.0, min(found.inside, found.outside))
    if mask.dtype is not DType.BOOL and hidden > MASKED:
        return None
    if {found.inside, found.outside} != {shown, hidden}:
        return None
    where: Linear = found.where if found.inside == shown else found.where.opposite
    *front, per_query, per_key = where.factors
    if any(front) or per_key != -1 or per_query != (0 if mask.dims[-2] == 1 else 1):
        return None
    finite = mask.dtype is not DType.BOOL and hidden != float("-inf")
    return where.base if not finite or dims.interval(where.base)[0] >= 0 else None


def causal(node: Node, b: GraphBuilder) -> Value | None:
    """A mask, or one part of it, that hides the keys after each query."""
    mask = node.inputs[_MASK]
    if mask is None or node.attributes.get("causal") or node.attributes.get("window"):
        return None
    for part, rest in _parts(mask, b):
        position = causal_position(part) if part.rank >= 2 else None
        queries, keys = source(node).dims[2], source(node, 1).dims[2]
        if position is None or part.dims[-2:] != (queries, keys):
            continue
        where = {} if position == keys - queries else {"position": position}
        return _with_mask(node, rest, b, causal=True, **where)
    return None


def _parts(mask: Value, b: GraphBuilder) -> list[tuple[Value, Value | None]]:
    """The mask as a whole, and its two parts where each hides by itself."""
    kind = "and" if mask.dtype is DType.BOOL else "add"
    parts: list[tuple[Value, Value | None]] = [(mask, None)]
    for part, rest in commuted(mask, kind):
        found = two_valued(part)
        if kind == "and" or (found is not None and float("-inf") in (found.inside, found.outside)):
            parts.append((part, rest))
    return parts


def window(node: Node, b: GraphBuilder) -> Value | None:
    """A mask, or one part of it, that hides the keys `window` or more before each query."""
    mask, attributes = node.inputs[_MASK], node.attributes
    if mask is None or mask.dtype is not DType.BOOL or not attributes.get("causal") or attributes.get("window"):
        return None
    queries, keys = source(node).dims[2], source(node, 1).dims[2]
    position = attributes.get("position", keys - queries)
    for part, rest in _parts(mask, b):
        width = _window(half_plane(part), position) if part.dims[-2:] == (queries, keys) else None
        if width is not None:
            return _with_mask(node, rest, b, window=width)
    return None


def _window(plane: Linear | None, position: Dim) -> int | None:
    """The w where query i sees key j if j > i + position - w."""
    if plane is None or any(plane.factors[:-2]) or plane.factors[-2:] != (-1, 1):
        return None
    width = plane.base + position + 1
    return width if isinstance(width, int) and width > 0 else None


def chosen(node: Node, b: GraphBuilder) -> Value | None:
    """0 where a condition holds and -infinity elsewhere: the condition itself. Views of it are made anew.

    A finite number for "hidden" is as good as -infinity where each query sees the key at its own place.
    """
    mask = node.inputs[_MASK]
    if mask is None:
        return None
    value, views = under_views(mask)
    select = value.made_by("SELECT")
    if select is None:
        return None
    choices = (number(source(select, 1)), number(source(select, 2)))
    hidden = next((c for c in choices if c), None)
    if hidden is None or hidden > MASKED or 0.0 not in choices:
        return None
    cond = source(select) if choices[0] == 0.0 else b.act("not", source(select))
    cond = seen_again(b.expand(cond, value.dims), views, b)
    if hidden != float("-inf") and not _shows_own_key(cond, source(node).dims[2], source(node, 1).dims[2]):
        return None
    return _with_mask(node, cond, b)


def _shows_own_key(mask: Value, queries: Dim, keys: Dim) -> bool:
    """Whether each query sees the key at its own place; the last query sits at the last key."""
    planes, position = half_planes(mask), keys - queries
    if planes is None or mask.rank < 2 or mask.dims[-2:] != (queries, keys) or dims.interval(position)[0] < 0:
        return False
    causal_planes = [p for p in planes if _window(p, position) is None]
    return all(not any(p.factors[:-2]) and p.factors[-2:] == (1, -1) and p.base == position for p in causal_planes)


def bare(node: Node, b: GraphBuilder) -> Value | None:
    """A mask that hides nothing, or is expanded although ATTENTION broadcasts it."""
    mask = node.inputs[_MASK]
    if mask is None:
        return None
    if number(mask) == (1.0 if mask.dtype is DType.BOOL else 0.0):
        return _with_mask(node, None, b)
    expanded = mask.made_by("EXPAND")
    return _with_mask(node, source(expanded), b) if expanded is not None else None


def _with_mask(node: Node, mask: Value | None, b: GraphBuilder, **attributes: object) -> Value:
    if mask is not None and mask.rank < 4:
        mask = b.reshape(mask, (*(1,) * (4 - mask.rank), *mask.dims))
    given = (*node.inputs[:_MASK], mask)
    return b.emit("ATTENTION", given, dtype=node.output.dtype, **{**node.attributes, **attributes})


RULES = {"ATTENTION": (bare, causal, window, chosen)}
