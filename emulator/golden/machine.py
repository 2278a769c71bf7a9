"""The golden machine: a program's meaning, one instruction after the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dla.emulator.binding import Bound, bind, bind_state, to_host
from dla.emulator.golden.execution import Executed, Execution, Perturb
from dla.emulator.golden.memory import ConstMemory, Memory, new_state, tensor_views
from dla.emulator.golden.recorder import Recorder
from dla.emulator.golden.scalar import Registers
from dla.emulator.result import Result
from dla.emulator.trace import Trace
from dla.isa import weights
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.errors import InputError, Trap
from dla.isa.program import Program
from dla.isa.reach import Reach

TRACED_EXECUTIONS = 2**20
"""Executions of instructions that a trace has room for: 24 MiB while it runs."""


@dataclass(frozen=True)
class GoldenMachine:
    """Executes programs by their rows' NumPy semantics, on the CPU, with every access checked.

    `accumulate` is the accumulator type of floats: "f64" makes it the oracle, "f32" is faster. `watch` traps reads
    of scratch and output bytes that were never written. `shuffle` is the seed of a random legal order instead of
    program order, which must change nothing. `trace` is called after each instruction. `perturb` replaces exact
    float results (`dla.emulator.compare` uses it to measure how errors grow). `timeout`, in seconds, ends a run with a
    TimeoutTrap at the next instruction.
    """

    accumulate: Literal["f64", "f32"] = "f64"
    watch: bool = True
    shuffle: int | None = None
    trace: Callable[[Executed], None] | None = None
    perturb: Perturb | None = None
    timeout: float | None = None
    name: str = field(default="golden", init=False)

    def load(self, program: Program) -> GoldenSession:
        """Make `program` ready to run. Raises InputError or ContainerError where external weights do not fit."""
        return GoldenSession(self, program)


class GoldenSession:
    """A program on the golden machine, with its constants and its state."""

    def __init__(self, machine: GoldenMachine, program: Program) -> None:
        self.program = program
        self._machine = machine
        self._const = ConstMemory(weights.blocks(program))
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
        try:
            return self._run(bound, recorder)
        except MemoryError as error:
            needed = sum(self.program.segment_bytes.values())
            raise InputError(
                f"not enough memory: the program's segments alone have {needed:,} bytes",
                hint="use smaller dims, or a computer with more memory",
            ) from error

    def _run(self, bound: Bound, recorder: Recorder | None) -> Result:
        machine = self._machine
        state = self._state.copy()
        memory = Memory(self.program, self._const, self._reach, state, watch=machine.watch)
        for name, array in bound.arrays.items():
            memory.set_input(self.program.by_name[name].descriptor, to_host(array))
        execution = Execution(
            self.program, memory, Registers.at_start(self.program, bound.dims),
            np.dtype(np.float64 if machine.accumulate == "f64" else np.float32), machine.trace, machine.perturb,
            machine.timeout, recorder,
        )  # fmt: skip
        order = None if machine.shuffle is None else random.Random(machine.shuffle)
        began = time.perf_counter()
        if recorder is None:
            execution.run(order)
        else:
            with recorder:
                execution.run(order)
        elapsed = time.perf_counter() - began
        outputs = execution.outputs()
        self._state = state
        return Result(outputs, self.state, execution.probes, machine.name, elapsed, bound.dims)
