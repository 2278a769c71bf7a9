"""Pools: the largest, the mean or another norm of sliding windows, or of all positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Value
from dla.compiler.onnx.channels import channels_first, channels_last
from dla.compiler.onnx.context import Context
from dla.compiler.onnx.rules.windows import Window, auto_pad, window_of
from dla.compiler.onnx.sizes import fixed
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

_MOST_TAPS = 1024
"""In a window whose largest element's place is asked for: each becomes an instruction."""


def _pool_window(c: Context, x: Value) -> tuple[Window, tuple[int, ...]]:
    """The window of a pool, and how much more is added at each axis' end by ceil_mode (negative: taken away)."""
    window = window_of(c, [int(k) for k in c.required("kernel_shape")], x.dims[2:])
    if not c.attribute("ceil_mode", 0) or auto_pad(c).startswith("SAME"):
        return window, (0,) * window.rank
    more = []
    sizes = fixed(x.dims[2:])
    for n, s, r, low, high in zip(sizes, window.strides, window.reach, window.low, window.high, strict=True):
        count = -(-(n + low + high - r) // s) + 1
        if (count - 1) * s >= n + low:  # a window that begins beyond the input counts for nothing
            count -= 1
        more.append((count - 1) * s + r - (n + low + high))
    return window, tuple(more)


def _longer(window: Window, more: Sequence[int]) -> Window:
    return replace(window, high=tuple(max(h + m, 0) for h, m in zip(window.high, more, strict=True)))


def pool(b: GraphBuilder, kind: str, x: Value, window: Window, **options: Any) -> Value:
    """The max or avg of windows of x [N, S..., C] along one to three axes.

    Those along three are of planes, then of the first axis: the number of elements in a window is a product over the
    axes, so means of means are right.
    """
    if window.rank < 3:
        return b.pool(kind, x, window=window.pair, **window.attributes(), **options)
    depth, plane = window.along(0), window.along(1, 2)
    n, d, *_ = x.dims
    planes = pool(b, kind, b.reshape(x, (n * d, *x.dims[2:])), plane, **options)
    _, rows, columns, channels = planes.dims
    deep = b.reshape(planes, (n, d, rows * columns, channels))
    both = Window((depth.kernel[0], 1), (depth.strides[0], 1), (depth.dilations[0], 1), (depth.low[0], 0),
                  (depth.high[0], 0))  # fmt: skip
    y = pool(b, kind, deep, both, **options)
    return b.reshape(y, (n, y.dims[1], rows, columns, channels))


def max_pool(c: Context) -> Any:
    """The largest of each window, and where it is."""
    window, more = _pool_window(c, c[0])
    window = _longer(window, more)
    x = channels_last(c.b, c[0])
    y = channels_first(c.b, pool(c.b, "max", x, window))
    return (y, channels_first(c.b, _positions(c, x, window))) if c.wants(1) else y


def _positions(c: Context, x: Value, window: Window) -> Value:
    """The index of each window's first largest element in the flattened [N, C, S...] tensor, as [N, P..., C].

    It is the sum of where the window is, where the element is in it, and where sample and channel are.
    """
    b, rank, sizes = c.b, window.rank, fixed(x.dims[1:-1])
    if math.prod(window.kernel) > _MOST_TAPS:
        raise ModelError(f"the places of maxima in windows of more than {_MOST_TAPS} elements")
    weights, step = [0] * rank, 1
    for k in range(rank) if c.attribute("storage_order", 0) else range(rank)[::-1]:
        weights[k], step = step, step * sizes[k]
    apart = [d * w for d, w in zip(window.dilations, weights, strict=True)]
    inside = [sum(t * a for t, a in zip(tap, apart, strict=True)) for tap in np.ndindex(*window.kernel)]
    best = b.reduce("argmax", _taps(b, x, window), [0])
    where = b.gather(b.constant(inside, DType.I64), best)
    strides = (x.dims[-1] * step, *(s * w for s, w in zip(window.strides, weights, strict=True)), step)
    corner = sum(-low * w for low, w in zip(window.low, weights, strict=True))
    for axis, (size, stride) in enumerate(zip(best.dims, strides, strict=True)):
        shape = [size if k == axis else 1 for k in range(best.rank)]
        where = b.add(where, b.iota(shape, DType.I64, axis=axis, start=0 if axis else corner, step=stride))
    return where


def _taps(b: GraphBuilder, x: Value, window: Window) -> Value:
    """[K, N, P..., C]: for each of the K elements of the window, what it is at every position."""
    lowest = float(ml_dtypes.finfo(x.dtype.numpy).min) if x.dtype.is_float else int(np.iinfo(x.dtype.numpy).min)
    wide = b.pad(x, (0, *window.low, 0), (0, *window.high, 0), value=lowest)
    room = [n - r for n, r in zip(fixed(wide.dims[1:-1]), window.reach, strict=True)]
    counts = {1 + k: r // s + 1 for k, (r, s) in enumerate(zip(room, window.strides, strict=True))}
    steps = {1 + k: s for k, s in enumerate(window.strides)}
    taps = []
    for tap in np.ndindex(*window.kernel):
        starts = {1 + k: t * window.dilations[k] for k, t in enumerate(tap)}
        taps.append(b.unsqueeze(b.slice(wide, starts, counts, steps), 0))
    return b.concat(taps, 0)


def average_pool(c: Context) -> Value:
    """The mean of each window. What ceil_mode adds is never counted, so counted padding becomes part of x."""
    window, more = _pool_window(c, c[0])
    x = channels_last(c.b, c[0])
    counted = bool(c.attribute("count_include_pad", 0))
    if counted and any(m > 0 for m in more):
        x = c.b.pad(x, (0, *window.low, 0), (0, *window.high, 0))
        none = (0,) * window.rank
        window, counted = replace(window, low=none, high=none), False
    options = {"count_include_pad": True} if counted else {}
    return channels_first(c.b, pool(c.b, "avg", x, _longer(window, more), **options))


def lp_pool(c: Context) -> Value:
    """(sum of |x| ** p) ** (1 / p) of each window."""
    window, more = _pool_window(c, c[0])
    p = _exponent(c)
    powers = _power(c.b, channels_last(c.b, c[0]), p)
    means = pool(c.b, "avg", powers, _longer(window, more), count_include_pad=True)
    return channels_first(c.b, _root(c.b, c.b.mul(means, math.prod(window.kernel)), p))


def _exponent(c: Context) -> float:
    p = float(c.attribute("p", 2))
    if p <= 0:
        raise ModelError(f"p = {p:g}: it must be positive")
    return p


def _power(b: GraphBuilder, x: Value, p: float) -> Value:
    return b.mul(x, x) if p == 2 else b.act("abs", x) if p == 1 else b.ew("pow", b.act("abs", x), p)


def _root(b: GraphBuilder, x: Value, p: float) -> Value:
    return b.act("sqrt", x) if p == 2 else x if p == 1 else b.ew("pow", x, 1 / p)


def global_pool(kind: str) -> Callable[[Context], Value]:
    """The max or mean (avg) of all positions."""

    def rule(c: Context) -> Value:
        x = c[0]
        if x.rank in (3, 4) and all(isinstance(d, int) for d in x.dims[2:]):
            return channels_first(c.b, c.b.pool(f"global_{kind}", channels_last(c.b, x)))
        return c.b.reduce("mean" if kind == "avg" else kind, x, range(2, x.rank), keepdims=True)

    return rule


def global_lp_pool(c: Context) -> Value:
    """(sum of |x| ** p) ** (1 / p) of all positions."""
    p = _exponent(c)
    return _root(c.b, c.b.reduce("sum", _power(c.b, c[0], p), range(2, c[0].rank), keepdims=True), p)


def max_unpool(c: Context) -> Value:
    """What MaxPool left, at the places that it gives; zeros elsewhere."""
    x, indices = c[0], c[1]
    window = window_of(c, [int(k) for k in c.required("kernel_shape")], x.dims[2:])
    spatial = [(n - 1) * s + k - low - high for n, s, k, low, high in
               zip(fixed(x.dims[2:]), window.strides, window.kernel, window.low, window.high, strict=True)]  # fmt: skip
    shape = (*x.dims[:2], *spatial)
    flat = c.b.fill((dims.product(shape),), 0, x.dtype)
    made = c.b.scatter("set", flat, c.b.reshape(indices, (x.type.elements,)), c.b.reshape(x, (x.type.elements,)))
    y = c.b.reshape(made, shape)
    if not c.has(2):
        return y
    wanted = c.integers(2, "output shape")
    more = [n - m for n, m in zip(wanted[2:], spatial, strict=False)]
    if len(wanted) != x.rank or min(more) < 0:
        raise ModelError(f"an output of {wanted} is smaller than what its window gives, {spatial}")
    return c.b.pad(y, (0,) * x.rank, (0, 0, *more))


RULES: dict[str, Callable[[Context], Any]] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": global_pool("avg"),
    "GlobalLpPool": global_lp_pool,
    "GlobalMaxPool": global_pool("max"),
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "MaxUnpool": max_unpool,
}
