"""ONNX puts channels before positions, the machine after them: views from one to the other."""

from __future__ import annotations

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Value


def channels_last(b: GraphBuilder, x: Value) -> Value:
    """[N, C, S...] as [N, S..., C]."""
    return b.transpose(x, (0, *range(2, x.rank), 1)) if x.rank > 2 else x


def channels_first(b: GraphBuilder, x: Value) -> Value:
    """[N, S..., C] as [N, C, S...]."""
    return b.transpose(x, (0, x.rank - 1, *range(1, x.rank - 1))) if x.rank > 2 else x
