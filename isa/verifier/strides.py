"""Geometry of strided views: whether two share a byte, whether one overlaps itself, which runs of bytes it covers.

Views are taken at their largest dims. "Disjoint" and "apart" are proofs; the lack of one proves nothing, except for
small views, which are compared element by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dla.isa.descriptor import Descriptor
from dla.isa.dtypes import Array

Range = tuple[int, int]
"""First byte, and last byte + 1."""

_EXACT_ELEMENTS = 1024
"""Up to so many elements, addresses are listed."""


def _steps(view: Descriptor) -> list[tuple[int, int]]:
    """(size, stride in bytes) of the dims with more than one element."""
    itemsize = view.dtype.itemsize
    return [(n, s * itemsize) for n, s in zip(view.bounds, view.strides, strict=True) if n > 1]


def disjoint(a: Descriptor, b: Descriptor) -> bool:
    """Whether no byte belongs to both views, taking offset registers to be alike."""
    if a.span == 0 or b.span == 0 or a.offset + a.span <= b.offset or b.offset + b.span <= a.offset:
        return True
    return _disjoint_by_residue(a, b) or _disjoint_by_listing(a, b)


def _disjoint_by_residue(a: Descriptor, b: Descriptor) -> bool:
    """Whether addresses differ modulo some stride: different columns of one matrix, odd and even elements."""
    steps_a, steps_b = _steps(a), _steps(b)
    strides = {s for _, s in steps_a + steps_b if s}
    for modulus in {*strides, math.gcd(*strides)} - {0}:
        width_a = _width_within(steps_a, modulus) + a.dtype.itemsize
        width_b = _width_within(steps_b, modulus) + b.dtype.itemsize
        distance = (b.offset - a.offset) % modulus
        if width_a <= distance and distance + width_b <= modulus:
            return True
    return False


def _width_within(steps: Sequence[tuple[int, int]], modulus: int) -> int:
    """Bytes from the first to the last first byte, leaving out dims whose steps vanish modulo `modulus`."""
    return sum((n - 1) * s for n, s in steps if s % modulus)


def _disjoint_by_listing(a: Descriptor, b: Descriptor) -> bool:
    if max(a.elements, b.elements) > _EXACT_ELEMENTS:
        return False
    first, second = _addresses(a), _addresses(b)
    # The first element of b that ends after an element of a begins must begin after that ends.
    following = np.searchsorted(second, first - b.dtype.itemsize, side="right")
    reached = following < len(second)
    return not bool(np.any(second[following[reached]] < first[reached] + a.dtype.itemsize))


def _addresses(view: Descriptor) -> Array:
    """First bytes of all elements, sorted."""
    result = np.array([view.offset], np.int64)
    for n, s in _steps(view):
        result = (result[:, None] + np.arange(n, dtype=np.int64) * s).reshape(-1)
    return np.sort(result)


def apart(view: Descriptor) -> bool:
    """Whether the elements of `view` share no bytes with each other."""
    if view.span == 0:
        return True
    reach = view.dtype.itemsize
    for n, s in sorted(_steps(view), key=lambda step: step[1]):
        if s < reach:
            break
        reach += (n - 1) * s
    else:
        return True
    if view.elements > _EXACT_ELEMENTS:
        return False
    return bool(np.all(np.diff(_addresses(view)) >= view.dtype.itemsize))


def same(a: Descriptor, b: Descriptor) -> bool:
    """Whether two views have the same elements in the same order: element i of one is element i of the other."""
    if (a.segment, a.dtype, a.offset, a.offset_register, a.offset_scale) != (
        b.segment, b.dtype, b.offset, b.offset_register, b.offset_scale,
    ):  # fmt: skip
        return False
    if a.dims == b.dims and a.strides == b.strides:
        return True
    return _without_ones(a) == _without_ones(b)


def _without_ones(view: Descriptor) -> list[tuple[object, int]]:
    return [(n, s) for n, s in zip(view.dims, view.strides, strict=True) if n != 1]


def runs(view: Descriptor, limit: int) -> list[Range] | None:
    """The bytes of `view` as maximal runs if there are at most `limit`, else None. For static addresses."""
    if view.span == 0:
        return []
    length = view.dtype.itemsize
    starts = [view.offset]
    for n, s in sorted(_steps(view), key=lambda step: step[1]):
        if s <= length and len(starts) == 1:
            length += (n - 1) * s
            continue
        if len(starts) * n > limit:
            return None
        starts = [start + i * s for i in range(n) for start in starts]
    return [(start, start + length) for start in starts]
