"""A trace of the golden machine: one block that executes one instruction after the other."""

from __future__ import annotations

import time
from array import array

import numpy as np

from dla.emulator.trace import SPAN, Trace
from dla.isa.dtypes import Array


class Recorder:
    """When each instruction ran, scalar ones included: of the first `room` executions; `lost` counts the others.

    The run is what happens inside `with recorder:`.
    """

    def __init__(self, room: int) -> None:
        self.lost = 0
        self._room = room
        self._times = array("q")  # index, began, done; nanoseconds since the run began
        self._end = self._start = time.perf_counter_ns()

    def __enter__(self) -> None:
        self._start = time.perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        self._end = time.perf_counter_ns()

    def __call__(self, index: int, began: int) -> None:
        """Instruction `index` began at `began` (of time.perf_counter_ns) and is done now."""
        if len(self._times) >= 3 * self._room:
            self.lost += 1
            return
        self._times.extend((index, began - self._start, time.perf_counter_ns() - self._start))

    def trace(self) -> Trace:
        """What was recorded. The machine is one block."""
        index, began, done = np.array(self._times, np.int64).reshape(-1, 3).T
        spans: Array = np.zeros(len(index), SPAN)
        spans["order"], spans["instruction"], spans["tiles"] = np.arange(len(index)), index, 1
        for name in ("began", "ready", "loaded"):
            spans[name] = began
        spans["done"] = spans["signalled"] = done
        return Trace(spans, (0,), self._end - self._start, self.lost)
