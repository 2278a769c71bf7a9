"""What the other instructions of the machine cost: rows on the whole machine, beside a kernel that has only theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from speed import attention, chains, convolution, matrix
from speed.bench import Bench
from speed.check import Check, alike
from speed.row import Bar, Case, Row, Work

ALONE = "a kernel with few instructions"


def case(bench: Bench, row: Row, few: Iterable[str]) -> Case:
    """The work of `row` (-> y) on two machines, on the same data; `few`: what the smaller one's kernel has."""
    plain = dataclasses.replace(bench, compile_mode=None, natives=None)
    whole, part = (row.case(dataclasses.replace(plain, only=frozenset(only))) for only in ((), few))

    def check() -> Check:
        return alike(whole.work.ours, part.work.ours, "y")

    if whole.twice is None or part.twice is None:
        return Case(Work(whole.work.ours, {ALONE: part.work.ours}), check)
    twice = Work(whole.twice.ours, {ALONE: part.twice.ours})
    return Case(Work(whole.work.ours, {ALONE: part.work.ours}), check, twice, whole.count)


def _chosen() -> list[tuple[Row, tuple[str, ...]]]:
    """Rows of each kind, and what their programs consist of."""
    named = {row.name: row for family in (chains, matrix, attention, convolution) for row in family.ROWS}
    return [
        (named["GEMV chain [1,2048]x[2048,2048] dep"], ("GEMM",)),
        (named["GEMM bf16 4096^3"], ("GEMM",)),
        (named["GEMM bf16 512^3 dep"], ("GEMM",)),
        (named["tiny dependent instruction"], ("EW",)),
        (named["ATTENTION b4 h16 s4096 d128 causal"], ("ATTENTION",)),
        (named["CONV n=32 128->128@28 3x3"], ("CONV",)),
    ]


ROWS = [
    Row("others", f"{row.name}, all instructions compiled in", lambda bench, row=row, few=few: case(bench, row, few),
        (Bar(ALONE, 0.97, 1.0),))
    for row, few in _chosen()
]  # fmt: skip
