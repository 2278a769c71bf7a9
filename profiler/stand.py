"""Where a program is measured: a machine with its clock. What `run.py` and `bench.py` ask of the machines they use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import numpy as np

from dla.emulator.api import Machine, gpu_missing
from dla.emulator.backend import TracedSession
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.program import Program
from dla.profiler import surroundings
from dla.profiler.profile import Ceilings

Timer = Callable[[], float]
"""Runs a program once; the seconds that it took."""


class Stand(Protocol):
    """A machine, and how it is timed."""

    name: str

    def traced(self, program: Program) -> TracedSession:
        """`program` loaded on a machine that records. Raises what `Machine.load` raises."""
        ...

    def timer(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int],
        state: Mapping[str, Any],
        *,
        cold: bool,
    ) -> Timer:
        """What runs `program` and times it, launch included, from the same `state` each time.

        `cold`: with nothing of use in the GPU's second-level cache. A Trap of the runs may come one run late.
        """
        ...

    def ceilings(self) -> Ceilings:
        """What the hardware can do at most, measured now."""
        ...

    def device(self) -> dict[str, str]:
        """What is measured, and in which surroundings."""
        ...

    def ways(self, session: TracedSession) -> dict[int, str]:
        """By index, how the machine executes instructions, where it has a choice."""
        ...


def stand_for(backend: str, progress: Callable[[str], None] = lambda step: None) -> Stand:
    """The stand for `backend`: "golden", "gpu", or "auto": gpu where there is one. Raises BackendError, InputError."""
    if backend == "golden" or (backend == "auto" and gpu_missing() is not None):
        return GoldenStand()
    Machine(backend)  # raises where it is not there
    from dla.profiler.gpu import DeviceStand  # imports CuPy

    return DeviceStand(progress)


class GoldenStand:
    """The golden machine, timed by the processor's clock: without binding inputs and copying outputs."""

    name = "golden"
    side = 1024
    """Of the matrices whose product is the ceiling."""

    def traced(self, program: Program) -> TracedSession:
        """Every golden session records."""
        return cast(TracedSession, Machine("golden").load(program))

    def timer(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int],
        state: Mapping[str, Any],
        *,
        cold: bool,
    ) -> Timer:
        """One run; a processor's caches are left as they are."""
        session = Machine("golden").load(program)
        start = {**session.state, **state}

        def once() -> float:
            session.set_state(start)
            return session.run(inputs, dims).elapsed

        return once

    def ceilings(self) -> Ceilings:
        """NumPy's: of a copy of 128 MiB, and of products of f32 and of f64 (as which the machine computes)."""
        source = np.ones(2**24)
        target = np.empty_like(source)
        copied = 2 * source.nbytes / best(lambda: np.copyto(target, source))
        return Ceilings(copied, {name: self._product(dtype) for name, dtype in (("f32", "f4"), ("f64", "f8"))})

    def _product(self, dtype: str) -> float:
        a: Array = np.ones((self.side, self.side), dtype)
        out = np.empty_like(a)
        return 2 * self.side**3 / best(lambda: np.matmul(a, a, out=out))

    def device(self) -> dict[str, str]:
        """The processor and the packages."""
        return {"name": surroundings.processor(), **surroundings.versions(("numpy",)), **surroundings.commit()}

    def ways(self, session: TracedSession) -> dict[int, str]:
        """It has one way."""
        return {}


def best(action: Callable[[], object], rounds: int = 5) -> float:
    """Seconds of the fastest of several executions."""
    action()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return max(min(taken), 1e-9)


def has_state(program: Program) -> bool:
    """Whether runs leave something to the next one."""
    return bool(program.in_segment(Segment.STATE))
