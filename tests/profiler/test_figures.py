"""Figures of instructions: times, calls, work and roofs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_traces import executed, spans_of
from random_programs import random_program

import dla
from dla.emulator.trace import Trace
from dla.isa.table import Exec
from dla.profiler.critical import critical_path
from dla.profiler.figures import figures, outside
from dla.profiler.profile import Ceilings, Figures, Step

PROGRAM = """
.program p
.input  a : bf16[n <= 8, 64]
.input  b : bf16[64, 32]
.scratch h : bf16[n, 32]
.output y : bf16[n, 32]
main:
    GEMM     h, a, b
    ACT.relu y, h
    ACT.relu y, y
    HALT
"""
CEILINGS = Ceilings(bytes_per_second=1e9, flops={"bf16": 1e9, "f32": 5e8})


def found(spans: list[tuple[int, ...]], blocks: int = 2, dims: dict[str, int] | None = None) -> tuple[Figures, ...]:
    """Figures of a run with these spans."""
    program = dla.assemble(PROGRAM, file="p.dla")
    trace = Trace(spans_of(spans), tuple(range(blocks)), 1000)
    return figures(program, trace, critical_path(program, trace), CEILINGS, dims or {}, {0: "wgmma"})


SPANS = [
    # order, instruction, block, tiles, began, ready, loaded, done, signalled
    (0, 0, 0, 1, 0, 0, 10, 400, 410),
    (1, 1, 0, 1, 400, 520, 520, 620, 630),
    (0, 0, 1, 1, 100, 0, 110, 500, 510),
]  # fmt: skip


def test_times_of_blocks_become_times_of_the_machine() -> None:
    """Calls are executions, whatever number of blocks takes part; working and waiting are averages over blocks."""
    product, relu, never, _ = found(SPANS)
    assert (product.calls, relu.calls, never.calls) == (1, 1, 0)
    assert product.spent == pytest.approx((500e-9, 500e-9, 500e-9, 500e-9))
    assert relu.spent == pytest.approx((220e-9, 220e-9, 220e-9, 220e-9))
    assert never.spent == (0, 0, 0, 0)
    assert product.working == pytest.approx((400 + 400) / 2 * 1e-9)
    assert (relu.working, relu.waiting) == pytest.approx((50e-9, 60e-9))
    assert (product.time, relu.time, never.time) == pytest.approx((410e-9, 120e-9, 0))


def test_what_an_instruction_is_called_and_how_it_was_done() -> None:
    """The text is the disassembler's, the place the source's."""
    product, relu, *_ = found(SPANS)
    assert (product.name, product.text, product.location) == ("GEMM", "GEMM h, a, b", "p.dla:8")
    assert (product.way, relu.way) == ("wgmma", "")


def test_several_calls_have_a_mean_a_least_and_a_most() -> None:
    """Each execution counts from its first block's beginning to its last one's end."""
    spans = [(k, 0, 0, 1, 1000 * k, 0, 1000 * k, 1000 * k + 100 * (k + 1), 1000 * k + 600) for k in range(3)]
    product, *_ = found(spans)
    assert product.calls == 3
    assert product.spent == pytest.approx((600e-9, 200e-9, 100e-9, 300e-9))


def test_work_is_that_of_the_run_and_the_roof_is_the_ceilings() -> None:
    """Dims of the run count where they are known, else their bounds; the roof is the tighter of two ceilings."""
    product, relu, *_ = found(SPANS, dims={"n": 2})
    assert (product.flops, product.bytes) == (2 * 2 * 64 * 32, 2 * (2 * 64 + 64 * 32 + 2 * 32))
    assert product.roof == pytest.approx(8192e-9)
    assert (relu.flops, relu.bytes) == (64, 256)
    assert relu.roof == pytest.approx(256e-9)
    assert found(SPANS)[0].flops == 2 * 8 * 64 * 32


def test_types_without_a_ceiling_have_the_highest() -> None:
    """A roof is never higher than the hardware's: f16 may be as fast as whatever is fastest here."""
    program = dla.assemble(PROGRAM.replace("bf16", "f16"))
    trace = Trace(spans_of(SPANS), (0, 1), 1000)
    product = figures(program, trace, (), CEILINGS, {})[0]
    assert product.roof == pytest.approx(2 * 8 * 64 * 32 * 1e-9)


def test_tf32_has_a_ceiling_of_its_own() -> None:
    """The math mode decides, not the type in memory."""
    text = PROGRAM.replace("bf16", "f32").replace("GEMM     h, a, b", "GEMM h, a, b math=tf32")
    trace = Trace(spans_of(SPANS), (0, 1), 1000)
    product = figures(dla.assemble(text), trace, (), Ceilings(1e15, {"f32": 1e9, "tf32": 1e12}), {})[0]
    assert product.roof == pytest.approx(2 * 8 * 64 * 32 * 1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_attributed_times_sum_to_the_run(seed: int, blocks: int) -> None:
    """Every nanosecond of the run is one instruction's, or the launch's."""
    rng = random.Random(seed)
    program = random_program(rng)
    orders = [i for i, x in enumerate(program.instructions) if x.row.unit is Exec.TENSOR]
    trace = executed(program, orders, blocks, rng, skew=20)
    path = critical_path(program, trace)
    made = figures(program, trace, path, CEILINGS, {"n": 3})
    assert sum(f.time for f in made) + outside(path) == pytest.approx(trace.end * 1e-9)
    assert sum(f.calls for f in made) == len(orders)
    assert all(f.time == 0 for f in made if not f.calls)


def test_a_run_of_nothing_has_no_times() -> None:
    """No spans, no steps: zeros, not errors."""
    program = dla.assemble(".program p\nmain:\n    HALT\n")
    trace = Trace(spans_of([]), (), 0)
    (halt,) = figures(program, trace, (), CEILINGS, {})
    assert (halt.calls, halt.time, halt.spent, halt.roof) == (0, 0, (0, 0, 0, 0), 0)
    assert outside((Step(0, 7, None, 0, 0),)) == pytest.approx(7e-9)
