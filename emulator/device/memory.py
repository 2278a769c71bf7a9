"""Device memory of one loaded program: its five segments, and copies to and from them, in order on one stream.

Small inputs travel together with the registers in one copy from pinned memory, small outputs with the report in one
copy back; so the record of a launch lies in front of the input segment, and the report in front of the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dla.emulator.binding import is_device_array
from dla.emulator.device.laid_out import laid_out
from dla.emulator.device.layout import REPORT
from dla.emulator.device.paths import Target
from dla.emulator.device.resident import resident
from dla.isa.descriptor import Descriptor, Segment
from dla.isa.dtypes import Array, DType
from dla.isa.errors import InputError
from dla.isa.program import Program, Tensor

CARRIER = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Types that device views use to move elements: CuPy does not know every element type of the machine."""
_SPARE_BYTES = 256
"""Room past the end of each segment, so that 16-byte loads of the last elements stay inside the allocation."""
REGISTER_BYTES = 32 * 8
_REPORT_BYTES = -(-REPORT.dtype.itemsize // 256) * 256
_FRONT = {Segment.INPUT: REGISTER_BYTES, Segment.OUTPUT: _REPORT_BYTES}
"""What lies in front of a segment, in bytes; a multiple of 256, the alignment of tensors."""
SMALL_BYTES = 2**18
"""Inputs (outputs) up to this many bytes are copied together: latency, not bandwidth, is what they cost."""


class DeviceMemory:
    """The segments as plain device allocations. Raises InputError where the GPU has too little memory.

    All copies are ordered on `stream`, a CuPy stream. The const segment, with the pieces that the rank of `target` has
    of constants that are cut, is shared with other sessions of the program.
    """

    def __init__(self, cupy: Any, program: Program, stream: Any, target: Target) -> None:
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self.stream = stream
        self._sizes = {segment: program.segment_bytes.get(segment, 0) for segment in Segment}
        self._whole: dict[Segment, Any] = {}
        for segment in Segment:
            if segment is not Segment.CONST:
                self._whole[segment] = self._allocate(segment)
        laid = laid_out(program, hopper=target.hopper)
        self.program = laid.program
        """The program, as its constants lie here."""
        self._constants = resident(cupy, program, target.rank, laid.matrices, lambda: self._allocate(Segment.CONST))
        self._whole[Segment.CONST] = self._constants.memory
        self.bases = {segment: int(memory.ptr) + _FRONT.get(segment, 0) for segment, memory in self._whole.items()}
        """Device address of each segment."""
        self._going, self._coming = (
            _Pinned(cupy, _FRONT[segment] + min(self._sizes[segment], SMALL_BYTES))
            for segment in (Segment.INPUT, Segment.OUTPUT)
        )
        self._received = self._coming.bytes[: REPORT.dtype.itemsize].view(REPORT.dtype)

    def _allocate(self, segment: Segment) -> Any:
        size = _FRONT.get(segment, 0) + self._sizes[segment] + _SPARE_BYTES
        try:
            memory = self._cupy.cuda.alloc(size)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise InputError(
                f"the {segment.text} segment ({self._sizes[segment]:,} bytes) does not fit in GPU memory"
            ) from error
        # Constants and state start at zero; the rest must not show what the memory held before.
        self._runtime.memsetAsync(memory.ptr, 0, size, self.stream.ptr)
        return memory

    @property
    def registers(self) -> int:
        """Device address of the i64[32] that the registers start from."""
        return int(self._whole[Segment.INPUT].ptr)

    @property
    def report(self) -> int:
        """Device address of the report."""
        return int(self._whole[Segment.OUTPUT].ptr)

    # ---- tables

    def upload(self, table: Array) -> Any:
        """A new device buffer with the bytes of `table`."""
        buffer = self._cupy.cuda.alloc(max(16, table.nbytes))
        self.overwrite(buffer.ptr, table)
        return buffer

    def overwrite(self, address: int, table: Array, stream: Any = None) -> None:
        """Copy `table` to a device address, and wait; on `stream` where it must not wait for the machine."""
        data, stream = np.ascontiguousarray(table), stream or self.stream
        self._copy_in(address, data, stream)
        stream.synchronize()

    def clear(self, address: int, size: int, value: int = 0) -> None:
        """Set `size` bytes to `value`, in order with everything else."""
        self._runtime.memsetAsync(address, value, size, self.stream.ptr)

    def fill(self, segment: Segment, pattern: Array) -> None:
        """Write the bytes of `pattern` (u8) over a whole segment, again and again; ordered, not waited for."""
        start, size = self.bases[segment], self._sizes[segment]
        done = min(size, pattern.nbytes)
        self.overwrite(start, pattern[:done])
        while done < size:
            more = min(done, size - done)
            self.copy_within(start + done, start, more)
            done += more

    def fetch(self, address: int, dtype: np.dtype[Any], count: int) -> Array:
        """`count` elements from a device address, on the host."""
        host = np.empty(count, dtype)
        self._copy_out(host, address, host.nbytes)
        self.stream.synchronize()
        return host

    def _copy_in(self, address: int, data: Array, stream: Any) -> None:
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(address, data.ctypes.data, data.nbytes, kind, stream.ptr)

    def _copy_out(self, host: Array, address: int, size: int) -> None:
        self._runtime.memcpyAsync(host.ctypes.data, address, size, self._runtime.memcpyDeviceToHost, self.stream.ptr)

    # ---- a run's inputs and outputs

    def send(self, registers: Array, arrays: Mapping[Tensor, Any]) -> None:
        """Registers (i64[32]) and inputs (NumPy or CuPy, already checked) to the device; ordered, not waited for.

        The memory of large NumPy arrays must stay as it is until the stream has come this far.
        """
        image = self._going.bytes
        image[:REGISTER_BYTES] = registers.view(np.uint8)
        together = self._sizes[Segment.INPUT] <= SMALL_BYTES and not any(map(is_device_array, arrays.values()))
        used = REGISTER_BYTES
        for tensor, array in arrays.items() if together else ():
            start = REGISTER_BYTES + tensor.descriptor.offset
            used = max(used, start + tensor.descriptor.span)
            _host_view(image[start:], tensor.descriptor, array.shape)[...] = array
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(self.registers, self._going.address, used, kind, self.stream.ptr)
        for tensor, array in () if together else arrays.items():
            self.write(tensor.descriptor, array)

    def ask(self) -> None:
        """Order the report, and the outputs where they are small, to be copied to where `received` finds them."""
        size, kind = self._coming.bytes.nbytes, self._runtime.memcpyDeviceToHost
        self._runtime.memcpyAsync(self._coming.address, self.report, size, kind, self.stream.ptr)

    @property
    def received(self) -> Any:
        """The report as `ask` found it; the stream has been waited for."""
        return self._received[0]

    def outputs(self, shapes: Mapping[Tensor, tuple[int, ...]], *, on_device: bool) -> dict[str, Any]:
        """Copies of the outputs at `shapes`, NumPy or CuPy, after `ask` and a wait."""
        if on_device or self._sizes[Segment.OUTPUT] > SMALL_BYTES:
            return {t.name: self.read(t.descriptor, shape, on_device=on_device) for t, shape in shapes.items()}
        image = self._coming.bytes[_REPORT_BYTES:]
        return {
            t.name: np.array(_host_view(image[t.descriptor.offset :], t.descriptor, shape), order="C")
            for t, shape in shapes.items()
        }

    # ---- tensors

    def write(self, descriptor: Descriptor, array: Any) -> None:
        """Copy `array` (NumPy or CuPy, already checked) into the named tensor of `descriptor`; not waited for."""
        if array.size == 0:
            return
        if is_device_array(array):
            view = self.view(descriptor, tuple(array.shape))
            self.stream.wait_event(self._cupy.cuda.get_current_stream().record())
            with self.stream:
                view[...] = array.view(CARRIER[descriptor.dtype.itemsize])
            return
        start = self._address(descriptor)
        if _packed(descriptor, array.shape):
            data = np.ascontiguousarray(array)
            self._copy_in(start, data, self.stream)
            if data is not array:
                self.stream.synchronize()  # nothing else keeps `data` alive
            return
        # A tensor smaller than its bounds leaves gaps: fill them with what is there.
        image = self.fetch(start, np.dtype(np.uint8), descriptor.span)
        _host_view(image, descriptor, array.shape)[...] = array
        self.overwrite(start, image)

    def read(self, descriptor: Descriptor, shape: tuple[int, ...] | None = None, *, on_device: bool = False) -> Any:
        """A copy of the named tensor of `descriptor` at `shape` (its bounds where None), NumPy or CuPy."""
        sizes = descriptor.bounds if shape is None else shape
        if on_device and descriptor.dtype is not DType.BF16:
            with self.stream:
                copy = self.view(descriptor, sizes).copy()
            self.stream.synchronize()
            return copy.view(self._cupy.dtype(descriptor.dtype.numpy))
        return self.read_at(self._address(descriptor), descriptor, sizes)

    def read_at(self, address: int, descriptor: Descriptor, sizes: tuple[int, ...]) -> Array:
        """A host copy of a tensor like that of `descriptor`, at `sizes`, that lies at a device address."""
        image = np.empty(descriptor.span, np.uint8)
        if 0 not in sizes:
            reach = sum((n - 1) * s for n, s in zip(sizes, descriptor.strides, strict=True)) + 1
            self._copy_out(image, address, reach * descriptor.dtype.itemsize)
            self.stream.synchronize()
        return np.ascontiguousarray(_host_view(image, descriptor, sizes)).reshape(sizes)

    def copy_within(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes from one device address to another; ordered, not waited for."""
        kind = self._runtime.memcpyDeviceToDevice
        self._runtime.memcpyAsync(target, source, size, kind, self.stream.ptr)

    def view(self, descriptor: Descriptor, shape: Sequence[int]) -> Any:
        """A CuPy view of a tensor's elements as unsigned integers of their size."""
        return self.view_at(self._address(descriptor), descriptor, shape, descriptor.strides)

    def view_at(self, address: int, descriptor: Descriptor, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """The same of elements like those of `descriptor`, in its segment, from a device address on."""
        item, whole = descriptor.dtype.itemsize, self._whole[descriptor.segment]
        memory = whole + (address - int(whole.ptr))
        return self._cupy.ndarray(tuple(shape), CARRIER[item], memory, tuple(s * item for s in strides))

    def carried(self, elements: int, dtype: DType, memory: Any) -> Any:
        """A CuPy array [elements] of unsigned integers of the size of `dtype`, in `memory`."""
        item = dtype.itemsize
        return self._cupy.ndarray((elements,), CARRIER[item], memory, (item,))

    def _address(self, descriptor: Descriptor) -> int:
        return self.bases[descriptor.segment] + descriptor.offset


class _Pinned:
    """Host memory that the GPU copies from and to without a detour, as `bytes`: u8 [size], zeros at first."""

    def __init__(self, cupy: Any, size: int) -> None:
        self._memory = cupy.cuda.alloc_pinned_memory(size)
        self.bytes: Array = np.frombuffer(self._memory, np.uint8, size)
        self.bytes[...] = 0
        self.address = self.bytes.ctypes.data


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
