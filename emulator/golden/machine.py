"""The golden machine: a program's meaning, one instruction after the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dla.emulator.binding import Bound, bind, bind_state, to_host
from dla.emulator.golden.execution import Executed, Execution, Perturb
from dla.emulator.golden.lockstep import lockstep, on_rank
from dla.emulator.golden.memory import ConstMemory, Memory, new_state, tensor_views
from dla.emulator.golden.recorder import Recorder
from dla.emulator.golden.scalar import Registers
from dla.emulator.ranks import bind_ranks, split, world_of
from dla.emulator.result import Result, joined
from dla.emulator.trace import Trace
from dla.isa import weights
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.errors import InputError, Trap
from dla.isa.program import ConstBlock, Program
from dla.isa.ranks import list_with, lists_of, piece_of
from dla.isa.reach import Reach

MOST_RANKS = 1024
"""Each has segments of its own in the one process."""
TRACED_EXECUTIONS = 2**20
"""Executions of instructions that a trace has room for: 24 MiB while it runs."""


@dataclass(frozen=True)
class GoldenMachine:
    """Executes programs by their rows' NumPy semantics, on the CPU, with every access checked.

    `accumulate` is the accumulator type of floats: "f64" makes it the oracle, "f32" is faster. `watch` traps reads
    of scratch and output bytes that were never written. `shuffle` is the seed of a random legal order instead of
    program order, which must change nothing. `trace` is called after each instruction. `perturb` replaces exact
    float results (`dla.emulator.compare` uses it to measure how errors grow). `timeout`, in seconds, ends a run with a
    TimeoutTrap at the next instruction. `ranks` is how many ranks run the program, one beside the other in this
    process; None: as many as it declares, or one (see `RankedSession`).
    """

    accumulate: Literal["f64", "f32"] = "f64"
    watch: bool = True
    shuffle: int | None = None
    trace: Callable[[Executed], None] | None = None
    perturb: Perturb | None = None
    timeout: float | None = None
    ranks: int | None = None
    name: str = field(default="golden", init=False)

    def load(self, program: Program) -> GoldenSession | RankedSession:
        """Make `program` ready to run.

        Raises InputError or ContainerError where external weights do not fit, InputError where it is for another
        number of ranks.
        """
        ranks = world_of(program, self.ranks)
        if ranks > MOST_RANKS:
            raise InputError(f"the golden machine runs at most {MOST_RANKS} ranks, and these are {ranks}")
        sessions = tuple(GoldenSession(self, program, rank, ranks) for rank in range(ranks))
        return sessions[0] if ranks == 1 else RankedSession(sessions)


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


class RankedSession:
    """A program on several ranks, in lockstep: each goes on to the next collective, which all execute together.

    Inputs and state have a leading axis of all ranks, or are the same for each without it, or come as `x.rank0`,
    `x.rank1`, ...; named dims are the same on all ranks. Outputs and state of the result have the leading axis, and
    `Result.ranks` is what each rank has. Where a rank traps, the run ends with a Trap that names it, and no rank's
    state changes.
    """

    def __init__(self, sessions: Sequence[GoldenSession]) -> None:
        self.program = sessions[0].program
        self._sessions = sessions

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of the state tensors of all ranks, [rank, ...]."""
        return joined([session.state for session in self._sessions])

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite the named state tensors. Raises InputError."""
        divided = split(self.program, Segment.STATE, values, len(self._sessions))
        for one in divided:
            bind_state(self.program, one)  # all are right before one changes
        for session, one in zip(self._sessions, divided, strict=True):
            session.set_state(one)

    def run(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Result:
        """Run to HALT. Raises InputError before the run, Trap during it; after a Trap, state is unchanged."""
        bound = bind_ranks(self.program, split(self.program, Segment.INPUT, inputs, len(self._sessions)), dims)
        with enough_memory(self.program):
            runs = [session.begin(given) for session, given in zip(self._sessions, bound, strict=True)]
            began = time.perf_counter()
            lockstep(self.program, [one.execution for one in runs], [one.order for one in runs])
            elapsed = time.perf_counter() - began
            outputs = []
            for rank, one in enumerate(runs):
                with on_rank(rank):
                    outputs.append(one.execution.outputs())
            ended = zip(self._sessions, runs, outputs, strict=True)
            return Result.of_ranks([session.end(one, out, elapsed) for session, one, out in ended])

    def trace(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> tuple[Result | Trap, Trace]:
        """Raises InputError: when each instruction ran is recorded for one rank alone."""
        raise InputError(f"this program runs on {len(self._sessions)} ranks, and only one can be profiled",
                         hint="`dla run --trace` prints what each rank executes")  # fmt: skip


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


def constants_of(program: Program, rank: int) -> list[ConstBlock]:
    """The constants that `rank` has, by offset: its pieces of those that are cut."""
    pieces = []
    for shard in program.shards:
        tensor = program.by_name[shard.tensor].descriptor
        ranks = list_with(lists_of(program.groups, shard.group, program.world), rank)
        pieces.append(ConstBlock(tensor.offset, piece_of(shard, tensor, ranks, rank)))
    return sorted((*weights.blocks(program), *pieces), key=lambda block: block.offset)
