"""Views of views composed to one, views that change nothing removed, and casts that undo each other."""

from __future__ import annotations

from collections.abc import Sequence

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.shapes import broadcast, common_split, merged_axes
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

_HELD_BY = {
    DType.BOOL: (DType.I8, DType.U8, DType.I32, DType.I64, DType.F32, DType.F16, DType.BF16),
    DType.I8: (DType.I32, DType.I64, DType.F32, DType.F16, DType.BF16),
    DType.U8: (DType.I32, DType.I64, DType.F32, DType.F16, DType.BF16),
    DType.I32: (DType.I64,),
    DType.F16: (DType.F32,),
    DType.BF16: (DType.F32,),
}
"""Types that hold every value of a type, so that a cast through them is none."""

_MOST_PARTS = 64
"""Of a CONCAT that goes into another one: in a chain, each link would copy the list of all before it."""


def transposed(b: GraphBuilder, x: Value, perm: Sequence[int]) -> Value:
    """`b.transpose` that looks through a TRANSPOSE."""
    inner = x.made_by("TRANSPOSE")
    if inner is None:
        return b.transpose(x, perm)
    first = inner.attributes["perm"]
    return b.transpose(source(inner), [first[p] for p in perm])


def double_transpose(node: Node, b: GraphBuilder) -> Value | None:
    """One permutation instead of two, and none instead of the identity."""
    x, perm = source(node), node.attributes["perm"]
    if tuple(perm) == tuple(range(x.rank)):
        return x
    return transposed(b, x, perm) if x.made_by("TRANSPOSE") else None


def double_reshape(node: Node, b: GraphBuilder) -> Value | None:
    """Only the last shape matters; no RESHAPE to the shape that is there."""
    x = source(node)
    if x.type == node.output.type:
        return x
    inner = x.made_by("RESHAPE")
    return b.reshape(source(inner), node.output.dims) if inner is not None else None


def transposed_merge(node: Node, b: GraphBuilder) -> Value | None:
    """Axes are split, then moved, then merged, so that RESHAPEs on either side of a TRANSPOSE meet others."""
    reshape = source(node).made_by("RESHAPE")
    if reshape is None:
        return None
    x, merged = source(reshape), reshape.output.dims
    groups = merged_axes(x.dims, merged)
    if groups is None:
        # Splitting more than the source did is worth it only between RESHAPEs.
        user = b.graph.only_user(node.output)
        split = common_split(x.dims, merged) if user is not None and user.op == "RESHAPE" else None
        groups = merged_axes(split, merged) if split is not None else None
        if split is None or groups is None or all(len(g) < 2 for g in groups):
            return None
        x = b.reshape(x, split)
    perm = [axis for p in node.attributes["perm"] for axis in groups[p]]
    return b.reshape(b.transpose(x, perm), node.output.dims)


def transposed_expansion(node: Node, b: GraphBuilder) -> Value | None:
    """Axes are moved before they are expanded, so that EXPANDs come last and are dropped by what broadcasts."""
    inner = source(node).made_by("EXPAND")
    if inner is None or source(inner).rank != node.output.rank:
        return None
    return b.expand(b.transpose(source(inner), node.attributes["perm"]), node.output.dims)


def double_slice(node: Node, b: GraphBuilder) -> Value | None:
    """A slice of a slice; the whole tensor; what lies in one part of a CONCAT."""
    x, given = source(node), node.attributes
    whole = all(s == 0 for s in given["starts"]) and x.type == node.output.type
    if whole:
        return x
    inner = x.made_by("SLICE")
    if inner is not None:
        first = inner.attributes
        starts = [s + t * k for s, k, t in zip(first["starts"], first["steps"], given["starts"], strict=True)]
        steps = [j * k for j, k in zip(first["steps"], given["steps"], strict=True)]
        return b.emit("SLICE", [source(inner)], starts=tuple(starts), sizes=node.output.dims, steps=tuple(steps))
    concat = x.made_by("CONCAT")
    return _slice_of_part(node, concat, b) if concat is not None else None


def _slice_of_part(node: Node, concat: Node, b: GraphBuilder) -> Value | None:
    axis, given = concat.attributes["axis"], node.attributes
    start, size, step = given["starts"][axis], given["sizes"][axis], given["steps"][axis]
    if step != 1:
        return None
    offset: Dim = 0
    for part in concat.present:
        end = offset + part.dims[axis]
        if dims.interval(start - offset)[0] >= 0 and dims.interval(end - start - size)[0] >= 0:
            starts = tuple(s - offset if k == axis else s for k, s in enumerate(given["starts"]))
            return b.emit("SLICE", [part], starts=starts, sizes=node.output.dims, steps=tuple(given["steps"]))
        offset = end
    return None


def double_expand(node: Node, b: GraphBuilder) -> Value | None:
    """Only the last shape matters; no EXPAND to the shape that is there."""
    x = source(node)
    if x.type == node.output.type:
        return x
    inner = x.made_by("EXPAND")
    return b.expand(source(inner), node.output.dims) if inner is not None else None


def joined_again(node: Node, b: GraphBuilder) -> Value | None:
    """A CONCAT of one part, of neighbouring slices of one tensor, or of a CONCAT along the same axis."""
    parts, axis = list(node.present), node.attributes["axis"]
    if len(parts) == 1:
        return parts[0]
    flat: list[Value] = []
    for part in parts:
        inner = part.made_by("CONCAT")
        nested = inner is not None and inner.attributes["axis"] == axis and b.graph.only_user(part) is node
        short = inner is not None and len(inner.inputs) <= _MOST_PARTS
        flat += list(inner.present) if inner is not None and nested and short else [part]
    joined: list[Value] = []
    for part in flat:
        longer = _continued(joined[-1], part, axis, b) if joined else None
        joined[-1:] = [longer] if longer is not None else [*joined[-1:], part]
    return b.concat(joined, axis) if len(joined) < len(parts) or len(flat) > len(parts) else None


def _continued(a: Value, part: Value, axis: int, b: GraphBuilder) -> Value | None:
    """The slice that consists of the slices `a` and `part`, which follows it."""
    first, second = a.made_by("SLICE"), part.made_by("SLICE")
    if first is None or second is None or source(first) is not source(second):
        return None
    one, two = first.attributes, second.attributes
    if tuple(one["steps"]) != tuple(two["steps"]) or one["steps"][axis] != 1:
        return None
    expected = [s + a.dims[axis] if k == axis else s for k, s in enumerate(one["starts"])]
    if expected != list(two["starts"]):
        return None
    sizes = [d + part.dims[axis] if k == axis else d for k, d in enumerate(a.dims)]
    x = source(first)
    if tuple(sizes) == x.dims and all(s == 0 for s in one["starts"]):
        return x
    return b.emit("SLICE", [x], starts=tuple(one["starts"]), sizes=tuple(sizes), steps=tuple(one["steps"]))


def double_cast(node: Node, b: GraphBuilder) -> Value | None:
    """A cast through a type that holds every value of the first."""
    x = source(node)
    if x.type == node.output.type:
        return x
    inner = x.made_by("COPY")
    if inner is None or x.dtype not in _HELD_BY.get(source(inner).dtype, ()):
        return None
    first = source(inner)
    return b.cast(first, node.output.dtype) if first.dims == node.output.dims else None


def broadcast_product(node: Node, b: GraphBuilder) -> Value | None:
    """A GEMM broadcasts its batch itself."""
    a, other = (_batch_of_one(source(node, k)) for k in (0, 1))
    if a is source(node, 0) and other is source(node, 1):
        return None
    try:
        batch = broadcast([a.dims[:-2], other.dims[:-2]])
    except ModelError:
        return None
    if batch != node.output.dims[:-2]:
        return None
    return b.emit("GEMM", [a, other, *node.inputs[2:]], sub=node.sub, dtype=node.output.dtype, **node.attributes)


def _batch_of_one(value: Value) -> Value:
    node = value.made_by("EXPAND")
    inner = source(node) if node is not None else value
    return inner if inner.rank >= 2 and inner.dims[-2:] == value.dims[-2:] else value


RULES = {
    "TRANSPOSE": (double_transpose, transposed_merge, transposed_expansion),
    "RESHAPE": (double_reshape,),
    "SLICE": (double_slice,),
    "EXPAND": (double_expand,),
    "CONCAT": (joined_again,),
    "COPY": (double_cast,),
    "GEMM": (broadcast_product,),
}
