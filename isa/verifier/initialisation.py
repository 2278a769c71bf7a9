"""V-INIT: no instruction reads bytes of scratch or output that nothing can have written before it.

What *may* have been written before an instruction is everything written earlier in program order and, inside a loop,
everything that the loop writes; inside a called function, everything that the program writes. In straight-line code
with static addresses this is exact. Where it is not, the golden machine watches (trap "uninitialised").
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from dla.isa.descriptor import Descriptor, Segment
from dla.isa.names import shown
from dla.isa.program import Instruction, Program
from dla.isa.reach import Reach
from dla.isa.table import Role
from dla.isa.verifier.aliasing import hull
from dla.isa.verifier.control import NO_LOOP, Flow
from dla.isa.verifier.rules import Report
from dla.isa.verifier.scalars import States
from dla.isa.verifier.strides import Range, runs

_WATCHED = (Segment.OUTPUT, Segment.SCRATCH)
_MAX_RUNS = 1024
"""Views of more runs of bytes are taken as a whole."""
_RUN_BUDGET = 500_000
"""Runs looked at in one program before all views are taken as wholes: keeps the time linear."""


def check(program: Program, flow: Flow, states: States, report: Report) -> None:
    """Report reads of bytes that nothing can have written."""
    _Check(program, flow, states, report).run()


class Spans:
    """A set of bytes: ranges, sorted, that neither touch nor overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Put bytes start..end (exclusive) into the set."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def covers(self, start: int, end: int) -> bool:
        """Whether all of bytes start..end are in the set."""
        at = bisect_right(self._starts, start) - 1
        return start >= end or (at >= 0 and end <= self._ends[at])

    def touches(self, start: int, end: int) -> bool:
        """Whether any of bytes start..end is in the set."""
        at = bisect_right(self._ends, start)
        return at < len(self._starts) and self._starts[at] < end


class _Check:
    """One pass over the main program, then one over the functions."""

    def __init__(self, program: Program, flow: Flow, states: States, report: Report) -> None:
        self._program, self._flow, self._states, self._report = program, flow, states, report
        self._reach = Reach(program)
        self._runs: dict[int, list[Range] | None] = {}
        self._budget = _RUN_BUDGET
        self._written = {segment: Spans() for segment in _WATCHED}
        # The set of bytes only grows, so static views need a look once.
        self._noted: set[Descriptor] = set()
        self._fine: set[int] = set()  # ids, which the program keeps alive
        self._added: set[int] = set()  # starts of functions whose writes are in `_written`

    def run(self) -> None:
        main = self._flow.functions[0]
        for index in range(main.start, main.end):
            instruction = self._program.instructions[index]
            mnemonic = instruction.row.mnemonic
            if mnemonic == "LOOP" and self._flow.loop_of[index] == NO_LOOP:
                for inner in range(index, self._flow.ends[index]):
                    self._add_writes(inner)
            self._check_reads(index, instruction)
            self._add_writes(index)
        for index in range(main.end, len(self._program.instructions)):
            self._add_writes(index)
        for index in range(main.end, len(self._program.instructions)):
            self._check_reads(index, self._program.instructions[index])

    def _add_writes(self, index: int) -> None:
        """Note what instruction `index` may write, with the functions that it calls."""
        instruction = self._program.instructions[index]
        if instruction.row.mnemonic == "CALL":
            target = instruction.attributes.get("target", 0)
            if target not in self._added:
                self._added.add(target)
                for inner in range(target, self._flow.functions[target].end):
                    self._add_writes(inner)
        for view in _operands(instruction, Role.OUT):
            if not view.is_dynamic:
                if view in self._noted:
                    continue
                self._noted.add(view)
            for start, end in self._covered(view) or [hull(view, self._reach, self._states.get(index))]:
                self._written[view.segment].add(start, end)

    def _check_reads(self, index: int, instruction: Instruction) -> None:
        for view in _operands(instruction, Role.IN):
            if id(view) in self._fine:
                continue
            written = self._written[view.segment]
            covered = self._covered(view)
            if covered is None:
                start, end = hull(view, self._reach, self._states.get(index))
                # Which of these bytes are read is not known, but all of them would be wrong.
                bad = None if start >= end or written.touches(start, end) else (start, end)
            else:
                bad = next((run for run in covered if not written.covers(*run)), None)
            if bad is None and covered is not None:
                self._fine.add(id(view))
            elif bad is not None:
                self._report.reject(
                    "V-INIT",
                    f"{instruction.name} reads bytes {bad[0]} to {bad[1] - 1} of segment {view.segment.text}"
                    f"{self._owner(view)}, and nothing can have written all of them before",
                    index,
                    "write the tensor first, or FILL it",
                )

    def _covered(self, view: Descriptor) -> list[Range] | None:
        """The exact bytes of `view`; None if they depend on registers or are too many runs."""
        if view.is_dynamic:
            return None
        if id(view) not in self._runs:
            self._runs[id(view)] = runs(view, _MAX_RUNS)
        covered = self._runs[id(view)]
        if covered is not None:
            self._budget -= len(covered)
        return covered if self._budget > 0 else None

    def _owner(self, view: Descriptor) -> str:
        if self._report.is_full:  # nobody would see it, and a hostile program may ask for it very often
            return ""
        for tensor in self._program.in_segment(view.segment):
            start = tensor.descriptor.offset
            if start <= view.offset < start + tensor.descriptor.span:
                return f" (tensor {shown(tensor.name)})"
        return ""


def _operands(instruction: Instruction, role: Role) -> Iterator[Descriptor]:
    """The operands of `role` that lie in segments that start uninitialised and are not empty."""
    for spec, view in zip(instruction.row.operands, instruction.operands, strict=True):
        if view is not None and spec.role is role and view.segment in _WATCHED and view.span:
            yield view
