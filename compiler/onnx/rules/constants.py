"""Operators that make tensors from nothing but shapes and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.dims import Dim, Expr
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context, Item
from dla.compiler.onnx.known import Known
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

_MOST_DENSE = 2**24  # elements of a sparse constant, which becomes a dense one
_CONSTANT_KINDS = {
    "value": None, "value_float": DType.F32, "value_floats": DType.F32, "value_int": DType.I64, "value_ints": DType.I64,
}  # fmt: skip


def constant(c: Context) -> Item:
    """One of several attributes holds the value."""
    given = [kind for kind in _CONSTANT_KINDS if kind in c.attributes]
    if "sparse_value" in c.attributes:
        return _sparse(c)
    if len(given) != 1:
        found = ", ".join(c.attributes) or "none"
        raise ModelError(f"a constant needs one attribute of {', '.join(_CONSTANT_KINDS)}; it has {found}")
    return c.b.constant(c.attributes[given[0]], _CONSTANT_KINDS[given[0]])


def _sparse(c: Context) -> Value:
    """Elements `values` at flat positions, or at coordinates (one row each); zeros elsewhere."""
    sparse = c.attributes["sparse_value"]
    values, indices = c.array(sparse.values, "sparse_value"), c.array(sparse.indices, "sparse_value")
    shape = tuple(sparse.dims)
    if min(shape, default=0) < 0 or math.prod(shape) > _MOST_DENSE:
        raise ModelError(f"its sparse value of shape {list(shape)} has more than {_MOST_DENSE:,} elements")
    dense = np.zeros(shape, values.dtype)
    flat = np.ravel_multi_index(tuple(indices.T), shape) if indices.ndim == 2 else indices
    if np.any((flat < 0) | (flat >= dense.size)) or flat.shape != values.shape:
        raise ModelError(f"its sparse value has positions outside its shape {list(shape)}")
    dense.reshape(-1)[flat] = values
    return c.b.constant(dense)


def constant_of_shape(c: Context) -> Value:
    """Full of one number, by default 0 in f32."""
    value = c.attribute("value")
    if value is not None and value.size != 1:
        raise ModelError(f"its value has {value.size} elements instead of 1")
    number, dtype = (0.0, DType.F32) if value is None else (value.reshape(-1)[0], c.b.constant(value).dtype)
    return c.b.fill(c.sizes(0, "shape"), _plain(number, dtype), dtype)


def _plain(number: Any, dtype: DType) -> int | float | bool:
    return bool(number) if dtype is DType.BOOL else float(number) if dtype.is_float else int(number)


def arange(c: Context) -> Value:
    """start, start + delta, ... below limit."""
    first = c.inputs[0]
    dtype = first.dtype if isinstance(first, Value | Known) else DType.I64
    start, limit, delta = (c.scalar(k, name) for k, name in enumerate(("start", "limit", "delta")))
    if not isinstance(delta, Expr) and delta == 0:
        raise ModelError("its delta is 0")
    return c.b.iota([_count(start, limit, delta)], dtype, start=start, step=delta)


def _count(start: Any, limit: Any, delta: Any) -> Dim:
    if all(not isinstance(v, Expr) for v in (start, limit, delta)):
        if not np.all(np.isfinite((start, limit, delta))):
            raise ModelError(f"a range from {start} to {limit} by {delta}")
        count: int = math.ceil((limit - start) / delta)
        return max(0, count)
    if isinstance(delta, Expr):
        raise ModelError("its delta is a symbolic size", hint="fix these dims: --fix NAME=SIZE")
    span, step = (limit - start, delta) if delta > 0 else (start - limit, -delta)
    return dims.maximum((span + (step - 1)) // step, 0)


def eye_like(c: Context) -> Value:
    """Ones on a diagonal, as large as the input."""
    if c[0].rank != 2:
        raise ModelError(f"{c[0].type} is no matrix")
    rows, columns = c[0].dims
    dtype = c.element_type(c.attributes["dtype"]) if "dtype" in c.attributes else c[0].dtype
    return c.b.cast(c.b.ew("eq", *_positions(c, rows, columns, int(c.attribute("k", 0)))), dtype)


def has_element(c: Context) -> Value:
    """Whether an optional holds a tensor: known here, for only absent inputs are empty optionals."""
    return c.b.constant(c.has(0))


def trilu(c: Context) -> Value:
    """The upper or lower triangle of matrices; zeros elsewhere."""
    x = c[0]
    if x.rank < 2:
        raise ModelError(f"{x.type} has no matrices")
    row, column = _positions(c, x.dims[-2], x.dims[-1], 0)
    if c.has(1):
        row = c.b.add(row, c.b.reshape(c[1], [1, 1]))
    inside = c.b.ew("le" if c.attribute("upper", 1) else "ge", row, column)
    return c.b.select(inside, x, False if x.dtype is DType.BOOL else 0)


def _positions(c: Context, rows: Dim, columns: Dim, shift: int) -> tuple[Value, Value]:
    """The row's index + shift [rows, 1], and the column's [1, columns]."""
    return c.b.iota([rows, 1], DType.I64, start=shift), c.b.iota([1, columns], DType.I64, axis=1)


RULES: dict[str, Callable[[Context], Any]] = {
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "EyeLike": eye_like,
    "OptionalGetElement": lambda c: c[0],
    "OptionalHasElement": has_element,
    "Range": arange,
    "Trilu": trilu,
}
