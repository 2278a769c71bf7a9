"""Ranks in processes, here threads: they give what ranks in one process give, and share each other's errors."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator import launcher, mpi
from dla.emulator.api import Machine
from dla.emulator.distributed import MESSAGE_BYTES, DistributedSession, RankSession, world_matches
from dla.emulator.golden.machine import GoldenMachine
from dla.emulator.golden.process import GoldenRank
from dla.emulator.golden.session import GoldenSession
from dla.isa.dtypes import Array
from dla.isa.errors import BackendError, DlaError, InputError, TimeoutTrap, Trap
from dla.isa.program import Program
from dla.isa.verifier import verify
from dla.tests import planted_faults
from dla.tests.planted_faults import FAULTS, RANKS, Fault

WAIT = 30  # seconds, after which a test that hangs fails


class Meeting:
    """Where threads leave what they bring, and take what all have brought."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=WAIT)
        self._brought: dict[int, Any] = {}

    def exchange(self, rank: int, thing: Any) -> dict[int, Any]:
        """Everybody's thing, once all are here."""
        self._brought[rank] = thing
        self._barrier.wait()
        found = dict(self._brought)
        self._barrier.wait()
        return found


class ThreadPeers:
    """`Peers` whose processes are threads."""

    def __init__(self, rank: int, world: int, meetings: dict[tuple[int, ...], Meeting], lock: threading.Lock) -> None:
        self.rank, self.world, self.neighbours = rank, world, tuple(range(world))
        self._meetings, self._lock = meetings, lock

    def tell(self, message: bytes, timeout: float | None = None) -> list[bytes | None]:
        """As MPI would: to all, of limited size; no thread is late."""
        assert len(message) <= MESSAGE_BYTES
        found = self._at(range(self.world)).exchange(self.rank, message)
        return [found[rank] for rank in range(self.world)]

    def gather(self, array: Array, ranks: Sequence[int]) -> Array:
        """Arrays of one shape, of those in `ranks` only."""
        found = self._at(ranks).exchange(self.rank, array)
        return np.stack([found[rank] for rank in ranks])

    def abort(self, code: int) -> None:
        """Never called by a session."""
        raise AssertionError(code)

    def _at(self, ranks: Sequence[int]) -> Meeting:
        with self._lock:
            return self._meetings.setdefault(tuple(ranks), Meeting(len(ranks)))


def golden_rank(program: Program, peers: Any, **options: Any) -> RankSession:
    """A rank on the golden machine."""
    return GoldenRank(GoldenSession(GoldenMachine(**options), program, peers.rank, peers.world), peers)


def together(
    program: Program | Sequence[Program], world: int, act: Callable[[DistributedSession, int], Any],
    load: Callable[..., RankSession] = golden_rank, **options: Any,
) -> list[Any]:  # fmt: skip
    """What `act(session, rank)` gives on each rank, or the error that it raises. `program`: that of all, or of each."""
    programs = [program] * world if isinstance(program, Program) else program
    for one_of_them in programs:
        verify(one_of_them)
    meetings: dict[tuple[int, ...], Meeting] = {}
    lock = threading.Lock()

    def one(rank: int) -> Any:
        peers = ThreadPeers(rank, world, meetings, lock)
        try:
            return act(DistributedSession(load(programs[rank], peers, **options), peers), rank)
        except DlaError as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, range(world), timeout=2 * WAIT))


EVERYTHING = """
.world 4
.group pairs [[0, 2], [1, 3]]
.pairs next [[0, 1], [1, 2], [3, 3]]
.input x : f32[n <= 4]
.input b : bf16[4, 3]
.const w : i32[2] = [1, 2, 3, 4, 5, 6, 7, 8] shard axis=0
.state runs : i32[]
.scratch f : f32[n]
.output all : bf16[4, 4, 3]
.output part : f32[n]
.output y : f32[n]
.output z : i32[2]
main:
    ALLREDUCE.mean y, x group=pairs
    CMP.eq p0, RANK, 1
    BR skip if=p0
    EW.add y, y, x
skip:
    ALLTOALL all[0], b
    ALLGATHER all, all[0]
    PERMUTE y, y pairs=next
    BROADCAST f, y root=1 group=pairs
    ALLREDUCE.prod part, f
    ALLREDUCE.max z, w
    EW.add runs, runs, 1
    HALT
""".replace("    ALLGATHER all, all[0]\n", "    ALLGATHER all, b\n")


@pytest.mark.parametrize("shuffle", [None, 3])
def test_processes_give_what_one_process_gives(shuffle: int | None) -> None:
    """Every collective, on groups and pairs, twice, bit for bit."""
    program = assemble(EVERYTHING)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    b = rng.standard_normal((4, 4, 3)).astype(program.by_name["b"].descriptor.dtype.numpy)
    expected = Machine("golden").run(program, {"x": x, "b": b})

    def act(session: DistributedSession, rank: int) -> Any:
        session.run({"x": x, "b": b})  # with the axis of ranks
        return session.run({"x": x[rank], "b": b[rank]})  # one's own

    for rank, result in enumerate(together(program, 4, act, shuffle=shuffle)):
        for name, array in expected.ranks[rank].outputs.items():
            assert result[name].tobytes() == array.tobytes(), (rank, name)
        assert result.state["runs"] == 2


TRAPPING = """
.input fail : i32[]
.input x : f32[n <= 4]
.state seen : f32[4]
.output y : f32[n]
main:
    FILL seen, 1
    ALLREDUCE.sum y, x
    LOADS s0, fail
    CMP.eq p0, s0, 0
    ASSERT p0 code=3 "told to"
    ALLREDUCE.sum y, y
    HALT
"""


def test_a_trap_is_the_same_error_on_all_ranks() -> None:
    """It names the rank, state stays as it was, and the next run is right."""
    program = assemble(TRAPPING, file="t.dla")
    x = np.ones((3, 2), np.float32)

    def act(session: DistributedSession, rank: int) -> Any:
        with pytest.raises(Trap) as caught:
            session.run({"x": x, "fail": np.array(rank == 1, np.int32)})
        assert caught.value.everywhere
        kept = session.state["seen"].copy()
        return str(caught.value), kept.tolist(), session.run({"x": x, "fail": np.array(0, np.int32)})["y"].tolist()

    text = "trap[assert] on rank 1 at instruction 4 (t.dla:11): assertion failed, code 3: told to"
    assert together(program, 3, act) == [(text, [0] * 4, [9, 9])] * 3


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        (lambda rank: {"x": np.ones(2 + (rank == 2), np.float32), "fail": np.int32(0)},
         ["dim 'n' is 2 on rank 0 and 3 on rank 2"] * 3),
        (lambda rank: {"x": np.ones(2, "f4" if rank != 1 else "f8"), "fail": np.int32(0)},
         ["rank 1: input 'x' must be f32, not float64"] * 3),
        (lambda rank: {"fail": np.int32(0)}, ["rank 0: missing input 'x'"] * 3),
    ],
    ids=["dims", "type", "missing"],
)  # fmt: skip
def test_wrong_inputs_of_one_rank_are_an_error_on_all(given: Any, messages: list[str]) -> None:
    """Before anything runs."""
    errors = together(assemble(TRAPPING), 3, lambda session, rank: session.run(given(rank)))
    assert [type(error) for error in errors] == [InputError] * 3
    assert [error.message for error in errors] == messages


@pytest.mark.parametrize("kind", [*FAULTS, "another program"])
@pytest.mark.parametrize(("world", "rank"), RANKS)
def test_planted_faults(kind: str, world: int, rank: int) -> None:
    """Every rank ends with the error that names the one, no state changes, and the next run is right."""
    fault = FAULTS.get(kind, Fault("NOP", 0, 0, ""))
    right = planted_faults.program(fault.code, world, first=(world + rank) % 2 == 0)
    other = planted_faults.program("FILL z, 3", world, first=True)
    x = np.arange(4, dtype=np.int32)

    def act(session: DistributedSession, mine: int) -> Any:
        wrong = fault.wrong if mine == rank else fault.fine
        with pytest.raises(DlaError) as caught:
            session.run({"x": x, "k": np.array([wrong], np.int32)})
        kept = session.state["n"].tolist()
        if kind == "another program":
            return caught.value, kept, None
        return caught.value, kept, session.run({"x": x, "k": np.array([fault.fine], np.int32)})["y"].tolist()

    programs = [other if kind == "another program" and mine == rank else right for mine in range(world)]
    for error, kept, after in together(programs, world, act):
        if kind == "another program":
            assert error.message == f"rank {rank or 1} runs another program than rank 0"
        else:
            assert (error.category, error.rank, after) == (fault.category, rank, (world * world * x).tolist())
        assert kept == [0] * 4


def test_a_rank_that_does_not_write_its_output_fails_all() -> None:
    """What happens at HALT is told, too."""
    program = assemble("""
.output y : f32[2]
main:
    CMP.eq p0, RANK, 1
    BR skip if=p0
    FILL y, 1
skip:
    HALT
""")
    errors = together(program, 2, lambda session, rank: session.run({}))
    assert {str(error) for error in errors} == {
        "trap[uninitialised] on rank 1: output 'y' at HALT: parts of it were never written"
    }


def test_a_time_limit_on_one_rank_is_one_on_all() -> None:
    """The exit code, too."""
    program = assemble(".output y : i32[]\nmain:\n    LOOP s0, 1000000\n    FILL y, s0\n    ENDLOOP\n    HALT\n")
    errors = together(program, 2, lambda session, rank: session.run({}), timeout=0.02)
    assert [type(error) for error in errors] == [TimeoutTrap] * 2


class OneIsLate:
    """`Peers` of rank 0 of three. After the first meeting, rank 1 says nothing, and rank 2 what the test has for it."""

    rank, world, neighbours = 0, 3, (0, 1, 2)

    def __init__(self, other: bytes | None) -> None:
        self.other, self.told = other, 0

    def tell(self, message: bytes, timeout: float | None = None) -> list[bytes | None]:
        """No time passes."""
        self.told += 1
        return [message] * 3 if self.told == 1 else [message, None, self.other or message]

    def gather(self, array: Array, ranks: Sequence[int]) -> Array:
        """Not reached."""
        raise AssertionError(ranks)

    def abort(self, code: int) -> None:
        """Never called by a session."""
        raise AssertionError(code)


INDEX = {"error": "no", "category": "index", "instruction": 1}


@pytest.mark.parametrize(("k", "other", "message", "code"), [
    (0, None, "trap[timeout] on rank 0 at instruction 3 (<string>:8): waited 2 s for rank 1", 5),
    (1, None, "trap[assert] on rank 0 at instruction 2 (<string>:7): assertion failed, code 7", 4),
    (0, INDEX, "trap[index] on rank 2 at instruction 1 (<string>:6): no", 4),
])  # fmt: skip
def test_a_rank_that_is_late(k: int, other: dict[str, Any] | None, message: str, code: int) -> None:
    """It is a time-out, unless this rank or another has an error to tell; after it, ranks are not to be trusted."""
    program = assemble(
        ".input k : i32[1]\n.input x : f32[2]\n.output y : f32[2]\nmain:\n    LOADS s0, k[0]\n    CMP.eq p0, s0, 0\n"
        "    ASSERT p0, code=7\n    ALLREDUCE.sum y, x\n    HALT\n"
    )
    peers = OneIsLate(None if other is None else json.dumps(other).encode())
    session = DistributedSession(golden_rank(program, peers), peers, timeout=2)
    given = {"k": np.array([k], np.int32), "x": np.ones(2, np.float32)}
    with pytest.raises(Trap) as caught:
        session.run(given)
    assert str(caught.value).partition("\n")[0] == message
    assert (caught.value.exit_code, caught.value.everywhere) == (code, False)
    with pytest.raises(BackendError, match="lost each other"):
        session.run(given)


def test_long_messages_are_cut() -> None:
    """What a rank tells has a limit; what it raises itself, too, is what all others know."""
    program = assemble('.output y : i32[]\nmain:\n    FILL y, 1\n    ASSERT p0 "' + "ü" * 1000 + '"\n    HALT\n')
    errors = together(program, 2, lambda session, rank: session.run({}))
    assert [(error.category, error.rank) for error in errors] == [("assert", 0)] * 2
    assert len(str(errors[0])) < 600


class _Four:
    rank, world = 0, 4


def test_as_many_processes_as_ranks() -> None:
    """What was started, what is asked for, and what the program declares are one number."""
    any_world, for_two = assemble(TRAPPING), assemble(".world 2\n" + TRAPPING)
    world_matches(any_world, None, _Four())  # type: ignore[arg-type]
    world_matches(any_world, 4, _Four())  # type: ignore[arg-type]
    for program, ranks, text, hint in (
        (for_two, None, "the program is for 2 ranks, and 4 processes were started", "mpirun -n 2"),
        (for_two, 2, "the program is for 2 ranks, and 4 processes were started", "mpirun -n 2"),
        (any_world, 3, "3 ranks are asked for, and 4 processes were started", "mpirun -n 3"),
        (for_two, 4, "the program is for 2 ranks, not for 4", "leave ranks out"),
    ):
        with pytest.raises(InputError) as caught:
            world_matches(program, ranks, _Four())  # type: ignore[arg-type]
        assert caught.value.message == text
        assert hint in str(caught.value.hint)


def test_mpi_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a missing backend, with how to get it."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    mpi.peers.cache_clear()
    with pytest.raises(BackendError, match="ranks in processes need MPI"):
        Machine("golden", ranks="mpi").load(assemble(TRAPPING))


def test_launchers_are_known_by_what_they_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPICH's and Open MPI's."""
    forget_launchers(monkeypatch)
    assert not mpi.started()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert mpi.started()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, False),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, True),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "8"}, True),
        ({"PMIX_RANK": "0"}, False),
        ({"PMIX_RANK": "1"}, True),
    ],
)
def test_one_process_alone_needs_no_mpi(
    variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where there are several is mpi4py missed: a step of a Slurm job sets these variables for every program."""
    forget_launchers(monkeypatch)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    mpi.peers.cache_clear()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert mpi.started() is expected


def forget_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no launcher had started this process."""
    for name in (*launcher.RANKS, *launcher.SIZES):
        monkeypatch.delenv(name, raising=False)
