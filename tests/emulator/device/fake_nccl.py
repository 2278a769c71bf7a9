"""As much of `cupy.cuda.nccl` as the machine uses, between pieces of host memory: what is sent arrives a little later.

Ranks may be in one thread, or in several; or in processes, with another wire. What does not fit together never
arrives, as with NCCL.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

DELAY = 3
"""Looks at a stream, before what was ordered begins."""
Route = tuple[bytes, int, int]  # the communicator's identity, from, to


class Wire:
    """Messages between ranks that are threads of this process."""

    def __init__(self) -> None:
        self._messages: defaultdict[Route, deque[bytes]] = defaultdict(deque)

    def put(self, route: Route, message: bytes) -> None:
        """Send."""
        self._messages[route].append(message)

    def get(self, route: Route) -> bytes | None:
        """What was sent, in order; None: nothing yet."""
        return self._messages[route].popleft() if self._messages[route] else None

    @property
    def is_empty(self) -> bool:
        """Whether all that was sent has been taken."""
        return not any(self._messages.values())


@dataclass
class _Order:
    """A transfer that was ordered."""

    communicator: Communicator
    sends: bool
    address: int
    bytes: int
    peer: int

    def done(self, wire: Wire) -> bool:
        """Try; whether it is done."""
        mine, identity = self.communicator.rank, self.communicator.identity
        if self.sends:
            wire.put((identity, mine, self.peer), ctypes.string_at(self.address, self.bytes))
            return True
        message = wire.get((identity, self.peer, mine))
        if message is None:
            return False
        assert len(message) == self.bytes, "both sides say the same size"
        ctypes.memmove(self.address, message, self.bytes)
        return True


class Communicator:
    """An NcclCommunicator."""

    def __init__(self, library: Library, world: int, identity: bytes, rank: int) -> None:
        assert isinstance(identity, bytes)  # as CuPy insists
        assert len(identity) == 128
        assert 0 <= rank < world
        self.library, self.world, self.identity, self.rank = library, world, identity, rank
        self.aborted = False

    def send(self, address: int, count: int, kind: int, peer: int, stream: int) -> None:
        """Order it."""
        self._order(address, count, kind, peer, sends=True)

    def recv(self, address: int, count: int, kind: int, peer: int, stream: int) -> None:
        """Order it."""
        self._order(address, count, kind, peer, sends=False)

    def _order(self, address: int, count: int, kind: int, peer: int, *, sends: bool) -> None:
        assert not self.aborted
        assert (kind, 0 <= peer < self.world, peer != self.rank, count > 0) == (Library.NCCL_UINT8, True, True, True)
        if self.library.fails:
            raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: planted")
        self.library.ordered().append(_Order(self, sends, address, count, peer))

    def abort(self) -> None:
        """What is under way ends."""
        self.aborted = True
        self.library.forget(self)


class Library:
    """The module."""

    NCCL_UINT8 = 1
    available = True

    def __init__(self, wire: Wire | None = None) -> None:
        self.wire = wire or Wire()
        self.fails = False  # from now on
        self.communicators = 0
        self.exchanges = 0
        self._ids = 0
        self._of_thread = threading.local()

    @property
    def NcclCommunicator(self) -> Any:  # noqa: N802  # CuPy's name
        """The class."""
        library = self

        class NcclCommunicator(Communicator):
            def __init__(self, world: int, identity: bytes, rank: int) -> None:
                super().__init__(library, world, identity, rank)
                library.communicators += 1

            @staticmethod
            def initAll(devices: list[int]) -> list[Communicator]:  # noqa: N802  # CuPy's name
                assert len(set(devices)) == len(devices)
                identity = library.get_unique_id()
                return [NcclCommunicator(len(devices), identity, rank) for rank in range(len(devices))]

        return NcclCommunicator

    def get_version(self) -> int:
        """2.28.3."""
        return 22803

    def get_unique_id(self) -> bytes:
        """Another one each time."""
        self._ids += 1
        return bytes([self._ids, *(255 - n for n in range(127))])

    def groupStart(self) -> None:  # noqa: N802  # CuPy's name
        """Begin to order."""
        assert getattr(self._of_thread, "ordered", None) is None, "one group at a time"
        self._of_thread.ordered = []

    def groupEnd(self) -> None:  # noqa: N802  # CuPy's name
        """What was ordered since begins."""
        self._of_thread.under_way, self._of_thread.ordered = self._of_thread.ordered, None
        self._of_thread.looks = DELAY
        self.exchanges += 1

    def ordered(self) -> list[_Order]:
        """Since the group began."""
        found: list[_Order] = self._of_thread.ordered
        return found

    def forget(self, communicator: Communicator) -> None:
        """Leave it all undone."""
        self._of_thread.under_way = []

    def is_busy(self) -> bool:
        """Whether something is under way, after a look at it; one thing is done after the other."""
        left: list[_Order] = getattr(self._of_thread, "under_way", [])
        if left and self._of_thread.looks:
            self._of_thread.looks -= 1
            return True
        sends = [one for one in left if one.sends]
        self._of_thread.under_way = [
            one for one in (*sends, *(o for o in left if not o.sends)) if not one.done(self.wire)
        ]
        return bool(self._of_thread.under_way)
