"""GPUs where there is none: the host side of the device machine, on host memory, with the emulated device's kernel.

Launches begin once somebody looks for what they have done: those of several GPUs run at the same time, as ranks do.
"""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dla.emulator.device import build, gpu
from dla.emulator.device.layout import LAUNCH, MOST_RANKS
from dla.tests.emulator.device import fake_cupy
from dla.tests.emulator.device.cpu_machine import library

ALIGNMENT = 1024


class Memory(fake_cupy.Memory):
    """Device memory, aligned as a GPU's is."""

    def __init__(self, size: int) -> None:
        super().__init__(size + ALIGNMENT)
        self.ptr += -self.ptr % ALIGNMENT


class Runtime(fake_cupy.Runtime):
    """The CUDA runtime of several GPUs."""

    CUDARuntimeError = RuntimeError

    def __init__(self, gpus: int, *, connected: bool) -> None:
        super().__init__()
        self._gpus, self._connected = gpus, connected
        self._launched: list[bytes] = []
        self._blocks = 0
        self.seed = 0
        self.seconds = 0.0
        """That the launches took which were run last."""

    def getDeviceCount(self) -> int:  # noqa: N802
        """So many GPUs."""
        return self._gpus

    def deviceCanAccessPeer(self, device: int, peer: int) -> bool:  # noqa: N802
        """Whether one reaches the other's memory."""
        return self._connected

    def deviceEnablePeerAccess(self, peer: int) -> None:  # noqa: N802
        """It is all the same memory."""

    def memcpy(self, target: int, source: int, size: int, kind: str) -> None:
        """A copy, behind what was launched."""
        self.finish()
        super().memcpy(target, source, size, kind)

    def memsetAsync(self, target: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        """Fill, likewise."""
        self.finish()
        super().memsetAsync(target, value, size, stream)

    def launch(self, _function: Any, blocks: int, rows: int, *more: int) -> None:
        """A launch, which waits for others."""
        launches = ctypes.c_void_p.from_address(more[-2]).value
        assert launches is not None
        size = LAUNCH.dtype.itemsize
        self._launched += [ctypes.string_at(launches + row * size, size) for row in range(rows)]
        self._blocks = blocks

    def finish(self) -> None:
        """Run what was launched, all at the same time; warps take turns in another order each time."""
        launched, self._launched = self._launched, []
        if launched:
            records = np.zeros(MOST_RANKS * LAUNCH.dtype.itemsize, np.uint8)
            records[: len(launched) * LAUNCH.dtype.itemsize] = np.frombuffer(b"".join(launched), np.uint8)
            address = ctypes.c_void_p(records.ctypes.data)
            kernel = library(hopper=False, ranked=True)
            self.seed += 1
            began = time.perf_counter()
            assert kernel.run_machine(address, self._blocks, len(launched), self.seed) == 0
            self.seconds = time.perf_counter() - began


def install(monkeypatch: pytest.MonkeyPatch, *, blocks: int, gpus: int = 1, connected: bool = True) -> Runtime:
    """Put `gpus` emulated GPUs of so many blocks in the place of CuPy's."""
    runtime = Runtime(gpus, connected=connected)
    cupy = fake_cupy.make()
    cupy.cuda.get_elapsed_time = lambda start, end: runtime.seconds * 1e3
    cupy.cuda.runtime, cupy.cuda.alloc, cupy.cuda.driver = runtime, Memory, SimpleNamespace(launchKernel=runtime.launch)

    def prepare(grid: tuple[int], _block: tuple[int], given: tuple[Any], shared_mem: int) -> None:
        address = ctypes.c_void_p(given[0].ctypes.data)
        assert library(hopper=False, ranked=True).run_prepare(address, grid[0], 1) == 0

    class Stream(fake_cupy.Stream):
        """A stream that others wait for."""

        def wait_event(self, _event: Any) -> None:
            runtime.finish()

    cupy.cuda.Stream, cupy.cuda.get_current_stream, cupy.cuda.ExternalStream = Stream, Stream, lambda ptr: Stream()

    def kernel(*, ranked: bool, **_: Any) -> build.Kernel:
        assert ranked, "one rank has tests of its own"
        function = SimpleNamespace(kernel=SimpleNamespace(ptr=None))
        return build.Kernel(function, prepare, 0, blocks, "sm_80", ranked=True)

    monkeypatch.setattr(build, "import_cupy", lambda: cupy)
    monkeypatch.setattr(build, "kernel", kernel)
    monkeypatch.setattr(gpu, "present", lambda device: None)
    return runtime
