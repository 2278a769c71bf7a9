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
    """Cosines and sines [positions, width / 2]."""

    cos: Value
    sin: Value

    def at(self, m: Layers, first: Dim, length: Dim) -> Rotation:
        """Those of `length` positions from `first` on; views."""
        return Rotation(*(m.part(table, 0, first, length) for table in (self.cos, self.sin)))

    def turn(self, m: Layers, x: Value) -> Value:
        """X [B, H, S, D] turned, each head alike; there are as many positions as the tables have."""
        return m.rope(x, self.cos, self.sin)


def rotation(m: Layers, width: int, positions: int, *, theta: float = 10000.0) -> Rotation:
    """Su et al. 2021: position p turns pair k of a head by p / theta^(2 k / width)."""
    angles = np.arange(positions)[:, None] * theta ** (-np.arange(0, width, 2) / width)
    return Rotation(*(m.constant(f(angles).astype(np.float32), name=f"rotary.{f.__name__}") for f in (np.cos, np.sin)))


@dataclass(frozen=True)
class Cache:
    """The keys and values of the first `past` positions: `rows` [B, N, 2 * shared * width], each row values, then keys.

    There are a few rows more than positions, see `cache_shape`.
    """

    rows: Value
    past: Dim


def cache_shape(heads: Heads, batch: Dim, positions: int) -> tuple[Dim, int, int]:
    """The shape of a cache of so many positions; behind the last one's row there is room for its queries."""
    spare = -(-heads.count // (2 * heads.shared))
    return batch, positions + spare, 2 * heads.shared * heads.width


def split_heads(m: Layers, x: Value, count: int, width: int) -> Value:
    """[B, S, count * width] -> [B, count, S, width]; a view."""
    return m.transpose(m.reshape(x, (*x.dims[:2], count, width)), (0, 2, 1, 3))


def merge_heads(m: Layers, x: Value) -> Value:
    """[B, H, S, D] -> [B, S, H * D]; a view."""
    batch, heads, length, width = x.dims
    return m.reshape(m.transpose(x, (0, 2, 1, 3)), (batch, length, heads * width))


def self_attention(
    m: Layers, x: Value, heads: Heads, names: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj"), *,
    bias: bool = True, mask: Value | None = None, causal: bool = False,
) -> Value:  # fmt: skip
    """X [B, S, C] -> [B, S, C]: project to queries, keys and values, attend, project back.

    `mask`, broadcast to [B, H, S, T], is bool (kept where true) or added; `causal` hides later positions.
    """
    counts = (heads.count, heads.shared, heads.shared)
    q, k, v = (
        split_heads(m, m.linear(x, count * heads.width, name, bias=bias), count, heads.width)
        for name, count in zip(names[:3], counts, strict=True)
    )
    options: dict[str, Any] = {"causal": True} if causal else {}
    attended = merge_heads(m, m.attention(q, k, v, mask, **options))
    return m.linear(attended, _columns(x), names[3], bias=bias)


def cached_attention(
    m: Layers, x: Value, heads: Heads, cache: Cache, rotary: Rotation,
    names: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
) -> tuple[Value, Value]:  # fmt: skip
    """X [B, S, C], which comes after the positions in the cache -> [B, S, C], and the rows of the cache with it.

    One product gives values, keys and queries side by side, and one rotation turns keys and queries. If S is the
    number 1, the product writes the position's row of the cache itself: the queries come to lie behind it, where
    later positions are not yet. Else a copy takes values and keys there.
    """
    batch, length, _ = x.dims
    own, pitch, asked = heads.shared * heads.width, 2 * heads.shared * heads.width, heads.count * heads.width
    q_name, k_name, v_name, o_name = names
    made = m.joint(x, {v_name: own, k_name: own, q_name: asked})
    unturned = split_heads(m, m.part(made, 2, own, own + asked), heads.shared + heads.count, heads.width)
    made = m.concat([m.part(made, 2, 0, own), merge_heads(m, rotary.turn(m, unturned))], 2)
    if length == 1:
        shape = cache.rows.dims
        flat = m.reshape(cache.rows, (batch, shape[1] * shape[2]))
        flat = m.write(flat, m.reshape(made, (batch, pitch + asked)), {1: cache.past * pitch})
        q = m.reshape(m.part(flat, 1, (cache.past + 1) * pitch, asked), (batch, 1, asked))
        rows = m.reshape(flat, shape)
    else:
        rows = m.write(cache.rows, m.part(made, 2, 0, pitch), {1: cache.past})
        q = m.part(made, 2, pitch, asked)
    seen = m.part(rows, 1, 0, cache.past + length)
    v, k = (split_heads(m, m.part(seen, 2, at, own), heads.shared, heads.width) for at in (0, own))
    options: dict[str, Any] = {} if length == 1 else {"causal": True}
    attended = m.attention(split_heads(m, q, heads.count, heads.width), k, v, **options)
    return m.linear(merge_heads(m, attended), _columns(x), o_name, bias=False), rows


def _columns(x: Value) -> int:
    width = x.dims[-1]
    if not isinstance(width, int):
        raise ModelError(f"attention over {width} columns: that size must be constant")
    return width
