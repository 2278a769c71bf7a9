"""The summary of a program: how often each instruction is written and executed, and the work."""

from __future__ import annotations

from dla.assembler import assemble
from dla.isa.instructions import ROWS
from dla.isa.summary import Work, summarise, work_of

TEXT = """
.program p
.input  a : f32[m <= 4, 8]
.input  b : f32[8, 2]
.output y : f32[m, 2]
main:
    LOOP s0, 3
    LOOP s1, 5
    GEMM y, a, b
    ENDLOOP
    ENDLOOP
    HALT
"""


def test_loops_multiply_the_work_inside() -> None:
    """A GEMM in a loop of 5 in a loop of 3 is executed 15 times, at the largest dims."""
    summary = summarise(assemble(TEXT))
    assert summary.mix == {"LOOP": 2, "ENDLOOP": 2, "GEMM": 1, "HALT": 1}
    once = Work(1, 2 * 4 * 2 * 8, 4 * (4 * 8 + 8 * 2 + 4 * 2))
    assert summary.work["GEMM"] == once.times(15)
    assert summary.work["ENDLOOP"].executions == 3 + 15
    assert summary.total.flops == 15 * once.flops


def test_the_work_of_every_instruction_can_be_told() -> None:
    """Each row's flops formula knows the dims that it names."""
    counted = {
        instruction.row.mnemonic
        for row in ROWS
        for instruction in assemble(row.example).instructions
        if work_of(instruction).flops >= 0
    }
    assert counted == {row.mnemonic for row in ROWS}
