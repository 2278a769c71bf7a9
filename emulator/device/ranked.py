"""A program on several ranks: on one GPU, where each has blocks of its own, or on several, one launch for each.

Ranks send to each other inside the kernel (kernel/mail.cuh): what one writes to another's memory the other finds there,
whether it is the same GPU or one that is reached over NVLink or PCIe. The host has no part in it. Where GPUs do not
reach each other's memory, launches end at collectives, and NCCL carries what ranks send (segments.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from dla.emulator.binding import Bound, bind_state, is_device_array, to_host
from dla.emulator.device import build
from dla.emulator.device.launch import RankedLaunch
from dla.emulator.device.layout import BLOCK_THREADS, MAILBOX, PAIR, mail_bytes
from dla.emulator.device.memory import DeviceMemory
from dla.emulator.device.nccl import Communicators
from dla.emulator.device.paths import Target, Transport
from dla.emulator.device.paths.parties import few_enough
from dla.emulator.device.peer_access import let_reach_each_other
from dla.emulator.device.segments import Segments
from dla.emulator.device.session import NOT_READY, DeviceSession, outdated
from dla.emulator.ranks import bind_ranks, split
from dla.emulator.result import JoinedState, Result
from dla.emulator.trace import Trace
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.errors import BackendError, InputError, TimeoutTrap, Trap
from dla.isa.program import Program

if TYPE_CHECKING:
    from dla.emulator.device.machine import DeviceMachine


@dataclass(frozen=True)
class _Group:
    """The ranks of one GPU: they share a stream and a launch."""

    gpu: int
    ranks: tuple[int, ...]
    kernel: build.Kernel
    stream: Any
    events: tuple[Any, Any]  # around the launches of a run


class RankedDeviceSession:
    """A program on several ranks, rank r on GPU `gpus[r]`, which send to each other by `transport`.

    Inputs, outputs and state are those of `golden.lockstep.RankedSession`: CuPy arrays are taken from whichever GPU
    they are on, by the host, and outputs are NumPy arrays. Where a rank traps, all end, the Trap names
    it, and no rank's state changes.
    """

    def __init__(
        self, machine: DeviceMachine, program: Program, gpus: Sequence[int], transport: Transport
    ) -> None:  # fmt: skip
        self.program = program
        self._machine = machine
        self._cupy = build.import_cupy()
        world = len(gpus)
        self._gpus = tuple(gpus)
        if transport == "peer":
            few_enough(world)
            let_reach_each_other(self._cupy, sorted(set(gpus)))
        else:
            communicators = self._connect()  # what is missing is said before minutes of compiling
        self._groups = [self._group(gpu) for gpu in sorted(set(gpus))]
        self.blocks = _share(self._groups)
        """Blocks of each rank."""
        self._bound: RankedLaunch | None = None
        self._mail: list[Any] = []
        self._sessions: list[DeviceSession] = []
        of_rank = {rank: group for group in self._groups for rank in group.ranks}
        for rank in range(world):
            group = of_rank[rank]
            with self._on(group.gpu):
                target = replace(
                    group.kernel.target, blocks=self.blocks, rank=rank, world=world, transport=transport
                )  # fmt: skip
                memory = DeviceMemory(self._cupy, program, group.stream, target)
                self._sessions.append(DeviceSession(machine, group.kernel, program, memory=memory, target=target))
                if transport == "peer":
                    self._mail.append(self._cupy.cuda.alloc(mail_bytes(self.blocks, world)))
        self._segments: Segments | None = None
        if transport == "peer":
            self._clear_mail()
            self._tell_where_mail_goes()
        else:
            sessions = dict(enumerate(zip(gpus, self._sessions, strict=True)))
            self._segments = Segments(self._cupy, program, sessions, world, machine.timeout)
            self._segments.connect(lambda: communicators)

    def _connect(self) -> Communicators:
        return Communicators.of_gpus(self._cupy, self._gpus)

    def _group(self, gpu: int) -> _Group:
        with self._on(gpu):
            cuda = self._cupy.cuda
            ranks = tuple(rank for rank, of_rank in enumerate(self._gpus) if of_rank == gpu)
            stream = cuda.Stream(non_blocking=True)
            return _Group(gpu, ranks, self._machine.kernel(ranked=True), stream, (cuda.Event(), cuda.Event()))

    def _tell_where_mail_goes(self) -> None:
        """A table of all mailboxes on each GPU."""
        boxes = np.zeros(len(self._sessions), MAILBOX.dtype)
        boxes["mail"] = [mail.ptr for mail in self._mail]
        boxes["abort"] = [session.abort for session in self._sessions]
        self._mailboxes = []
        for group in self._groups:
            with self._on(group.gpu):
                table = self._sessions[group.ranks[0]].memory.upload(boxes)
                self._mailboxes.append(table)
                for rank in group.ranks:
                    self._sessions[rank].record["mailboxes"] = table.ptr

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of the state tensors of all ranks, [rank, ...], each made when it is first read."""
        return JoinedState([session.state for session in self._sessions])

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite the named state tensors. Raises InputError."""
        divided = split(self.program, Segment.STATE, _on_host(values), len(self._sessions))
        for one in divided:
            bind_state(self.program, one)  # all are right before one changes
        for rank, one in enumerate(divided):
            with self._on(self._gpus[rank]):
                self._sessions[rank].set_state(one)

    def run(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Result:
        """Run to HALT. Raises InputError before the run, Trap during it; after a Trap, state is unchanged.

        Runs that were enqueued before are checked first (see `RankedLaunch.check`).
        """
        bound = self._bind(inputs, dims)
        self._finish()
        for rank, given in enumerate(bound):
            with self._on(self._gpus[rank]):
                self._sessions[rank].begin(given)
        for group in self._groups:  # all inputs are there before a rank waits for another
            group.stream.synchronize()
        try:
            if self._segments is None:
                self._launch_once()
            else:
                self._run_segments(self._segments)
        except BaseException:  # an interrupt from the keyboard, too: ranks that have started are not to wait for others
            self._stop()
            raise
        self._stop_at_a_trap()
        results = []
        for rank, given in enumerate(bound):
            with self._on(self._gpus[rank]):
                results.append(self._sessions[rank].end(given, self._elapsed()))
        return Result.of_ranks(results)

    def _bind(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None) -> list[Bound]:
        """The inputs of each rank. Raises InputError."""
        divided = split(self.program, Segment.INPUT, _on_host(inputs), len(self._sessions))
        return bind_ranks(self.program, divided, dims)

    def launch(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> RankedLaunch:
        """Put inputs and dims on the GPUs, for runs without the host; see `RankedLaunch`.

        Raises InputError, also where the host has a part in collectives.
        """
        if self._segments is not None:
            raise InputError("collectives by NCCL are between launches, so there are no runs without the host",
                             hint="session.run(...), or GPUs that reach each other's memory")  # fmt: skip
        bound = self._bind(inputs, dims)
        self._finish()
        for rank, given in enumerate(bound):
            with self._on(self._gpus[rank]):
                self._sessions[rank].send(given)
        for group in self._groups:
            group.stream.synchronize()
        self._bound = RankedLaunch(self, self._sessions)
        return self._bound

    def enqueue(self, launch: RankedLaunch, stream: Any) -> None:
        """What `RankedLaunch.enqueue` does."""
        if launch is not self._bound:
            raise outdated()
        cuda, runtime = self._cupy.cuda, self._cupy.cuda.runtime
        stream = cuda.get_current_stream() if stream is None else stream
        handle = stream.ptr if hasattr(stream, "ptr") else stream.cuda_stream
        for rank, session in enumerate(self._sessions):
            with self._on(self._gpus[rank]):
                session.settle()
        before = cuda.Event(disable_timing=True)
        runtime.eventRecord(before.ptr, handle)
        for group in self._groups:
            group.stream.wait_event(before)
        try:
            self._start_all()
        except BaseException:
            self._stop(set_back=False)
            raise
        for group in self._groups:
            runtime.streamWaitEvent(handle, group.events[1].ptr)

    def _finish(self) -> None:
        """Check what was enqueued. Raises the Trap of a rank."""
        bound, self._bound = self._bound, None
        if bound is not None:
            self.check()

    def check(self) -> None:
        """What `RankedLaunch.check` does."""
        self._ask()
        for group in self._groups:
            group.stream.synchronize()
        self._stop_at_a_trap(set_back=False)

    def trace(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> tuple[Result | Trap, Trace]:
        """Raises InputError: when each instruction ran is noted for one rank alone."""
        raise InputError(f"this program runs on {len(self._sessions)} ranks, and only one can be profiled")

    def _run_segments(self, segments: Segments) -> None:
        """Launches up to HALT or a trap, with collectives between them. Raises what ends a collective."""
        segments.connect(self._connect)
        segments.begin()
        for launches in count():
            segments.prepare()
            self._launch_once(first=launches == 0)
            if any(session.trap() for session in self._sessions) or (index := segments.reached()) is None:
                return
            segments.exchange(index)

    def _launch_once(self, *, first: bool = True) -> None:
        """One launch on each GPU, until all have ended; `first`: of a run."""
        self._start_all(first=first)
        self._ask()
        self._wait()

    def _start_all(self, *, first: bool = True) -> None:
        for group in self._groups:
            with self._on(group.gpu):
                self._start(group, first=first)

    def _start(self, group: _Group, *, first: bool) -> None:
        """The launch of a GPU."""
        kernel, (began, ended) = group.kernel, group.events
        launches = kernel.parameter([self._sessions[rank].record for rank in group.ranks])
        arguments = (ctypes.c_void_p * 1)(launches.ctypes.data)
        if first:
            began.record(group.stream)
        self._cupy.cuda.driver.launchKernel(
            kernel.function.kernel.ptr, self.blocks, len(group.ranks), 1, BLOCK_THREADS, 1, 1, kernel.shared_bytes,
            group.stream.ptr, ctypes.addressof(arguments), 0,
        )  # fmt: skip
        ended.record(group.stream)

    def _ask(self) -> None:
        """Order the reports of all ranks, and their outputs where they are small."""
        for rank, session in enumerate(self._sessions):
            with self._on(self._gpus[rank]):
                session.memory.ask()

    def _wait(self) -> None:
        """Wait for all GPUs, so that an interrupt from the keyboard comes through."""
        query = self._cupy.cuda.runtime.streamQuery
        patience = time.perf_counter() + 0.002
        for group in self._groups:
            with self._on(group.gpu):
                while query(group.stream.ptr) == NOT_READY:
                    if time.perf_counter() > patience:
                        time.sleep(0.0005)
        for group in self._groups:
            group.stream.synchronize()

    def _stop(self, *, set_back: bool = True) -> None:
        """End a run that is under way."""
        for rank, session in enumerate(self._sessions):
            with self._on(self._gpus[rank]):
                session.stop()
        if self._segments is not None:
            self._segments.disconnect()
        self._recover(set_back=set_back)

    def _stop_at_a_trap(self, *, set_back: bool = True) -> None:
        """Raises the Trap of a rank that has one: the first that did not wait in vain, for that is what others did."""
        traps = [(rank, trap) for rank, session in enumerate(self._sessions) if (trap := session.trap()) is not None]
        if traps:
            rank, trap = min(traps, key=lambda found: isinstance(found[1], TimeoutTrap))
            self._recover(set_back=set_back)
            raise trap.at(rank=rank)

    def _recover(self, *, set_back: bool) -> None:
        """After a trap or an interrupt: the next run starts afresh, with `set_back` from the state before this one."""
        for group in self._groups:
            group.stream.synchronize()
        for rank, session in enumerate(self._sessions):
            with self._on(self._gpus[rank]):
                if set_back:
                    session.recover()
                else:
                    session.clear()
        self._clear_mail()

    def _clear_mail(self) -> None:
        """No rank has sent anything."""
        for rank, mail in enumerate(self._mail):
            with self._on(self._gpus[rank]):
                self._sessions[rank].memory.clear(mail.ptr, mail_bytes(self.blocks, len(self._sessions)))
        for group in self._groups:
            group.stream.synchronize()

    def _elapsed(self) -> float:
        """Seconds from the first launch of a GPU to the end of its last, of the GPU that took longest."""
        return float(max(self._cupy.cuda.get_elapsed_time(*group.events) for group in self._groups)) / 1e3

    @contextlib.contextmanager
    def _on(self, gpu: int) -> Iterator[None]:
        with self._cupy.cuda.Device(gpu):
            yield


def _on_host(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, those on a GPU copied to the host: it knows which one they are on, and what they wait for there."""
    return {name: to_host(value) if is_device_array(value) else value for name, value in values.items()}


def _share(groups: Sequence[_Group]) -> int:
    """Blocks of each rank: as many for all, and so few that those of all ranks of a GPU run at the same time."""
    targets: set[Target] = {group.kernel.target for group in groups}
    if len({target.hopper for target in targets}) > 1:
        raise BackendError("ranks run on GPUs of one kind, and these differ")
    together = PAIR if next(iter(targets)).hopper else 1
    share = min(group.kernel.blocks // len(group.ranks) // together * together for group in groups)
    if share == 0:
        raise BackendError("the GPU has too few multiprocessors for so many ranks")
    return share
