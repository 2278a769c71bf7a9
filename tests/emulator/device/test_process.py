"""Ranks in processes, here threads, each on an emulated GPU: the bits of golden ranks; errors are everybody's."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.api import Machine
from dla.emulator.device import build, nccl
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.process import DeviceRank, missing_somewhere
from dla.emulator.distributed import DistributedSession
from dla.isa.errors import BackendError, DlaError, InputError, TimeoutTrap
from dla.isa.program import Program
from dla.tests import planted_faults
from dla.tests.emulator.device import emulated_gpus
from dla.tests.emulator.device.cpu_machine import needs_compiler
from dla.tests.emulator.device.test_segments import CONTROL
from dla.tests.emulator.golden.test_ranks import assert_same
from dla.tests.emulator.test_distributed import EVERYTHING, ThreadPeers, together
from dla.tests.planted_faults import FAULTS, RANKS, Fault

pytestmark = needs_compiler
SUM = """
.input x : i32[4]
.state n : i32[4]
.output y : i32[4]
main:
    EW.add n, n, x
    ALLREDUCE.sum y, n
    HALT
"""
X = np.arange(4, dtype=np.int32)


@pytest.fixture
def gpus(monkeypatch) -> emulated_gpus.Runtime:
    """Four GPUs that do not reach each other."""
    return emulated_gpus.install(monkeypatch, blocks=2, gpus=4, connected=False)


def on_gpus(program: Program, peers: Any, **options: Any) -> DeviceRank:
    """A rank on the device machine."""
    return DeviceRank(DeviceMachine(ranks="mpi", **options), program, peers)


def test_processes_give_what_golden_ranks_give(gpus):
    """Every collective, on groups and pairs, twice, bit for bit."""
    program = assemble(EVERYTHING)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    b = rng.standard_normal((4, 4, 3)).astype(program.by_name["b"].descriptor.dtype.numpy)
    expected = Machine("golden", accumulate="f32").run(program, {"x": x, "b": b})

    def act(session: DistributedSession, rank: int) -> Any:
        session.run({"x": x, "b": b})  # with the axis of ranks
        return session.run({"x": x[rank], "b": b[rank]})  # one's own

    for rank, result in enumerate(together(program, 4, act, on_gpus)):
        assert result.backend == "gpu"
        for name, array in expected.ranks[rank].outputs.items():
            assert_same(result[name], array)
        assert result.state["runs"] == 2


def test_what_the_scalar_unit_holds_lives_through_collectives(gpus):
    """Loops, calls and branches that differ between ranks."""
    program = assemble(CONTROL)
    inputs = {"x": np.arange(18, dtype=np.int32).reshape(3, 6), "k": np.array([[3], [1], [3]], np.int32)}
    expected = Machine("golden", watch=False).run(program, inputs)
    for rank, result in enumerate(together(program, 3, lambda session, rank: session.run(inputs), on_gpus)):
        for name, array in expected.ranks[rank].outputs.items():
            assert_same(result[name], array)


@pytest.mark.parametrize("kind", [*FAULTS, "another program"])
@pytest.mark.parametrize(("world", "rank"), RANKS)
def test_planted_faults(gpus, kind, world, rank):
    """Every rank ends with the error that names the one, no state changes, and the next run is right."""
    fault = FAULTS.get(kind, Fault("NOP", 0, 0, ""))
    right = planted_faults.program(fault.code, world, first=(world + rank) % 2 == 0)
    other = planted_faults.program("FILL z, 3", world, first=True)

    def act(session: DistributedSession, mine: int) -> Any:
        wrong = fault.wrong if mine == rank else fault.fine
        with pytest.raises(DlaError) as caught:
            session.run({"x": X, "k": np.array([wrong], np.int32)})
        kept = session.state["n"].tolist()
        if kind == "another program":
            return caught.value, kept, None
        return caught.value, kept, session.run({"x": X, "k": np.array([fault.fine], np.int32)})["y"].tolist()

    programs = [other if kind == "another program" and mine == rank else right for mine in range(world)]
    for error, kept, after in together(programs, world, act, on_gpus):
        assert error.everywhere
        if kind == "another program":
            assert error.message == f"rank {rank or 1} runs another program than rank 0"
        else:
            assert (error.category, error.rank, after) == (fault.category, rank, (world * world * X).tolist())
        assert kept == [0] * 4


@pytest.mark.parametrize(("world", "rank"), RANKS)
def test_a_rank_that_hangs(gpus, world, rank):
    """Inside its kernel: all end with its time-out."""

    def act(session: DistributedSession, mine: int) -> Any:
        on_device = session._session.session  # type: ignore[attr-defined]
        on_device.expected_base = 1000 * (mine == rank)
        with pytest.raises(TimeoutTrap) as caught:
            session.run({"x": X})
        kept, on_device.expected_base = session.state["n"].tolist(), 0
        return caught.value.rank, kept, session.run({"x": X})["y"].tolist()

    program = assemble(SUM.replace("    ALLREDUCE", "    LOADS s0, n[0]\n    ALLREDUCE"))
    assert together(program, world, act, on_gpus, timeout=0.2) == [(rank, [0] * 4, (world * X).tolist())] * world


def test_what_is_lost_on_the_way_is_a_timeout_on_all(gpus, monkeypatch):
    """The next run connects anew, and is right."""
    put, lost = gpus.nccl.wire.put, threading.Event()

    def lossy(route: Any, message: bytes) -> None:
        if lost.is_set() or route[1] != 1:
            put(route, message)

    monkeypatch.setattr(gpus.nccl.wire, "put", lossy)

    def act(session: DistributedSession, rank: int) -> Any:
        with pytest.raises(TimeoutTrap) as caught:
            session.run({"x": X})
        lost.set()
        return str(caught.value), session.state["n"].tolist(), session.run({"x": X})["y"].tolist()

    for text, kept, after in together(assemble(SUM), 3, act, on_gpus, timeout=0.2):
        assert "waited 0.2 s for other ranks, by NCCL" in text
        assert (kept, after) == ([0] * 4, (3 * X).tolist())
    assert gpus.nccl.communicators == 6


def test_a_gpu_without_memory_for_a_collective_is_an_error_on_all(gpus, monkeypatch):
    """Where the others have some; the next run is right."""
    alloc, full = build.import_cupy().cuda.alloc, threading.local()

    def scarce(size: int) -> Any:
        if getattr(full, "is_full", False):
            raise MemoryError
        return alloc(size)

    monkeypatch.setattr(build.import_cupy().cuda, "alloc", scarce)

    def act(session: DistributedSession, rank: int) -> Any:
        full.is_full = rank == 1
        with pytest.raises(InputError) as caught:
            session.run({"x": X})
        full.is_full = False
        return caught.value.message, session.state["n"].tolist(), session.run({"x": X})["y"].tolist()

    text = "rank 1: a collective of 3 ranks needs 48 bytes more of GPU memory"
    assert together(assemble(SUM), 3, act, on_gpus, timeout=0.2) == [(text, [0] * 4, (3 * X).tolist())] * 3


def test_wrong_inputs_of_one_rank_are_an_error_on_all(gpus):
    """Before anything runs, and before ranks connect."""

    def act(session: DistributedSession, rank: int) -> Any:
        with pytest.raises(InputError) as caught:
            session.run({"x": X if rank else X.astype(np.int64)})
        return caught.value.message

    assert together(assemble(SUM), 2, act, on_gpus) == ["rank 0: input 'x' must be i32, not i64"] * 2
    assert gpus.nccl.communicators == 0


def test_more_processes_on_a_host_than_gpus(monkeypatch):
    """It says so on all of them."""
    emulated_gpus.install(monkeypatch, blocks=2, gpus=2)
    errors = together(assemble(SUM), 3, lambda session, rank: session.run({"x": X}), on_gpus)
    assert [error.message for error in errors] == ["ranks 0 and 2 have the same GPU, 0000:00:00.0"] * 3
    assert {error.hint for error in errors} == {"start as many processes on a host as it has GPUs"}


def test_a_launcher_may_give_each_process_one_gpu(monkeypatch):
    """Which is number 0 for each of them, and yet another one."""
    gpus = emulated_gpus.install(monkeypatch, blocks=2, gpus=1)
    monkeypatch.setattr(gpus, "deviceGetPCIBusId", lambda device: str(threading.get_ident()))
    results = together(assemble(SUM), 3, lambda session, rank: session.run({"x": X})["y"].tolist(), on_gpus)
    assert results == [(3 * X).tolist()] * 3


def test_nccl_that_fails_is_a_missing_backend_on_all(gpus, monkeypatch):
    """Rank 0 alone has noticed."""

    def fail() -> Any:
        raise BackendError("no NCCL")

    monkeypatch.setattr(nccl, "unique_id", fail)
    errors = together(assemble(SUM), 2, lambda session, rank: session.run({"x": X}), on_gpus)
    assert [(type(error), error.message) for error in errors] == [(BackendError, "rank 0: no NCCL")] * 2


@pytest.mark.parametrize(("has", "lacks", "expected"), [
    (4, None, None),
    (4, 1, "no CUDA device"),
    (1, None, "ranks 0 and 1 have the same GPU, 0000:00:00.0"),
])  # fmt: skip
def test_whether_all_have_a_gpu_is_decided_together(monkeypatch, has, lacks, expected):
    """Then "auto" is gpu for all of them, else for none."""
    emulated_gpus.install(monkeypatch, blocks=2, gpus=has)
    meetings: dict[Any, Any] = {}
    lock, found = threading.Lock(), {}

    def ask(rank: int) -> None:
        missing = "no CUDA device" if rank == lacks else None
        found[rank] = missing_somewhere(ThreadPeers(rank, 2, meetings, lock), missing)

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: expected, 1: expected}
    assert json.dumps(expected)


def test_what_does_not_go_with_processes_says_so(gpus):
    """Each has one GPU, and NCCL."""
    program = assemble(SUM)
    for options in ({"gpus": (0, 1)}, {"transport": "peer"}):
        with pytest.raises(InputError, match="have a GPU each, and use NCCL"):
            DeviceMachine(ranks="mpi", **options).load(program)
    for options in ({"tune": True}, {"traced": True}):
        with pytest.raises(InputError, match="only one can be profiled or tuned"):
            DeviceMachine(ranks="mpi", **options).load(program)
