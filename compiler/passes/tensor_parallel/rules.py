"""What operations make of values of which each rank has a part: a rule for each operation that can work on parts.

A rule gets the node and how each of its inputs is split (None: each rank has all of it), and gives that of each output,
or raises what the planner's `refusal` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dla.compiler.graph import Body, Node
from dla.compiler.operators import root, source
from dla.compiler.passes.match import constant_array
from dla.compiler.passes.tensor_parallel.split import (
    Refused,
    Split,
    Trace,
    cut,
    neighbours,
    origins_of,
    reshaped,
    written,
)

if TYPE_CHECKING:
    from dla.compiler.passes.tensor_parallel.plan import Planner

Splits = Sequence[Split | None]
Rule = Callable[["Planner", Node, Splits], Splits]
_OF_COLUMNS = 1  # axes are counted from the end, where operands broadcast


def product(p: Planner, node: Node, given: Splits) -> Splits:
    """A product: one that begins to be cut, one that ends it, or one of parts."""
    a, b = source(node, 0), source(node, 1)
    weight = b.rank == 2 and constant_array(b) is not None
    if given[0] is None and given[1] is None:
        return [by_columns(p, node, given)]
    if given[0] is not None and given[0].axis == a.rank - 1:
        by_rows(p, node, given, given[0], weight=weight)
        return [None]
    if weight or b.rank > 2:
        # Rows, or matrices of a batch: each rank has some of them.
        read = [k for k, v in enumerate(node.inputs) if v is not None and not (k == 1 and weight)]
        return [p.together(node, given, read, last=1 if weight else 2)]
    raise p.refusal(node, "its right matrix is cut", given)


def by_columns(p: Planner, node: Node, given: Splits) -> Split | None:
    """Its own columns are cut, if that is planned; what its epilogue reads is cut alike."""
    segments = p.columns.get(id(node))
    if segments is None:
        if any(given):
            raise p.refusal(node, "it is whole, and an operand of its epilogue is cut", given)
        return None
    origins = frozenset({id(node)}) | origins_of(given)
    p.plan.pieces[id(node), 1] = 1, tuple(s * (2 if node.sub == "glu" else 1) for s in segments)
    for position in range(2, len(node.inputs)):
        if not p.fits(node, position, _OF_COLUMNS, segments):
            raise Refused("cut by columns, it would not fit an operand of its epilogue", origins)
    firsts = (sum(segments[:k]) for k in range(len(segments)))
    return Split(node.output.rank - 1, segments, origins, tuple((Trace(id(node), k, 1),) for k in firsts))


def by_rows(p: Planner, node: Node, given: Splits, split: Split, *, weight: bool) -> None:
    """Its sums are over what is cut: its weights are cut by rows, and ranks add up."""
    size = source(node, 0).dims[-1]
    if not weight or node.sub or not split.is_plain or not isinstance(size, int):
        raise p.refusal(node, "its sums are over what is cut, and it is no product with a constant", given)
    if any(s is not None for s in given[1:]):
        raise p.refusal(node, "an operand of its epilogue is cut", given)
    p.plan.pieces[id(node), 1] = 0, split.segments * (size // split.period)
    p.plan.added[id(node)] = None


def reshape(p: Planner, node: Node, given: Splits) -> Splits:
    """Parts stay parts of one axis; a product whose columns are several things is cut inside each of them."""
    split, x = _only(given), source(node)
    found = reshaped(split, x.dims, node.output.dims, p.world)
    if found is None:
        together = neighbours(split.axis, x.dims, node.output.dims)
        count = node.output.dims[together[1][0]] if together else None
        if isinstance(count, int) and split.period % count == 0 and x.dims[split.axis] == split.period:
            part = split.period // count
            p.cut_at(split, [part * k for k in range(1, count)])
            raise p.refusal(node, f"{count} parts do not divide by {p.world}", given)
        raise p.refusal(node, "what ranks have is no part of one axis", given)
    return [found]


def transpose(p: Planner, node: Node, given: Splits) -> Splits:
    """The axis moves."""
    split = _only(given)
    if split.rows is not None:
        raise p.refusal(node, "rows of a cache are read before they are chosen", given)
    return [split.moved(tuple(node.attributes["perm"]).index(split.axis))]


def cut_out(p: Planner, node: Node, given: Splits) -> Splits:
    """Whole segments; a product is cut at the places where slices begin and end."""
    split, x = _only(given), source(node)
    starts, sizes, steps = (node.attributes[name] for name in ("starts", "sizes", "steps"))
    if split.rows is not None:
        end = starts[split.axis - 1] + sizes[split.axis - 1] - split.rows
        if not isinstance(end, int) or end > 0:
            raise p.refusal(node, "it reads rows that may not be written", given)
        split = replace(split, rows=None)
    start, size = starts[split.axis], sizes[split.axis]
    if start == 0 and size == x.dims[split.axis] and split.foreign is None:
        return [split]
    found = cut(split, start, size) if steps[split.axis] == 1 else None
    if found is None or (split.foreign is None and x.dims[split.axis] != split.period):
        if isinstance(start, int) and isinstance(size, int) and split.foreign is None:
            p.cut_at(split, [start, start + size])
        raise p.refusal(node, "it takes a part that is not cut evenly", given)
    return [found]


def expand(p: Planner, node: Node, given: Splits) -> Splits:
    """Other axes are repeated."""
    return [p.together(node, given, [0])]


def concat(p: Planner, node: Node, given: Splits) -> Splits:
    """Parts along another axis are cut alike; along the same one, segment follows segment."""
    first = next(s for s in given if s is not None)
    axis = node.attributes["axis"] % node.output.rank
    for value, split in zip(node.present, given, strict=True):
        if split is None and axis != first.axis and value.dims[first.axis] == first.period:
            p.hold(value, first, node.output)
    splits = [s for s in given if s is not None and s.is_plain]
    if len(splits) < len(given) or any(s.axis != first.axis for s in splits):
        raise p.refusal(node, "not all of its parts are cut alike", given)
    if axis != first.axis:
        if any(s.segments != first.segments for s in splits):
            raise p.refusal(node, "not all of its parts are cut alike", given)
        return [Split(first.axis, first.segments, origins_of(given))]
    if any(v.dims[axis] != s.period for v, s in zip(node.present, splits, strict=True)):
        raise p.refusal(node, "its parts are cut in periods", given)
    traces = sum((s.traces for s in splits), ()) if all(s.traces for s in splits) else ()
    return [Split(axis, sum((s.segments for s in splits), ()), origins_of(given), traces)]


def write(p: Planner, node: Node, given: Splits) -> Splits:
    """What is written over a part of something cut, a cache above all, is cut alike."""
    x, part = source(node), source(node, 1)
    split, other = given[0], given[1]
    if split is None and other is not None:
        hold_state(p, node, other)
    if split is None or other is None:
        raise p.refusal(node, "only one of the two tensors is cut", given)
    start = node.attributes["starts"][split.axis]
    found = written(split, other, start, x.dims[split.axis], part.dims[split.axis])
    if found is None:
        p.cut_at(other, [sum(split.segments[: k + 1]) for k in range(len(split.segments))])
        raise p.refusal(node, "what is written is cut otherwise", given)
    return [found]


def hold_state(p: Planner, node: Node, split: Split) -> None:
    """Cut the state that is written over, perhaps with its last axes joined, as what is written is cut."""
    x, part = source(node), source(node, 1)
    held, segments = root(x), split.segments
    width = held.dims[-1]
    if x is held and x.dims[split.axis] == part.dims[split.axis] == split.period:
        p.hold(held, split, node.output)
    elif held.rank == x.rank + 1 and split.axis == x.rank - 1 and isinstance(width, int):
        ends = [sum(segments[:k]) for k in range(len(segments) + 1)]
        p.cut_at(split, [width])
        if width in ends:
            p.hold(held, replace(split, axis=held.rank - 1, segments=segments[: ends.index(width)]), node.output)


def pointwise(p: Planner, node: Node, given: Splits) -> Splits:
    """Operands broadcast; constants are cut to fit."""
    return [p.together(node, given, range(len(node.inputs)))]


def along(p: Planner, node: Node, given: Splits) -> Splits:
    """An operator along one axis."""
    split = _only(given)
    if split.axis == node.attributes["axis"] % source(node).rank or not split.is_plain:
        raise p.refusal(node, "it works along the axis that is cut", given)
    return [split]


def fold(p: Planner, node: Node, given: Splits) -> Splits:
    """A fold over other axes."""
    split, axes = _only(given), node.attributes["axes"]
    if split.axis in axes or not split.is_plain:
        raise p.refusal(node, "it works along the axis that is cut", given)
    kept = node.attributes.get("keepdims")
    return [split if kept else split.moved(split.axis - sum(a < split.axis for a in axes))]


def norm(p: Planner, node: Node, given: Splits) -> Splits:
    """Rows of other axes are normalised each by itself."""
    if node.sub not in ("layer", "rms") or any(s is not None for s in given[1:]):
        raise p.refusal(node, "it works along the axis that is cut", given)
    return [p.together(node, given, [0], last=1)]


def rope(p: Planner, node: Node, given: Splits) -> Splits:
    """Heads are turned each by itself."""
    return [p.together(node, given, range(3), last=2)]


def attention(p: Planner, node: Node, given: Splits) -> Splits:
    """Heads are attended to each by itself."""
    for value, split in zip(node.inputs[:3], given, strict=False):
        if value is not None and split is not None and split.axis != 1:
            raise p.refusal(node, "it is not its heads that are cut", given)
    splits = [s for s in given[:3] if s is not None]
    heads = [v.dims[1] for v in node.inputs[:3] if v is not None]
    if len(splits) < 3 or any(not s.is_plain or s.segments != (n,) for s, n in zip(splits, heads, strict=True)):
        raise p.refusal(node, "not all of it is cut by heads", given)
    split = splits[0]
    if not p.fits(node, 3, 3, split.segments):
        raise p.refusal(node, "its mask is another one for each head, and not constant", given)
    found = Split(1, split.segments, origins_of(given))
    return [found, found]


def recurrent(p: Planner, node: Node, given: Splits) -> Splits:
    """A loop: its step gets what is cut, and gives states that are cut likewise."""
    body: Body = node.attributes["body"]
    for k, (inner, split) in enumerate(zip(body.graph.inputs.values(), given, strict=True)):
        if split is None:
            continue
        sequence = k < body.sequences
        if split.foreign is not None or (sequence and not split.is_plain):
            raise p.refusal(node, "a cache is in the middle of being written", given)
        if sequence and split.axis == 0:
            raise p.refusal(node, "it goes along the axis that is cut", given)
        p.plan.splits[id(inner)] = Split(split.axis - sequence, split.segments, split.origins)
    for step in body.graph.nodes:
        p.node(step)
    made = [p.plan.of(v) for v in body.graph.outputs.values()]
    held = given[body.sequences :][: body.states]
    for number, (before, after) in enumerate(zip(held, made, strict=False)):
        p.stays(f"of a loop, number {number}", before, after)
    stacked = [None if s is None else s.moved(s.axis + 1) for s in made[body.states :]]
    if any(s is not None and not s.is_plain for s in stacked):
        raise p.refusal(node, "a cache is in the middle of being written", made)
    return [*stacked, *made[: body.states]]


def _only(given: Splits) -> Split:
    """The one split there is."""
    (split,) = [s for s in given if s is not None]
    return split


RULES: dict[str, Rule] = {
    "GEMM": product,
    "RESHAPE": reshape,
    "TRANSPOSE": transpose,
    "SLICE": cut_out,
    "EXPAND": expand,
    "CONCAT": concat,
    "WRITE": write,
    "COPY": pointwise,
    "ACT": pointwise,
    "EW": pointwise,
    "SELECT": pointwise,
    "SOFTMAX": along,
    "SCAN": along,
    "REDUCE": fold,
    "NORM": norm,
    "ROPE": rope,
    "ATTENTION": attention,
    "RECURRENT": recurrent,
}
