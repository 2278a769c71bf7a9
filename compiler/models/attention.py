"""Attention with its heads, rotary positions and a key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.models.layers import Layers
from dla.isa.errors import ModelError


@dataclass(frozen=True)
class Heads:
    """`count` heads of `width` columns; groups of `count / shared` of them share one of `shared` keys and values.

    shared = count is multi-head attention (Vaswani et al. 2017), 1 multi-query, else grouped-query (Ainslie 2023).
    """

    count: int
    width: int
    shared: int

    def __post_init__(self) -> None:
        if self.shared < 1 or self.count % self.shared:
            raise ModelError(f"{self.count} heads cannot share {self.shared} keys and values evenly")


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines [length, width / 2] of the positions of a run."""

    cos: Value
    sin: Value


@dataclass(frozen=True)
class Cache:
    """Where keys and values of earlier runs are kept: the first `past` of `rows` positions are in use."""

    name: str
    past: Dim
    rows: int


def rotation(m: Layers, width: int, rows: int, past: Dim, length: Dim, *, theta: float = 10000.0) -> Rotation:
    """Su et al. 2021: position p turns pair k of a head by p / theta^(2 k / width). `rows` positions may occur."""
    angles = np.arange(rows)[:, None] * theta ** (-np.arange(0, width, 2) / width)
    tables = (m.constant(f(angles).astype(np.float32), name=f"rotary.{f.__name__}") for f in (np.cos, np.sin))
    cos, sin = (m.part(table, 0, past, length) for table in tables)
    return Rotation(cos, sin)


def remembered(m: Layers, cache: Cache, part: str, new: Value) -> Value:
    """`new` [B, H, S, D] after the `past` rows that the state has: [B, H, past + S, D]. Nothing is copied together."""
    batch, heads, length, width = new.dims
    name = f"{cache.name}.{part}"
    after = m.write(m.state(name, new.dtype, (batch, heads, cache.rows, width)), new, {2: cache.past})
    m.set_state(name, after)
    return m.part(after, 2, 0, cache.past + length)


def split_heads(m: Layers, x: Value, count: int, width: int) -> Value:
    """[B, S, count * width] -> [B, count, S, width]; a view."""
    return m.transpose(m.reshape(x, (*x.dims[:2], count, width)), (0, 2, 1, 3))


def merge_heads(m: Layers, x: Value) -> Value:
    """[B, H, S, D] -> [B, S, H * D]; a view."""
    batch, heads, length, width = x.dims
    return m.reshape(m.transpose(x, (0, 2, 1, 3)), (batch, length, heads * width))


def self_attention(
    m: Layers, x: Value, heads: Heads, names: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj"), *,
    bias: bool = True, rotary: Rotation | None = None, cache: Cache | None = None, mask: Value | None = None,
    causal: bool = False,
) -> Value:  # fmt: skip
    """X [B, S, C] -> [B, S, C]: project to queries, keys and values, attend, project back.

    With `rotary`, queries and keys are turned by their positions; with `cache`, earlier runs' keys and values come
    first. `mask`, broadcast to [B, H, S, T], is bool (kept where true) or added; `causal` hides later positions.
    """
    counts = (heads.count, heads.shared, heads.shared)
    q, k, v = (
        split_heads(m, m.linear(x, count * heads.width, name, bias=bias), count, heads.width)
        for name, count in zip(names[:3], counts, strict=True)
    )
    if rotary is not None:
        q, k = (m.rope(turned, rotary.cos, rotary.sin) for turned in (q, k))
    if cache is not None:
        k, v = remembered(m, cache, "key", k), remembered(m, cache, "value", v)
    options: dict[str, Any] = {"causal": True} if causal else {}
    attended = merge_heads(m, m.attention(q, k, v, mask, **options))
    width = x.dims[-1]
    if not isinstance(width, int):
        raise ModelError(f"attention over {width} columns: that size must be constant")
    return m.linear(attended, width, names[3], bias=bias)
