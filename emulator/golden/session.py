"""A program on the golden machine: constants, state, and runs, on one rank."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dla.emulator.binding import Bound, bind, bind_state, to_host
from dla.emulator.golden.execution import Execution
from dla.emulator.golden.memory import ConstMemory, Memory, new_state, tensor_views
from dla.emulator.golden.recorder import Recorder
from dla.emulator.golden.scalar import Registers
from dla.emulator.ranks import constants_of
from dla.emulator.result import Result
from dla.emulator.trace import Trace
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.errors import InputError, Trap
from dla.isa.program import Program
from dla.isa.reach import Reach

if TYPE_CHECKING:
    from dla.emulator.golden.machine import GoldenMachine

TRACED_EXECUTIONS = 2**20
"""Executions of instructions that a trace has room for: 24 MiB while it runs."""


class GoldenSession:
    """A program on the golden machine, with its constants and its state: on one of `world` ranks."""

    def __init__(self, machine: GoldenMachine, program: Program, rank: int = 0, world: int = 1) -> None:
        self.program = program
        self._machine = machine
        self._rank, self._world = rank, world
        self._const = ConstMemory(constants_of(program, rank))
        self._reach = Reach(program)
        self._state = new_state(program)

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of the state tensors, at their bounds."""
        return {name: view.copy() for name, view in tensor_views(self.program, Segment.STATE, self._state).items()}

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite the named state tensors. Raises InputError."""
        views = tensor_views(self.program, Segment.STATE, self._state)
        for name, array in bind_state(self.program, values).items():
            views[name][...] = to_host(array)

    def run(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Result:
        """Run to HALT. Raises InputError before the run, Trap during it; after a Trap, state is unchanged."""
        return self._within_memory(bind(self.program, inputs, dims), None)

    def trace(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> tuple[Result | Trap, Trace]:
        """`run`, and when each instruction ran; a Trap is given back with what ran before it, not raised."""
        recorder = Recorder(TRACED_EXECUTIONS)
        bound = bind(self.program, inputs, dims)
        try:
            result: Result | Trap = self._within_memory(bound, recorder)
        except Trap as trap:
            result = trap
        return result, recorder.trace()

    def _within_memory(self, bound: Bound, recorder: Recorder | None) -> Result:
        with enough_memory(self.program):
            return self._run(bound, recorder)

    def _run(self, bound: Bound, recorder: Recorder | None) -> Result:
        run = self.begin(bound, recorder)
        began = time.perf_counter()
        if recorder is None:
            run.execution.run(run.order)
        else:
            with recorder:
                run.execution.run(run.order)
        elapsed = time.perf_counter() - began
        return self.end(run, run.execution.outputs(), elapsed)

    def begin(self, bound: Bound, recorder: Recorder | None = None) -> Run:
        """A run that is ready for its first instruction. The session's state stays what it is."""
        machine = self._machine
        state = self._state.copy()
        memory = Memory(self.program, self._const, self._reach, state, watch=machine.watch)
        for name, array in bound.arrays.items():
            memory.set_input(self.program.by_name[name].descriptor, to_host(array))
        execution = Execution(
            self.program, memory, Registers.at_start(self.program, bound.dims, self._rank, self._world),
            np.dtype(np.float64 if machine.accumulate == "f64" else np.float32), machine.trace, machine.perturb,
            machine.timeout, recorder,
        )  # fmt: skip
        order = None if machine.shuffle is None else random.Random(machine.shuffle)
        return Run(execution, order, state, bound.dims)

    def end(self, run: Run, outputs: Mapping[str, Array], elapsed: float) -> Result:
        """The result of a run that came to its HALT after `elapsed` seconds; the session's state is now the run's."""
        self._state = run.state
        return Result(outputs, self.state, run.execution.probes, self._machine.name, elapsed, run.dims)


@dataclass(frozen=True)
class Run:
    """One run on one rank."""

    execution: Execution
    order: random.Random | None  # of instructions, where it is not the program's
    state: Array  # the state segment that it changes
    dims: Mapping[str, int]


@contextmanager
def enough_memory(program: Program) -> Iterator[None]:
    """Raises InputError where there is not."""
    try:
        yield
    except MemoryError as error:
        needed = sum(program.segment_bytes.values())
        raise InputError(
            f"not enough memory: the program's segments alone have {needed:,} bytes",
            hint="use smaller dims, or a computer with more memory",
        ) from error
