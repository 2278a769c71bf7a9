"""Last rows of products as instructions of their own: which are cut off, and that results are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import last_rows, parts, plan, tune
from dla.emulator.device.layout import PATH_GEMM, PATH_STREAM
from dla.emulator.device.paths import Target
from dla.isa.descriptor import Segment
from dla.report_plan import planned
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.references import compare
from dla.tests.emulator.device.test_plan import BASES

APART = """
.input x : bf16[{m}, 4096]
.input w : bf16[2, 4096, 4096]
.output h : bf16[{m}, 4096]
.output y : bf16[{m}, 4096]
main:
    GEMM h, x, w[0]
    GEMM y, x, w[1] residual=x
    HALT
"""
CHAIN = APART.replace("GEMM y, x", "GEMM y, h")


def origins(text: str) -> list[int]:
    """Of each instruction that is executed, the one of the program."""
    return list(plan.build(assemble(text), BASES, Target(132, hopper=True)).origins)


@pytest.mark.parametrize(("text", "waits"), [(APART, [(), (), (), ()]), (CHAIN, [(), (), (0,), (1,)])])
def test_a_row_too_many_is_streamed(monkeypatch, text, waits):
    """It waits for the row before, and nobody else does."""
    monkeypatch.setattr(parts, "WORTH", 1e9)
    made, steps = planned(assemble(text.format(m=1025)), 132, hopper=True)
    assert made.origins == (0, 0, 1, 1, 2)
    assert [step.path for step in steps] == ["gemm", "stream"] * 2
    assert [step.result for step in steps] == ["bf16[1024, 4096]", "bf16[1, 4096]"] * 2
    assert [step.waits_for for step in steps] == waits


def test_in_parts_a_row_too_many_keeps_nobody_waiting():
    """Of two such products in a chain, parts are enough."""
    made = plan.build(assemble(CHAIN.format(m=1025)), BASES, Target(132, hopper=True))
    assert made.origins == (0, 0, 1, 1, 2)
    assert {schedule.path for schedule in made.schedules[:-1]} == {PATH_GEMM}


@pytest.mark.parametrize("rows", [1024, 1056, 700, 64, 17])
def test_other_rows_stay(rows):
    """Those of whole tiles, more than a few, and those that a tile has anyway."""
    made = plan.build(assemble(APART.format(m=rows)), BASES, Target(132, hopper=True))
    assert {schedule.path for schedule in made.schedules[:-1]} == {PATH_GEMM}


@pytest.mark.parametrize("rows", [513, 1025, 1030])
def test_what_a_launch_begins_with_is_priced_as_such(rows):
    """Cut off or not: tiles that hold all rows are taken for all of them."""
    text = f".input x : bf16[{rows}, 1024]\n.input w : bf16[1024, 1024]\n.output y : bf16[{rows}, 1024]\n"
    assert origins(text + "main:\n    GEMM y, x, w\n    HALT\n") == [0, 1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[1025, 4096]", "[n <= 1025, 4096]"),
        ("    HALT", "    LOOP s1, 2\n    ENDLOOP\n    HALT"),
        ("GEMM h, x, w[0]\n    GEMM y, x, w[1] residual=x", "GEMM y[None, ...], x[None, ...], w[0:1]"),
    ],
)
def test_what_stays_whole(old, new):
    """Rows that a register counts, loops, batches."""
    text = APART.format(m=1025).replace(old, new)
    assert origins(text) == list(range(len(assemble(text).instructions)))


def test_without_a_gpu_like_that_nothing_is_cut():
    """Other machines have no such paths."""
    assert plan.build(assemble(CHAIN.format(m=1025)), BASES, Target(132)).origins == (0, 1, 2)


def test_what_is_tuned_is_what_is_executed():
    """The product without its last rows."""
    seen: list[tune.Trial] = []

    class Store:
        def measured(self, key: str) -> None:
            return None

        def add(self, found: dict[str, Any]) -> None:
            pass

    def timer(trial: tune.Trial) -> list[float]:
        seen.append(trial)
        return [1e-6] * len(trial.ways)

    store: Any = Store()
    tune.measure(assemble(APART.format(m=1025)), Target(132, hopper=True), store, timer, lambda _: None)
    outs = [trial.program.instructions[0].operand("out") for trial in seen]
    assert [out.dims for out in outs if out is not None] == [(1024, 4096)] * 2


SMALL = """
.input x : bf16[{m}, 128]
.input w : bf16[128, 128]
.input b : bf16[128]
.scratch h : bf16[{m}, 128]
.scratch g : bf16[{m}, 128]
.output y : bf16[{m}, 128]
main:
    GEMM h, x, w bias=b act=gelu
    GEMM g, h, w.T residual=x
    GEMM g, h, w residual=g
    GEMM y, g, w
    HALT
"""


@pytest.mark.parametrize("rows", [65, 137, 208])
@cpu_machine.needs_compiler
def test_last_rows_stay_within_the_bound(monkeypatch, rows):
    """And give the same bits again, in other orders of warps and copies."""
    monkeypatch.setattr(last_rows, "WORTH", 100.0)
    program = assemble(SMALL.format(m=rows))
    session = CpuSession(program, hopper=True)
    assert session.plan.origins == (0, 0, 1, 1, 2, 2, 3, 3, 4)
    assert {schedule.path for schedule in session.plan.schedules[:-1]} <= {PATH_GEMM, PATH_STREAM}
    rng = np.random.default_rng(3)
    given = {t.name: values(rng, t.descriptor.bounds, t.descriptor.dtype) for t in program.in_segment(Segment.INPUT)}
    seen = set()
    for session.seed in range(3):
        result = session.run(given)
        assert all(c.ok for c in compare(program, given, result))
        seen.add(result.outputs["y"].tobytes())
    assert len(seen) == 1


def test_cuts_are_where_they_are_asked_for():
    """Operands with the result's rows are cut, too; weights are not."""
    first, last = parts.cut(assemble(SMALL.format(m=65)).instructions[1], (64,))
    assert [d and d.dims for d in first.operands[:3]] == [(64, 128), (64, 128), (128, 128)]
    assert [d and d.dims for d in last.operands[:3]] == [(1, 128), (1, 128), (128, 128)]
