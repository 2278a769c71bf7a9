"""Operators that fold axes, or find or order elements along one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.compiler.onnx.rules.slices import reversed_part
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

Step = Callable[[Context, Value], Value]


def _same(c: Context, x: Value) -> Value:
    return x


def _reduction(kind: str, before: Step = _same, after: Step = _same) -> Callable[[Context], Value]:
    """REDUCE.kind of before(x), then `after`. Results have x's type."""

    def rule(c: Context) -> Value:
        x = c[0]
        axes = c.axes(1)
        prepared = before(c, x)
        if not axes and c.attribute("noop_with_empty_axes", 0):
            axes = []
        else:
            axes = [c.axis(a, x.rank) for a in (axes or range(x.rank))]
        return c.b.cast(after(c, _reduced(c, kind, prepared, axes)), x.dtype)

    return rule


def _reduced(c: Context, kind: str, x: Value, axes: list[int]) -> Value:
    keep = bool(c.attribute("keepdims", 1))
    if not axes:
        return c.b.act("abs", x) if kind == "l2" else x
    if kind in ("max", "min") and any(x.dims[a] == 0 for a in axes):
        return _least(c, kind, x, axes, keep)
    if kind == "mean" and not x.dtype.is_float:
        total = c.b.reduce("sum", x, axes, keepdims=keep)
        return c.b.div(total, c.b.fill((), dims.product(x.dims[a] for a in axes), total.dtype))
    return c.b.reduce(kind, x, axes, keepdims=keep)


def _least(c: Context, kind: str, x: Value, axes: list[int], keep: bool) -> Value:
    """The maximum (minimum) of no elements: the type's smallest (largest) value."""
    shape = [1 if k in axes else d for k, d in enumerate(x.dims) if keep or k not in axes]
    if x.dtype.is_float:
        return c.b.fill(shape, -np.inf if kind == "max" else np.inf, x.dtype)
    limits = np.iinfo(x.dtype.numpy)
    return c.b.fill(shape, int(limits.min if kind == "max" else limits.max), x.dtype)


def _wide(c: Context, x: Value) -> Value:
    """Integers as f32, for functions of real numbers."""
    return x if x.dtype.is_float else c.b.cast(x, DType.F32)


def _bytes(c: Context, x: Value) -> Value:
    """Bools as 0 and 1."""
    return c.b.cast(x, DType.U8) if x.dtype is DType.BOOL else x


def _square(c: Context, x: Value) -> Value:
    """The square of x, of half types in f32: their squares easily leave the range."""
    return c.b.emit("EW", [x, x], sub="mul", dtype=DType.F32 if x.dtype.is_float else None)


def _extreme_index(kind: str) -> Callable[[Context], Value]:
    """The index of the largest (smallest) element: the first of equal ones, or the last."""

    def rule(c: Context) -> Value:
        x = c[0]
        axis, keep = c.axis(int(c.attribute("axis", 0)), x.rank), bool(c.attribute("keepdims", 1))
        last = c.attribute("select_last_index", 0)
        end = x.dims[axis] - 1
        given = reversed_part(c.b, x, axis, end, x.dims[axis], -1) if last else x
        found = c.b.reduce(kind, given, [axis], keepdims=keep)
        return c.b.sub(c.b.fill((), end, found.dtype), found) if last else found

    return rule


def topk(c: Context) -> tuple[Value, Value]:
    """The k largest or smallest elements along an axis, in order, and their indices."""
    x = c[0]
    count: Any = c.size(1, "k") if c.has(1) else int(c.required("k"))
    axis = c.axis(int(c.attribute("axis", -1)), x.rank)
    size = x.dims[axis]
    if isinstance(count, int) and (count < 0 or (isinstance(size, int) and count > size)):
        raise ModelError(f"{count} elements along axis {axis} of {x.type}")
    return c.b.topk(x, count, smallest=not c.attribute("largest", 1), axis=axis)


def _running(kind: str) -> Callable[[Context], Value]:
    def rule(c: Context) -> Value:
        axis = c.axis(int(c.scalar(1, "axis")), c[0].rank)
        flags = {name: bool(c.attribute(name, 0)) for name in ("exclusive", "reverse")}
        return c.b.scan(kind, c[0], axis, **flags)

    return rule


def hardmax(c: Context) -> Value:
    """1 at the first largest element along an axis, else 0; before operator set 13, of all axes from it on."""
    x = c[0]
    axis = c.axis(int(c.attribute("axis", -1 if c.opset >= 13 else 1)), x.rank)
    rows = x
    if c.opset < 13:
        rows = c.b.reshape(x, [dims.product(x.dims[:axis]), dims.product(x.dims[axis:])])
        axis = 1
    best = c.b.reduce("argmax", rows, [axis], keepdims=True)
    line = [d if k == axis else 1 for k, d in enumerate(rows.dims)]
    hit = c.b.ew("eq", best, c.b.iota(line, DType.I64, axis=axis))
    return c.b.reshape(c.b.cast(hit, x.dtype), x.dims)


def lp_normalisation(c: Context) -> Value:
    """The tensor x over its norm along an axis; zeros where that is 0."""
    x = c[0]
    axis, power = c.axis(int(c.attribute("axis", -1)), x.rank), c.attribute("p", 2)
    if power not in (1, 2):
        raise ModelError(f"norms of p = {power}; p may be 1 or 2")
    if power == 2:
        norm = c.b.reduce("l2", x, [axis], keepdims=True)
    else:
        norm = c.b.reduce("sum", c.b.act("abs", x), [axis], keepdims=True)
    return c.b.select(c.b.ew("eq", norm, 0), 0, c.b.div(x, norm))


RULES: dict[str, Callable[[Context], Any]] = {
    "ArgMax": _extreme_index("argmax"),
    "ArgMin": _extreme_index("argmin"),
    "CumProd": _running("prod"),
    "CumSum": _running("sum"),
    "Hardmax": hardmax,
    "LpNormalization": lp_normalisation,
    "ReduceL1": _reduction("sum", before=lambda c, x: c.b.act("abs", x)),
    "ReduceL2": _reduction("l2", before=_wide),
    "ReduceLogSum": _reduction("sum", before=_wide, after=lambda c, x: c.b.act("log", x)),
    "ReduceLogSumExp": _reduction("logsumexp", before=_wide),
    "ReduceMax": _reduction("max", before=_bytes),
    "ReduceMean": _reduction("mean"),
    "ReduceMin": _reduction("min", before=_bytes),
    "ReduceProd": _reduction("prod"),
    "ReduceSum": _reduction("sum"),
    "ReduceSumSquare": _reduction("sum", before=_square),
    "TopK": topk,
}
