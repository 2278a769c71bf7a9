"""Indices that are known to run in steps: gathers that are slices, scatters that set everything, no wrapping."""

from __future__ import annotations

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.canonicalise.linear import Linear, linear
from dla.compiler.passes.match import commuted


def run_of_rows(node: Node, b: GraphBuilder) -> Value | None:
    """A GATHER of neighbouring slices, or of every n-th, or of one, that surely lie in x: a SLICE."""
    x, indices, axis = source(node), source(node, 1), node.attributes["axis"]
    found = linear(indices)
    steps = [f for f in found.factors if f] if found is not None else []
    running = [k for k, d in enumerate(indices.dims) if d != 1]
    if found is None or len(running) > 1 or len(steps) != len(running):
        return None
    step, count = (steps[0], indices.dims[running[0]]) if steps else (1, 1)
    last = found.base + (count - 1) * step
    if (
        not isinstance(step, int)
        or step < 1
        or not _not_negative(found)
        or dims.interval(x.dims[axis] - 1 - dims.bound(last))[0] < 0
    ):
        return None
    rows = b.slice(x, {axis: found.base}, {axis: count}, {axis: step})
    return b.reshape(rows, node.output.dims)


def no_wrapping(node: Node, b: GraphBuilder) -> Value | None:
    """max(i, i mod n), by which negative indices count from the end, where none is negative."""
    if node.sub != "max" or node.output.dtype.is_float:
        return None
    for i, wrapped in commuted(node.output, "max"):
        modulus = wrapped.made_by("EW", "mod")
        found = linear(i) if modulus is not None and source(modulus) is i else None
        if found is not None and _not_negative(found):
            return b.expand(i, node.output.dims)
    return None


def assignment(node: Node, b: GraphBuilder) -> Value | None:
    """A SCATTER.set of all of x in order: the updates."""
    x, indices, updates = source(node), source(node, 1), source(node, 2)
    found = linear(indices) if node.sub == "set" and updates.type == x.type == node.output.type else None
    axis = node.attributes["axis"]
    if found is None or found.base != 0 or indices.dims != x.dims:
        return None
    in_order = all(f == (k == axis and x.dims[k] != 1) for k, f in enumerate(found.factors))
    return updates if in_order else None


def _not_negative(found: Linear) -> bool:
    return all(dims.interval(n)[0] >= 0 for n in (*found.factors, found.base))


RULES = {"GATHER": (run_of_rows,), "EW": (no_wrapping,), "SCATTER": (assignment,)}
