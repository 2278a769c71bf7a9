"""Tensor maps: what the copy engine of a Hopper GPU has to know of a tensor; encoded when a program is loaded."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

from dla.emulator.device.layout import TENSOR_MAP_BYTES
from dla.isa.descriptor import Descriptor, bound_of
from dla.isa.dtypes import DType
from dla.isa.errors import BackendError

ALIGNMENT = 16
"""Bytes: of a map's address and of every stride."""
MAX_STRIDE = 2**40
_DTYPES = {DType.U8: 0, DType.I8: 0, DType.I32: 3, DType.F16: 6, DType.F32: 7, DType.BF16: 9}
"""CUtensorMapDataType."""
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle, by the bytes that a swizzled row has."""
_PROMOTION_256 = 3
"""CU_TENSOR_MAP_L2_PROMOTION_L2_256B: what a miss brings into the L2 cache."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor as the copy engine sees it (CUDA driver API, cuTensorMapEncodeTiled), innermost dim first.

    `strides` are in bytes and begin with that of dims[1]: the innermost elements are neighbours. What a box covers
    outside of the dims is read as 0 and not written. `swizzle` is the width, in bytes, of the rows of shared memory
    whose 16-byte chunks are permuted; 0 for none.
    """

    dtype: DType
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128

    def encode(self) -> bytes:
        """The 128 bytes that the kernel uses. Raises BackendError where the driver refuses."""
        rank = len(self.dims)
        buffer = ctypes.create_string_buffer(TENSOR_MAP_BYTES + 64)
        aligned = -(-ctypes.addressof(buffer) // 64) * 64
        status = _driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(aligned), _DTYPES[self.dtype], rank, ctypes.c_void_p(self.address),
            (ctypes.c_uint64 * rank)(*self.dims), (ctypes.c_uint64 * max(1, rank - 1))(*self.strides),
            (ctypes.c_uint32 * rank)(*self.box), (ctypes.c_uint32 * rank)(*(1,) * rank), 0, _SWIZZLES[self.swizzle],
            _PROMOTION_256, 0,
        )  # fmt: skip
        if status:
            raise BackendError(f"the driver refuses a tensor map (status {status}): {self}")
        return ctypes.string_at(aligned, TENSOR_MAP_BYTES)


@dataclass(frozen=True)
class Im2colMap:
    """Pixels of a tensor [channels, width, height, samples] as windows see them (cuTensorMapEncodeIm2col).

    `strides` are in bytes, of all dims but the first. A copy takes `box[0]` channels of `box[1]` pixels that lie `step`
    (width, height) from each other, line by line, in the region from `lower` to the last pixel + `upper` (width,
    height). What it covers outside of the dims is read as 0.
    """

    dtype: DType
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    lower: tuple[int, int]
    upper: tuple[int, int]
    box: tuple[int, int]
    step: tuple[int, int]

    def encode(self) -> bytes:
        """The 128 bytes that the kernel uses. Raises BackendError where the driver refuses."""
        rank = len(self.dims)
        buffer = ctypes.create_string_buffer(TENSOR_MAP_BYTES + 64)
        aligned = -(-ctypes.addressof(buffer) // 64) * 64
        status = _driver().cuTensorMapEncodeIm2col(
            ctypes.c_void_p(aligned), _DTYPES[self.dtype], rank, ctypes.c_void_p(self.address),
            (ctypes.c_uint64 * rank)(*self.dims), (ctypes.c_uint64 * (rank - 1))(*self.strides),
            (ctypes.c_int * 2)(*self.lower), (ctypes.c_int * 2)(*self.upper), ctypes.c_uint32(self.box[0]),
            ctypes.c_uint32(self.box[1]), (ctypes.c_uint32 * rank)(1, *self.step, 1), 0, _SWIZZLES[128],
            _PROMOTION_256, 0,
        )  # fmt: skip
        if status:
            raise BackendError(f"the driver refuses a tensor map (status {status}): {self}")
        return ctypes.string_at(aligned, TENSOR_MAP_BYTES)


AnyMap = TensorMap | Im2colMap


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BackendError(f"no CUDA driver: {error}") from error


def packed_axis(descriptor: Descriptor, strides: tuple[int, ...]) -> int | None:
    """The axis, of the last two of `strides`, that can be a map's innermost: neighbours along it, the other's aligned.

    `strides` are the descriptor's, in elements, possibly broadcast. None where there is no such axis, or the address or
    a stride is not a multiple of 16 bytes.
    """
    item = descriptor.dtype.itemsize
    if descriptor.offset % ALIGNMENT or any(s * item % ALIGNMENT for s in strides[:-2]):
        return None
    for axis in (-1, -2):
        dim, other = bound_of(descriptor.dims[axis]), strides[-3 - axis]
        if (strides[axis] == 1 or dim == 1) and other * item % ALIGNMENT == 0 and 0 < other * item < MAX_STRIDE:
            return axis
    return None
