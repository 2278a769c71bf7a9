"""Timing trials on the GPU: all ways of an instruction in turns, on random numbers."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

from dla.emulator.device.tune import Only, Trial
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction, Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from dla.emulator.device.launch import Launch
    from dla.emulator.device.session import DeviceSession

ROUNDS = 9
"""Times that each way is measured: the median counts."""
FLUSH_BYTES = 2**28
"""Cleared before each measurement: operands are not in the second-level cache then, and while the GPU is busy with it,
the host starts what is measured."""
_NUMBERS = 999_983
"""Random ones, repeated as often as operands need them; prime, so that rows differ."""
_LEAST_SECONDS = 1e-9


class DeviceTimer:
    """Seconds of one execution in each way of a trial (a `Timer`).

    `load(program, choices, memory)` makes a session, in the memory of another one where that is given.
    """

    def __init__(self, cupy: Any, load: Callable[..., DeviceSession]) -> None:
        self._cupy, self._load = cupy, load
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._began, self._ended = cupy.cuda.Event(), cupy.cuda.Event()
        self._flushed = cupy.cuda.alloc(FLUSH_BYTES)
        halt = Instruction(BY_MNEMONIC["HALT"])
        self._empty = load(Program("empty", (halt,)), None, None).launch({})

    def __call__(self, trial: Trial) -> list[float]:
        """Median seconds, without what a launch takes by itself."""
        sessions: list[DeviceSession] = []
        for way in trial.ways:
            sessions.append(self._load(trial.program, Only(way), sessions[0].memory if sessions else None))
        numbers = _numbers(trial.program)
        for segment in (Segment.INPUT, Segment.STATE):
            sessions[0].memory.fill(segment, numbers)
        launches = [self._empty, *(session.launch({}) for session in sessions)]
        taken: list[list[float]] = [[] for _ in launches]
        for round_ in range(1 + ROUNDS):
            for launch, times in zip(launches, taken, strict=True):
                seconds = self._seconds(launch)
                if round_:  # the first one fetches code and operands
                    times.append(seconds)
        launches[-1].check()
        empty, *medians = (statistics.median(times) for times in taken)
        return [max(_LEAST_SECONDS, (median - empty) / trial.repeats) for median in medians]

    def _seconds(self, launch: Launch) -> float:
        """One launch."""
        self._cupy.cuda.runtime.memsetAsync(self._flushed.ptr, 0, FLUSH_BYTES, self._stream.ptr)
        self._began.record(self._stream)
        launch.enqueue(self._stream)
        self._ended.record(self._stream)
        self._ended.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(self._began, self._ended)) / 1e3


def _numbers(program: Program) -> Array:
    """Normally distributed numbers of the first float type that the program reads, as bytes."""
    dtype = next(d.dtype for d in program.instructions[0].operands[1:] if d is not None and d.dtype.is_float)
    rng = np.random.default_rng(0)
    numbers: Array = rng.standard_normal(_NUMBERS, np.float32).astype(dtype.numpy).view(np.uint8)
    return numbers
