"""The critical path: a partition of the run, and of the right instructions."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_traces import executed, nonsense, spans_of
from random_programs import random_program

import dla
from dla.emulator.trace import SPAN, Trace
from dla.isa.program import Program
from dla.isa.table import Exec
from dla.profiler.critical import critical_path
from dla.profiler.profile import Step

TWO_CHAINS = """
.program two
.input  x : f32[4]
.scratch a : f32[4]
.scratch b : f32[4]
.output y : f32[4]
main:
    ACT.exp a, x
    ACT.sin b, x
    ACT.cos b, b
    EW.add  y, a, b
    HALT
"""
LOOP = """
.program loop
.input  x : f32[4]
.state  a : f32[4]
.output y : f32[4]
main:
    LOOP    s0, 3
    ACT.exp a, a
    EW.add  a, a, x
    ENDLOOP
    COPY    y, a
    HALT
"""


def instructions(steps: tuple[Step, ...]) -> list[int | None]:
    """Which instruction each step is of."""
    return [step.instruction for step in steps]


def assert_partition(steps: tuple[Step, ...], trace: Trace) -> None:
    """The steps are the run."""
    assert all(step.begin < step.end for step in steps)
    assert all(a.end == b.begin for a, b in pairwise(steps))
    assert sum(step.end - step.begin for step in steps) == trace.end
    if steps:
        assert (steps[0].begin, steps[-1].end) == (0, trace.end)


def test_the_path_goes_through_what_was_waited_for() -> None:
    """Of two chains of work, the one that ends later is critical; the other one is not part of the path."""
    spans = spans_of([
        # order, instruction, block, tiles, began, ready, loaded, done, signalled
        (0, 0, 0, 1, 10, 5, 10, 50, 60),
        (3, 3, 0, 1, 50, 230, 235, 300, 310),
        (1, 1, 1, 1, 12, 5, 12, 100, 110),
        (2, 2, 1, 1, 100, 115, 118, 200, 220),
    ])  # fmt: skip
    steps = critical_path(dla.assemble(TWO_CHAINS), Trace(spans, (0, 1), 320))
    assert steps == (
        Step(0, 12, None, 0, 0),
        Step(12, 110, 1, 1, 1),
        Step(110, 220, 2, 1, 2),
        Step(220, 310, 3, 0, 3),
        Step(310, 320, None, 0, 0),
    )


def test_a_block_that_is_busy_holds_up_what_was_ready() -> None:
    """What an instruction waited for last is the block's own work, where everything else was done before."""
    spans = spans_of([(0, 0, 0, 1, 0, 0, 0, 80, 95), (1, 1, 0, 1, 82, 0, 82, 90, 99)])
    steps = critical_path(dla.assemble(TWO_CHAINS), Trace(spans, (0,), 100))
    assert steps == (Step(0, 82, 0, 0, 0), Step(82, 99, 1, 0, 1), Step(99, 100, None, 0, 0))


def test_in_a_loop_the_execution_before_counts() -> None:
    """Each pass waits for the pass before; later executions of what it depends on are none of its business."""
    rows, t = [], 0
    for order, index in [(1, 1), (2, 2), (4, 1), (5, 2), (7, 1), (8, 2), (10, 4)]:
        rows.append((order, index, order % 2, 1, t, t + 5, t + 5, t + 50, t + 60))
        t += 60
    spans = spans_of(sorted(rows, key=lambda row: row[2]))
    steps = critical_path(dla.assemble(LOOP), Trace(spans, (0, 1), t))
    assert instructions(steps) == [1, 2, 1, 2, 1, 2, 4]
    assert [step.order for step in steps] == [1, 2, 4, 5, 7, 8, 10]


def test_what_is_done_along_is_waited_through() -> None:
    """An instruction without spans holds nothing up, but what it waits for does."""
    spans = spans_of([
        (0, 0, 0, 1, 0, 0, 0, 20, 25),
        (3, 3, 0, 1, 20, 115, 116, 150, 155),
        (1, 1, 1, 1, 0, 0, 0, 100, 110),
    ])  # fmt: skip
    steps = critical_path(dla.assemble(TWO_CHAINS), Trace(spans, (0, 1), 155))
    assert steps == (Step(0, 110, 1, 1, 1), Step(110, 155, 3, 0, 3))


def test_parts_of_an_instruction_are_walked_one_by_one() -> None:
    """Two spans of one execution on one block: the second ran behind the first, and that behind what was before."""
    spans = spans_of([
        (0, 0, 0, 1, 0, 0, 0, 50, 55),
        (1, 1, 0, 1, 52, 0, 52, 80, 85),
        (1, 1, 0, 1, 81, 0, 81, 120, 125),
    ])  # fmt: skip
    steps = critical_path(dla.assemble(TWO_CHAINS), Trace(spans, (0,), 125))
    assert steps == (Step(0, 52, 0, 0, 0), Step(52, 81, 1, 0, 1), Step(81, 125, 1, 0, 1))


def test_a_run_without_spans_is_one_stretch() -> None:
    """An empty program takes the time of its launch."""
    empty = np.zeros(0, SPAN)
    assert critical_path(dla.assemble(TWO_CHAINS), Trace(empty, (0,), 70)) == (Step(0, 70, None, 0, 0),)
    assert critical_path(dla.assemble(TWO_CHAINS), Trace(empty, (0,), 0)) == ()


def tensor_instructions(program: Program) -> list[int]:
    """What blocks have spans of."""
    return [i for i, x in enumerate(program.instructions) if x.row.unit is Exec.TENSOR]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(0, 60))
def test_stretches_are_the_run_whatever_was_recorded(seed: int, blocks: int, skew: int) -> None:
    """For random programs on a made-up machine: no hole, no overlap, and only instructions that ran."""
    rng = random.Random(seed)
    program = random_program(rng)
    orders = tensor_instructions(program) * 2
    trace = executed(program, orders, blocks, rng, skew)
    steps = critical_path(program, trace)
    assert_partition(steps, trace)
    assert set(instructions(steps)) <= {None, *orders}
    for before, after in pairwise(step for step in steps if step.instruction is not None):
        assert before.order < after.order


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 200))
def test_nonsense_ends_too(seed: int, count: int) -> None:
    """Spans that contradict each other give some partition, and no endless loop."""
    program = dla.assemble(LOOP)
    trace = nonsense(len(program.instructions), count, np.random.default_rng(seed))
    assert_partition(critical_path(program, trace), trace)


def test_a_large_trace_is_walked_to_its_beginning() -> None:
    """Two chains of 10,000 instructions on every multiprocessor of a large GPU."""
    count, blocks = 20_000, 132
    lines = "\n".join("    ACT.exp a, a\n    ACT.sin b, b" for _ in range(count // 2))
    program = dla.assemble(f".program p\n.state a : f32[4]\n.state b : f32[4]\nmain:\n{lines}\n    HALT\n")
    spans = np.zeros((blocks, count), SPAN)
    spans["order"] = spans["instruction"] = np.arange(count)
    spans["block"] = np.arange(blocks)[:, None]
    spans["began"] = spans["order"] * 1000
    spans["ready"] = spans["began"] + spans["order"] % 3 - 1
    spans["loaded"] = spans["began"] + 10
    spans["done"] = spans["began"] + 900
    spans["signalled"] = spans["began"] + 950 + spans["block"]
    trace = Trace(spans.reshape(-1), tuple(range(blocks)), count * 1000 + 500)
    steps = critical_path(program, trace)
    assert_partition(steps, trace)
    assert len(steps) > count // 3
