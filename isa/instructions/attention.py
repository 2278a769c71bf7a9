"""ATTENTION: scaled dot-product attention, with grouped heads, masks by position or tensor, and a soft cap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.isa.attributes import F32, Flag, Int
from dla.isa.bounds import F32_EPSILON, ErrorBound, storage_roundoff
from dla.isa.dtypes import FLOATS, Array, DType
from dla.isa.scalar_attributes import ScalarValue
from dla.isa.table import Constraint, Operand, Out, Role, Row, Site


@dataclass(frozen=True)
class Options:
    """The attributes of one ATTENTION."""

    scale: float
    causal: bool
    position: int | None
    window: int
    softcap: float


def visible(queries: int, keys: int, options: Options) -> Array:
    """Which keys each query may see by position, bool [S, T]."""
    position = keys - queries if options.position is None else options.position
    last = np.arange(queries)[:, None] + position
    t = np.arange(keys)[None, :]
    seen = t <= last if options.causal else np.ones((queries, keys), dtype=bool)
    return np.asarray(seen & (t > last - options.window) if options.window else seen)


def scores(q: Array, k: Array, mask: Array | None, options: Options) -> Array:
    """Logits [B, H, S, T], -infinity where a key is not seen. k has as many heads as q."""
    scale = options.scale or 1 / math.sqrt(q.shape[-1] or 1)
    s = np.matmul(q, k.swapaxes(-1, -2)) * scale
    if options.softcap:
        s = options.softcap * np.tanh(s / options.softcap)
    seen = np.broadcast_to(visible(q.shape[-2], k.shape[-2], options), s.shape)
    if mask is not None and mask.dtype == bool:
        seen = seen & mask
    elif mask is not None:
        s = s + mask
    return np.asarray(np.where(seen, s, np.asarray(-np.inf, s.dtype)))


def probabilities(s: Array) -> tuple[Array, Array]:
    """Softmax of s along the last axis, 0 in a row of -infinity, and the logarithm of its denominator."""
    top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0, top)
    e = np.exp(s - top)
    total = np.sum(e, axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total), (np.log(total) + top)[..., 0]


def _per_query_head(heads: int, x: Array) -> Array:
    """Key or value heads repeated so that there is one for each of `heads` query heads."""
    return np.repeat(x, heads // x.shape[1], axis=1)


def semantics(
    out: Out, q: Array, k: Array, v: Array, mask: Array | None, *, scale: float, causal: bool, position: int | None,
    window: int, softcap: float,
) -> tuple[Array, Array]:  # fmt: skip
    """softmax(scale * q @ k.T) @ v and the logarithm of the softmax's denominator, in the accumulator type.

    q [B, H, S, D], k [B, HK, T, D], v [B, HK, T, D2], mask ~[B, H, S, T] -> [B, H, S, D2] and [B, H, S].
    """
    with np.errstate(all="ignore"):
        heads = q.shape[1]
        s = scores(q, _per_query_head(heads, k), mask, Options(scale, causal, position, window, softcap))
        p, lse = probabilities(s)
        return np.matmul(p, _per_query_head(heads, v)), lse


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
    """Each score is off by e; that changes p by 2 e p, and the means of v and e that p weighs accordingly."""
    q, v, mask = operands["q"], operands["v"], operands["mask"]
    heads, depth, keys = q.shape[1], q.shape[-1], operands["k"].shape[2]
    k, v = _per_query_head(heads, operands["k"]), _per_query_head(heads, v)
    options = Options(*(attributes[name] for name in ("scale", "causal", "position", "window", "softcap")))
    scale = abs(options.scale) or 1 / math.sqrt(depth or 1)
    with np.errstate(all="ignore"):
        s = scores(q, k, mask, options)
        p, _ = probabilities(s)
        magnitude = scale * np.matmul(np.abs(q), np.abs(k).swapaxes(-1, -2))
        e = (depth + 8) * 2 * F32_EPSILON * magnitude + 2.0**-21 * np.where(np.isfinite(s), np.abs(s), 0) + 2.0**-21
        if options.softcap:
            e = e + 2.0**-20 * abs(options.softcap)
        mean = np.sum(p * e, axis=-1)
        if np.ndim(reference) == 3:  # the logarithm of the denominator
            return np.asarray(2 * mean + (keys + 8) * 2 * F32_EPSILON + 2.0**-22 * np.abs(reference))
        rounding = storage_roundoff(v) + (keys + 8) * 4 * F32_EPSILON
        weighted = np.matmul(p, np.abs(v))
        return np.asarray(2 * np.matmul(p * e, np.abs(v)) + (2 * mean[..., None] + rounding) * weighted)


def _flops(dims: Mapping[str, int], attributes: Mapping[str, Any]) -> int:
    return 2 * dims["B"] * dims["H"] * dims["S"] * dims["T"] * (dims["D"] + dims["D2"])


def _heads_fit(site: Site) -> bool:
    return site["HK"] >= 1 and site["H"] % site["HK"] == 0


ROW = Row(
    "ATTENTION", 0x48, "attention", "scaled dot-product attention",
    "Computes softmax(s) @ v with s = scale * q @ k.T, per sample and head. Each of the HK key heads serves H / HK "
    "query heads that follow one another (HK = H: multi-head, HK = 1: multi-query). The order on a score is: scale, "
    "soft cap (softcap * tanh(s / softcap)), mask. Query i sits at key i + position (by default the last query sits at "
    "the last key); `causal` hides the keys after it, and `window` those `window` or more before it. A bool mask hides "
    "where it is false; a float mask is added. A query that sees no key gives 0, and -infinity for lse. One call with "
    "S = 1 and a dynamic T decodes a token from a cache. Machines may round probabilities to v's type "
    "before they meet v.",
    types={"O": FLOATS, "T": FLOATS},
    operands=(
        Operand("out", Role.OUT, "[B, H, S, D2]", "O", "the result"),
        Operand("q", Role.IN, "[B, H, S, D]", "T", "queries"),
        Operand("k", Role.IN, "[B, HK, T, D]", "T", "keys"),
        Operand("v", Role.IN, "[B, HK, T, D2]", "T", "values"),
        Operand("mask", Role.IN, "~[B, H, S, T]", (*FLOATS, DType.BOOL), "kept where true, or added", optional=True),
        Operand("lse", Role.OUT, "[B, H, S]", (DType.F32,), "log(sum(exp(s))) of each query", optional=True),
    ),
    attributes=(
        ScalarValue("position", 16, "key at which query 0 sits; absent: T - S", value_at=384, classes="s", default=None,
                    optional=True),
        Flag("causal", 24, "hide the keys after each query"),
        F32("scale", 96, "factor of the scores; 0: 1 / sqrt(D)"),
        F32("softcap", 448, "limit of the scores' magnitude; 0: none"),
        Int("window", 480, "number of last keys that a query sees; 0: all"),
    ),
    static=("H", "HK", "D", "D2"),
    constraints=(
        Constraint(1, "HK >= 1, and H is a multiple of HK", _heads_fit),
        Constraint(2, "softcap is not negative", lambda site: site.attributes["softcap"] >= 0),
        Constraint(3, "position is an integer or an s register",
                   lambda site: not isinstance(site.attributes["position"], float)),
    ),
    semantics=semantics,
    error=ErrorBound("e = (D + 8) * 2**-23 * scale * |q| @ |k|.T + 2**-21 * (|s| + 1) (+ 2**-20 * softcap), p the "
                     "probabilities, u = 2**-8 if v's values fit bf16, 2**-11 if they fit f16, else 0: 2 * (p * e) @ "
                     "|v| + (2 * sum(p * e) + u + (T + 8) * 2**-22) * p @ |v|; lse 2 * sum(p * e) + (T + 8) * 2**-23 + "
                     "2**-22 * |lse|; then one rounding", _slack),
    flops=_flops,
    flops_text="2 * B * H * S * T * (D + D2)",
    example="""
.program attention
.const q : f32[1, 2, 2, 1] = [[[[0], [0]], [[0], [0]]]]
.const k : f32[1, 1, 2, 1] = [[[[1], [2]]]]
.const v : f32[1, 1, 2, 2] = [[[[2, 4], [4, 8]]]]
.output y : f32[1, 2, 2, 2]
.output l : f32[1, 2, 2]
main:
    ATTENTION y, q, k, v causal lse=l   ;! y = [[[[2, 4], [3, 6]], [[2, 4], [3, 6]]]]
    HALT                                ;! l = [[[0, 0.6931472], [0, 0.6931472]]]
""",
)  # fmt: skip
