"""Timing a native kernel: by events around CUDA graphs on a GPU, by the clock on a CPU; with caches cold and warm.

A graph of one short kernel takes several times as long as the kernel does among others, because launching the graph is
most of it. Instructions run among others, too. So a short kernel is timed by what it adds to a graph: one of several
calls, each on operands of its own so that the caches are cold for all, less one of a single call.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Protocol

import numpy as np

from dla.profiler.native.given import Action

FLUSH_BYTES = {"cuda": 2**28, "cpu": 2**26}
"""Several times the largest cache of any device at hand."""
HEAD_START_CYCLES = 400_000
"""Of waiting on the GPU before each timed action, so that the host has enqueued all of it: about 0.2 ms."""
MOST_ROUNDS, FEWEST_ROUNDS = 31, 3
LONG_SECONDS = 2e-4
"""Where launching is little of a kernel's time: one call is enough then, and operands need not fit several times."""
FEWEST_MORE, MOST_MORE = 4, 16
"""Calls that the longer graph has more, as many as take LONG_SECONDS: what launches differ by is shared out."""
PICKS = 64
"""Of cuDNN's autotuner, of which the fastest counts: it tries each kernel once, so what it picks varies (on an H200 one
pick for a convolution took up to 1.3 times as long as another, and the best came once in 6 to 16: 64 miss one of 16 in
1.6 % of all cases). PyTorch keeps a pick for the thread that asked."""
ROUGH_CALLS, ROUGH_ROUNDS = 8, 5
"""Of each pick, to find the fastest."""
WARMING = 3  # runs before a graph is captured: what is done only once is done then


class Clock(Protocol):
    """Times actions on one device."""

    device: str

    def times(self, make: Callable[[], Action], budget: float) -> tuple[float, float]:
        """Seconds of one of the calls that make() gives, each with operands of its own: (caches cold, caches warm).

        The medians of as many executions as `budget` seconds hold, within limits.
        """
        ...

    def prepared(self, action: Action) -> Action:
        """`action` as it is to be timed."""
        ...

    def once(self, action: Action, *, cold: bool) -> float:
        """Seconds of one execution."""
        ...


def median(clock: Clock, action: Action, *, cold: bool, budget: float) -> float:
    """The median seconds of as many executions as `budget` seconds hold, within limits."""
    estimate = clock.once(action, cold=cold)
    rounds = int(min(MOST_ROUNDS, max(FEWEST_ROUNDS, budget / (estimate + 3e-4))))
    return statistics.median(clock.once(action, cold=cold) for _ in range(rounds))


class CpuClock:
    """The processor's own clock."""

    device = "cpu"

    def __init__(self, flush: Action | None = None) -> None:
        other = np.zeros(0 if flush else FLUSH_BYTES["cpu"], np.uint8)
        self._flush = flush or (lambda: np.add(other, 1, out=other))

    def times(self, make: Callable[[], Action], budget: float) -> tuple[float, float]:
        """Of one call by itself: there is nothing to launch."""
        action = self.prepared(make())
        return median(self, action, cold=True, budget=budget), median(self, action, cold=False, budget=budget)

    def prepared(self, action: Action) -> Action:
        """`action` as it is, after one execution."""
        action()
        return action

    def once(self, action: Action, *, cold: bool) -> float:
        """Seconds of one execution; where `cold`, after the caches were filled with something else."""
        if cold:
            self._flush()
        began = time.perf_counter()
        action()
        return time.perf_counter() - began


class GraphClock(ABC):
    """Events of the GPU, around CUDA graphs that a library captures."""

    device = "cuda"
    picks = PICKS

    def times(self, make: Callable[[], Action], budget: float) -> tuple[float, float]:
        """Of a call among others in a CUDA graph, with the fastest of `picks`.

        Raises RuntimeError as `prepared` does.
        """
        with ExitStack() as stack:
            threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(self.picks)]
            if self.picks > 1:
                rough = [thread.submit(self._rough, make).result() for thread in threads]
                threads = [threads[rough.index(min(rough))]]
            return threads[0].submit(self._times, make, budget).result()

    def _rough(self, make: Callable[[], Action]) -> float:
        """Seconds, to tell picks apart. Operands are made in the thread: a library may want to have met it before."""
        action = make()
        one = self.once(self.prepared(action), cold=False)
        if one > LONG_SECONDS:
            return one
        several = self._captured([action] * ROUGH_CALLS)
        return min(self.once(several, cold=False) for _ in range(ROUGH_ROUNDS))

    def _times(self, make: Callable[[], Action], budget: float) -> tuple[float, float]:
        first = make()
        one = self.prepared(first)
        cold, warm = (median(self, one, cold=c, budget=budget) for c in (True, False))
        if cold > LONG_SECONDS:
            return cold, warm
        more = min(MOST_MORE, max(FEWEST_MORE, int(LONG_SECONDS / cold)))
        apart, again = self._captured([first, *(make() for _ in range(more))]), self._captured([first] * (1 + more))
        several = median(self, apart, cold=True, budget=budget), median(self, again, cold=False, budget=budget)
        return max(0.0, several[0] - cold) / more, max(0.0, several[1] - warm) / more

    def prepared(self, action: Action) -> Action:
        """`action` in a CUDA graph, so that the host's work for each kernel is not part of the time.

        Raises RuntimeError where it cannot be captured: it asks the host something.
        """
        return self._captured([action])

    @abstractmethod
    def _captured(self, actions: Sequence[Action]) -> Action:
        """One graph of all `actions`."""

    @abstractmethod
    def once(self, action: Action, *, cold: bool) -> float:
        """Seconds of one execution; where `cold`, with nothing of use in the second-level cache."""
