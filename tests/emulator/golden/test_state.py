"""State: lives across the runs of one session, and is never left half changed."""

from __future__ import annotations

import numpy as np
import pytest

import dla
from dla.emulator.golden.machine import GoldenMachine

COUNTER = """
.program counter
.input  step : f32[2]
.state  total : f32[2]
.output y : f32[2]
main:
    EW.add total, total, step
    COPY y, total
    HALT
"""
STEP = {"step": np.array([1, 10], np.float32)}

FAILS_LATE = """
.program late
.input  fine : bool[]
.state  n : i64[]
.output y : i64[]
main:
    FILL n, 7
    LOADS p0, fine
    ASSERT p0
    COPY y, n
    HALT
"""


def test_state_starts_at_zero_and_survives_runs() -> None:
    """Each run of a session finds what the run before left."""
    session = dla.Machine("golden").load(dla.assemble(COUNTER))
    assert session.state["total"].tolist() == [0, 0]
    assert session.run(STEP)["y"].tolist() == [1, 10]
    result = session.run(STEP)
    assert result["y"].tolist() == [2, 20]
    assert result.state["total"].tolist() == [2, 20]


def test_sessions_do_not_share_state() -> None:
    """Loading again starts anew."""
    machine, program = dla.Machine("golden"), dla.assemble(COUNTER)
    machine.load(program).run(STEP)
    assert machine.load(program).run(STEP)["y"].tolist() == [1, 10]


def test_state_can_be_set_and_is_copied() -> None:
    """`set_state` and `state` copy: the caller's arrays and the machine's never mix."""
    session = dla.Machine("golden").load(dla.assemble(COUNTER))
    mine = np.array([5, 5], np.float32)
    session.set_state({"total": mine})
    mine[:] = 0
    seen = session.state["total"]
    seen[:] = 0
    assert session.run(STEP)["y"].tolist() == [6, 15]


def test_machine_run_takes_state() -> None:
    """`Machine.run(state=...)` starts from the given tensors."""
    program = dla.assemble(COUNTER)
    result = dla.Machine("golden").run(program, STEP, state={"total": np.array([1, 1], np.float32)})
    assert result.state["total"].tolist() == [2, 11]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"totl": np.zeros(2, np.float32)}, "did you mean 'total'"),
        ({"total": np.zeros(3, np.float32)}, r"must have shape \[2\], not \[3\]"),
        ({"total": np.zeros(2, np.float64)}, "must be f32, not float64"),
    ],
)
def test_state_that_does_not_fit_is_refused(values: dict[str, np.ndarray], message: str) -> None:
    """Names, dtypes and shapes are checked as for inputs."""
    session = dla.Machine("golden").load(dla.assemble(COUNTER))
    with pytest.raises(dla.InputError, match=message):
        session.set_state(values)


def test_trap_leaves_state_as_it_was() -> None:
    """What a trapped run wrote to state is gone."""
    session = dla.Machine("golden").load(dla.assemble(FAILS_LATE))
    with pytest.raises(dla.Trap):
        session.run({"fine": np.array(False)})
    assert session.state["n"] == 0
    session.run({"fine": np.array(True)})
    assert session.state["n"] == 7


def test_ctrl_c_leaves_state_as_it_was() -> None:
    """An interrupted run raises KeyboardInterrupt, and the next run is right."""
    calls = []

    def interrupt_once(executed: object) -> None:
        calls.append(executed)
        if len(calls) == 1:
            raise KeyboardInterrupt

    session = GoldenMachine(trace=interrupt_once).load(dla.assemble(COUNTER))
    with pytest.raises(KeyboardInterrupt):
        session.run(STEP)
    assert session.state["total"].tolist() == [0, 0]
    assert session.run(STEP)["y"].tolist() == [1, 10]
