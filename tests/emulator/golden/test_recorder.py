"""Traces of the golden machine: one block, one execution after the other."""

from __future__ import annotations

import numpy as np
import pytest

import dla
from dla.emulator.golden import session as sessions
from dla.emulator.golden.machine import GoldenMachine
from dla.emulator.golden.session import GoldenSession
from dla.isa.errors import Trap

LOOP = """
.program t
.state n : i64[]
.output y : i64[]
main:
    LOOP s0, 2
      EW.add n, n, 1
    ENDLOOP
    COPY y, n
    HALT
"""
TRAPPING = """
.program trapping
.output y : i64[]
main:
    FILL   y, 1
    MOV    p0, 0
    ASSERT p0 "on purpose"
    HALT
"""


def session(text: str) -> GoldenSession:
    """The program, loaded."""
    return GoldenMachine().load(dla.assemble(text))


def test_every_execution_has_a_span() -> None:
    """Scalar instructions and all passes of loops, in order, without overlaps; the result is that of a run."""
    result, trace = session(LOOP).trace({})
    assert isinstance(result, dla.Result)
    assert result["y"] == 2
    spans = trace.spans
    assert spans["instruction"].tolist() == [0, 1, 2, 1, 2, 3, 4]
    assert spans["order"].tolist() == list(range(7))
    assert (spans["began"] <= spans["done"]).all()
    assert (spans["done"][:-1] <= spans["began"][1:]).all()
    assert 0 <= spans["began"][0] <= spans["signalled"][-1] <= trace.end
    assert np.array_equal(spans["done"], spans["signalled"])
    assert (trace.blocks, trace.lost) == (1, 0)


def test_state_goes_on_as_after_a_run() -> None:
    """A traced run is a run."""
    loaded = session(LOOP)
    loaded.trace({})
    assert loaded.run({})["y"] == 4


def test_a_trap_leaves_what_ran_before_it() -> None:
    """The instruction that trapped has no span: it was never done."""
    result, trace = session(TRAPPING).trace({})
    assert isinstance(result, Trap)
    assert "on purpose" in str(result)
    assert trace.spans["instruction"].tolist() == [0, 1]
    assert trace.end >= trace.spans["done"][-1]


def test_what_has_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run keeps its first executions, and says how many there were beyond."""
    monkeypatch.setattr(sessions, "TRACED_EXECUTIONS", 3)
    _, trace = session(LOOP).trace({})
    assert (len(trace.spans), trace.lost) == (3, 4)
