"""Device memory of one loaded program: its five segments, and copies to and from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dla.emulator.binding import is_device_array
from dla.isa.descriptor import Descriptor, Segment
from dla.isa.dtypes import Array, DType
from dla.isa.errors import InputError
from dla.isa.program import ConstBlock, Program

_CARRIER = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Types that device views use to move elements: CuPy does not know every element type of the machine."""
_SPARE_BYTES = 256
"""Room past the end of each segment, so that 16-byte loads of the last elements stay inside the allocation."""


class DeviceMemory:
    """The segments as plain device allocations. Raises InputError where the GPU has too little memory."""

    def __init__(self, cupy: Any, program: Program) -> None:
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self._segments: dict[Segment, Any] = {}
        for segment in Segment:
            size = program.segment_bytes.get(segment, 0) + _SPARE_BYTES
            try:
                self._segments[segment] = cupy.cuda.alloc(size)
            except cupy.cuda.memory.OutOfMemoryError as error:
                raise InputError(f"the {segment.text} segment ({size:,} bytes) does not fit in GPU memory") from error
            # Constants and state start at zero; the rest must not show what the memory held before.
            self._segments[segment].memset(0, size)
        self._state_bytes = program.segment_bytes.get(Segment.STATE, 0)
        self._saved_state: Any = None

    @property
    def bases(self) -> dict[Segment, int]:
        """Device address of each segment."""
        return {segment: memory.ptr for segment, memory in self._segments.items()}

    def upload_constants(self, blocks: Iterable[ConstBlock]) -> None:
        """Copy the const segment's blocks to the device; memory-mapped ones are read on the way."""
        for block in blocks:
            if block.data.nbytes:
                data = np.ascontiguousarray(block.data)
                (self._segments[Segment.CONST] + block.offset).copy_from_host(data.ctypes.data, data.nbytes)

    def upload(self, table: Array) -> Any:
        """A new device buffer with the bytes of `table`."""
        buffer = self._cupy.cuda.alloc(max(16, table.nbytes))
        self.overwrite(buffer, table)
        return buffer

    def overwrite(self, buffer: Any, table: Array, stream: Any = None) -> None:
        """Copy `table` over the start of `buffer`; on `stream` where one is given."""
        data = np.ascontiguousarray(table)
        if stream is None:
            buffer.copy_from_host(data.ctypes.data, data.nbytes)
        else:
            self._runtime.memcpyAsync(
                buffer.ptr, data.ctypes.data, data.nbytes, self._runtime.memcpyHostToDevice, stream.ptr
            )
            stream.synchronize()

    def fetch(self, buffer: Any, dtype: np.dtype[Any], count: int) -> Array:
        """`count` elements from the start of `buffer`, on the host."""
        host = np.empty(count, dtype)
        buffer.copy_to_host(host.ctypes.data, host.nbytes)
        return host

    def write(self, descriptor: Descriptor, array: Any) -> None:
        """Copy `array` (NumPy or CuPy, already checked) into the named tensor of `descriptor`."""
        if array.size == 0:
            return
        if is_device_array(array):
            view = self._view(descriptor, tuple(array.shape))
            view[...] = array.view(_CARRIER[descriptor.dtype.itemsize])
            return
        start = self._segments[descriptor.segment] + descriptor.offset
        if _packed(descriptor, array.shape):
            data = np.ascontiguousarray(array)
            start.copy_from_host(data.ctypes.data, data.nbytes)
            return
        # A tensor smaller than its bounds leaves gaps: fill them with what is there.
        image = np.empty(descriptor.span, np.uint8)
        start.copy_to_host(image.ctypes.data, image.nbytes)
        _host_view(image, descriptor, tuple(array.shape))[...] = array
        start.copy_from_host(image.ctypes.data, image.nbytes)

    def read(self, descriptor: Descriptor, shape: tuple[int, ...] | None = None, *, on_device: bool = False) -> Any:
        """A copy of the named tensor of `descriptor` at `shape` (its bounds where None), NumPy or CuPy."""
        sizes = descriptor.bounds if shape is None else shape
        if on_device and descriptor.dtype is not DType.BF16:
            view = self._view(descriptor, sizes).copy()
            return view.view(self._cupy.dtype(descriptor.dtype.numpy))
        image = np.empty(descriptor.span, np.uint8)
        if 0 not in sizes:
            used = (
                sum((n - 1) * s for n, s in zip(sizes, descriptor.strides, strict=True)) + 1
            ) * descriptor.dtype.itemsize
            (self._segments[descriptor.segment] + descriptor.offset).copy_to_host(image.ctypes.data, used)
        return np.ascontiguousarray(_host_view(image, descriptor, sizes)).reshape(sizes)

    def save_state(self) -> None:
        """Keep a copy of the state segment, for `restore_state`."""
        if self._saved_state is None:
            self._saved_state = self._cupy.cuda.alloc(max(16, self._state_bytes))
        self._saved_state.copy_from_device(self._segments[Segment.STATE], self._state_bytes)

    def restore_state(self) -> None:
        """Put back the state segment as it was when it was saved."""
        self._segments[Segment.STATE].copy_from_device(self._saved_state, self._state_bytes)

    def _view(self, descriptor: Descriptor, shape: tuple[int, ...]) -> Any:
        """A CuPy view of a tensor's elements as unsigned integers of their size."""
        item = descriptor.dtype.itemsize
        memory = self._segments[descriptor.segment] + descriptor.offset
        strides = tuple(s * item for s in descriptor.strides)
        return self._cupy.ndarray(shape, _CARRIER[item], memory, strides)


def _packed(descriptor: Descriptor, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` in `descriptor`'s place has no gaps: only its first long axis is below its bound."""
    longer = [n != bound for n, bound in zip(shape, descriptor.bounds, strict=True)]
    first_real = next((k for k, bound in enumerate(descriptor.bounds) if bound != 1), len(shape))
    return not any(longer[first_real + 1 :])


def _host_view(image: Array, descriptor: Descriptor, shape: tuple[int, ...]) -> Array:
    """The elements of a tensor in a host copy of its bytes."""
    item = descriptor.dtype.itemsize
    strides = tuple(s * item for s in descriptor.strides)
    if 0 in shape:
        return np.empty(shape, descriptor.dtype.numpy)
    return np.ndarray(shape, descriptor.dtype.numpy, image.data, 0, strides)
