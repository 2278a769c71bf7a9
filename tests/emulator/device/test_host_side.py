"""The host side of a launch, on a CuPy that is made of host memory: what is copied when, and what state readers see."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import build, resident
from dla.emulator.device import session as session_module
from dla.emulator.device.generate import TRAP_CODES
from dla.emulator.device.layout import REPORT, TENSOR_MAP_BYTES
from dla.emulator.device.loaded import LoadedPlan
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Target
from dla.emulator.device.paths.tensor_map import TensorMap
from dla.emulator.device.session import DeviceSession
from dla.emulator.device.state import written
from dla.isa.descriptor import Segment
from dla.isa.errors import InputError, Trap
from dla.isa.program import Program

COUNT = """
.input x : i64[4]
.state n : i64[4]
.state calm : i64[4]
.output y : i64[4]
main:
    EW.add n, n, x
    EW.add y, n, calm
    HALT
"""


def _fake_cupy() -> ModuleType:
    """fake_cupy.py, beside this file, which is in no package."""
    spec = importlib.util.spec_from_file_location("fake_cupy", Path(__file__).with_name("fake_cupy.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DeviceSession]:
    """`load(program)`: a session of the program, whose kernel does what COUNT says, or what `session.kernel` does."""
    cupy = _fake_cupy().make()
    monkeypatch.setattr(build, "import_cupy", lambda: cupy)

    def load(program: Program, *, hopper: bool = False) -> DeviceSession:
        def function(*_: object) -> None:
            session.kernel(session)  # type: ignore[attr-defined]

        kernel = SimpleNamespace(
            function=SimpleNamespace(kernel=SimpleNamespace(ptr=function)),
            prepare=lambda *_, **__: None,
            blocks=1,
            shared_bytes=0,
            code=0,
            code_bytes=0,
            target=Target(hopper=hopper),
            parameter=lambda records: records[0],
        )
        session = DeviceSession(DeviceMachine(), kernel, program)  # type: ignore[arg-type]
        session.kernel = count  # type: ignore[attr-defined]
        session.copied = cupy.cuda.runtime.copied  # type: ignore[attr-defined]
        session.copied.clear()  # type: ignore[attr-defined]
        return session

    return load


def tensor(session: DeviceSession, name: str) -> Any:
    """A view of a tensor on the "device"."""
    d = session.program.by_name[name].descriptor
    return session.memory.view(d, d.bounds).view(d.dtype.numpy)


def report(session: DeviceSession) -> Any:
    """A view of the report on the "device"."""
    return session.memory._cupy.ndarray((1,), REPORT.dtype, SimpleNamespace(ptr=session.memory.report), (1,))[0]


def count(session: DeviceSession) -> None:
    """What COUNT does."""
    tensor(session, "n")[...] += tensor(session, "x")
    tensor(session, "y")[...] = tensor(session, "n") + tensor(session, "calm")


def trap(session: DeviceSession) -> None:
    """Change state, then trap."""
    count(session)
    record = report(session)
    record["claimed"], record["category"], record["instruction"] = 1, TRAP_CODES["index"], 1


def x(number: int) -> dict[str, Any]:
    """Inputs."""
    return {"x": np.full(4, number)}


def test_small_tensors_travel_in_one_copy_each_way(load):
    """A run of a tiny program: one copy in, state aside on the device, one copy out."""
    session = load(assemble(COUNT))
    assert session.run(x(1))["y"].tolist() == [1] * 4
    assert [kind for kind, _ in session.copied] == ["in", "within", "out"]


def test_outputs_are_copies(load):
    """The pinned memory of the next run is not what a result shows."""
    session = load(assemble(COUNT))
    first, second = session.run(x(1)), session.run(x(2))
    assert (first["y"][0], second["y"][0]) == (1, 3)


def test_only_state_that_the_program_writes_is_set_aside():
    """`calm` is read only; ranges are whole tensors."""
    program = assemble(COUNT)
    d = program.by_name["n"].descriptor
    assert written(program) == ((d.offset, d.offset + d.span),)
    moved = assemble(".state t : i32[8]\n.state u : i32[8]\nmain:\nLOOP s0, 2\nFILL u[s0:s0+1], 1\nENDLOOP\nHALT")
    u = moved.by_name["u"].descriptor
    assert written(moved) == ((u.offset, u.offset + u.span),)
    assert written(assemble(".state t : i32[8]\n.output y : i32[8]\nmain:\nCOPY y, t\nHALT")) == ()


def test_states_of_many_runs_stay_what_they_were(load):
    """Whether read at once, one run later, several runs later, or after set_state."""
    session = load(assemble(COUNT))
    session.set_state({"calm": np.full(4, 100)})
    results = [session.run(x(1)) for _ in range(4)]
    assert results[2].state["n"][0] == 3
    results += [session.run(x(1))]
    session.set_state({"n": np.zeros(4, np.int64), "calm": np.zeros(4, np.int64)})
    assert [int(r.state["n"][0]) for r in results] == [1, 2, 3, 4, 5]
    assert [int(r.state["calm"][0]) for r in results] == [100] * 5
    assert session.state["n"][0] == session.state["calm"][0] == 0


def test_state_that_nobody_reads_is_not_copied_to_the_host(load):
    """A loop that drops its results, as decoding does."""
    session = load(assemble(COUNT))
    for _ in range(5):
        result = session.run(x(1))
    del result
    gc.collect()
    session.run(x(1))
    assert [kind for kind, _ in session.copied].count("out") == 6  # reports with outputs, nothing else


def test_a_trap_sets_state_back_and_snapshots_stay(load):
    """The state is as before the run, and so is what earlier results show."""
    session = load(assemble(COUNT))
    first = session.run(x(1))
    before = session.run(x(2))
    session.kernel = trap
    with pytest.raises(Trap, match="out of range"):
        session.run(x(10))
    assert session.state["n"][0] == 3
    session.kernel = count
    assert session.run(x(1))["y"][0] == 4
    assert (int(first.state["n"][0]), int(before.state["n"][0])) == (1, 3)


def test_a_launch_runs_without_copies_and_state_goes_on(load):
    """Inputs go up once; enqueued runs move nothing."""
    session = load(assemble(COUNT))
    held = session.run(x(1))
    launch = session.launch(x(5))
    session.copied.clear()
    launch.enqueue()
    launch.enqueue(SimpleNamespace(cuda_stream=7))
    assert [kind for kind, _ in session.copied] == ["out", "out"]  # what `held` still has to show: n and calm, once
    assert launch.outputs["y"].tolist() == [11] * 4
    launch.inputs["x"][...] = 1
    launch.enqueue()
    launch.check()
    assert (session.state["n"][0], held.state["n"][0]) == (12, 1)
    session.run(x(1))
    with pytest.raises(InputError, match="other inputs"):
        launch.enqueue()


def test_a_trap_in_an_enqueued_run_is_raised_by_check(load):
    """And the next run starts afresh."""
    session = load(assemble(COUNT))
    launch = session.launch(x(1))
    session.kernel = trap
    launch.enqueue()
    with pytest.raises(Trap):
        launch.check()
    launch.check()
    session.kernel = count
    assert session.run(x(1))["y"][0] == 2


SIZED = """
.input x : i64[n <= 1000]
.output y : i64[n]
main:
    PROBE x
    COPY y, x
    HALT
"""


def sized(load: Callable[[Program], DeviceSession]) -> tuple[DeviceSession, Callable[[int], LoadedPlan]]:
    """A session of SIZED, and what runs it with n numbers and says by which plan that was done."""
    session = load(assemble(SIZED))
    size = 0

    def copy(session: DeviceSession) -> None:
        tensor(session, "y")[...] = tensor(session, "x")
        report(session)["registers"][session.program.dims[0].register] = size

    def by(n: int) -> LoadedPlan:
        nonlocal size
        size = n
        np.testing.assert_array_equal(session.run({"x": np.arange(n)})["y"], np.arange(n))
        return session._loaded

    session.kernel = copy  # type: ignore[attr-defined]
    return session, by


def trap_in_copy(session: DeviceSession) -> None:
    """What a run leaves that ends in a trap."""
    ctypes.memset(session._loaded._tables["counters"].ptr, 1, 4)
    record = report(session)
    record["claimed"], record["category"], record["instruction"] = 1, TRAP_CODES["index"], 1


def test_runs_follow_the_plan_for_their_size(load):
    """One for all that share it, and one where nothing is left to the run; each in memory of its own."""
    session, by = sized(load)
    first = session.plan
    ways = {n: by(n) for n in (64, 33, 60, 1000, 999, 64)}
    shapes = {n: way.plan.executed.instructions[1].operand("x") for n, way in ways.items()}
    assert {n: (d.bounds[0], d.is_dynamic) for n, d in shapes.items()} == {
        64: (64, False), 33: (64, True), 60: (64, True), 1000: (1000, False), 999: (1000, True),
    }  # fmt: skip
    assert ways[33] is ways[60]
    assert ways[1000].plan is first
    assert by(64) is ways[64]
    for name in ("images", "counters", "workspace", "exchange", "probes"):
        assert session.record[name] == ways[64]._tables[name].ptr
        assert len({way._tables[name].ptr for way in ways.values()}) == 4


@pytest.mark.parametrize("limit", ["MOST_PLANS", "MOST_PLAN_BYTES"])
def test_a_session_keeps_the_plans_of_the_last_sizes(load, monkeypatch, limit):
    """Room is made before there is another; a launch has what it runs."""
    session, by = sized(load)
    first = by(1)
    monkeypatch.setattr(session_module, limit, 3 if limit == "MOST_PLANS" else 2 * first.nbytes)
    for n in (2, 4, 1, 8):
        by(n)
    assert [sizes.bounds for sizes in session._plans] == [(4,), (1,), (8,)]
    assert by(1) is first
    monkeypatch.setattr(session_module, limit, 0)
    by(16)
    assert [sizes.bounds for sizes in session._plans] == [(1,), (16,)]
    launch = session.launch({"x": np.arange(2)})
    assert session.plan.executed.instructions[1].operand("x").dims == (2,)
    launch.enqueue()
    launch.check()


def test_a_plan_that_is_not_finished_changes_nothing(load):
    """An interrupt, say, while the GPU prepares it: the next run follows what is there."""
    session, by = sized(load)
    way = by(64)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    prepare, session._kernel.prepare = session._kernel.prepare, interrupted
    with pytest.raises(KeyboardInterrupt):
        by(32)
    assert session.plan is way.plan
    assert session.record["images"] == way._tables["images"].ptr
    session._kernel.prepare = prepare
    assert by(64) is way
    by(32)


def test_a_trap_that_nobody_has_checked_is_raised_before_the_next_run(load):
    """Its numbers are those of the plan that it followed."""
    session, by = sized(load)
    copy, session.kernel = session.kernel, trap_in_copy
    session.launch({"x": np.arange(64)}).enqueue()
    for following in (lambda: by(3), lambda: session.launch({"x": np.arange(3)})):
        with pytest.raises(Trap) as raised:
            following()
        assert raised.value.instruction == 1
        assert session.plan.executed.instructions[1].operand("x").dims == (64,)
        session.launch({"x": np.arange(64)}).enqueue()
    session.kernel = copy
    session.clear()
    by(3)


def test_a_trap_leaves_no_plan_half_done(load):
    """Whichever one the run followed, and the next one follows."""
    session, by = sized(load)
    by(64)
    counters = [loaded._tables["counters"].ptr for loaded in session._plans.values()]
    copy, session.kernel = session.kernel, trap_in_copy
    with pytest.raises(Trap):
        session.run({"x": np.arange(3)})
    assert not any(session.memory.fetch(address, np.dtype("u4"), 1) for address in counters)
    session.kernel = copy
    by(3)


@pytest.mark.parametrize("width", [3, 100_000])
def test_large_inputs_and_outputs_arrive_as_small_ones_do(load, width):
    """Below and above what travels together, with a dim below its bound and gaps between rows."""
    session = load(assemble(f".input x : i64[2, w <= {width}]\n.output y : i64[2, w]\nmain:\nCOPY y, x\nHALT"))

    def copy(session: DeviceSession) -> None:
        tensor(session, "y")[...] = tensor(session, "x")
        report(session)["registers"][session.program.dims[0].register] = width - 1

    session.kernel = copy
    given = np.arange(2 * (width - 1)).reshape(2, -1)
    np.testing.assert_array_equal(session.run({"x": given})["y"], given)


def test_constants_are_shared_by_the_sessions_of_a_program(load):
    """The second session copies nothing; when all are gone, so is the memory."""
    program = assemble(".const c : i64[2] = [1, 2]\n.output y : i64[2]\nmain:\nCOPY y, c\nHALT")
    first, second = load(program), load(program)
    assert first.memory.bases[Segment.CONST] == second.memory.bases[Segment.CONST]
    assert tensor(second, "c").tolist() == [1, 2]
    del first, second
    gc.collect()
    assert not resident._RESIDENT


def test_matrices_are_transposed_once_for_all_sessions_of_a_program(load, monkeypatch):
    """For a GPU that streams them; another one has them as they were written."""
    monkeypatch.setattr(TensorMap, "encode", lambda _: bytes(TENSOR_MAP_BYTES))  # what takes a driver
    numbers = np.arange(16 * 24).reshape(16, 24)
    text = f".input x : f16[1, 16]\n.const w : f16[16, 24] = {numbers.tolist()}\n.output y : f16[1, 24]\n"
    program = assemble(text + "main:\nGEMM y, x, w\nHALT")
    first, second, other = load(program, hopper=True), load(program, hopper=True), load(program)
    np.testing.assert_array_equal(tensor(other, "w"), numbers)
    for session in (first, second):
        np.testing.assert_array_equal(tensor(session, "w").reshape(24, 16), numbers.T)
        assert session.plan.executed.instructions[0].operand("b").strides == (1, 16)
        assert session.program is program
    assert first.memory.bases[Segment.CONST] != other.memory.bases[Segment.CONST]


def test_large_constants_are_copied_in_pieces(load, monkeypatch):
    """Blocks longer and shorter than a piece, and one that does not end with it."""
    monkeypatch.setattr(resident, "PIECE_BYTES", 64)
    monkeypatch.setattr(resident, "_STAGED_BYTES", 100)
    a, b = np.arange(1000), np.arange(3)
    text = f".const a : i64[1000] = {a.tolist()}\n.const b : i64[3] = {b.tolist()}\n"
    session = load(assemble(text + ".output y : i64[3]\nmain:\nCOPY y, b\nHALT"))
    np.testing.assert_array_equal(tensor(session, "a"), a)
    np.testing.assert_array_equal(tensor(session, "b"), b)
