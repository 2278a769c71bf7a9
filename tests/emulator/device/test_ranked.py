"""Several ranks on GPUs: bit for bit what the golden machine's have; traps, state, shards, whole programs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.binding import to_host
from dla.emulator.device import build
from dla.emulator.device.layout import MAILBOX, MOST_RANKS, mail_bytes
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.ranked import RankedDeviceSession
from dla.isa.dtypes import BY_TEXT
from dla.isa.errors import BackendError, InputError, TimeoutTrap, Trap
from dla.isa.program import Program
from dla.tests import planted_faults
from dla.tests.emulator.device import emulated_gpus
from dla.tests.emulator.device.cpu_machine import needs_compiler
from dla.tests.emulator.device.golden_ranks import NAMES, assert_is_as_golden, golden
from dla.tests.emulator.golden.test_ranks import OPERATIONS, TYPES, assert_same, cases, text, values
from dla.tests.planted_faults import FAULTS, RANKS, Fault

Load = Callable[..., RankedDeviceSession]


@pytest.fixture(params=[
    pytest.param((where, spread), id=f"{where}-{'gpus' if spread else 'one-gpu'}", marks=mark)
    for where, mark in (("emulated", needs_compiler), ("gpu", pytest.mark.gpu)) for spread in (False, True)
])  # fmt: skip
def load(request, monkeypatch) -> Load:
    """`load(program)`: on all ranks, which share a GPU, or each on one of its own."""
    where, spread = request.param

    def load(program: Program, ranks: int | None = None, **options: Any) -> RankedDeviceSession:
        world = ranks or program.world
        if where == "emulated":
            emulated_gpus.install(monkeypatch, blocks=4 if spread else 4 * world, gpus=world if spread else 1)
        elif spread and build.import_cupy().cuda.runtime.getDeviceCount() < world:
            pytest.skip(f"fewer than {world} GPUs")
        session = DeviceMachine(ranks=ranks, gpus=tuple(range(world)) if spread else None, **options).load(program)
        assert isinstance(session, RankedDeviceSession)
        return session

    load.emulated = where == "emulated"
    return load


SHAPES = ((0,), (1,), (3,), (7,), (2, 5), (3, 0, 2), (1030,), (5000,))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("world", range(2, MOST_RANKS + 1))
def test_every_rank_gets_what_golden_ranks_get(load, world, dtype):
    """Every collective, for all groups and types and several sizes, in place and not, run after run."""
    rng = np.random.default_rng([world, TYPES.index(dtype)])
    drawn = [(operation, *case) for operation in OPERATIONS for case in cases(world, operation)]
    for number, (operation, lists, pairs, root) in enumerate(drawn):
        if load.emulated and (number + world) % 16 != 4 * TYPES.index(dtype):
            continue  # there, each number of ranks, and each type, has a part of them
        if operation.endswith(".mean") and dtype == "i32":
            continue
        shape = SHAPES[rng.integers(len(SHAPES))]
        parts = (len(lists[0]),) if operation.partition(".")[0] in ("REDUCESCATTER", "ALLTOALL") else ()
        in_place = bool(rng.integers(2)) and operation.partition(".")[0] not in ("ALLGATHER", "REDUCESCATTER")
        program = assemble(text(operation, lists, pairs, root, dtype, shape, in_place=in_place))
        session, reference = load(program), golden(program)
        for _ in range(2):
            x = np.stack([values(rng, (*parts, *shape), BY_TEXT[dtype]) for _ in range(world)])
            for one in (session, reference):
                if in_place:
                    one.set_state({"x": x})
            given = {} if in_place else {"x": x}
            got, wanted = session.run(given), reference.run(given)
            for name in (*wanted.outputs, *wanted.state):
                for rank in range(world):
                    here = (got.ranks[rank].outputs | dict(got.ranks[rank].state))[name]
                    assert_same(here, (wanted.ranks[rank].outputs | dict(wanted.ranks[rank].state))[name])


LARGE = [
    (operation, in_place)
    for operation, *places in (
        ("ALLREDUCE.sum", False, True), ("ALLREDUCE.max", True), ("ALLGATHER", False), ("REDUCESCATTER.mean", False),
        ("ALLTOALL", False, True), ("BROADCAST", False, True), ("PERMUTE", False, True),
    )
    for in_place in places
]  # fmt: skip


@pytest.mark.parametrize(("operation", "in_place"), LARGE)
@pytest.mark.parametrize("whole", [True, False], ids=["chunks", "odd"])
@pytest.mark.parametrize(("dtype", "world"), [("f32", 2), ("bf16", 3), ("f16", 4)])
def test_more_than_a_card_for_each_block(load, operation, whole, in_place, dtype, world):
    """Ranks reach into each other's memory; what is not made of whole chunks goes card by card. Run after run."""
    elements = 16 * (1250 if load.emulated else 125_000) * (1 if dtype == "f32" else 2) + (0 if whole else 5)
    everyone = list(range(world))
    pairs = [[0, 1], [1, 0]]  # where there is a third rank, it gets zeros
    program = assemble(text(operation, [everyone], pairs, 0, dtype, (elements,), in_place=in_place))
    parts = (world,) if operation.partition(".")[0] in ("REDUCESCATTER", "ALLTOALL") else ()
    session, reference = load(program), golden(program)
    for number in range(2):
        rng = np.random.default_rng(number)
        x = np.stack([values(rng, (*parts, elements), BY_TEXT[dtype]) for _ in range(world)])
        for one in (session, reference):
            if in_place:
                one.set_state({"x": x})
        given = {} if in_place else {"x": x}
        got, wanted = session.run(given), reference.run(given)
        for rank in range(world):
            here, there = got.ranks[rank], wanted.ranks[rank]
            if in_place:
                assert_same(here.state["x"], there.state["x"])
            else:
                assert_same(here["y"], there["y"])


@pytest.mark.parametrize("dtype", ["i64", "u8"])
@pytest.mark.parametrize("operation", ["ALLGATHER", "ALLTOALL", "BROADCAST", "PERMUTE"])
def test_elements_of_other_sizes(load, operation, dtype):
    """What is only moved may be of any type: a few elements, more than a card holds, and all between."""
    kind, rng = BY_TEXT[dtype], np.random.default_rng(0)
    for elements in (3, 1030, 5003, 120_007):
        program = assemble(text(operation, [[0, 1, 2]], [[0, 1], [1, 0]], 0, dtype, (elements,), in_place=False))
        parts = (3,) if operation == "ALLTOALL" else ()
        x = rng.integers(0, 200, (3, *parts, elements)).astype(kind.numpy)
        got, wanted = load(program).run({"x": x}), golden(program).run({"x": x})
        np.testing.assert_array_equal(got["y"], wanted["y"])


VIEWS = """
.world 2
.input  x : {dtype}[2, {rows}, 41]
.output a : {dtype}[40, {rows}]
.output b : {dtype}[2, {rows}, 40]
.output c : {dtype}[{rows}, 43]
main:
    ALLREDUCE.sum a.T, x[0, :, 1:]
    ALLGATHER     b, x[1, :, :40]
    REDUCESCATTER.max c[:, 2:], x
    HALT
"""


@pytest.mark.parametrize("rows", [9, 400])
@pytest.mark.parametrize("dtype", ["f32", "f16", "i32"])
def test_views(load, dtype, rows):
    """What lies in rows of odd lengths, or across, goes element by element."""
    program = assemble(VIEWS.format(dtype=dtype, rows=rows))
    x = values(np.random.default_rng(rows), (2, 2, rows, 41), BY_TEXT[dtype])
    got, wanted = load(program).run({"x": x}), golden(program).run({"x": x})
    for name in wanted.outputs:
        assert_same(got[name], wanted[name])


MANY = """
.world 4
.group halves [[0, 1], [2, 3]]
.group others [[0, 2], [1, 3]]
.group apart [[0], [1, 2, 3]]
.pairs next [[0, 1], [1, 2], [2, 3], [3, 0]]
.pairs some [[0, 3], [2, 2]]
.input  x : i32[300]
.state  n : i32[300]
.output y : i32[300]
.scratch t : i32[2, 300]
.scratch u : i32[300]
main:
    COPY u, x
    LOOP s0, 5
        ALLREDUCE.sum u, u group=halves
        ALLREDUCE.sum u, u group=apart
        PERMUTE   u, u pairs=next
        ALLGATHER t, u group=others
        REDUCESCATTER.sum u, t group=halves
        BROADCAST y, u root=1 group=others
        EW.add    u, u, y
        PERMUTE   y, y pairs=some
        EW.sub    u, u, y
        ALLREDUCE.max t[1], u
        EW.add    n, n, t[1]
    ENDLOOP
    COPY y, u
    HALT
"""


def test_collectives_of_different_groups_follow_each_other(load):
    """In a loop, run after run: what one rank has not taken yet, another does not write over."""
    program = assemble(MANY)
    session, reference = load(program), golden(program)
    rng = np.random.default_rng(0)
    for _ in range(3):
        x = rng.integers(-1000, 1000, (4, 300)).astype(np.int32)
        got, wanted = session.run({"x": x}), reference.run({"x": x})
        np.testing.assert_array_equal(got["y"], wanted["y"])
        np.testing.assert_array_equal(got.state["n"], wanted.state["n"])


@pytest.mark.parametrize("name", NAMES)
def test_programs_of_several_ranks(load, name):
    """Each of them."""
    assert_is_as_golden(load, name)


TRAPS = """
.world 3
.input  k : i32[1]
.state  n : i32[4]
.output y : i32[4]
main:
    FILL  n, 7
    LOADS s0, k[0]
    CMP.eq p0, s0, 0
    ASSERT p0, code=5
    ALLREDUCE.sum y, n
    HALT
"""


def test_a_rank_that_traps_ends_all(load):
    """The error names it; no state changes; the next run is right."""
    session = load(assemble(TRAPS))
    with pytest.raises(Trap, match="assertion failed, code 5") as caught:
        session.run({"k": np.array([[0], [0], [1]], np.int32)})
    assert caught.value.rank == 2
    assert not session.state["n"].any()
    result = session.run({"k": np.zeros((3, 1), np.int32)})
    np.testing.assert_array_equal(result["y"], np.full((3, 4), 21))
    np.testing.assert_array_equal(result.state["n"], np.full((3, 4), 7))


@pytest.mark.parametrize("kind", [*FAULTS, "lost"])
@pytest.mark.parametrize(("world", "rank"), RANKS)
def test_planted_faults(load, kind, world, rank):
    """Before a collective or between two: the error names the rank, no state changes, the next run is right."""
    fault = FAULTS.get(kind, Fault("NOP", 0, 0, "timeout"))
    program = planted_faults.program(fault.code, world, first=(world + rank) % 2 == 0)
    session = load(program, timeout=0.2 if load.emulated else 1)
    x = np.arange(4 * world, dtype=np.int32).reshape(world, 4)
    k = np.full((world, 1), fault.fine, np.int32)
    k[rank] = fault.wrong
    undo = lose_mail(session, rank) if kind == "lost" else lambda: None
    with pytest.raises(Trap) as caught:
        session.run({"x": x, "k": k})
    assert caught.value.category == fault.category
    assert caught.value.rank == rank or (kind == "lost" and f"for rank {rank}" in str(caught.value))
    assert not session.state["n"].any()
    undo()
    k[rank] = fault.fine
    result = session.run({"x": x, "k": k})
    np.testing.assert_array_equal(result.state["n"], np.tile(x.sum(axis=0), (world, 1)))
    np.testing.assert_array_equal(result["y"], np.tile(world * x.sum(axis=0), (world, 1)))


SLOW = """
.world 2
.state  n : i32[1]
.output y : i32[1]
main:
    CMP.eq p0, RANK, 0
    BR meet if=p0
    LOOP s0, 1000000000
        FILL n, s0
    ENDLOOP
meet:
    ALLREDUCE.sum y, n
    HALT
"""


def test_a_rank_that_works_longer_than_others_wait(load):
    """The error names it, and says how to let others wait longer."""
    session = load(assemble(SLOW), timeout=1e-5 if load.emulated else 0.2)  # the emulated clock hardly moves
    with pytest.raises(TimeoutTrap, match=r"on rank 0.*waited .* s for rank 1\n  help: .*--timeout SECONDS"):
        session.run({})


def lose_mail(session: RankedDeviceSession, rank: int) -> Callable[[], None]:
    """What `rank` sends goes nowhere, until the function that this gives is called."""
    memory, world = session._sessions[rank].memory, len(session._mail)
    boxes = np.zeros(world, MAILBOX.dtype)
    with session._on(session._gpus[rank]):
        lost = memory.upload(np.zeros(mail_bytes(session.blocks, world), np.uint8))
        boxes["mail"] = [mail.ptr if of == rank else lost.ptr for of, mail in enumerate(session._mail)]
        boxes["abort"] = [one.abort for one in session._sessions]
        table, record = memory.upload(boxes), session._sessions[rank].record
    right = int(record["mailboxes"])
    record["mailboxes"] = table.ptr

    def undo() -> None:
        assert lost.ptr, "nothing else keeps it alive"
        assert table.ptr
        record["mailboxes"] = right

    return undo


def test_a_dim_that_counts_ranks_must_be_their_number(load):
    """It is held in a register, so only the kernel can see it."""
    program = assemble(".input x : f32[3]\n.output y : f32[ranks <= 8, 3]\nmain:\n    ALLGATHER y, x\n    HALT\n")
    session = load(program, ranks=2)
    with pytest.raises(Trap) as caught:
        session.run({"x": np.zeros((2, 3), np.float32)}, {"ranks": 3})
    assert caught.value.category == "extent"
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(session.run({"x": x}, {"ranks": 2})["y"], np.stack([x, x]))


def test_what_cannot_be_loaded_says_why(monkeypatch):
    """Too many ranks; a GPU that is not there; GPUs that do not reach each other; a profile of several ranks."""
    program = assemble(".input x : f32[3]\n.output y : f32[3]\nmain:\n    ALLREDUCE.sum y, x\n    HALT\n")
    emulated_gpus.install(monkeypatch, blocks=4, gpus=2, connected=False)
    with pytest.raises(InputError, match="at most 8 ranks"):
        DeviceMachine(ranks=9).load(program)
    with pytest.raises(InputError, match="no GPU 5"):
        DeviceMachine(gpus=(0, 5)).load(program)
    with pytest.raises(BackendError, match="GPU 0 cannot reach the memory of GPU 1"):
        DeviceMachine(gpus=(0, 1), transport="peer").load(program)
    with pytest.raises(InputError, match="only one can be profiled"):
        DeviceMachine(ranks=2, traced=True).load(program)
    with pytest.raises(BackendError, match="too few multiprocessors"):
        DeviceMachine(ranks=8).load(program)
    with pytest.raises(InputError, match="3 ranks do not run on 2 GPUs"):
        DeviceMachine(ranks=3, gpus=(0, 1)).load(program)
    with pytest.raises(InputError, match="one rank runs on the present GPU, and 1 is not"):
        DeviceMachine(gpus=(1,)).load(program)


def test_outputs_that_would_be_called_alike(monkeypatch):
    """`y` of rank 0, where sizes differ, is called as the other output is."""
    emulated_gpus.install(monkeypatch, blocks=4)
    lines = [".input k : i32[1]", ".output y : i32[s0 <= 4]", ".output `y.rank0` : i32[1]", "main:"]
    lines += ["    LOADS s0, k[0]", "    FILL y, 1", "    COPY `y.rank0`, k", "    HALT", ""]
    with pytest.raises(InputError, match="as another tensor is"):
        DeviceMachine(ranks=2).load(assemble("\n".join(lines)))


ADD = """
.input  x : i32[4]
.state  n : i32[4]
.output y : i32[4]
main:
    EW.add n, n, x
    ALLREDUCE.sum y, n
    HALT
"""


def test_what_is_on_a_gpu_is_taken_from_there(monkeypatch):
    """Wherever a rank is, and for some ranks alone, too."""
    emulated_gpus.install(monkeypatch, blocks=4, gpus=2)
    session = DeviceMachine(gpus=(0, 1)).load(assemble(ADD))
    x = np.arange(8, dtype=np.int32).reshape(2, 4)

    class OnGpu:
        """An array that only `get` brings to the host."""

        __cuda_array_interface__ = None

        def __init__(self, array: Any) -> None:
            self.get = lambda: array

    OnGpu.__module__ = "cupy"
    for given in ({"x": OnGpu(x)}, {"x.rank0": x[0], "x.rank1": OnGpu(x[1])}):
        session.set_state({"n": OnGpu(np.zeros((2, 4), np.int32))})
        np.testing.assert_array_equal(session.run(given)["y"], np.tile(x.sum(axis=0), (2, 1)))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_end_between_two_launches(monkeypatch, error):
    """The rank that has started does not wait for the other; the next run is right."""
    runtime = emulated_gpus.install(monkeypatch, blocks=4, gpus=2)
    session = DeviceMachine(gpus=(0, 1)).load(assemble(ADD))
    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    launched: list[int] = []

    def launch(*arguments: Any) -> None:
        launched.append(0)
        if len(launched) == 2:
            raise error
        runtime.launch(*arguments)

    build.import_cupy().cuda.driver.launchKernel = launch
    with pytest.raises(error):
        session.run({"x": x})
    assert not session.state["n"].any()
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.tile(x.sum(axis=0), (2, 1)))


def test_state_is_copied_where_somebody_looks(monkeypatch):
    """A run leaves it on the GPUs, and what it was can still be read after the next runs."""
    runtime = emulated_gpus.install(monkeypatch, blocks=8)
    session = DeviceMachine(ranks=2).load(
        assemble(ADD.replace("state  n : i32[4]", "state  n : i32[4]\n.state big : i32[99999]"))
    )
    x = np.ones((2, 4), np.int32)
    results = [session.run({"x": x}), session.run({"x": x})]
    assert sum(size for kind, size in runtime.copied if kind == "out") < 99999
    results.append(session.run({"x": x}))
    for runs, result in enumerate(results, 1):
        np.testing.assert_array_equal(result.state["n"], np.full((2, 4), runs))
        assert set(result.state) == {"n", "big"}


def test_a_launch_runs_without_the_host_and_state_goes_on(load):
    """Inputs go up once, or are written on the GPU; one run follows the other; a later run outdates the launch."""
    session = load(assemble(ADD), 2)
    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    held = session.run({"x": x})
    launch = session.launch({"x": x})
    stream = build.import_cupy().cuda.Stream(non_blocking=True)
    for _ in range(3):
        launch.enqueue(stream)
    launch.check()
    np.testing.assert_array_equal(to_host(launch.outputs[1]["y"]), 4 * x.sum(axis=0))
    launch.inputs[0]["x"][...] = 10
    launch.enqueue()
    launch.enqueue(SimpleNamespace(cuda_stream=stream.ptr))
    launch.check()
    np.testing.assert_array_equal(session.state["n"], [4 * x[0] + 20, 6 * x[1]])
    np.testing.assert_array_equal(held.state["n"], x)
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.tile(5 * x[0] + 20 + 7 * x[1], (2, 1)))
    with pytest.raises(InputError, match="other inputs"):
        launch.enqueue()


def test_a_trap_in_an_enqueued_run_is_raised_by_check(load):
    """It names the rank; what is behind it ends at once; state is as it was left then, and the next run is right."""
    session = load(assemble(TRAPS))
    launch = session.launch({"k": np.array([[0], [0], [1]], np.int32)})
    launch.enqueue()
    launch.enqueue()
    with pytest.raises(Trap, match="assertion failed, code 5") as caught:
        launch.check()
    assert caught.value.rank == 2
    launch.check()
    assert session.state["n"].any()
    result = session.run({"k": np.zeros((3, 1), np.int32)})
    np.testing.assert_array_equal(result["y"], np.full((3, 4), 21))
