"""Shape arithmetic: what ONNX operators do to integers that are known while importing.

Each function gets object arrays of dims and gives one (or None: leave it to the machine). Only operators that shapes
are computed with are here; on everything else symbolic integers become tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.onnx import known
from dla.compiler.onnx.context import Context
from dla.isa.dtypes import INDEXES, Array
from dla.isa.errors import ModelError

LARGEST = 1024
"""Elements of a tensor that shapes are computed with."""
Arrays = Sequence[Any]
"""Object arrays; None where an optional input is absent."""
Result = Array | tuple[Array, ...] | None


def _check_size(elements: int) -> None:
    """Raise ModelError for a result that no shape is computed with: each element is computed on its own."""
    if elements > LARGEST:
        raise ModelError(f"shape arithmetic on {elements:,} numbers; {LARGEST:,} are the most")


def check(results: Iterable[Array]) -> None:
    """Raise ModelError where shape arithmetic gave too much, or numbers beyond i64."""
    for array in results:
        _check_size(array.size)
        for number in array.reshape(-1):
            if isinstance(number, int) and not -(2**63) <= number < 2**63:
                raise ModelError("its shape arithmetic gives numbers beyond i64")


def _compare(decide: Callable[[Any, Any], bool | None]) -> Callable[[Context, Arrays], Array | None]:
    def rule(context: Context, x: Arrays) -> Array | None:
        a, b = np.broadcast_arrays(x[0], x[1])
        found = [decide(p, q) for p, q in zip(a.reshape(-1), b.reshape(-1), strict=True)]
        return None if None in found else np.array(found, np.bool_).reshape(a.shape)

    return rule


def _plain(x: Array | None) -> list[int] | None:
    """The integers of a vector, or None where one is symbolic (or the input absent)."""
    if x is None or known.is_symbolic(x):
        return None
    return [int(v) for v in np.atleast_1d(x).reshape(-1)]


def _slice(context: Context, x: Arrays) -> Array | None:
    given: list[Any] = [*x[1:], None, None, None, None][:4]
    if given[0] is None:
        given = [_objects(context.attribute(name)) for name in ("starts", "ends", "axes")] + [None]
    starts, ends = _plain(given[0]), _plain(given[1])
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if given[2] is None else _plain(given[2])
    steps = [1] * len(starts) if given[3] is None else _plain(given[3])
    if axes is None or steps is None:
        return None
    cut = [slice(None)] * x[0].ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        stop = None if step < 0 and end < -x[0].shape[axis] else end
        cut[axis] = slice(start, stop, step)
    return np.asarray(x[0][tuple(cut)])


def _objects(given: Sequence[int] | None) -> Array | None:
    """An attribute's integers as an object array."""
    return None if given is None else known.objects(np.array(given, np.int64))


def _reshape(context: Context, x: Arrays) -> Array | None:
    shape = _plain(x[1]) if len(x) > 1 else list(context.required("shape"))
    if shape is None:
        return None
    keep = not context.attribute("allowzero", 0)
    return np.asarray(x[0].reshape([x[0].shape[k] if n == 0 and keep else n for k, n in enumerate(shape)]))


def _gather(context: Context, x: Arrays) -> Array | None:
    if known.is_symbolic(x[1]):
        return None
    return np.asarray(np.take(x[0], x[1].astype(np.int64), axis=context.attribute("axis", 0)))


def _cast(context: Context, x: Arrays) -> Array | None:
    return x[0] if context.element_type(context.required("to")) in INDEXES else None


def _expand(context: Context, x: Arrays) -> Array | None:
    shape = _plain(x[1])
    if shape is None:
        return None
    full = np.broadcast_shapes(x[0].shape, tuple(shape))
    _check_size(math.prod(full))
    return np.broadcast_to(x[0], full)


def _tile(context: Context, x: Arrays) -> Array | None:
    repeats = _plain(x[1])
    if repeats is None:
        return None
    _check_size(x[0].size * math.prod(repeats))
    return np.tile(x[0], repeats)


def _split(context: Context, x: Arrays) -> tuple[Array, ...] | None:
    sizes = _plain(x[1] if len(x) > 1 else _objects(context.attribute("split")))
    axis = context.attribute("axis", 0)
    if sizes is None:
        count = len(context.outputs)
        sizes = [-(-x[0].shape[axis] // count)] * count
    return tuple(np.split(x[0], np.cumsum(sizes)[:-1], axis=axis))


def _many(function: Callable[[Array, Array], Array]) -> Callable[[Context, Arrays], Array]:
    return lambda context, x: reduce(function, x)


def _squeeze(context: Context, x: Arrays) -> Array:
    axes = context.axes(1)
    return np.asarray(np.squeeze(x[0], axis=None if axes is None else tuple(axes)))


def _unsqueeze(context: Context, x: Arrays) -> Array:
    axes = context.axes(1) or []
    return np.expand_dims(x[0], tuple(a % (x[0].ndim + len(axes)) for a in axes))


def _fold(function: Callable[[Any, Any], Any]) -> Callable[[Context, Arrays], Array]:
    def rule(context: Context, x: Arrays) -> Array:
        axes = context.axes(1)
        total = x[0]
        for axis in sorted((a % total.ndim for a in (range(total.ndim) if axes is None else axes)), reverse=True):
            total = np.asarray(np.frompyfunc(function, 2, 1).reduce(total, axis=axis), object)
            if context.attribute("keepdims", 1):
                total = np.expand_dims(total, axis)
        return np.asarray(total, object)

    return rule


def _range(context: Context, x: Arrays) -> Array | None:
    numbers = [_plain(v) for v in x]
    if any(n is None for n in numbers):
        return None
    return known.objects(np.arange(*(n[0] for n in numbers if n)))


def _modulo(context: Context, x: Arrays) -> Array | None:
    """Sizes are not negative, so that both kinds of Mod are the remainder of a division rounded down."""
    signs = [dims.interval(v)[0] for a in x for v in a.reshape(-1)]
    if min(signs, default=0) < 0 or 0 in x[1].reshape(-1).tolist():
        return None
    return known.elementwise(lambda a, b: a - (a // b) * b)(x[0], x[1])


def _where(context: Context, x: Arrays) -> Array | None:
    return None if known.is_symbolic(x[0]) else np.asarray(np.where(x[0].astype(bool), x[1], x[2]), object)


RULES: dict[str, Callable[[Context, Arrays], Result]] = {
    "Add": lambda context, x: x[0] + x[1],
    "Sub": lambda context, x: x[0] - x[1],
    "Mul": lambda context, x: x[0] * x[1],
    "Div": lambda context, x: known.elementwise(known.quotient)(x[0], x[1]),
    "Neg": lambda context, x: -x[0],
    "Mod": _modulo,
    "Min": _many(known.minimum),
    "Max": _many(known.maximum),
    "Sum": _many(lambda a, b: a + b),
    "Cast": _cast,
    "Expand": _expand,
    "Tile": _tile,
    "Split": _split,
    "Equal": _compare(known.equal),
    "Less": _compare(known.less),
    "Greater": _compare(lambda a, b: known.less(b, a)),
    "GreaterOrEqual": _compare(lambda a, b: None if (r := known.less(a, b)) is None else not r),
    "LessOrEqual": _compare(lambda a, b: None if (r := known.less(b, a)) is None else not r),
    "Identity": lambda context, x: x[0],
    "Gather": _gather,
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
