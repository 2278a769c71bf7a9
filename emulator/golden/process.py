"""One rank on the golden machine, whose world is in other processes: collectives bring together what all have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dla.emulator.binding import Bound
from dla.emulator.distributed import Peers, Tell
from dla.emulator.golden.execution import Brought
from dla.emulator.golden.session import GoldenSession, Run, enough_memory
from dla.emulator.result import Result
from dla.isa.dtypes import Array
from dla.isa.ranks import list_with, lists_of


class GoldenRank:
    """A `RankSession` of the golden machine; `session` is that of the rank that `peers` says."""

    def __init__(self, session: GoldenSession, peers: Peers) -> None:
        self.program = session.program
        self._session, self._peers = session, peers

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of this rank's state tensors."""
        return self._session.state

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite this rank's state tensors. Raises InputError."""
        self._session.set_state(values)

    def begin(self, bound: Bound) -> GoldenRun:
        """A run that is ready for its first instruction. Raises InputError where memory does not suffice."""
        with enough_memory(self.program):
            return GoldenRun(self._session, self._session.begin(bound), self._peers)

    def connect(self, tell: Tell) -> None:
        """Messages are all that collectives need."""


class GoldenRun:
    """A `RankRun` of the golden machine."""

    def __init__(self, session: GoldenSession, run: Run, peers: Peers) -> None:
        self._session, self._run, self._peers = session, run, peers
        self._steps = run.execution.steps(run.order)
        self._brought: Brought = {}
        self._outputs: dict[str, Array] = {}

    def advance(self) -> int | None:
        """Go on to the next collective, with what this rank brings to it, or to HALT, with outputs. Raises Trap."""
        index = next(self._steps, None)
        if index is None:
            self._outputs = self._run.execution.outputs()
        else:
            self._brought = self._run.execution.bring(index)
        return index

    def exchange(self, index: int) -> None:
        """Execute the collective at `index`. Raises Trap."""
        program, group = self._session.program, self._session.program.instructions[index].attributes.get("group", 0)
        ranks = list_with(lists_of(program.groups, group, self._peers.world), self._peers.rank)
        gathered = {name: self._peers.gather(x, ranks) for name, x in self._brought.items()}
        self._run.execution.take(index, gathered, ranks)

    def end(self, elapsed: float) -> Result:
        """The result; the session's state is now the run's."""
        return self._session.end(self._run, self._outputs, elapsed)

    def abandon(self) -> None:
        """The session's state is what it was."""
