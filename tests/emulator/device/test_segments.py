"""Ranks on GPUs that do not reach each other: launches end at collectives, and have the bits of golden ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import build, collectives, nccl
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.ranked import RankedDeviceSession
from dla.isa.dtypes import BY_TEXT
from dla.isa.errors import BackendError, InputError, TimeoutTrap, Trap
from dla.isa.program import Program
from dla.isa.verifier import verify
from dla.tests import planted_faults
from dla.tests.emulator.device import emulated_gpus
from dla.tests.emulator.device.cpu_machine import needs_compiler
from dla.tests.emulator.device.golden_ranks import NAMES, assert_is_as_golden, golden
from dla.tests.emulator.device.test_ranked import ADD, MANY, SHAPES, VIEWS
from dla.tests.emulator.golden.test_ranks import OPERATIONS, TYPES, assert_same, cases, text, values
from dla.tests.planted_faults import FAULTS, RANKS

Load = Callable[..., RankedDeviceSession]
BLOCKS = 2


@pytest.fixture(params=[
    pytest.param("emulated", marks=needs_compiler), pytest.param("gpu", marks=pytest.mark.gpu),
])  # fmt: skip
def load(request, monkeypatch) -> Load:
    """`load(program)`: each rank on a GPU of its own, with NCCL between them."""

    def load(program: Program, ranks: int | None = None, **options: Any) -> RankedDeviceSession:
        world = ranks or program.world
        verify(program)
        if request.param == "emulated":
            load.gpus = emulated_gpus.install(monkeypatch, blocks=BLOCKS, gpus=world, connected=False)
        else:
            _needs(world)
        machine = DeviceMachine(gpus=tuple(range(world)), transport="nccl", **options)
        session = machine.load(program)
        assert isinstance(session, RankedDeviceSession)
        return session

    load.emulated = request.param == "emulated"
    return load


def _needs(gpus: int) -> None:
    try:
        nccl.library()
    except BackendError as error:
        pytest.skip(str(error))
    if build.import_cupy().cuda.runtime.getDeviceCount() < gpus:
        pytest.skip(f"fewer than {gpus} GPUs")


def run_both(session: RankedDeviceSession, program: Program, inputs: Any, dims: Any = None, **options: Any) -> None:
    """Run after run, all outputs and states have the bits of golden ranks."""
    reference = golden(program, **options)
    for _ in range(2):
        got, wanted = session.run(inputs, dims), reference.run(inputs, dims)
        for mine, theirs in zip(got.ranks, wanted.ranks, strict=True):
            for name, array in {**theirs.outputs, **theirs.state}.items():
                assert_same({**mine.outputs, **mine.state}[name], array)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_rank_gets_what_golden_ranks_get(load, world, operation):
    """Every collective, for all groups and types and several sizes, in place and not, run after run."""
    rng = np.random.default_rng([world, *operation.encode()])
    for lists, pairs, root in cases(world, operation):
        dtype, shape = TYPES[rng.integers(len(TYPES))], SHAPES[rng.integers(len(SHAPES))]
        if operation.endswith(".mean") and dtype == "i32":
            dtype = "f16"
        mnemonic = operation.partition(".")[0]
        parts = (len(lists[0]),) if mnemonic in ("REDUCESCATTER", "ALLTOALL") else ()
        in_place = bool(rng.integers(2)) and mnemonic not in ("ALLGATHER", "REDUCESCATTER")
        program = assemble(text(operation, lists, pairs, root, dtype, shape, in_place=in_place))
        session, reference = load(program), golden(program)
        x = np.stack([values(rng, (*parts, *shape), BY_TEXT[dtype]) for _ in range(world)])
        for one in (session, reference):
            if in_place:
                one.set_state({"x": x})
        given = {} if in_place else {"x": x}
        got, wanted = session.run(given), reference.run(given)
        for mine, theirs in zip(got.ranks, wanted.ranks, strict=True):
            for name, array in {**theirs.outputs, **theirs.state}.items():
                assert_same({**mine.outputs, **mine.state}[name], array)


@pytest.mark.parametrize("elements", [1, 2, 5, 64, 1031])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("world", [3, 4])
def test_a_large_allreduce_in_two_shots(load, monkeypatch, world, dtype, elements):
    """Each rank folds a piece, some of which are smaller, or empty; and then all get all pieces."""
    monkeypatch.setattr(collectives, "TWO_SHOTS_FROM", 1)
    lists = [list(range(world))]
    x = np.stack([values(np.random.default_rng(rank), (elements,), BY_TEXT[dtype]) for rank in range(world)])
    for operation in ("ALLREDUCE.sum", "ALLREDUCE.min"):
        program = assemble(text(operation, lists, [[0, 0]], 0, dtype, (elements,), in_place=False))
        run_both(load(program), program, {"x": x})


@pytest.mark.parametrize("rows", [9, 400])
@pytest.mark.parametrize("dtype", ["f32", "f16", "i32"])
def test_views(load, dtype, rows):
    """What has gaps is packed, sent, and put in its places."""
    program = assemble(VIEWS.format(dtype=dtype, rows=rows))
    x = values(np.random.default_rng(rows), (2, 2, rows, 41), BY_TEXT[dtype])
    run_both(load(program), program, {"x": x})


def test_collectives_of_different_groups_follow_each_other(load):
    """In a loop."""
    program = assemble(MANY)
    x = np.random.default_rng(0).integers(-1000, 1000, (4, 300)).astype(np.int32)
    run_both(load(program), program, {"x": x})


@pytest.mark.parametrize("name", NAMES)
def test_programs_of_several_ranks(load, name):
    """Those that come with the project have on GPUs what golden ranks have, but for rounding."""
    assert_is_as_golden(load, name)


CONTROL = """
.world 3
.input  k : i32[1]
.input  x : i32[n <= 6]
.state  seen : i32[n]
.state  runs : i32[]
.scratch t : i32[3, n]
.scratch one : i32[1]
.scratch floats : f32[1]
.output y : i32[n]
.output z : i32[s9 <= 6]
.output w : f32[1]
main:
    LOADS s1, k[0]
    MOV f3, 2.5
    CMP.eq p2, RANK, 1
    FILL  t, 0
    FILL  y, 0
    LOOP s0, 2
        ALU.add s2, s0, 1
        CALL both
        LOOP s3, 2
            BR skip unless=p2
            EW.add y, y, x
            ALU.add s4, s4, s1
        skip:
            ALLREDUCE.sum t[s3], y
            EW.add y, y, t[s3]
            PROBE y tag=3
        ENDLOOP
        EW.add seen, seen, t[s2]
    ENDLOOP
    ALLREDUCE.max one, x[s1:s1 + 1]
    EW.add runs, runs, one[0]
    ALU.add s9, WORLD, 1
    FILL  z, 0
    ALLREDUCE.sum z, x[:s9]
    FILL  floats, f3
    ALLREDUCE.sum w, floats
    BR last if=p2
    FILL  one, s4
    EW.add z, z, one
last:
    EW.add runs, runs, 1
    HALT
both:
    CALL inner
    BROADCAST t[s2], y root=1
    RET
inner:
    ALLREDUCE.sum y, x
    FILL  one, s2
    EW.add y, y, one
    RET
"""


def test_what_the_scalar_unit_holds_lives_through_collectives(load):
    """Registers of all kinds, loops, calls, and dims; other code on one rank between collectives."""
    program = assemble(CONTROL)
    session = load(program)
    for n in (6, 4):
        x = np.arange(3 * n, dtype=np.int32).reshape(3, n)
        run_both(session, program, {"x": x, "k": np.array([[3], [1], [3]], np.int32)})
        session.set_state({"seen": np.zeros((3, 6), np.int32), "runs": np.zeros(3, np.int32)})


def test_probes_count_on(load):
    """The last one that was executed reports, whichever launch that was in."""
    source = [".world 2", ".input x : i32[3]", ".output y : i32[3]", "main:", "    PROBE x tag=1"]
    source += ["    EW.add y, x, x", *["    NOP"] * 9, "    ALLREDUCE.sum y, y", "    PROBE y tag=1", "    HALT", ""]
    x = np.ones((2, 3), np.int32)
    result = load(assemble("\n".join(source))).run({"x": x})
    assert [one.probes[1].maximum for one in result.ranks] == [4, 4]


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize(("world", "rank"), RANKS)
def test_planted_faults(load, kind, world, rank):
    """Before a collective or between two: the error names the rank, no state changes, the next run is right."""
    fault = FAULTS[kind]
    session = load(planted_faults.program(fault.code, world, first=(world + rank) % 2 == 0))
    x = np.arange(4 * world, dtype=np.int32).reshape(world, 4)
    k = np.full((world, 1), fault.fine, np.int32)
    k[rank] = fault.wrong
    with pytest.raises(Trap) as caught:
        session.run({"x": x, "k": k})
    assert (caught.value.category, caught.value.rank) == (fault.category, rank)
    assert not session.state["n"].any()
    k[rank] = fault.fine
    result = session.run({"x": x, "k": k})
    np.testing.assert_array_equal(result.state["n"], np.tile(x.sum(axis=0), (world, 1)))
    np.testing.assert_array_equal(result["y"], np.tile(world * x.sum(axis=0), (world, 1)))


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs(load, world, rank):
    """Inside its kernel: the time-out names it."""
    text = ADD.replace("    ALLREDUCE", "    LOADS s0, n[0]\n    ALLREDUCE")
    session = load(assemble(f".world {world}\n{text}"), timeout=0.2)
    x = np.arange(4 * world, dtype=np.int32).reshape(world, 4)
    session._sessions[rank].record["expected_base"] = 1000
    with pytest.raises(TimeoutTrap) as caught:
        session.run({"x": x})
    assert caught.value.rank == rank
    session._sessions[rank].record["expected_base"] = 0
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.tile(x.sum(axis=0), (world, 1)))


@pytest.fixture
def two(monkeypatch) -> tuple[Any, RankedDeviceSession]:
    """Two emulated GPUs, and a session of two ranks on them."""
    gpus = emulated_gpus.install(monkeypatch, blocks=BLOCKS, gpus=2, connected=False)
    session = DeviceMachine(gpus=(0, 1), timeout=0.2).load(assemble(ADD))
    assert isinstance(session, RankedDeviceSession)
    return gpus, session


X = np.arange(8, dtype=np.int32).reshape(2, 4)


def _is_right_again(session: RankedDeviceSession) -> None:
    assert not session.state["n"].any()
    np.testing.assert_array_equal(session.run({"x": X})["y"], np.tile(X.sum(axis=0), (2, 1)))


@needs_compiler
def test_what_is_lost_on_the_way_becomes_a_timeout(two, monkeypatch):
    """No state changes, and the ranks connect again for the next run."""
    gpus, session = two
    with monkeypatch.context() as lossy:
        lossy.setattr(gpus.nccl.wire, "put", lambda route, message: None)
        with pytest.raises(TimeoutTrap, match=r"at instruction 1 .*waited 0.2 s for other ranks, by NCCL"):
            session.run({"x": X})
    made = gpus.nccl.communicators
    _is_right_again(session)
    assert gpus.nccl.communicators == made + 2


@needs_compiler
def test_an_error_of_nccl_is_a_trap(two):
    """It says what NCCL says."""
    gpus, session = two
    gpus.nccl.fails = True
    with pytest.raises(Trap, match=r"trap\[internal\] at instruction 1 .*NCCL: NCCL_ERROR_SYSTEM_ERROR"):
        session.run({"x": X})
    gpus.nccl.fails = False
    _is_right_again(session)


@needs_compiler
def test_an_interrupt_between_two_launches(two, monkeypatch):
    """From the keyboard, while NCCL is at work."""
    gpus, session = two
    with monkeypatch.context() as interrupted:

        def interrupt() -> bool:
            raise KeyboardInterrupt

        interrupted.setattr(gpus.nccl, "is_busy", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.run({"x": X})
    _is_right_again(session)


@needs_compiler
def test_runs_without_the_host_are_refused(two):
    """It has a part in collectives."""
    with pytest.raises(InputError, match="no runs without the host"):
        two[1].launch({"x": X})


@needs_compiler
def test_nothing_is_left_over(two):
    """All that is sent is taken."""
    gpus, session = two
    session.run({"x": X})
    assert gpus.nccl.exchanges == 1
    assert gpus.nccl.wire.is_empty


@needs_compiler
def test_more_ranks_than_reach_each_others_memory(monkeypatch):
    """NCCL has no limit of its own, nor have launches that wait for nobody."""
    emulated_gpus.install(monkeypatch, blocks=BLOCKS, gpus=11)
    program = assemble(ADD)
    session = DeviceMachine(gpus=tuple(range(11)), transport="nccl").load(program)
    x = np.arange(44, dtype=np.int32).reshape(11, 4)
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.tile(x.sum(axis=0), (11, 1)))


@needs_compiler
def test_the_time_of_a_run_is_that_of_all_its_launches(two, monkeypatch):
    """From the first one's begin to the last one's end."""
    recorded = {}
    for name, event in zip(("began", "ended"), two[1]._groups[1].events, strict=True):
        monkeypatch.setattr(
            event, "record", lambda stream, name=name: recorded.update({name: recorded.get(name, 0) + 1})
        )
    two[1].run({"x": X})
    assert recorded == {"began": 1, "ended": 2}


@needs_compiler
def test_the_transport_follows_from_what_connects_the_gpus(monkeypatch):
    """Unless it is asked for."""
    program = assemble(ADD)
    for connected, asked, launches in ((True, None, 1), (False, None, 2), (True, "nccl", 2), (True, "peer", 1)):
        gpus = emulated_gpus.install(monkeypatch, blocks=BLOCKS, gpus=2, connected=connected)
        session = DeviceMachine(gpus=(0, 1), transport=asked).load(program)
        session.run({"x": X})
        assert gpus.nccl.exchanges == launches - 1


def test_what_cannot_be_loaded_says_why(monkeypatch):
    """Ranks that share a GPU, or none; a transport that is not there; NCCL that is missing."""
    program = assemble(ADD)
    emulated_gpus.install(monkeypatch, blocks=4, gpus=2, connected=False)
    with pytest.raises(InputError, match="NCCL has one rank on a GPU, and GPU 0 has several"):
        DeviceMachine(ranks=2, transport="nccl").load(program)
    with pytest.raises(InputError, match="NCCL has one rank on a GPU, and GPU 1 has several"):
        DeviceMachine(gpus=(0, 1, 1)).load(program)
    with pytest.raises(InputError, match="no GPU 2"):
        DeviceMachine(gpus=(0, 2), transport="nccl").load(program)
    with pytest.raises(InputError, match="no transport 'mail'"):
        DeviceMachine(ranks=2, transport="mail").load(program)  # type: ignore[arg-type]
    monkeypatch.undo()
    emulated_gpus.install(monkeypatch, blocks=4, gpus=2, connected=False)
    monkeypatch.setattr(nccl, "library", _REAL_LIBRARY)
    with pytest.raises(BackendError, match="ranks that do not reach each other's memory need NCCL") as caught:
        DeviceMachine(gpus=(0, 1)).load(program)
    assert "pip install nvidia-nccl" in str(caught.value.hint)


_REAL_LIBRARY = nccl.library


def test_addresses_out_of_bounds_trap(load):
    """Of a collective itself, where a register moves it: the rank is named."""
    program = assemble(CONTROL)
    session = load(program)
    x, k = np.arange(18, dtype=np.int32).reshape(3, 6), np.array([[3], [99], [3]], np.int32)
    with pytest.raises(Trap, match="a dim or an address taken from registers is out of its bounds") as caught:
        session.run({"x": x, "k": k})
    assert (caught.value.category, caught.value.rank) == ("extent", 1)
    assert program.instructions[caught.value.instruction].name == "ALLREDUCE.max"


def test_parts_that_are_not_as_many_as_ranks_trap(load):
    """Where a register holds how many there are."""
    program = assemble(".input x : f32[3]\n.output y : f32[ranks <= 8, 3]\nmain:\n    ALLGATHER y, x\n    HALT\n")
    session = load(program, ranks=2)
    with pytest.raises(Trap, match=r"instruction 0 .*: out has 3 parts, and the group has 2 ranks") as caught:
        session.run({"x": np.zeros((2, 3), np.float32)}, {"ranks": 3})
    assert caught.value.category == "extent"
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(session.run({"x": x}, {"ranks": 2})["y"], np.stack([x, x]))
