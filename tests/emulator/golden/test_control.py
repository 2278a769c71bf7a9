"""Control flow on the golden machine: loops, branches, calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import dla

Run = Callable[..., dla.Result]

HEAD = ".program t\n.output y : i64[]\nmain:\n"


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 0), (5, 10)])
def test_loop_counts_from_zero(run: Run, count: int, expected: int) -> None:
    """A body sees 0, 1, ... count - 1; a count of 0 skips it."""
    body = f"MOV s1, 0\nLOOP s0, {count}\nALU.add s1, s1, s0\nENDLOOP\nFILL y, s1\nHALT\n"
    assert run(HEAD + body)["y"] == expected


def test_counter_holds_the_count_after_the_loop(run: Run) -> None:
    """After the last trip the counter is the count, as after a loop of zero trips."""
    assert run(HEAD + "LOOP s0, 5\nNOP\nENDLOOP\nFILL y, s0\nHALT\n")["y"] == 5
    assert run(HEAD + "MOV s0, 9\nLOOP s0, 0\nNOP\nENDLOOP\nFILL y, s0\nHALT\n")["y"] == 0


def test_register_count_is_read_once(run: Run) -> None:
    """Changing the register inside the body does not change the number of trips."""
    body = "MOV s2, 3\nMOV s1, 0\nLOOP s0, s2 max=10\nALU.add s1, s1, 1\nMOV s2, 9\nENDLOOP\nFILL y, s1\nHALT\n"
    assert run(HEAD + body)["y"] == 3


def test_nested_loops(run: Run) -> None:
    """An inner loop starts anew on every trip of the outer one."""
    body = "MOV s2, 0\nLOOP s0, 4\nLOOP s1, 3\nALU.add s2, s2, 1\nENDLOOP\nENDLOOP\nFILL y, s2\nHALT\n"
    assert run(HEAD + body)["y"] == 12


def test_branch_leaves_two_loops(run: Run) -> None:
    """A branch out of nested loops drops both of them, and a later loop runs as usual."""
    body = """
    MOV s2, 0
    LOOP s0, 10
      LOOP s1, 10
        ALU.add s2, s2, 1
        CMP.eq p0, s2, 7
        BR out if=p0
      ENDLOOP
    ENDLOOP
out:
    LOOP s3, 2
      ALU.add s2, s2, 100
    ENDLOOP
    FILL y, s2
    HALT
"""
    assert run(HEAD + body)["y"] == 207


@pytest.mark.parametrize(("condition", "expected"), [("if=p0", 1), ("unless=p0", 2), ("", 1)])
def test_branch_conditions(run: Run, condition: str, expected: int) -> None:
    """`if` takes a set predicate, `unless` a clear one, neither always branches."""
    body = f"MOV p0, 1\nMOV s0, 1\nBR end {condition}\nMOV s0, 2\nend:\nFILL y, s0\nHALT\n"
    assert run(HEAD + body)["y"] == expected


def test_calls_nest_and_return_to_their_callers(run: Run) -> None:
    """Each RET goes back to the instruction after its own CALL, from inside a loop too."""
    body = """
    MOV s0, 1
    LOOP s9, 2
      CALL quadruple
    ENDLOOP
    FILL y, s0
    HALT
quadruple:
    CALL double
    CALL double
    RET
double:
    ALU.add s0, s0, s0
    RET
"""
    assert run(HEAD + body)["y"] == 16


def test_data_steers_the_program(run: Run) -> None:
    """LOADS reads what an earlier instruction computed, and a branch follows it."""
    text = """
.program t
.const x : f32[3] = [1, 5, 2]
.scratch i : i64[]
.output y : i64[]
main:
    REDUCE.argmax i, x axes=[0]
    LOADS s0, i
    CMP.eq p0, s0, 1
    BR one if=p0
    FILL y, -1
    HALT
one:
    FILL y, 1
    HALT
"""
    assert run(text)["y"] == 1


def test_dynamic_dims_shrink_at_run_time(run: Run) -> None:
    """One program serves any size up to its bound, and a register may be a dim of an output."""
    text = """
.program t
.input x : f32[n <= 8]
.output y : f32[n]
.output head : f32[s5 <= 8]
main:
    EW.add y, x, x
    MOV s5, 2
    FILL head, 7
    HALT
"""
    for n in (0, 1, 3, 8):
        result = run(text, {"x": np.arange(n, dtype=np.float32)})
        assert result["y"].tolist() == [2.0 * i for i in range(n)]
        assert result["head"].tolist() == [7, 7]
        assert result.dims == {"n": n}
