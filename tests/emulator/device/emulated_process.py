"""The command line in a process of several, on emulated GPUs: what NCCL would carry, MPI does."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from dla.cli import main
from dla.emulator import mpi
from dla.emulator.device import build
from dla.tests.emulator.device import emulated_gpus, fake_nccl


class MpiWire(fake_nccl.Wire):
    """Messages between ranks that are processes."""

    def __init__(self) -> None:
        super().__init__()
        mpi.peers()  # starts MPI
        from mpi4py import MPI

        self._all, self._status = MPI.COMM_WORLD.Dup(), MPI.Status
        self._sent: list[Any] = []

    def put(self, route: fake_nccl.Route, message: bytes) -> None:
        """Send, and do not wait."""
        _, _, to = route
        data = np.frombuffer(message, np.uint8)
        self._sent.append((self._all.Isend(data, to), data))

    def get(self, route: fake_nccl.Route) -> bytes | None:
        """What was sent, if it is here."""
        _, sender, _ = route
        status = self._status()
        if not self._all.Iprobe(sender, status=status):
            return None
        data = np.empty(status.Get_count(), np.uint8)
        self._all.Recv(data, sender)
        return data.tobytes()


def run(gpus: int) -> None:
    """`dla` with the arguments of this process, which sees so many GPUs."""
    patches = pytest.MonkeyPatch()
    runtime = emulated_gpus.install(patches, blocks=2, gpus=gpus, connected=False)
    runtime.nccl.wire = MpiWire()
    patches.setitem(sys.modules, "cupy", build.import_cupy())
    main()
