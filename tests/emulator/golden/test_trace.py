"""What a run reports on the way: traces and probes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import dla
from dla.emulator.golden.execution import Executed

Run = Callable[..., dla.Result]

TEXT = """
.program t
.const x : f32[4] = [1, nan, 3, inf]
.output y : f32[4]
main:
    LOOP s0, 2
      EW.mul y, x, 2
    ENDLOOP
    PROBE y, tag=3 "after"
    HALT
"""


def test_trace_lists_every_execution_with_statistics(run: Run) -> None:
    """Each executed instruction, in order, with operands and statistics of what it wrote."""
    seen: list[Executed] = []
    run(TEXT, trace=seen.append)
    assert [e.name for e in seen] == ["LOOP", "EW.mul", "ENDLOOP", "EW.mul", "ENDLOOP", "PROBE", "HALT"]
    product = seen[1]
    assert product.index == 1
    assert product.operands[0] == "out: f32[4] output+0"
    assert product.location == "<string>:7"
    assert product.elapsed > 0
    written = product.outputs["out"]
    assert (written.count, written.minimum, written.maximum, written.mean) == (4, 2.0, 6.0, 4.0)
    assert (written.nans, written.infinities) == (1, 1)


def test_trace_of_an_instruction_that_moves_its_own_address(run: Run) -> None:
    """LOADS into the register of its own offset is described where it read, not where it would read next."""
    text = ".program t\n.const x : i64[2] = [99, 5]\n.output y : i64[]\nmain:\nLOADS s0, x[s0]\nFILL y, s0\nHALT\n"
    seen: list[Executed] = []
    assert run(text, trace=seen.append)["y"] == 99
    assert seen[0].operands == ("x: i64[] const+0",)


def test_probe_reports_under_its_tag(run: Run) -> None:
    """Statistics leave NaN and infinities out, and the message of the source comes along."""
    probe = run(TEXT).probes[3]
    assert (probe.count, probe.minimum, probe.maximum, probe.mean) == (4, 2.0, 6.0, 4.0)
    assert (probe.nans, probe.infinities, probe.instruction, probe.message) == (1, 1, 3, "after")


def test_last_probe_of_a_tag_wins(run: Run) -> None:
    """Executions of one tag overwrite each other."""
    text = ".program t\n.output y : i64[]\nmain:\nLOOP s0, 3\nFILL y, s0\nPROBE y, tag=1\nENDLOOP\nHALT\n"
    assert run(text).probes[1].mean == 2.0


def test_probe_of_nothing_finite_is_nan(run: Run) -> None:
    """Without a finite element there is no minimum, maximum or mean."""
    text = ".program t\n.output y : f32[0]\nmain:\nFILL y, 1\nPROBE y\nHALT\n"
    probe = run(text).probes[0]
    assert probe.count == 0
    assert np.isnan([probe.minimum, probe.maximum, probe.mean]).all()


def test_f32_and_f64_accumulation_differ_only_in_rounding(run: Run) -> None:
    """`accumulate="f32"` is the same code in a narrower type; f64 keeps what f32 loses."""
    x = ".const x : f32[3] = [16777216, 1, -16777216]"
    text = f".program t\n{x}\n.output y : f32[]\nmain:\nREDUCE.sum y, x axes=[0]\nHALT\n"
    assert run(text)["y"] == 1
    assert run(text, accumulate="f32")["y"] == 0
