"""Element types: their codes in bytecode, their sizes, and the one definition of how values convert."""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class DType(enum.IntEnum):
    """An element type. The value is its code in a descriptor; codes are add-only."""

    F32 = 1
    F16 = 2
    BF16 = 3
    I8 = 8
    U8 = 9
    I32 = 10
    I64 = 11
    BOOL = 12

    @property
    def text(self) -> str:
        """The name used in assembly, e.g. `f32`."""
        return self.name.lower()

    @property
    def numpy(self) -> np.dtype[Any]:
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _NUMPY[self].itemsize

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def is_int(self) -> bool:
        return self in INTS


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.I8: np.dtype(np.int8),
    DType.U8: np.dtype(np.uint8),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.BOOL: np.dtype(np.bool_),
}
BY_TEXT = {d.text: d for d in DType}
BY_NUMPY = {d.numpy: d for d in DType}

FLOATS = (DType.F32, DType.F16, DType.BF16)
INDEXES = (DType.I32, DType.I64)
INTS = (DType.I8, DType.U8, DType.I32, DType.I64)
NUMBERS = FLOATS + INTS
ALL = (*NUMBERS, DType.BOOL)

# Bits of precision (with the hidden one) and smallest normal exponent of each float type.
_PRECISION = {DType.F32: (24, -126), DType.F16: (11, -14), DType.BF16: (8, -126)}


def convert(values: Array, dtype: DType) -> Array:
    """Convert `values` to `dtype` by the machine's rules, on every backend alike; values of that type are not copied.

    float -> float and int -> float: round to nearest, ties to even, once (integers beyond 2**53 reach f16 and bf16
    by way of f64).
    float -> int: truncate toward zero, saturate at the type's limits, NaN becomes 0.
    int -> int: keep the low bits (two's complement). anything -> bool: `value != 0`.
    """
    if dtype is DType.BOOL:
        return np.asarray(values != 0)
    if dtype.is_int and _is_float(values.dtype):
        wide = np.nan_to_num(np.trunc(values.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        limits = np.iinfo(dtype.numpy)
        inside = np.where((wide > limits.min) & (wide < limits.max), wide, 0.0).astype(np.int64)
        clipped = np.where(wide >= limits.max, limits.max, np.where(wide <= limits.min, limits.min, inside))
        return np.asarray(clipped.astype(dtype.numpy))
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype in (DType.F16, DType.BF16) and not _is_float(values.dtype):
            values = values.astype(np.float64)
        if dtype is DType.BF16 and values.dtype == np.float64:
            values = _round_to_odd(values)
        return np.asarray(values.astype(dtype.numpy, copy=False))


def _round_to_odd(values: Array) -> Array:
    """f64 values as f32, such that rounding those to bf16 is the same as rounding once (ml_dtypes goes by way of f32).

    Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008: truncate, and set the last bit if inexact.
    """
    nearest = np.asarray(values.astype(np.float32))
    truncated = np.where(np.abs(nearest) > np.abs(values), np.nextafter(nearest, np.float32(0)), nearest)
    inexact = (truncated != values) & ~np.isnan(values)
    return np.asarray((truncated.view(np.uint32) | inexact).view(np.float32))


def broadcast(values: Array, shape: tuple[int, ...]) -> Array:
    """`values` seen as `shape` by NumPy's rule."""
    seen: Array = np.broadcast_to(values, shape)
    return seen


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == DType.BF16.numpy


def ulp(values: Array, dtype: DType) -> Array:
    """Distance between neighbouring numbers of float type `dtype` around each |value| (float64).

    Below the smallest normal number, down to 0, it is the distance at that number.
    """
    precision, min_exponent = _PRECISION[dtype]
    magnitude = np.where(np.isfinite(values), np.abs(values), 0.0).astype(np.float64)
    exponent = np.where(magnitude == 0, min_exponent, np.frexp(magnitude)[1])
    return np.asarray(np.ldexp(1.0, np.maximum(exponent - 1, min_exponent) - (precision - 1)))
