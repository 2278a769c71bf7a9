"""The device machine on a real GPU: one kernel, any program, every way to end."""

from __future__ import annotations

import _thread
import re
import threading
import time
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.backend import Backend
from dla.emulator.device import build
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.session import DeviceSession
from dla.emulator.golden.machine import GoldenMachine
from dla.emulator.result import Result
from dla.isa.errors import InputError, TimeoutTrap, Trap
from dla.isa.instructions import ROWS
from dla.isa.program import Program

pytestmark = pytest.mark.gpu

ADD = """
.input x : f32[batch <= 8, 4]
.output y : f32[batch, 4]
main:
    EW.add y, x, 1
    HALT
"""


def load(text: str, **options: Any) -> DeviceSession:
    """The program `text`, loaded on the GPU."""
    return DeviceMachine(**options).load(assemble(text))


def outcome(machine: Backend, program: Program) -> tuple[Result | None, tuple[str, int | None] | None]:
    """What a run comes to: its result, or the category and place of its trap."""
    try:
        return machine.load(program).run({}), None
    except Trap as trap:
        return None, (trap.category, trap.instruction)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("row", [row for row in ROWS if not row.collective], ids=lambda row: row.mnemonic)
def test_the_example_of_every_row_agrees_with_the_golden_machine(row, checked):
    """Both machines give the same outputs and reports, or the same trap; examples of collectives have several ranks."""
    program = assemble(row.example)
    golden, expected_trap = outcome(GoldenMachine(), program)
    result, trap = outcome(DeviceMachine(checked=checked), program)
    assert trap == expected_trap
    if golden is None or result is None:
        return
    for name, expected in golden.outputs.items():
        np.testing.assert_allclose(
            result[name].astype(np.float64), expected.astype(np.float64), rtol=1e-5, atol=1e-6, err_msg=name
        )
    assert {t: (p.count, p.minimum, p.maximum, p.mean) for t, p in result.probes.items()} == {
        t: (p.count, p.minimum, p.maximum, p.mean) for t, p in golden.probes.items()
    }


def test_the_last_probe_of_a_tag_wins_and_reports_do_not_outlive_a_run():
    """Of several PROBEs with one tag the one executed last reports; a PROBE that is skipped reports nothing."""
    session = load("""
.input x : f32[3]
.input skip : bool[]
.output y : f32[3]
main:
    EW.mul y, x, 2
    LOADS p0, skip
    BR end if=p0
    LOOP s0, 3
        PROBE x, tag=1
        PROBE y, tag=1
    ENDLOOP
end:
    HALT
""")
    x = np.array([1, 2, 3], np.float32)
    report = session.run({"x": x, "skip": np.array(False)}).probes[1]
    assert (report.maximum, report.instruction) == (6.0, 5)
    assert session.run({"x": x, "skip": np.array(True)}).probes == {}


@pytest.mark.parametrize(
    "update", ["line, line, i, one", "table, table, i[:, None].broadcast(2, 5), many", "table, table, own, many"]
)
def test_an_update_outside_its_axis_leaves_state_as_it_was(update):
    """SCATTER in place: what other updates wrote before the trap is undone; a run with good indices follows."""
    session = load(f"""
.input i : i32[2]
.input own : i64[2, 5]
.state line : f32[3]
.state table : f32[3, 5]
.const one : f32[2] = 1
.const many : f32[2, 5] = 1
main:
    SCATTER.add {update}
    HALT
""")
    for bad in (-1, 3):
        with pytest.raises(Trap) as caught:
            session.run({"i": np.array([0, bad], np.int32), "own": np.full((2, 5), bad)})
        assert caught.value.category == "index"
        assert not session.state["line"].any()
        assert not session.state["table"].any()
    state = session.run({"i": np.array([2, 2], np.int32), "own": np.full((2, 5), 2)}).state
    np.testing.assert_array_equal(state["line"] + state["table"].sum(axis=1) / 5, [0, 0, 2])


def test_three_programs_share_one_compiled_module():
    """Bytecode is data: nothing is compiled for a program."""
    examples = {row.mnemonic: row.example for row in ROWS}
    load(examples["COPY"]).run({})
    builds = set(build.COMPILED)
    assert builds
    for row in ("GEMM", "SOFTMAX"):
        load(examples[row]).run({})
    assert set(build.COMPILED) == builds


def test_batch_is_taken_from_the_input():
    """A dynamic dim smaller than its bound gives an output of that size."""
    session = load(ADD)
    for batch in (0, 1, 3, 8):
        x = np.random.default_rng(batch).normal(size=(batch, 4)).astype(np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x + 1)


def test_inner_dynamic_dims_leave_gaps():
    """A tensor smaller than its bounds in an inner axis keeps its strides."""
    session = load("""
.input x : f32[3, width <= 8]
.output y : f32[3, width]
main:
    EW.mul y, x, 2
    HALT
""")
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], x * 2)


def test_state_survives_runs_and_can_be_set():
    """State starts at zero, keeps what a run wrote, and takes what the host sets."""
    session = load("""
.state n : i64[]
.output y : i64[]
main:
    EW.add n, n, 1
    COPY y, n
    HALT
""")
    assert [int(session.run({})["y"]) for _ in range(3)] == [1, 2, 3]
    session.set_state({"n": np.array(41, np.int64)})
    assert int(session.run({})["y"]) == 42


def test_a_trap_names_the_instruction_and_leaves_state_alone():
    """An out-of-range index traps with its category and line; state is as before; the next run is right."""
    session = load("""
.input i : i32[2]
.const table : f32[3] = [1, 2, 3]
.state n : i32[]
.output y : f32[2]
main:
    EW.add n, n, 1
    GATHER y, table, i axis=0
    HALT
""")
    session.run({"i": np.array([0, 2], np.int32)})
    with pytest.raises(Trap) as caught:
        session.run({"i": np.array([0, 3], np.int32)})
    assert caught.value.category == "index"
    assert caught.value.instruction == 1
    assert int(session.state["n"]) == 1
    np.testing.assert_array_equal(session.run({"i": np.array([1, 2], np.int32)})["y"], [2, 3])
    assert int(session.state["n"]) == 2


def test_a_planted_hang_becomes_a_timeout_and_the_next_run_is_right():
    """A counter that never arrives ends the run with the counter's name, and nothing is left over."""
    # Large enough for several blocks: a block does not wait for what it did itself.
    session = load(
        """
.output y : i32[100000]
.output z : i32[100000]
main:
    FILL y, 7
    EW.add z, y, 1
    HALT
""",
        timeout=0.5,
    )
    session.expected_base = 1
    began = time.perf_counter()
    with pytest.raises(TimeoutTrap) as raised:
        session.run({})
    numbers = re.search(r"counter 0, which is (\d+) and should reach (\d+)", str(raised.value))
    assert numbers is not None
    assert int(numbers[2]) == int(numbers[1]) + 1
    assert time.perf_counter() - began < 5
    session.expected_base = 0
    np.testing.assert_array_equal(session.run({})["z"], [8] * 100000)


def test_an_interrupt_stops_a_long_loop():
    """Ctrl-C ends the kernel at once, and the session works on."""
    session = load("""
.input n : i64[]
.output y : i64[]
main:
    LOADS s1, n
    LOOP s0, s1 max=2000000000
    ALU.add s2, s2, 1
    ENDLOOP
    FILL y, s2
    HALT
""")
    session.run({"n": np.array(10)})
    timer = threading.Timer(1.0, _thread.interrupt_main)
    timer.start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        session.run({"n": np.array(2_000_000_000)})
    assert time.perf_counter() - began < 10
    assert int(session.run({"n": np.array(10)})["y"]) == 10


@pytest.mark.parametrize(
    ("body", "category"),
    [
        ("    LOADS s1, n\n    ALU.div s2, 1, s1\n    FILL y, s2", "arithmetic"),
        ("    LOADS s1, n\n    ALU.sub s1, s1, 1\n    LOOP s0, s1 max=4\n    NOP\n    ENDLOOP\n    FILL y, s0", "loop"),
        ("    LOADS s1, n\n    CMP.gt p0, s1, 0\n    FILL y, 0\n    ASSERT p0 code=3", "assert"),
        ("    LOADS s1, n\n    ALU.add s1, s1, 100\n    FILL y, 0\n    COPY z[s1:s1 + 1], z[0:1]", "extent"),
    ],
)
def test_scalar_traps(body, category):
    """Each category of trap that the scalar unit raises, at the instruction that raised it."""
    text = f".input n : i64[]\n.state z : f32[8]\n.output y : i64[]\nmain:\n{body}\n    HALT\n".replace(
        "s1 + 1", "s1+1"
    )
    program = assemble(text)
    inputs = {"n": np.array(0)}
    with pytest.raises(Trap) as golden:
        GoldenMachine().load(program).run(inputs)
    with pytest.raises(Trap) as device:
        DeviceMachine().load(program).run(inputs)
    assert device.value.category == golden.value.category == category
    assert device.value.instruction == golden.value.instruction


def test_data_steers_the_program():
    """A loop count and a branch that depend on computed data take the same path in every block."""
    session = load("""
.input x : i32[1000000]
.output y : i64[]
.scratch n : i32[]
main:
    REDUCE.max n, x axes=0
    LOADS s1, n
    LOOP s0, s1 max=1000
    ALU.add s2, s2, s0
    ENDLOOP
    CMP.gt p0, s2, 10
    BR big if=p0
    FILL y, -1
    HALT
big:
    FILL y, s2
    HALT
""")
    x = np.zeros(1_000_000, np.int32)
    x[777_777] = 100
    assert int(session.run({"x": x})["y"]) == 4950
    x[777_777] = 3
    assert int(session.run({"x": x})["y"]) == -1


def test_long_chains_of_dependent_instructions_are_ordered():
    """20,000 dependent instructions over all blocks, twice, give the exact count both times."""
    body = "    EW.add y, y, 1\n" * 2000
    session = load(f".output y : i32[300000]\nmain:\n    FILL y, 0\n    LOOP s0, 10\n{body}    ENDLOOP\n    HALT\n")
    for _ in range(2):
        assert (session.run({})["y"] == 20000).all()


def test_cupy_and_dlpack_arrays_go_in_and_cupy_comes_out():
    """Device arrays are taken where they lie; outputs then stay on the device."""
    cupy = build.import_cupy()
    x = cupy.arange(12, dtype=cupy.float32).reshape(3, 4)
    y = load(ADD).run({"x": x})["y"]
    assert isinstance(y, cupy.ndarray)
    np.testing.assert_array_equal(y.get(), x.get() + 1)


def test_a_launch_runs_on_any_stream_and_in_a_graph():
    """Runs that are only enqueued: state goes on, outputs stay on the device, and a trap is raised when asked for."""
    import cupy

    session = load("""
.input i : i32[1]
.const table : i64[2] = [1, 10]
.state n : i64[1]
.scratch step : i64[1]
.output y : i64[1]
main:
    GATHER step, table, i axis=0
    EW.add n, n, step
    COPY y, n
    HALT
""")
    first = session.run({"i": np.array([1], np.int32)})
    launch = session.launch({"i": np.array([0], np.int32)})
    stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(3):
        launch.enqueue(stream)
    with stream:
        stream.begin_capture()
        launch.enqueue(stream)
        graph = stream.end_capture()
    graph.launch(stream)
    graph.launch(stream)
    launch.check()
    assert int(launch.outputs["y"][0]) == 15
    assert (int(first.state["n"][0]), int(session.state["n"][0])) == (10, 15)
    with stream:
        launch.inputs["i"][...] = 2
        launch.enqueue()
    with pytest.raises(Trap, match="index 2 is out of range"):
        launch.check()
    session.set_state({"n": np.array([15])})  # the trap left it as it happened to be
    assert int(session.run({"i": np.array([1], np.int32)})["y"][0]) == 25


def test_wrong_inputs_are_refused_before_the_launch():
    """A wrong dtype is an InputError that says what to do."""
    with pytest.raises(InputError, match="must be f32"):
        load(ADD).run({"x": np.zeros((2, 4), np.float64)})
