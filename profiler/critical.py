"""The critical path of a trace: what the end of a run waited for, back to its beginning.

A span ran from when its block had turned to it, and everything that it depends on was done. If the latter came last,
the latest of the spans that it depends on held it up; else the span before it on its block did.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from dla.emulator.conflicts import conflicts
from dla.emulator.trace import Trace
from dla.isa.dtypes import Array
from dla.isa.program import Program
from dla.profiler.profile import Step


def critical_path(program: Program, trace: Trace) -> tuple[Step, ...]:
    """Stretches of time in order, which together are the run: from 0 to `trace.end`, without holes or overlaps.

    A stretch ends when what comes next could begin, so the time in which news of it travelled, or a block turned from
    one instruction to the next, is part of the later stretch. Stretches of no time are left out.
    """
    return _Walk(program, trace).steps()


class Executions:
    """The spans of a trace, by execution: those of all blocks that have one `order`. Executions count from 0."""

    def __init__(self, trace: Trace) -> None:
        spans = trace.spans
        self.orders: Array = np.unique(spans["order"])
        self.of_span: Array = np.searchsorted(self.orders, spans["order"])
        """The execution that each span is part of."""
        self.instructions: Array = np.zeros(len(self.orders), np.int64)
        self.instructions[self.of_span] = spans["instruction"]
        self._signalled: Array = spans["signalled"]

    def least(self, values: Array) -> Array:
        """Of each execution, the smallest of the `values` that its spans have."""
        found = np.full(len(self.orders), np.iinfo(np.int64).max)
        np.minimum.at(found, self.of_span, values)
        return found

    def most(self, values: Array) -> Array:
        """Of each execution, the largest."""
        found = np.full(len(self.orders), np.iinfo(np.int64).min)
        np.maximum.at(found, self.of_span, values)
        return found

    @cached_property
    def latest(self) -> Array:
        """Of each execution, the span that was signalled last."""
        when = self.most(self._signalled)
        last = np.flatnonzero(self._signalled == when[self.of_span])
        found = np.zeros(len(self.orders), np.int64)
        found[self.of_span[last]] = last
        return found

    @cached_property
    def by_instruction(self) -> dict[int, list[int]]:
        """The executions of each instruction, in order."""
        order = np.argsort(self.instructions, kind="stable")
        names, starts = np.unique(self.instructions[order], return_index=True)
        parts = np.split(order, starts[1:]) if len(names) else []
        return {int(name): part.tolist() for name, part in zip(names, parts, strict=True)}

    @cached_property
    def latest_so_far(self) -> Array:
        """Of each execution and all before it, the span that was signalled last."""
        signalled = self._signalled[self.latest]
        leads = signalled == np.maximum.accumulate(signalled)
        return np.asarray(self.latest[np.maximum.accumulate(np.where(leads, np.arange(len(leads)), 0))])

    def before(self, execution: int, instruction: int) -> int | None:
        """The last execution of `instruction` before `execution`; None where there is none."""
        found = self.by_instruction.get(instruction, [])
        at = bisect_left(found, execution)
        return found[at - 1] if at else None


class _Walk:
    """From the end to the beginning, one span after the other.

    Every step goes to an earlier execution, or back on one block (parts of an instruction are one execution): it ends.
    """

    def __init__(self, program: Program, trace: Trace) -> None:
        self._trace = trace
        self._spans = trace.spans
        self._waits: Sequence[Sequence[int]] = conflicts(program)
        self._executions = Executions(trace)
        self._needed: dict[int, list[int]] = {}
        self._everything = sum(1 for instruction in program.instructions if instruction.row.operands)

    def steps(self) -> tuple[Step, ...]:
        """See `critical_path`."""
        until, found = self._trace.end, []

        def stretch(begin: int, span: int | None) -> None:
            nonlocal until
            begin = max(0, min(begin, until))  # clocks of two multiprocessors may differ by tens of nanoseconds
            if begin < until:
                found.append(self._step(begin, until, span))
                until = begin

        at = int(np.argmax(self._spans["signalled"])) if len(self._spans) else None
        if at is not None:
            stretch(int(self._spans["signalled"][at]), None)
        while at is not None:
            span = self._spans[at]
            began, ready = int(span["began"]), int(span["ready"])
            earlier = self._held_up_by(at, ready > began)
            if earlier is None:
                stretch(began, at)
            else:
                stretch(min(int(self._spans["signalled"][earlier]), max(began, ready)), at)
            at = earlier
        stretch(0, None)
        return tuple(reversed(found))

    def _step(self, begin: int, end: int, at: int | None) -> Step:
        if at is None:
            return Step(begin, end, None, 0, 0)
        span = self._spans[at]
        return Step(begin, end, int(span["instruction"]), int(span["block"]), int(span["order"]))

    def _held_up_by(self, at: int, waited: bool) -> int | None:
        """The span that span `at` ran behind; None for the first one."""
        if waited:
            span = self._awaited(at)
            if span is not None:
                return span
        spans = self._spans
        same_block = at > 0 and spans["block"][at - 1] == spans["block"][at]
        return at - 1 if same_block and spans["order"][at - 1] <= spans["order"][at] else None

    def _awaited(self, at: int) -> int | None:
        """Of the spans that span `at` depends on, the one that was signalled last."""
        executions = self._executions
        mine, waits = int(executions.of_span[at]), self._waits[int(self._spans["instruction"][at])]
        if mine and len(waits) == self._everything:  # everything is ordered: no need to look at all
            return int(executions.latest_so_far[mine - 1])
        needed = (executions.before(mine, j) for j in self._recorded(int(self._spans["instruction"][at])))
        spans = [int(executions.latest[e]) for e in needed if e is not None]
        return max(spans, key=lambda span: int(self._spans["signalled"][span]), default=None)

    def _recorded(self, instruction: int) -> list[int]:
        """The instructions with spans that `instruction` waits for.

        Through those without: what another instruction does along (a normalisation in a product), or what never ran.
        """
        if instruction not in self._needed:
            found: list[int] = []
            seen, ahead = {instruction}, list(self._waits[instruction])
            while ahead:
                other = ahead.pop()
                if other in self._executions.by_instruction:
                    found.append(other)
                elif other not in seen:
                    seen.add(other)
                    ahead += self._waits[other]
            self._needed[instruction] = found
        return self._needed[instruction]
