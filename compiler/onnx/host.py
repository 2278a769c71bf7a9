"""Shape arithmetic: what ONNX operators do to integers that are known while importing.

Each function gets object arrays of dims and gives one (or None: leave it to the machine). Only operators that shapes
are computed with are here; on everything else symbolic integers become tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.onnx import known
from dla.compiler.onnx.context import Context
from dla.isa.dtypes import Array

Arrays = Sequence[Array]


def _compare(decide: Callable[[Any, Any], bool | None]) -> Callable[[Context, Arrays], Array | None]:
    def rule(context: Context, x: Arrays) -> Array | None:
        a, b = np.broadcast_arrays(x[0], x[1])
        found = [decide(p, q) for p, q in zip(a.reshape(-1), b.reshape(-1), strict=True)]
        return None if None in found else np.array(found, np.bool_).reshape(a.shape)

    return rule


def _axes(context: Context) -> tuple[int, ...]:
    return tuple(context.axes(1) or ())


def _slice(context: Context, x: Arrays) -> Array | None:
    if len(x) > 1:
        starts, ends = x[1], x[2]
        axes = x[3] if len(x) > 3 else np.arange(len(starts))
        steps = x[4] if len(x) > 4 else np.ones(len(starts), int)
    else:
        starts, ends = context.required("starts"), context.required("ends")
        axes, steps = context.attribute("axes", range(len(starts))), [1] * len(starts)
    cut = [slice(None)] * x[0].ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if any(isinstance(v, dims.Expr) for v in (start, end, step)):
            return None
        stop = None if step < 0 and end < -x[0].shape[axis] else int(end)
        cut[int(axis)] = slice(int(start), stop, int(step))
    return x[0][tuple(cut)]


def _reshape(context: Context, x: Arrays) -> Array | None:
    if any(isinstance(v, dims.Expr) for v in x[1]):
        return None
    shape = [x[0].shape[k] if n == 0 and not context.attribute("allowzero", 0) else int(n) for k, n in enumerate(x[1])]
    return x[0].reshape(shape)


def _squeeze(context: Context, x: Arrays) -> Array:
    return np.squeeze(x[0], axis=_axes(context) or None)


def _unsqueeze(context: Context, x: Arrays) -> Array:
    axes = _axes(context)
    return np.expand_dims(x[0], tuple(a % (x[0].ndim + len(axes)) for a in axes))


def _fold(function: Callable[[Any, Any], Any]) -> Callable[[Context, Arrays], Array]:
    def rule(context: Context, x: Arrays) -> Array:
        axes = context.axes(1)
        total = x[0]
        for axis in sorted((a % total.ndim for a in (range(total.ndim) if axes is None else axes)), reverse=True):
            total = np.asarray(np.frompyfunc(function, 2, 1).reduce(total, axis=axis), object)
            if context.attribute("keepdims", 1):
                total = np.expand_dims(total, axis)
        return total

    return rule


def _range(context: Context, x: Arrays) -> Array | None:
    start, limit, delta = (v.reshape(-1)[0] for v in x)
    if any(isinstance(v, dims.Expr) for v in (start, limit, delta)):
        return None
    return known.objects(np.arange(start, limit, delta))


def _where(context: Context, x: Arrays) -> Array:
    return np.where(x[0].astype(bool), x[1], x[2])


RULES: dict[str, Callable[[Context, Arrays], Array | None]] = {
    "Add": lambda context, x: x[0] + x[1],
    "Sub": lambda context, x: x[0] - x[1],
    "Mul": lambda context, x: x[0] * x[1],
    "Div": lambda context, x: known.elementwise(known.quotient)(x[0], x[1]),
    "Neg": lambda context, x: -x[0],
    "Min": lambda context, x: known.minimum(x[0], x[1]) if len(x) == 2 else None,
    "Max": lambda context, x: known.maximum(x[0], x[1]) if len(x) == 2 else None,
    "Equal": _compare(known.equal),
    "Less": _compare(known.less),
    "Greater": _compare(lambda a, b: known.less(b, a)),
    "GreaterOrEqual": _compare(lambda a, b: None if (r := known.less(a, b)) is None else not r),
    "LessOrEqual": _compare(lambda a, b: None if (r := known.less(b, a)) is None else not r),
    "Identity": lambda context, x: x[0],
    "Gather": lambda context, x: np.take(x[0], x[1].astype(np.int64), axis=context.attribute("axis", 0)),
    "Concat": lambda context, x: np.concatenate(x, axis=context.required("axis")),
    "Slice": _slice,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": lambda context, x: x[0].transpose(context.attribute("perm")),
    "ReduceProd": _fold(lambda a, b: a * b),
    "ReduceSum": _fold(lambda a, b: a + b),
    "ReduceMax": _fold(dims.maximum),
    "ReduceMin": _fold(dims.minimum),
    "Range": _range,
    "Where": _where,
}
"""By operator: (node, inputs as object arrays) -> the result, or None where it cannot be known yet."""
