"""GPUs where there is none: the host side of the device machine, on host memory, with the emulated device's kernel.

Launches begin once somebody looks for what they have done: those of several GPUs run at the same time, as ranks do.
"""

from __future__ import annotations

import ctypes
import threading
import time
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

from dla.emulator.device import build, gpu, nccl
from dla.emulator.device.layout import LAUNCH, MOST_RANKS, TENSOR_MAP_BYTES
from dla.emulator.device.paths.tensor_map import AnyMap
from dla.emulator.device.session import NOT_READY
from dla.tests.emulator.device import fake_cupy, fake_nccl
from dla.tests.emulator.device.cpu_machine import encoded, library

ALIGNMENT = 1024


class Memory(fake_cupy.Memory):
    """Device memory, aligned as a GPU's is."""

    def __init__(self, size: int) -> None:
        super().__init__(size + ALIGNMENT)
        self.ptr += -self.ptr % ALIGNMENT


class Runtime(fake_cupy.Runtime):
    """The CUDA runtime of several GPUs."""

    CUDARuntimeError = RuntimeError

    def __init__(self, gpus: int, *, connected: bool, hopper: bool) -> None:
        super().__init__()
        self._gpus, self._connected, self._hopper = gpus, connected, hopper
        self._of_thread = threading.local()  # what was launched, and on how many blocks
        self.running = threading.Lock()  # the emulated device runs one kernel at a time
        self.seed = 0
        self.seconds = 0.0
        """That the launches took which were run last."""
        self.nccl = fake_nccl.Library()

    def getDeviceCount(self) -> int:  # noqa: N802
        """So many GPUs."""
        return self._gpus

    def deviceCanAccessPeer(self, device: int, peer: int) -> bool:  # noqa: N802
        """Whether one reaches the other's memory."""
        return self._connected

    def deviceEnablePeerAccess(self, peer: int) -> None:  # noqa: N802
        """It is all the same memory."""

    def deviceGetPCIBusId(self, device: int) -> str:  # noqa: N802
        """Its place."""
        return f"0000:{device:02x}:00.0"

    def streamQuery(self, stream: int) -> int:  # noqa: N802
        """What NCCL has to do takes a while; everything else is done."""
        return NOT_READY if self.nccl.is_busy() else 0

    def memcpy(self, target: int, source: int, size: int, kind: str) -> None:
        """A copy, behind what was launched."""
        self.finish()
        super().memcpy(target, source, size, kind)

    def memsetAsync(self, target: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        """Fill, likewise."""
        self.finish()
        super().memsetAsync(target, value, size, stream)

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        """Events have always happened."""

    def streamWaitEvent(self, stream: int, event: int) -> None:  # noqa: N802
        """A stream that others wait for."""
        self.finish()

    def launch(self, _function: Any, blocks: int, rows: int, *more: int) -> None:
        """A launch, which waits for others."""
        launches = ctypes.c_void_p.from_address(more[-2]).value
        assert launches is not None
        size = LAUNCH.dtype.itemsize
        launched = getattr(self._of_thread, "launched", [])
        self._of_thread.launched = launched + [ctypes.string_at(launches + row * size, size) for row in range(rows)]
        self._of_thread.blocks = blocks

    def finish(self) -> None:
        """Run what was launched, all at the same time; warps take turns in another order each time."""
        launched = getattr(self._of_thread, "launched", [])
        self._of_thread.launched = []
        for first in range(0, len(launched), MOST_RANKS):  # ranks that wait for each other are no more
            self._run(launched[first : first + MOST_RANKS])

    def _run(self, launched: list[bytes]) -> None:
        records = np.zeros(MOST_RANKS * LAUNCH.dtype.itemsize, np.uint8)
        records[: len(launched) * LAUNCH.dtype.itemsize] = np.frombuffer(b"".join(launched), np.uint8)
        address = ctypes.c_void_p(records.ctypes.data)
        kernel = library(hopper=self._hopper, ranked=True)
        with self.running:
            self.seed += 1
            began = time.perf_counter()
            assert kernel.run_machine(address, self._of_thread.blocks, len(launched), self.seed) == 0
            self.seconds = time.perf_counter() - began


def install(
    monkeypatch: pytest.MonkeyPatch, *, blocks: int, gpus: int = 1, connected: bool = True, hopper: bool = False
) -> Runtime:  # fmt: skip
    """Put `gpus` emulated GPUs of so many blocks in the place of CuPy's, and NCCL beside them.

    `connected`: they reach each other's memory. `hopper`: with the hot paths.
    """
    runtime = Runtime(gpus, connected=connected, hopper=hopper)
    cupy = fake_cupy.make()
    cupy.cuda.get_elapsed_time = lambda start, end: runtime.seconds * 1e3
    cupy.cuda.runtime, cupy.cuda.alloc, cupy.cuda.driver = runtime, Memory, SimpleNamespace(launchKernel=runtime.launch)

    def prepare(grid: tuple[int], _block: tuple[int], given: tuple[Any], shared_mem: int) -> None:
        address = ctypes.c_void_p(given[0].ctypes.data)
        with runtime.running:
            assert library(hopper=hopper, ranked=True).run_prepare(address, grid[0], 1) == 0

    class Stream(fake_cupy.Stream):
        """A stream that others wait for."""

        def wait_event(self, _event: Any) -> None:
            runtime.finish()

    cupy.cuda.Stream, cupy.cuda.get_current_stream = Stream, Stream

    def kernel(*, ranked: bool, **_: Any) -> build.Kernel:
        assert ranked, "one rank has tests of its own"
        function = SimpleNamespace(kernel=SimpleNamespace(ptr=None))
        return build.Kernel(function, prepare, 0, blocks, gpu.HOPPER if hopper else "sm_80", ranked=True)

    kept: list[Any] = []  # what tensor maps point to

    def encode(tensor_map: AnyMap) -> bytes:
        kept.append(encoded(tensor_map))
        return int(kept[-1].ctypes.data).to_bytes(TENSOR_MAP_BYTES, "little")

    monkeypatch.setattr(build, "import_cupy", lambda: cupy)
    monkeypatch.setattr(build, "kernel", kernel)
    for of_maps in get_args(AnyMap):
        monkeypatch.setattr(of_maps, "encode", encode)
    monkeypatch.setattr(gpu, "present", lambda device: None)
    monkeypatch.setattr(nccl, "library", lambda: runtime.nccl)
    return runtime
