"""Attention, and what goes with it: rotary embeddings and gated units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.compiler.onnx.rules.pointwise import swished
from dla.compiler.onnx.sizes import fixed_dim
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError


@dataclass(frozen=True)
class _Sight:
    """Which keys a query sees by position: those from `left` before it to `right` after it; None: no limit.

    Query 0 sits at key `offset`, a size, or one number per sample [B, 1, 1, 1].
    """

    left: int | None
    right: int | None
    offset: Dim | Value

    @property
    def fits_row(self) -> bool:
        """Whether ATTENTION's attributes can say it."""
        limited = self.left is not None or self.right is not None
        return not limited or (self.right == 0 and not isinstance(self.offset, Value))

    def mask(self, b: GraphBuilder, queries: Dim, keys: Dim) -> Value | None:
        """As a bool tensor [S, T] or [B, 1, S, T]; None if everything is seen."""
        position = b.iota((queries, 1), DType.I64, axis=0)
        if isinstance(self.offset, Value):
            position = b.add(position, self.offset)
        elif self.offset != 0:
            position = b.add(position, b.fill((1, 1), self.offset, DType.I64))
        after = b.sub(b.iota((1, keys), DType.I64, axis=1), position)
        seen = None if self.right is None else b.ew("le", after, self.right)
        if self.left is not None:
            seen = _both(b, seen, b.ew("ge", after, -self.left))
        return seen


def _both(b: GraphBuilder, x: Value | None, y: Value | None) -> Value | None:
    return y if x is None else x if y is None else b.ew("and", x, y)


def attention(c: Context) -> Any:
    """ATTENTION, with what it cannot say by position as a mask. Scores are computed apart where they are asked for."""
    b = c.b
    q, k, v = c[0], c[1], c[2]
    flat = q.rank == 3
    if not q.rank == k.rank == v.rank or q.rank not in (3, 4):
        raise ModelError(f"queries {q.type}, keys {k.type} and values {v.type}")
    if flat:
        heads, kv_heads = int(c.required("q_num_heads")), int(c.required("kv_num_heads"))
        q, k, v = split_heads(b, q, heads), split_heads(b, k, kv_heads), split_heads(b, v, kv_heads)
    past: Dim = 0
    if c.has(4):
        if c[4].rank != 4 or c[5].rank != 4:
            raise ModelError(f"past keys {c[4].type} and values {c[5].type}")
        past = c[4].dims[2]
        k, v = b.concat([c[4], k], 2), b.concat([c[5], v], 2)
    sight, mask = _visible(c, q, k, past)
    scale = float(c.attribute("scale", 0.0)) or 1 / math.sqrt(fixed_dim(q, 3) or 1)
    softcap = float(c.attribute("softcap", 0.0))
    options: dict[str, Any] = {"scale": scale} | ({"softcap": softcap} if softcap > 0 else {})
    if sight.right == 0:
        options |= {"causal": True, "position": sight.offset}
        options |= {} if sight.left is None else {"window": sight.left + 1}
    y = b.attention(q, k, v, mask, **options)
    if flat:
        y = merge_heads(b, y)
    return y, k, v, _scores(c, q, k, mask, sight, scale) if c.wants(3) else None


def split_heads(b: GraphBuilder, x: Value, heads: int) -> Value:
    """[B, S, H * D] as [B, H, S, D]."""
    width = fixed_dim(x, 2)
    if heads < 1 or width % heads:
        raise ModelError(f"{width} columns do not fall into {heads} heads")
    return b.transpose(b.reshape(x, (*x.dims[:2], heads, width // heads)), (0, 2, 1, 3))


def merge_heads(b: GraphBuilder, x: Value) -> Value:
    """[B, H, S, D] as [B, S, H * D]."""
    n, heads, s, depth = x.dims
    return b.reshape(b.transpose(x, (0, 2, 1, 3)), (n, s, heads * depth))


def _visible(c: Context, q: Value, k: Value, past: Dim) -> tuple[_Sight, Value | None]:
    """What is hidden by position in a way that ATTENTION can say, and a mask for everything else that is hidden."""
    b, queries, keys = c.b, q.dims[2], k.dims[2]
    left, right = (int(c.attribute(f"{side}_window_size", -1)) for side in ("left", "right"))
    causal = bool(c.attribute("is_causal", 0))
    offset: Dim | Value = past
    mask: Value | None = None
    if c.has(6):
        valid = b.reshape(b.cast(c[6], DType.I64), (q.dims[0], 1, 1, 1))
        mask = b.ew("lt", b.iota((1, 1, 1, keys), DType.I64, axis=3), valid)
        if not c.has(4):
            offset = b.sub(valid, b.fill((1, 1, 1, 1), queries, DType.I64))
    sight = _Sight(None if left < 0 else left, 0 if causal else None if right < 0 else right, offset)
    if not sight.fits_row:
        mask = _both(b, mask, sight.mask(b, queries, keys))
        sight = _Sight(None, None, 0)
    return sight, _combined(b, _padded(b, c.optional(3), keys), mask)


def _padded(b: GraphBuilder, mask: Value | None, keys: Dim) -> Value | None:
    """A mask for fewer keys than there are hides the others."""
    if mask is None or mask.rank == 0 or mask.dims[-1] == keys:
        return mask
    hidden = b.constant(False if mask.dtype is DType.BOOL else -math.inf, mask.dtype)
    rest = b.expand(hidden, (*mask.dims[:-1], keys - mask.dims[-1]))
    return b.concat([mask, rest], mask.rank - 1)


def _combined(b: GraphBuilder, given: Value | None, seen: Value | None) -> Value | None:
    """A mask, bool or added, restricted to what a bool mask lets through."""
    if given is None or seen is None or given.dtype is DType.BOOL:
        return _both(b, given, seen)
    return b.select(seen, given, -math.inf)


def _scores(c: Context, q: Value, k: Value, mask: Value | None, sight: _Sight, scale: float) -> Value:
    """The scores [B, H, S, T]: 0 raw, 1 after the soft cap, 2 after the mask, 3 after softmax."""
    b, mode = c.b, int(c.attribute("qk_matmul_output_mode", 0))
    n, heads, s, depth = q.dims
    kv_heads, keys = k.dims[1], k.dims[2]
    if not fixed_dim(k, 1) or fixed_dim(q, 1) % fixed_dim(k, 1):
        raise ModelError(f"{heads} query heads for {kv_heads} key heads")
    grouped = b.reshape(q, (n, kv_heads, heads // kv_heads, s, depth))
    scores = b.matmul(grouped, b.swap(b.unsqueeze(k, 2)), alpha=scale, dtype=DType.F32)
    x = b.reshape(scores, (n, heads, s, keys))
    softcap = float(c.attribute("softcap", 0.0))
    if softcap > 0 and mode >= 1:
        x = b.mul(b.act("tanh", b.mul(x, 1 / softcap)), softcap)
    if mode >= 2:
        hidden = _combined(b, mask, sight.mask(b, s, keys))
        if hidden is not None:
            x = b.select(hidden, x, -math.inf) if hidden.dtype is DType.BOOL else b.add(x, b.cast(hidden, DType.F32))
    if mode == 3:
        x = b.softmax(x)
    return b.cast(x, q.dtype)


def rotary_embedding(c: Context) -> Value:
    """ROPE. Its tables are per position, or per sample and position."""
    b, x = c.b, c[0]
    flat = x.rank == 3
    if x.rank not in (3, 4):
        raise ModelError(f"{x.type} has neither rank 3 nor 4")
    if flat:
        x = split_heads(b, x, int(c.required("num_heads")))
    cos, sin = _tables(c)
    rotated = int(c.attribute("rotary_embedding_dim", 0)) or fixed_dim(x, 3)
    for table in (cos, sin):
        if table.rank != 3 or table.dims[-1] * 2 != rotated:
            raise ModelError(f"a table {table.type} for rotating {rotated} columns")
    interleaved = bool(c.attribute("interleaved", 0))
    if cos.dims[0] == 1 and sin.dims[0] == 1:
        y = b.rope(x, b.squeeze(cos, 0), b.squeeze(sin, 0), interleaved=interleaved)
    else:
        y = b.rope(x, b.unsqueeze(cos, 1), b.unsqueeze(sin, 1), interleaved=interleaved)
    return merge_heads(b, y) if flat else y


def _tables(c: Context) -> tuple[Value, Value]:
    """Cosines and sines [B, S, R], or [1, S, R] where all samples have the same."""
    cos, sin = (_shared(v) for v in (c[1], c[2]))
    if not c.has(3):
        return cos, sin
    positions = _shared(c[3])
    return c.b.gather(cos, positions), c.b.gather(sin, positions)


def _shared(value: Value) -> Value:
    """What `value` repeats along its first axis, where it is the same for all samples."""
    node = value.made_by("EXPAND")
    if node is not None and node.inputs[0] is not None and node.inputs[0].rank == value.rank:
        source = node.inputs[0]
        if source.dims[0] == 1 and source.dims[1:] == value.dims[1:]:
            return source
    return value


def swiglu(c: Context) -> Value:
    """Multiply a swish of the gate with the value: a * sigmoid(alpha * a) * b."""
    gate, value = c[0], c[1]
    if gate.dims != value.dims:
        raise ModelError(f"a gate {gate.type} for {value.type}")
    return c.b.mul(swished(c, gate), value)


RULES: dict[str, Callable[[Context], Any]] = {
    "Attention": attention,
    "RotaryEmbedding": rotary_embedding,
    "SwiGLU": swiglu,
}
