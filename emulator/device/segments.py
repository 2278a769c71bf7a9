"""A program in segments, each a launch that ends at a collective; the host executes that before the next launch.

So ranks run where no memory reaches from one to the other: their launches never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dla.emulator.device.collectives import Part
from dla.emulator.device.layout import MAILBOX, PAUSE
from dla.emulator.device.nccl import Communicators
from dla.emulator.device.session import DeviceSession
from dla.isa.dtypes import Array
from dla.isa.errors import Trap
from dla.isa.program import Program

Connect = Callable[[], Communicators]


class Pauses:
    """Where the launches of one rank pause, and where the next ones go on (kernel/pause.cuh).

    Two places serve in turns: a launch reads one while it may write the other.
    """

    def __init__(self, session: DeviceSession, rank: int, world: int) -> None:
        self._session = session
        upload = session.memory.upload
        self._places = [upload(np.zeros(1, PAUSE.dtype)) for _ in range(2)]
        first, second = (place.ptr for place in self._places)
        self._tables = []
        for resumes, pauses in ((0, first), (first, second), (second, first)):
            table = np.zeros(world, MAILBOX.dtype)
            table["abort"] = session.abort
            table[rank]["resumes"], table[rank]["pauses"] = resumes, pauses
            self._tables.append(upload(table))
        self._launches = 0

    def begin(self) -> None:
        """The next launch begins a run."""
        self._launches = 0

    def prepare(self) -> None:
        """Before each launch: tell it where to go on."""
        table = 0 if self._launches == 0 else 1 + (self._launches - 1) % 2
        self._session.record["mailboxes"] = self._tables[table].ptr
        self._session.record["first_work"] = self._session.plan.first_work if self._launches == 0 else 0
        self._launches += 1

    def read(self) -> tuple[int | None, Array]:
        """The collective that the last launch has paused at, None at HALT; and its operands, TENSOR records."""
        place, plan = self._places[(self._launches - 1) % 2], self._session.plan
        record = self._session.memory.fetch(place.ptr, PAUSE.dtype, 1)[0]
        executed = int(record["instruction"])
        return plan.origins[executed] if executed < len(plan.origins) else None, record["operands"]


class Segments:
    """The ranks of a program that this process runs, by rank, and how it connects them to all ranks of the world."""

    def __init__(
        self, cupy: Any, program: Program, sessions: Mapping[int, tuple[int, DeviceSession]], world: int, timeout: float
    ) -> None:
        """`sessions`: for each rank its GPU, and its session; `timeout`, in seconds, of a collective."""
        self._cupy, self._program, self._world, self._timeout = cupy, program, world, timeout
        self._gpus = {rank: gpu for rank, (gpu, _) in sessions.items()}
        self._memory = {rank: session.memory for rank, (_, session) in sessions.items()}
        self._streams = {rank: memory.stream for rank, memory in self._memory.items()}
        self._pauses = {}
        for rank, (gpu, session) in sessions.items():
            with cupy.cuda.Device(gpu):
                self._pauses[rank] = Pauses(session, rank, world)
        self._communicators: Communicators | None = None
        self._left: dict[int, tuple[int | None, Array]] = {}

    @property
    def is_connected(self) -> bool:
        """Whether the ranks are; they are no longer after a run that has failed."""
        return self._communicators is not None

    def connect(self, connect: Connect) -> None:
        """Connect the ranks if they are not. Raises BackendError, InputError."""
        if self._communicators is None:
            self._communicators = connect()

    def disconnect(self) -> None:
        """After a run that has failed: whatever other ranks may still be waiting for will not come."""
        if self._communicators is not None:
            self._communicators.abort()
        self._communicators = None

    def begin(self) -> None:
        """The next launches begin a run."""
        for pauses in self._pauses.values():
            pauses.begin()

    def prepare(self) -> None:
        """Before launches."""
        for pauses in self._pauses.values():
            pauses.prepare()

    def reached(self) -> int | None:
        """The collective that the launches, which have ended, have paused at; None at HALT. Raises Trap."""
        for rank, pauses in self._pauses.items():
            with self._cupy.cuda.Device(self._gpus[rank]):
                self._left[rank] = pauses.read()
        places = [index for index, _ in self._left.values()]
        if len(set(places)) > 1:
            raise Trap("internal", f"ranks have come to different collectives, at instructions {places}")
        return places[0]

    def exchange(self, index: int) -> None:
        """Execute the collective at `index`, which all ranks of the world have reached. Raises Trap, InputError."""
        try:
            self._exchange(index)
        except Trap as trap:
            raise trap.at(instruction=index, location=self._program.location(index)) from None

    def _exchange(self, index: int) -> None:
        communicators = self._communicators
        assert communicators is not None, "`connect` comes first"
        going = {}
        for rank, (_, operands) in self._left.items():
            part = Part(self._cupy, self._memory[rank], self._program, index, rank, self._world, operands)
            going[rank] = part.rounds()
        while True:
            rounds = {}
            for rank, steps in going.items():
                with self._cupy.cuda.Device(self._gpus[rank]), self._streams[rank]:
                    one = next(steps, None)
                if one is not None:
                    rounds[rank] = one
            if not rounds:
                return
            communicators.exchange(rounds, self._streams)
            communicators.wait(self._streams, self._timeout)
