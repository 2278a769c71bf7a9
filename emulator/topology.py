"""Which GPUs reach each other's memory, and how fast bytes go from one to the other."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dla.emulator.device.build import import_cupy
from dla.emulator.device.peer_access import let_reach_each_other
from dla.isa.errors import BackendError

COPY_BYTES = 2**28
ROUNDS = 5


@dataclass(frozen=True)
class Link:
    """From one GPU to another, or to itself: whether kernels may write there, and what a large copy takes.

    `bytes_per_second` is None where there was no memory for the copy. It is what arrives; within one GPU as much is
    read besides.
    """

    source: int
    target: int
    reaches: bool
    bytes_per_second: float | None

    @property
    def transport(self) -> str:
        """What carries what ranks on these GPUs send to each other, for people."""
        return "peer" if self.reaches else "NCCL"


def links() -> list[Link]:
    """Every GPU to every GPU, measured. Raises BackendError where there is none, or no CuPy."""
    cupy = import_cupy()
    return list(_links(cupy))


def _links(cupy: Any) -> Iterator[Link]:
    runtime = cupy.cuda.runtime
    count = runtime.getDeviceCount()
    for source in range(count):
        for target in range(count):
            reaches = source == target or bool(runtime.deviceCanAccessPeer(source, target))
            if reaches and source != target:
                try:
                    let_reach_each_other(cupy, (source, target))  # as ranks do; else the copy goes through the host
                except BackendError:
                    reaches = False
            yield Link(source, target, reaches, _bandwidth(cupy, source, target))


def _bandwidth(cupy: Any, source: int, target: int) -> float | None:
    """Bytes per second of a copy of COPY_BYTES; the median of some."""
    cuda = cupy.cuda
    try:
        with cuda.Device(target):
            there = cuda.alloc(COPY_BYTES)
        with cuda.Device(source):
            here = cuda.alloc(COPY_BYTES)
            stream = cuda.Stream(non_blocking=True)
            taken: list[float] = []
            for _ in range(1 + ROUNDS):  # the first is warm-up
                began, ended = cuda.Event(), cuda.Event()
                began.record(stream)
                cuda.runtime.memcpyPeerAsync(there.ptr, target, here.ptr, source, COPY_BYTES, stream.ptr)
                ended.record(stream)
                ended.synchronize()
                taken.append(cuda.get_elapsed_time(began, ended) / 1e3)
    except cuda.memory.OutOfMemoryError:
        return None
    return COPY_BYTES / float(statistics.median(taken[1:]))
