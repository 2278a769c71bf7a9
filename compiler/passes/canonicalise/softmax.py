"""Softmax written out, and guards against its NaN."""

from __future__ import annotations

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.match import number


def written_out(node: Node, b: GraphBuilder) -> Value | None:
    """exp(x - max(x)) / sum(exp(x - max(x))); the maximum may be missing."""
    if node.sub != "div":
        return None
    e = source(node)
    exponential = e.made_by("ACT", "exp")
    axis = _folded_axis(source(node, 1), "sum", e)
    if exponential is None or axis is None:
        return None
    x = _without_maximum(source(exponential), axis)
    return b.softmax(x, axis) if x.type == node.output.type else None


def logarithm(node: Node, b: GraphBuilder) -> Value | None:
    """Recognise x - log(sum(exp(x))), where x may be y - max(y); or x - logsumexp(x)."""
    if node.sub != "sub":
        return None
    x, subtracted = source(node), source(node, 1)
    axis = _folded_axis(subtracted, "logsumexp", x)
    log = subtracted.made_by("ACT", "log")
    fold = source(log).made_by("REDUCE", "sum") if log is not None else None
    exponential = source(fold).made_by("ACT", "exp") if fold is not None else None
    if log is not None and exponential is not None and source(exponential) is x:
        axis = _folded_axis(source(log), "sum", exponential.output)
    if axis is None or x.type != node.output.type:
        return None
    return b.softmax(_without_maximum(x, axis), axis, log=True)


def _folded_axis(value: Value, kind: str, x: Value) -> int | None:
    """The axis along which `value` is a fold of `x`, kept as an axis of size 1."""
    node = value.made_by("REDUCE", kind)
    if node is None or source(node) is not x or len(node.attributes["axes"]) != 1 or value.rank != x.rank:
        return None
    return int(node.attributes["axes"][0])


def _without_maximum(x: Value, axis: int) -> Value:
    """The y where x is y - max(y); else x."""
    shifted = x.made_by("EW", "sub")
    if shifted is not None and _folded_axis(source(shifted, 1), "max", source(shifted)) == axis:
        return source(shifted)
    return x


def guard(node: Node, b: GraphBuilder) -> Value | None:
    """0 where the softmax is NaN: a row of -infinity, for which SOFTMAX gives 0."""
    question = source(node).made_by("ACT", "isnan")
    p = source(node, 2)
    if question is None or source(question) is not p or number(source(node, 1)) != 0.0 or p.type != node.output.type:
        return None
    return p if p.made_by("SOFTMAX", "soft") else None


RULES = {"EW": (written_out, logarithm), "SELECT": (guard,)}
