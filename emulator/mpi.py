"""Ranks in processes, on one host or many, that an MPI launcher starts: `mpirun -n 4 dla run ...` (extra `mpi`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from dla.emulator import launcher
from dla.emulator.distributed import MESSAGE_BYTES, Peers
from dla.isa.dtypes import Array
from dla.isa.errors import BackendError


def started() -> bool:
    """Whether an MPI launcher started this process, and others with it.

    One process alone is no world of processes: a step of a Slurm job has these variables, too, whatever it runs. Where
    nothing says how many there are, MPI has to be asked; without MPI, the first process takes itself for the only one,
    and any other one knows better.
    """
    if not launcher.launched():
        return False
    several = launcher.started_several()
    if several is not None:
        return several
    try:
        return peers().world > 1
    except BackendError:
        return not launcher.is_first()


_TAGS = 2**15
"""Of messages: as many as any MPI has."""
_PATIENCE = 0.002
"""Seconds that a rank waits for others without letting go of its processor."""
_LAST_WORDS = 0.1
"""Seconds that a launcher needs to pass on what was printed: it drops what it has not when it ends everything."""


@cache
def peers() -> Peers:
    """The processes that were started together with this one. Raises BackendError where there is no MPI."""
    mpi = _module()
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)  # as mpi4py itself does
    return MpiPeers(mpi)


def library() -> str:
    """Which MPI there is, and its version. Raises BackendError where there is none."""
    first_line = str(_module().Get_library_version()).strip().partition("\n")[0]
    return " ".join(first_line.split())


def _module() -> Any:
    """mpi4py's, without MPI being started. Raises BackendError where there is none."""
    try:
        import mpi4py  # optional

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0] or "it cannot be imported"
        raise BackendError(
            f"ranks in processes need MPI: {reason}", hint="pip install 'dla[mpi]' mpich, or with another MPI"
        ) from None
    return MPI


class MpiPeers:
    """`Peers` over MPI's world communicator. Tensors travel as bytes, and nothing is pickled."""

    def __init__(self, mpi: Any) -> None:
        self._mpi, self._all = mpi, mpi.COMM_WORLD
        self._communicators: dict[tuple[int, ...], Any] = {}
        self._told = 0  # times
        self._under_way: list[Any] = []  # messages, for which nobody waits any longer

    @property
    def rank(self) -> int:
        return int(self._all.Get_rank())

    @property
    def world(self) -> int:
        return int(self._all.Get_size())

    @cached_property
    def neighbours(self) -> tuple[int, ...]:
        """The ranks that share memory with this one."""
        here = self._all.Split_type(self._mpi.COMM_TYPE_SHARED, self.rank)
        found = np.empty(here.Get_size(), np.int64)
        here.Allgather(np.array([self.rank], np.int64), found)
        here.Free()
        return tuple(map(int, found))

    def tell(self, message: bytes, timeout: float | None = None) -> list[bytes | None]:
        """One by one, so that it is known who is late. Tags count: what comes too late is not taken for the next."""
        mine = np.frombuffer(message.ljust(MESSAGE_BYTES), np.uint8)
        told = np.empty((self.world, MESSAGE_BYTES), np.uint8)
        tag, self._told = self._told % _TAGS, self._told + 1
        coming = [self._all.Irecv(one, rank, tag) for rank, one in enumerate(told)]
        going = [self._all.Isend(mine, rank, tag) for rank in range(self.world)]
        late = self._wait(coming, timeout)
        if late:
            self._under_way.append((mine, going))  # to who is late
        else:
            self._mpi.Request.Waitall(going)
        return [None if rank in late else one.tobytes().rstrip() for rank, one in enumerate(told)]

    def _wait(self, coming: Sequence[Any], timeout: float | None) -> list[int]:
        """Wait for the message of each rank. Those whose has not come."""
        if timeout is None:
            self._mpi.Request.Waitall(coming)
            return []
        began = time.monotonic()
        while late := [rank for rank, request in enumerate(coming) if not request.Test()]:
            waited = time.monotonic() - began
            if waited > timeout:
                for rank in late:
                    coming[rank].Cancel()
                    coming[rank].Wait()
                break
            if waited > _PATIENCE:
                time.sleep(_PATIENCE / 4)
        return late

    def gather(self, array: Array, ranks: Sequence[int]) -> Array:
        gathered: Array = np.empty((len(ranks), *array.shape), array.dtype)
        if array.nbytes:
            mine = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self._among(tuple(ranks)).Allgather(mine, gathered.reshape(-1).view(np.uint8))
        return gathered

    def abort(self, code: int) -> None:
        time.sleep(_LAST_WORDS)
        self._all.Abort(code)

    def _among(self, ranks: tuple[int, ...]) -> Any:
        """The communicator of `ranks`, which all of them make when they first need it."""
        if len(ranks) == self.world:
            return self._all
        if ranks not in self._communicators:
            group = self._all.Get_group().Incl(ranks)
            self._communicators[ranks] = self._all.Create_group(group)
        return self._communicators[ranks]
