"""Attention: softmax(scale * q @ k.T + mask) @ v, and keys and values repeated for groups of heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.canonicalise.masks import MASKED
from dla.compiler.passes.canonicalise.views import transposed
from dla.compiler.passes.match import DEPTH, bare_product, commuted, number, scaled
from dla.isa.dtypes import DType

LOWEST = float(np.finfo(np.float32).min)
"""Added to any score it is itself: a row of it only has equal scores, as if it had been chosen."""


@dataclass(frozen=True)
class Scores:
    """What a softmax reads: mask + softcap * tanh(scale * q @ k.T / softcap)."""

    product: Node
    scale: float
    softcap: float = 0.0
    masks: tuple[Value, ...] = ()


def attention(node: Node, b: GraphBuilder) -> Value | None:
    """GEMM, scale, mask, SOFTMAX, GEMM."""
    if bare_product(node.output) is None or node.attributes.get("alpha", 1.0) != 1.0:
        return None
    p, v = _uncast(source(node), b), source(node, 1)
    softmax = p.made_by("SOFTMAX", "soft", "")
    if softmax is None or softmax.attributes["axis"] != p.rank - 1 or not b.graph.only_user(p):
        return None
    found = _scores(source(softmax), b)
    if found is None or found.scale == 0:
        return None
    q, key = source(found.product), source(found.product, 1)
    rank = node.output.rank
    if rank not in (3, 4) or {q.rank, key.rank, v.rank} != {rank} or not q.dtype is key.dtype is v.dtype:
        return None
    if q.dims[:-2] != key.dims[:-2] or q.dims[:-2] != v.dims[:-2] or not isinstance(q.dims[-1], int):
        return None
    k = transposed(b, key, (*range(rank - 2), rank - 1, rank - 2))
    mask = _one_mask(found.masks, rank, b)
    if rank == 3:  # [B * H, S, D]: as many samples of one head
        q, k, v = (b.unsqueeze(x, 1) for x in (q, k, v))
    if not (isinstance(q.dims[1], int) and isinstance(v.dims[3], int)):
        return None
    usual = abs(found.scale * math.sqrt(q.dims[-1]) - 1) < 1e-6 if isinstance(q.dims[-1], int) else False
    given = {"scale": 0.0 if usual else found.scale, "softcap": found.softcap}
    options: dict[str, Any] = {name: x for name, x in given.items() if x}
    result = b.emit("ATTENTION", [q, k, v, mask], dtype=node.output.dtype, **options)
    return b.squeeze(result, 1) if rank == 3 else result


def _uncast(value: Value, b: GraphBuilder) -> Value:
    """`value` before casts between float types that only it needs: inside, everything has the accumulator's type."""
    node = value.made_by("COPY")
    while node is not None and source(node).dtype.is_float and value.dtype.is_float and b.graph.only_user(value):
        value = source(node)
        node = value.made_by("COPY")
    return value


def _scores(value: Value, b: GraphBuilder, depth: int = DEPTH) -> Scores | None:
    """`value` as scores that nobody else reads."""
    value = _uncast(value, b)
    node = value.producer
    if node is None or depth == 0 or not b.graph.only_user(value):
        return None
    if node.op == "GEMM":
        return Scores(node, node.attributes.get("alpha", 1.0)) if bare_product(value) is not None else None
    if node.name == "EW.add":
        for inner, mask in commuted(value, "add"):
            found = _scores(inner, b, depth - 1) if inner.dims == value.dims else None
            if found is not None and mask.dtype.is_float:
                return replace(found, masks=(*found.masks, mask))
        return None
    if node.op == "SELECT":
        return _chosen(node, b, depth)
    if node.op == "RESHAPE":
        return _windowed(node, b, depth)
    factor, inner = scaled(value)
    if factor == 1.0:
        return None
    capped = inner.made_by("ACT", "tanh")
    found = _scores(source(capped) if capped is not None else inner, b, depth - 1)
    if found is None or found.masks or found.softcap:
        return None
    if capped is None:
        return replace(found, scale=found.scale * factor)
    return replace(found, scale=found.scale * factor, softcap=factor) if factor > 0 else None


def _windowed(node: Node, b: GraphBuilder, depth: int) -> Scores | None:
    """Scores [B * W, H, S, T] seen as [B, W, H, S, T] while a mask of each of W windows is added, as Swin has it."""
    total, seen = source(node), node.output
    for split, mask in commuted(total, "add"):
        whole = split.made_by("RESHAPE")
        if whole is None or source(whole).type != seen.type or not mask.dtype.is_float or not b.graph.only_user(total):
            continue
        if split.dims != total.dims or total.rank != 5 or total.dims[2:] != seen.dims[1:] or mask.rank > 5:
            continue
        found = _scores(source(whole), b, depth - 1) if b.graph.only_user(split) else None
        if found is not None:
            mask = b.reshape(mask, (*(1,) * (5 - mask.rank), *mask.dims))
            wide = b.expand(mask, (*total.dims[:2], *mask.dims[2:]))
            return replace(found, masks=(*found.masks, b.reshape(wide, (seen.dims[0], *mask.dims[2:]))))
    return None


def _chosen(node: Node, b: GraphBuilder, depth: int) -> Scores | None:
    """A choice between scores and a constant that stands for -infinity.

    Any such number but -infinity itself gives equal probabilities to a row that has nothing else.
    """
    for index in (1, 2):
        low = number(source(node, 3 - index))
        if low is None or low > MASKED:
            continue
        found = _scores(source(node, index), b, depth - 1) if source(node, index).dims == node.output.dims else None
        if found is not None:
            hidden = low if math.isinf(low) else LOWEST
            choices = (0.0, hidden) if index == 1 else (hidden, 0.0)
            mask = b.select(source(node), *(b.constant(c, DType.F32) for c in choices))
            return replace(found, masks=(*found.masks, mask))
    return None


def _one_mask(masks: Sequence[Value], rank: int, b: GraphBuilder) -> Value | None:
    """The sum of `masks`, as [B, H, S, T]; of a product of rank 3 as [B * H, 1, S, T]."""
    if not masks:
        return None
    total, *rest = masks
    for mask in rest:
        total = b.add(*(b.cast(m, DType.F32) if total.dtype is not mask.dtype else m for m in (total, mask)))
    total = b.reshape(total, (*(1,) * (rank - total.rank), *total.dims))
    return b.unsqueeze(total, 1) if rank == 3 else total


def grouped_heads(node: Node, b: GraphBuilder) -> Value | None:
    """Keys and values that are repeated for groups of heads, which ATTENTION does itself."""
    k, v = (_unrepeated(source(node, index), b) for index in (1, 2))
    if k is None or v is None or k.dims[1] != v.dims[1]:
        return None
    given = (source(node), k, v, *node.inputs[3:])
    return b.emit("ATTENTION", given, dtype=node.output.dtype, **node.attributes)


def _unrepeated(value: Value, b: GraphBuilder) -> Value | None:
    """The x [B, HK, T, D] where `value` is RESHAPE(EXPAND(x with an axis of size 1 after its heads))."""
    merge = value.made_by("RESHAPE")
    repeat = source(merge).made_by("EXPAND") if merge is not None else None
    if repeat is None or repeat.output.rank != 5:
        return None
    given, wide = source(repeat).dims, repeat.output.dims
    once, merged = (*wide[:2], 1, *wide[3:]), (wide[0], wide[1] * wide[2], *wide[3:])
    if given != once or merged != value.dims or not isinstance(wide[1], int):
        return None
    return b.reshape(source(repeat), (*given[:2], *given[3:]))


RULES = {"GEMM": (attention,), "ATTENTION": (grouped_heads,)}
