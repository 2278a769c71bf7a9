"""Copies between GPUs: what is asked of CUDA, and what is said of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from dla import report
from dla.emulator import topology
from dla.emulator.topology import COPY_BYTES, Link, links


class Event:
    """Recorded at times that the copies set."""

    now = 0.0

    def record(self, stream: Any) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        """Everything has happened."""


def gpus(*, connected: bool, room: bool = True) -> Any:
    """Two: a copy within one takes 1 ms, to the other 4; through the host, as long as they do not reach it, 40."""
    present: list[int] = []
    reach: set[tuple[int, int]] = set()

    class Device:
        """One that is entered and left."""

        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            present.append(self.number)

        def __exit__(self, *exception: object) -> None:
            present.pop()

    def copy(_to: int, target: int, _from: int, source: int, size: int, _stream: int) -> None:
        assert size == COPY_BYTES
        Event.now += 1.0 if target == source else 4.0 if (source, target) in reach else 40.0

    def alloc(size: int) -> Any:
        if not room:
            raise MemoryError
        return SimpleNamespace(ptr=1)

    runtime = SimpleNamespace(
        getDeviceCount=lambda: 2, deviceCanAccessPeer=lambda a, b: connected, memcpyPeerAsync=copy,
        deviceEnablePeerAccess=lambda other: reach.add((present[-1], other)),
    )  # fmt: skip
    cuda = SimpleNamespace(
        runtime=runtime, Device=Device, alloc=alloc, Event=Event, memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        Stream=lambda non_blocking: SimpleNamespace(ptr=0), get_elapsed_time=lambda a, b: b.at - a.at,
    )  # fmt: skip
    return SimpleNamespace(cuda=cuda)


def shown(found: list[Link]) -> str:
    """The table as a terminal has it."""
    console = Console(width=100)
    with console.capture() as capture:
        console.print(report.topology_table(found))
    return capture.get()


def test_every_gpu_to_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes per second of what arrives."""
    monkeypatch.setattr(topology, "import_cupy", lambda: gpus(connected=True))
    found = links()
    assert [(link.source, link.target, link.reaches) for link in found] == [
        (0, 0, True), (0, 1, True), (1, 0, True), (1, 1, True),
    ]  # fmt: skip
    assert [link.bytes_per_second for link in found] == pytest.approx(
        [COPY_BYTES / 1e-3, COPY_BYTES / 4e-3, COPY_BYTES / 4e-3, COPY_BYTES / 1e-3]
    )
    assert "67, peer" in shown(found)
    assert (
        report.doctor_facts([], found)["links"][1] | {"target": 1, "transport": "peer"}
        == report.doctor_facts([], found)["links"][1]
    )


def test_gpus_that_do_not_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their collectives go by NCCL, and the table says so; no memory is no speed."""
    monkeypatch.setattr(topology, "import_cupy", lambda: gpus(connected=False, room=False))
    found = links()
    assert [link.reaches for link in found] == [True, False, False, True]
    assert {link.bytes_per_second for link in found} == {None}
    assert "no memory, NCCL" in shown(found)


@pytest.mark.gpu
def test_a_gpu_copies_to_itself() -> None:
    """At some speed that is not made up."""
    first = links()[0]
    assert first.reaches
    assert first.bytes_per_second is not None
    assert 1e9 < first.bytes_per_second < 1e14
