"""PyTorch's clocks: events around its CUDA graphs on a GPU, and the processor's clock on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dla.profiler.native.clock import FLUSH_BYTES, HEAD_START_CYCLES, WARMING, Clock, CpuClock, GraphClock
from dla.profiler.native.given import Action


def clock_for(machine: str) -> Clock:
    """On the processor that `machine` is measured on: "gpu" or "golden". Nothing is compared across processors."""
    if machine == "gpu":
        return CudaClock()
    other = torch.zeros(FLUSH_BYTES["cpu"], dtype=torch.uint8)
    return CpuClock(lambda: other.add_(1))  # by all cores that PyTorch uses


@dataclass(frozen=True)
class _Captured:
    """A CUDA graph, and actions whose operands it uses: memory that nobody holds may be given back to the driver."""

    graph: torch.cuda.CUDAGraph
    actions: tuple[Action, ...]

    def __call__(self) -> None:
        self.graph.replay()


class CudaClock(GraphClock):
    """Graphs and events on a stream of their own."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._flush = torch.empty(FLUSH_BYTES["cuda"], dtype=torch.uint8, device="cuda")

    @torch.inference_mode()  # of this thread
    def _rough(self, make: Callable[[], Action]) -> float:
        return super()._rough(make)

    @torch.inference_mode()
    def _times(self, make: Callable[[], Action], budget: float) -> tuple[float, float]:
        return super()._times(make, budget)

    def _captured(self, actions: Sequence[Action]) -> Action:
        """One graph of all `actions`."""
        with torch.cuda.stream(self._stream):
            for action in dict.fromkeys(actions):
                for _ in range(WARMING):
                    action()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            for action in actions:
                action()
        return _Captured(graph, tuple(actions))

    def once(self, action: Action, *, cold: bool) -> float:
        """Seconds of one execution; where `cold`, with nothing of use in the second-level cache."""
        with torch.cuda.stream(self._stream):
            if cold:
                self._flush.zero_()
            else:
                action()
            torch.cuda._sleep(HEAD_START_CYCLES)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            action()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
