"""NCCL: bytes from GPU to GPU where neither reaches the other's memory, in one process or in several, on any host.

It moves bytes and folds nothing: what a fold is, and in which order, is said by the instruction set alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dla.emulator.device.session import NOT_READY
from dla.isa.errors import LONGER, BackendError, InputError, TimeoutTrap, Trap

HOW_TO_GET_IT = "pip install nvidia-nccl-cu12 (or cu13, as the CUDA of CuPy)"
UniqueId = str
"""What the ranks of one communicator know it by: its bytes in hexadecimal digits."""


@dataclass(frozen=True)
class Transfer:
    """Some bytes on the GPU of a rank, to or from another one."""

    peer: int  # the other rank
    address: int
    bytes: int


@dataclass(frozen=True)
class Round:
    """What a rank sends and gets at the same time. Between two ranks, transfers go in the order of these lists."""

    sends: Sequence[Transfer]
    gets: Sequence[Transfer]


def library() -> Any:
    """`cupy.cuda.nccl`. Raises BackendError, saying how to get it, where it is missing."""
    missing = None
    try:
        from cupy.cuda import nccl  # optional
    except ImportError as error:
        missing = str(error)
    else:
        if not getattr(nccl, "available", True):
            missing = "CuPy finds no NCCL"
    if missing is not None:
        raise BackendError(f"ranks that do not reach each other's memory need NCCL: {missing}", hint=HOW_TO_GET_IT)
    return nccl


def version() -> str:
    """Of NCCL, as "2.28.3". Raises BackendError."""
    number = library().get_version()  # 22803
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def unique_id() -> UniqueId:
    """A new one, which one rank makes and all others are told. Raises BackendError."""
    return bytes(library().get_unique_id()).hex()


class Communicators:
    """The communicators of ranks whose GPUs this process drives; they are members of one world."""

    def __init__(self, cupy: Any, of_ranks: Mapping[int, Any]) -> None:
        self._cupy, self._nccl, self._of_ranks = cupy, library(), of_ranks

    @classmethod
    def of_gpus(cls, cupy: Any, gpus: Sequence[int]) -> Communicators:
        """Those of all ranks, rank r on GPU `gpus[r]`. Raises BackendError; InputError where ranks share a GPU."""
        shared = next((gpu for gpu in gpus if list(gpus).count(gpu) > 1), None)
        if shared is not None:
            raise InputError(f"NCCL has one rank on a GPU, and GPU {shared} has several",
                             hint='transport="peer" lets ranks share GPUs')  # fmt: skip
        with _as_backend_error():
            return cls(cupy, dict(enumerate(library().NcclCommunicator.initAll(list(gpus)))))

    @classmethod
    def of_process(cls, cupy: Any, identity: UniqueId, rank: int, world: int) -> Communicators:
        """That of `rank`, on the present GPU, once all of the world are here. Raises BackendError."""
        with _as_backend_error():
            return cls(cupy, {rank: library().NcclCommunicator(world, bytes.fromhex(identity), rank)})

    def exchange(self, rounds: Mapping[int, Round], streams: Mapping[int, Any]) -> None:
        """Order the transfers of this process's ranks, each on its stream. Raises Trap where NCCL fails."""
        kind = self._nccl.NCCL_UINT8
        try:
            with self._group():
                for rank, one in rounds.items():
                    communicator, stream = self._of_ranks[rank], streams[rank].ptr
                    for to in one.sends:
                        communicator.send(to.address, to.bytes, kind, to.peer, stream)
                    for come in one.gets:
                        communicator.recv(come.address, come.bytes, kind, come.peer, stream)
        except RuntimeError as error:  # NcclError is one
            self.abort()
            raise Trap("internal", f"NCCL: {error}") from error

    @contextlib.contextmanager
    def _group(self) -> Iterator[None]:
        """What is ordered within begins when it ends, all at the same time. One that fails ends, too."""
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def wait(self, streams: Mapping[int, Any], timeout: float) -> None:
        """Wait for what was ordered. Raises TimeoutTrap after `timeout` seconds."""
        query = self._cupy.cuda.runtime.streamQuery
        began = time.perf_counter()
        while any(query(stream.ptr) == NOT_READY for stream in streams.values()):
            waited = time.perf_counter() - began
            if waited > timeout:
                self.abort()
                raise TimeoutTrap("timeout", f"waited {timeout:g} s for other ranks, by NCCL", hint=LONGER)
            if waited > 0.002:
                time.sleep(0.0005)

    def abort(self) -> None:
        """End what is under way; these communicators are of no more use."""
        for communicator in self._of_ranks.values():
            with contextlib.suppress(RuntimeError):
                communicator.abort()

    def __del__(self) -> None:
        """NCCL's own destruction of communicators would wait for those of other processes."""
        self.abort()


@contextlib.contextmanager
def _as_backend_error() -> Iterator[None]:
    """What NCCL says when ranks cannot connect."""
    try:
        yield
    except RuntimeError as error:
        raise BackendError(f"NCCL does not connect the ranks: {error}",
                           hint="NCCL_DEBUG=INFO makes it say more") from error  # fmt: skip
