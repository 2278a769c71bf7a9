"""Ranks in lockstep, in one process: each goes on to its next collective, then all execute it together.

The verifier has seen to it that the next collective of every rank is the same one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dla.emulator.binding import bind_state
from dla.emulator.golden.execution import Execution, gathered
from dla.emulator.golden.session import GoldenSession, enough_memory
from dla.emulator.ranks import bind_ranks, split
from dla.emulator.result import Result, joined
from dla.emulator.trace import Trace
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.errors import InputError, Trap
from dla.isa.program import Program
from dla.isa.ranks import lists_of


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


def lockstep(program: Program, ranks: Sequence[Execution], orders: Sequence[random.Random | None]) -> None:
    """Run all `ranks` of `program` to HALT. Raises the Trap of the first rank that traps, which it names."""
    steps = [execution.steps(order) for execution, order in zip(ranks, orders, strict=True)]
    while True:
        index = _next(steps)
        if index is None:
            return
        brought = []
        for rank, execution in enumerate(ranks):
            with on_rank(rank):
                brought.append(execution.bring(index))
        for members in lists_of(program.groups, program.instructions[index].attributes.get("group", 0), len(ranks)):
            given = gathered([brought[rank] for rank in members])
            for rank in members:
                with on_rank(rank):
                    ranks[rank].take(index, given, members)


def _next(steps: Sequence[Iterator[int]]) -> int | None:
    """The collective that all ranks have come to, None if that is the end."""
    reached = []
    for rank, step in enumerate(steps):
        with on_rank(rank):
            reached.append(next(step, None))
    if len(set(reached)) != 1:
        raise Trap("internal", f"ranks have come to different collectives, at instructions {reached}")
    return reached[0]


@contextmanager
def on_rank(rank: int) -> Iterator[None]:
    """Names `rank` in a Trap that is raised inside."""
    try:
        yield
    except Trap as trap:
        raise trap.at(rank=rank) from None
