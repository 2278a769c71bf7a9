"""One rank on a GPU of its own, whose world is in other processes, which MPI brings together, and NCCL connects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dla.emulator.binding import Bound
from dla.emulator.device import build, nccl
from dla.emulator.device.memory import DeviceMemory
from dla.emulator.device.nccl import Communicators, UniqueId
from dla.emulator.device.segments import Segments
from dla.emulator.device.session import DeviceSession
from dla.emulator.distributed import Peers, Tell, everywhere
from dla.emulator.result import Result
from dla.isa.dtypes import Array
from dla.isa.errors import BackendError, DlaError, InputError
from dla.isa.program import Program

if TYPE_CHECKING:
    from dla.emulator.device.machine import DeviceMachine


class DeviceRank:
    """A `RankSession` of the device machine: the k-th process of a host has the k-th GPU that it sees.

    A launcher may let each process see one GPU alone; that no two have the same is known once they connect.
    """

    def __init__(self, machine: DeviceMachine, program: Program, peers: Peers) -> None:
        self.program = program
        self._peers = peers
        self._cupy = cupy = build.import_cupy()
        nccl.library()  # what is missing is said before minutes of compiling
        self._gpu = _gpu_of(cupy, peers)
        with self.on_gpu():
            kernel = machine.kernel(ranked=True)
            target = replace(kernel.target, rank=peers.rank, world=peers.world, transport="nccl")
            memory = DeviceMemory(cupy, program, cupy.cuda.Stream(non_blocking=True), target)
            self.session = DeviceSession(machine, kernel, program, memory=memory, target=target)
            own = {peers.rank: (self._gpu, self.session)}
            self.segments = Segments(cupy, program, own, peers.world, machine.timeout)

    @contextmanager
    def on_gpu(self) -> Iterator[None]:
        """With the rank's GPU as the present one."""
        with self._cupy.cuda.Device(self._gpu):
            yield

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of this rank's state tensors, each made when it is first read."""
        return self.session.state

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite this rank's state tensors. Raises InputError."""
        with self.on_gpu():
            self.session.set_state(values)

    def begin(self, bound: Bound) -> DeviceRun:
        """A run that is ready for its first instruction."""
        with self.on_gpu():
            self.session.begin(bound)
        self.segments.begin()
        return DeviceRun(self, bound)

    def connect(self, tell: Tell) -> None:
        """Connect all ranks by NCCL, if they are not. Raises BackendError; InputError where two share a GPU."""
        if self.segments.is_connected:
            return
        identity: UniqueId = ""
        error: DlaError | None = None
        try:
            identity = nccl.unique_id() if self._peers.rank == 0 else ""
        except BackendError as problem:
            error = problem
        told = tell(_place(self._cupy, self._peers) | {"nccl": identity}, error)
        if shared := _shared(told):
            raise everywhere(InputError(shared, hint="start as many processes on a host as it has GPUs"))
        rank, world = self._peers.rank, self._peers.world
        with self.on_gpu():
            self.segments.connect(lambda: Communicators.of_process(self._cupy, told[0]["nccl"], rank, world))


class DeviceRun:
    """A `RankRun` of the device machine: a launch up to each collective."""

    def __init__(self, rank: DeviceRank, bound: Bound) -> None:
        self._rank, self._bound = rank, bound

    def advance(self) -> int | None:
        """A launch; the collective that it has paused at, None at HALT. Raises Trap."""
        self._rank.segments.prepare()
        with self._rank.on_gpu():
            trap = self._rank.session.launch_once()
        if trap is not None:
            raise trap
        return self._rank.segments.reached()

    def exchange(self, index: int) -> None:
        """Execute the collective at `index`. Raises Trap."""
        self._rank.segments.exchange(index)

    def end(self, elapsed: float) -> Result:
        """The result; outputs are CuPy arrays if any input was one."""
        with self._rank.on_gpu():
            return self._rank.session.end(self._bound, elapsed)

    def abandon(self) -> None:
        """Set everything back; ranks connect again before the next run."""
        self._rank.segments.disconnect()
        with self._rank.on_gpu():
            self._rank.session.recover()


def missing_somewhere(peers: Peers, missing: str | None) -> str | None:
    """Why not all processes can have a GPU of their own, the same for all of them, which call it; None where they can.

    `missing` is what this one lacks.
    """
    fact: dict[str, Any] = {"missing": missing}
    if missing is None:
        try:
            nccl.library()
            fact |= _place(build.import_cupy(), peers)
        except BackendError as error:
            fact["missing"] = error.message
    told = [json.loads(message or b"") for message in peers.tell(json.dumps(fact).encode())]  # of all: no time-out
    return next((other["missing"] for other in told if other["missing"] is not None), None) or _shared(told)


def _gpu_of(cupy: Any, peers: Peers) -> int:
    return peers.neighbours.index(peers.rank) % int(cupy.cuda.runtime.getDeviceCount())


def _place(cupy: Any, peers: Peers) -> dict[str, Any]:
    """Which host this process is on, by its first rank, and which GPU there it has."""
    return {"host": peers.neighbours[0], "gpu": str(cupy.cuda.runtime.deviceGetPCIBusId(_gpu_of(cupy, peers)))}


def _shared(places: Sequence[Mapping[str, Any]]) -> str | None:
    """Which two ranks have one GPU, given the `_place` of all, if some do."""
    seen: dict[tuple[int, str], int] = {}
    for rank, place in enumerate(places):
        first = seen.setdefault((place["host"], place["gpu"]), rank)
        if first != rank:
            return f"ranks {first} and {rank} have the same GPU, {place['gpu']}"
    return None
