"""As much of CuPy as the host side of the device machine uses, with host memory as the device's: all copies are done.

What runs in place of the kernel is a Python function. Fresh memory is full of garbage, as a GPU's is.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

GARBAGE = 0xA5


class Memory:
    """Device memory at `ptr`; `+` is a place inside it."""

    def __init__(self, size: int) -> None:
        self._bytes = np.full(size, GARBAGE, np.uint8)
        self.ptr = self._bytes.ctypes.data

    def __add__(self, offset: int) -> SimpleNamespace:
        return SimpleNamespace(ptr=self.ptr + offset, base=self)


class Stream:
    """A stream on which everything has already happened."""

    ptr = 0

    def __init__(self, non_blocking: bool = False) -> None:
        self.non_blocking = non_blocking

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def synchronize(self) -> None:
        """Nothing is left to wait for."""


class Event:
    """An event that has always happened."""

    ptr = 0

    def __init__(self, disable_timing: bool = False) -> None:
        self.disable_timing = disable_timing

    def record(self, stream: Any = None) -> None:
        """It has."""

    def synchronize(self) -> None:
        """Nothing is left to wait for."""


class Device:
    """The only one."""

    def __init__(self, id: int = 0) -> None:  # noqa: A002  # CuPy's name
        self.id = id

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exception: object) -> None:
        return None


class Runtime:
    """The CUDA runtime; `copied` lists (kind, bytes) of every copy."""

    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = "in", "out", "within"  # noqa: N815  # CUDA's names

    def __init__(self) -> None:
        self.copied: list[tuple[str, int]] = []

    def memcpyAsync(self, target: int, source: int, size: int, kind: str, stream: int) -> None:  # noqa: N802
        """A copy."""
        self.memcpy(target, source, size, kind)

    def memcpy(self, target: int, source: int, size: int, kind: str) -> None:
        """A copy."""
        self.copied.append((kind, size))
        ctypes.memmove(target, source, size)

    def memsetAsync(self, target: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        """Fill."""
        ctypes.memset(target, value, size)

    def deviceSynchronize(self) -> None:  # noqa: N802
        """Nothing is left to wait for."""

    def streamQuery(self, stream: int) -> int:  # noqa: N802
        """CudaSuccess."""
        return 0


def _ndarray(shape: tuple[int, ...], dtype: Any, memory: Any, strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + np.dtype(dtype).itemsize
    held = (ctypes.c_char * reach).from_address(memory.ptr)
    held.memory = memory  # alive as long as the array
    return np.ndarray(shape, dtype, held, 0, strides)


def make() -> Any:
    """A module like `cupy`."""
    cuda = SimpleNamespace(
        runtime=Runtime(), alloc=Memory, alloc_pinned_memory=lambda size: np.full(size, GARBAGE, np.uint8),
        Stream=Stream, Event=Event, Device=Device, get_elapsed_time=lambda start, end: 1.0,
        get_current_stream=lambda: Stream(), memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        driver=SimpleNamespace(launchKernel=lambda function, *arguments: function(*arguments)),
    )  # fmt: skip
    return SimpleNamespace(cuda=cuda, ndarray=_ndarray)
