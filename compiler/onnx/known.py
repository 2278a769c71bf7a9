"""Values that are known while importing: constants, and integers made of symbolic sizes.

ONNX computes shapes with tensors (Shape, Gather, Concat, Reshape ...). Here such a tensor is a `Known`: an array of
dims. Arithmetic on it is done by the host, so nothing of it becomes an instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.dims import Dim, Expr
from dla.isa.dtypes import Array, DType


@dataclass(frozen=True)
class Known:
    """Integers of type `dtype`, at least one of them symbolic: an object array of `Dim`."""

    array: Array
    dtype: DType


@dataclass(frozen=True)
class Tensors:
    """A sequence, as ONNX calls it: of tensors, as many as are known while importing. It is no tensor itself."""

    parts: tuple[Any, ...]  # each a Value or a Known


def is_symbolic(array: Array) -> bool:
    """Whether an object array holds a symbolic size."""
    return any(isinstance(x, Expr) for x in array.reshape(-1))


def objects(values: Any) -> Array:
    """An object array of Python integers and dims, of the shape of `values`."""
    given = np.asarray(values)
    if given.dtype == object:
        return given
    result = np.empty(given.shape, object)
    result[...] = given.astype(object)
    return result


def elementwise(function: Callable[[Dim, Dim], Dim]) -> Callable[[Array, Array], Array]:
    """`function` over two broadcast object arrays."""
    return lambda a, b: np.asarray(np.frompyfunc(function, 2, 1)(a, b), object)


minimum = elementwise(dims.minimum)
maximum = elementwise(dims.maximum)


def quotient(a: Dim, b: Dim) -> Dim:
    """Integer division as ONNX means it for sizes, which are not negative."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    return a // b


def equal(a: Dim, b: Dim) -> bool | None:
    """Whether two dims are equal for all sizes (True), for none (False), or for some (None)."""
    low, high = dims.interval(a - b)
    if low > 0 or high < 0:
        return False
    return True if a == b else None


def less(a: Dim, b: Dim) -> bool | None:
    """Whether a < b for all sizes, for none, or for some (None)."""
    low, high = dims.interval(a - b)
    return True if high < 0 else False if low >= 0 else None
