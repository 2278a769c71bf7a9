"""One rank whose world is in other processes: lockstep by messages.

Before each collective, and at HALT, every rank tells all others where it is, or what became of it. So a trap on one
rank is an error on all, at the same place, and nobody waits for a rank that will not come.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dla.emulator.binding import Bound, bind
from dla.emulator.ranks import split, unequal_dims, world_of
from dla.emulator.result import Result
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.encoding import encode
from dla.isa.errors import LONGER, TRAP_CATEGORIES, BackendError, DlaError, InputError, TimeoutTrap, Trap
from dla.isa.program import Program

MESSAGE_BYTES = 1024
_LONGEST_TEXT = 400  # characters of an error's text that others are told
_BACKEND = "backend"
"""The category, among those of traps, of what is no trap but a BackendError."""


class Peers(Protocol):
    """All ranks of a world, as one of them sees them. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Which one this is."""
        ...

    @property
    def world(self) -> int:
        """How many there are."""
        ...

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The ranks on this host, this one among them, in ascending order."""
        ...

    def tell(self, message: bytes, timeout: float | None = None) -> list[bytes | None]:
        """Tell all ranks `message`, of at most MESSAGE_BYTES; what each of them tells, in order.

        None stands for a rank that has told nothing in `timeout` seconds, where that is given.
        """
        ...

    def gather(self, array: Array, ranks: Sequence[int]) -> Array:
        """What each of `ranks` gives, [rank, ...]: all of them call it, with arrays of one shape and type."""
        ...

    def abort(self, code: int) -> None:
        """End the processes of all ranks, at once, with exit code `code`."""
        ...


class RankRun(Protocol):
    """A run on one rank, which stops at each collective for the others."""

    def advance(self) -> int | None:
        """Go on to the next collective; its index, None at HALT. Raises Trap."""
        ...

    def exchange(self, index: int) -> None:
        """Execute the collective at `index`, where all ranks are. Raises Trap; InputError where memory is missing."""
        ...

    def end(self, elapsed: float) -> Result:
        """The result, after `elapsed` seconds: all ranks have come to HALT. The session's state is now the run's."""
        ...

    def abandon(self) -> None:
        """Leave the session as if the run had never been: it has failed, here or on another rank."""
        ...


class RankSession(Protocol):
    """A program on one rank of a machine that can stop at collectives."""

    @property
    def program(self) -> Program:
        """The program that was loaded."""
        ...

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of this rank's state tensors."""
        ...

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite this rank's state tensors. Raises InputError."""
        ...

    def begin(self, bound: Bound) -> RankRun:
        """A run that is ready for its first instruction. Raises InputError."""
        ...

    def connect(self, tell: Tell) -> None:
        """Before each run, on all ranks: make ready what collectives need. Raises what `tell` does."""
        ...


class Tell(Protocol):
    """What ranks tell each other while they connect."""

    def __call__(self, fact: Mapping[str, Any], error: DlaError | None = None) -> list[dict[str, Any]]:
        """Tell all ranks `fact`, or an error; what each of them tells. Raises the first error, but for time-outs."""
        ...


class DistributedSession:
    """A program on one rank of several processes. All of them run it at the same time, each with its own tensors.

    An input with a leading axis of all ranks is divided, one without it is this rank's; results have this rank's
    tensors alone. What goes wrong on one rank is an error on all: `run` raises it everywhere, and no state changes.
    `timeout` is how many seconds a rank waits for the others at a collective, None: as long as they take. That they
    begin a run may take any time: they may have to compile. Who has waited in vain raises a TimeoutTrap, there alone;
    ranks no longer know where others are, and this session does not run again.
    """

    def __init__(self, session: RankSession, peers: Peers, timeout: float | None = None) -> None:
        self.program = session.program
        self._session, self._peers, self._timeout = session, peers, timeout
        self._parted = False

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of this rank's state tensors."""
        return self._session.state

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite this rank's state tensors. Raises InputError."""
        self._session.set_state(split(self.program, Segment.STATE, values, self._peers.world)[self._peers.rank])

    def run(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Result:
        """Run to HALT. Raises InputError and BackendError before the run, Trap during it, on all ranks alike.

        After a time-out of this rank alone: BackendError.
        """
        if self._parted:
            raise BackendError("the ranks have lost each other in a run before", hint="start all processes again")
        error: DlaError | None = None
        try:
            mine = split(self.program, Segment.INPUT, inputs, self._peers.world)[self._peers.rank]
            bound = bind(self.program, mine, dims)
            run = self._session.begin(bound)
        except InputError as problem:
            error = problem
        dims_here = [] if error else [bound.dims[dim.name] for dim in self.program.dims]
        told = self._tell({"program": fingerprint(self.program), "dims": dims_here}, error)
        for rank, other in enumerate(told):
            if other["program"] != told[0]["program"]:
                raise everywhere(InputError(f"rank {rank} runs another program than rank 0",
                                            hint="all ranks run the same file"))  # fmt: skip
            for dim, size, first in zip(self.program.dims, other["dims"], told[0]["dims"], strict=True):
                if size != first:
                    raise everywhere(unequal_dims(dim.name, first, rank, size))
        self._session.connect(self._tell)
        began = time.perf_counter()
        try:
            self._execute(run)
        except BaseException:
            run.abandon()
            raise
        return run.end(time.perf_counter() - began)

    def _execute(self, run: RankRun) -> None:
        """Run to HALT, with the others: they have come there, too."""
        index: int | None = None
        while True:
            error: DlaError | None = None
            try:
                if index is not None:
                    run.exchange(index)
                index = run.advance()
            except DlaError as problem:
                error = problem
            told = self._tell({"at": index}, error, timeout=self._timeout)
            if any(other["at"] != index for other in told):
                places = [other["at"] for other in told]
                raise everywhere(
                    Trap("internal", f"ranks have come to different collectives, at instructions {places}")
                )
            if index is None:
                return

    def _tell(
        self, fact: Mapping[str, Any], error: DlaError | None = None, *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """What `Tell` says; and raises TimeoutTrap where a rank has told nothing, and no other one an error."""
        messages = self._peers.tell(_message(fact, error), timeout)
        told = [{} if message is None else json.loads(message) for message in messages]
        errors = [rank for rank, other in enumerate(told) if "error" in other]
        late = [rank for rank, message in enumerate(messages) if message is None]
        self._parted |= bool(late)
        if late and not errors:
            index = fact.get("at")
            raise TimeoutTrap(
                "timeout", f"waited {timeout:g} s for rank {late[0]}", rank=self._peers.rank, hint=LONGER,
                instruction=index, location=None if index is None else self.program.location(index),
            )  # fmt: skip
        if errors:  # who has waited in vain has waited for somebody
            rank = min(errors, key=lambda rank: told[rank]["category"] == "timeout")
            hint = error.hint if error is not None and rank == self._peers.rank else None
            found = self._error(rank, told[rank], hint)
            raise found if late else everywhere(found)  # a rank that is late has not heard of it
        return told

    def _error(self, rank: int, told: Mapping[str, Any], hint: str | None) -> DlaError:
        """The error that `rank` has told of; `hint` is known there alone."""
        if told["category"] not in TRAP_CATEGORIES:
            before = BackendError if told["category"] == _BACKEND else InputError
            return before(f"rank {rank}: {told['error']}", hint=hint)
        kind = TimeoutTrap if told["category"] == "timeout" else Trap
        index = told["instruction"]
        location = None if index is None else self.program.location(index)
        return kind(told["category"], told["error"], instruction=index, location=location, rank=rank, hint=hint)


def fingerprint(program: Program) -> str:
    """Equal for programs that do the same. What constants hold is left out: it may be much, and may be far away."""
    code = encode(program.instructions)
    tables = program.tensors, program.dims, program.world, program.groups, program.pairs
    shards = [(shard.tensor, shard.axis, shard.group) for shard in program.shards]
    parts = *code.words, *code.records, repr((code.descriptors, tables, shards)).encode()
    return hashlib.sha256(b"".join(parts)).hexdigest()


def everywhere(error: DlaError) -> DlaError:
    """`error`, marked as one that all ranks raise."""
    error.everywhere = True
    return error


def _message(fact: Mapping[str, Any], error: DlaError | None) -> bytes:
    """What is told to others: a fact, or an error."""
    told: dict[str, Any] = dict(fact)
    if error is not None:
        told = {"error": error.message[:_LONGEST_TEXT], "category": _BACKEND if isinstance(error, BackendError) else ""}
    if isinstance(error, Trap):
        told = {"error": error.detail[:_LONGEST_TEXT], "category": error.category, "instruction": error.instruction}
    message = json.dumps(told).encode("ascii")
    if len(message) > MESSAGE_BYTES:
        message = json.dumps(told | {"error": "its message is too long to be told"}).encode("ascii")
    return message


def world_matches(program: Program, ranks: int | None, peers: Peers) -> None:
    """Raise InputError unless `program`, and who asks for `ranks` ranks, agree with how many processes there are."""
    wanted = world_of(program, ranks)  # which has compared these two
    if (program.world or ranks) and wanted != peers.world:
        who = f"the program is for {wanted} ranks" if program.world else f"{wanted} ranks are asked for"
        started = "1 process was started" if peers.world == 1 else f"{peers.world} processes were started"
        raise InputError(f"{who}, and {started}", hint=f"start as many: mpirun -n {wanted} dla run ...")
