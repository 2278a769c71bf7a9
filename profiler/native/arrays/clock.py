"""CuPy's clock: events around its CUDA graphs, or around calls where they cannot be captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.profiler.native.clock import FLUSH_BYTES, HEAD_START_CYCLES, WARMING, GraphClock
from dla.profiler.native.given import Action

LONG_START_CYCLES = 10 * HEAD_START_CYCLES
"""Of waiting before calls that are no graph: the host takes microseconds for each."""
_WAIT = """
extern "C" __global__ void wait(long long cycles) {
    for (long long began = clock64(); clock64() - began < cycles;) {}
}
"""


@dataclass(frozen=True)
class _Captured:
    """A CUDA graph, with what its kernels use: the actions' operands, and the memory of what they made."""

    graph: Any
    actions: tuple[Action, ...]
    pool: Any
    start = HEAD_START_CYCLES

    def __call__(self) -> None:
        self.graph.launch()  # on the stream that is current


@dataclass(frozen=True)
class _Enqueued:
    """Actions one after the other; CuPy's products are so, because it does not let cuBLAS be captured."""

    actions: tuple[Action, ...]
    start = LONG_START_CYCLES

    def __call__(self) -> None:
        for action in self.actions:
            action()


class CupyClock(GraphClock):
    """Graphs and events on a stream of their own. A kernel is found by no tuning, so it is picked once."""

    picks = 1

    def __init__(self, cupy: Any) -> None:
        self._cupy, cuda = cupy, cupy.cuda
        self._stream = cuda.Stream(non_blocking=True)
        self._flush = cupy.empty(FLUSH_BYTES["cuda"], dtype="uint8")
        self._wait = cupy.RawKernel(_WAIT, "wait")

    def _captured(self, actions: Sequence[Action]) -> Action:
        cuda = self._cupy.cuda
        cuda.Device().synchronize()  # operands are made on another stream
        pool = cuda.MemoryPool()  # of the graph alone: what its kernels write is free again when the capture ends
        with self._stream, cuda.using_allocator(pool.malloc):
            for action in dict.fromkeys(actions):
                for _ in range(WARMING):
                    action()
            self._stream.synchronize()
            try:
                graph = self._graph(actions)
            except (RuntimeError, NotImplementedError):  # of a library that does not let itself be captured
                self._stream = cuda.Stream(non_blocking=True)
                return _Enqueued(tuple(actions))
        return _Captured(graph, tuple(actions), pool)

    def _graph(self, actions: Sequence[Action]) -> Any:
        self._stream.begin_capture()
        try:
            for action in actions:
                action()
        except BaseException:
            self._stream.end_capture()  # of what is there so far; raises where nothing is
            raise
        return self._stream.end_capture()

    def once(self, action: Action, *, cold: bool) -> float:
        """Seconds of one execution; where `cold`, with nothing of use in the second-level cache."""
        cuda = self._cupy.cuda
        began, ended = cuda.Event(), cuda.Event()
        start = getattr(action, "start", LONG_START_CYCLES)
        with self._stream:
            if cold:
                self._flush.fill(0)
            else:
                action()
            self._wait((1,), (1,), (np.int64(start),))
            began.record()
            action()
            ended.record()
        ended.synchronize()
        return float(cuda.get_elapsed_time(began, ended)) / 1e3
