"""Headers of `.npy` data that nobody vouches for, and the arrays that they describe.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html (versions 1 and 2).
"""

from __future__ import annotations

import math
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from dla.isa.dtypes import Array

_MAX_RANK = 32  # of NumPy 1; NumPy 2 has 64
_READERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


@dataclass(frozen=True)
class Header:
    """What follows a `.npy` header: `nbytes` bytes, an array of `shape` and `dtype`."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, data: bytes | memoryview) -> Array:
        """The array in `data`, which has `nbytes` bytes and is not copied."""
        flat = np.frombuffer(data, np.uint8).view(self.dtype)
        return flat.reshape(self.shape, order="F" if self.is_fortran else "C")


def read_header(stream: IO[bytes]) -> Header:
    """The header at the beginning of `stream`, which is left at its end. Raises ValueError if there is none."""
    version = npy_format.read_magic(stream)
    if version not in _READERS:
        raise ValueError(f"version {version[0]}.{version[1]}")
    try:
        header = Header(*_READERS[version](stream))
    except (EOFError, tokenize.TokenError, RecursionError, MemoryError) as error:  # from parsing it as Python
        raise ValueError(f"its header cannot be parsed: {error}") from error
    if header.dtype.itemsize == 0 or not is_possible(header.shape, header.dtype.itemsize):
        raise ValueError("no array has the shape or type in its header")
    return header


def is_possible(shape: Sequence[int], itemsize: int) -> bool:
    """Whether NumPy can hold such an array (of any size that addresses can count), even if it has no elements."""
    sizes = all(type(n) is int and n >= 0 for n in shape)
    return sizes and len(shape) <= _MAX_RANK and math.prod(n for n in shape if n) * itemsize < 2**63
