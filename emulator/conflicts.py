"""Dependencies over a whole program, with its loops, branches and calls: what the device plan counts by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise

from dla.emulator.blocks import BARRIERS, Accesses, Timelines, block_starts, may_be_empty
from dla.emulator.timeline import CROWD
from dla.isa.program import Program

WINDOW = 1024
"""Neighbouring instructions of a block among which dependencies are transitively reduced: bounds time and memory."""

EFFORT = 16
"""Visits that an instruction is worth, on average, before the program is taken as one where all is ordered."""

_EFFORT_FREE = 10_000


def conflicts(program: Program) -> list[Sequence[int]]:
    """For each instruction of a verified program, those that it must wait for; empty for those without operands.

    "Wait for j" means: for every execution of j that program order puts before. So j may come later in the program
    (in a loop around both), may be the instruction itself, and may be one that never runs before. Waiting is
    transitive: where i waits for j and j for k, i need not name k; inside straight-line code most such k are left
    out. A collective waits for those before it, whatever memory they use: ranks meet in each, so in another order on
    one rank they would wait for each other, or take what is for another. Programs in which loops and calls multiply
    into too many paths get a simpler answer, in which everything is ordered.
    """
    walk = _Walk(program)
    try:
        walk.function(0)
    except _TooManyPaths:
        return _serial(program)
    return _reduced(program, walk.found)


class _TooManyPaths(Exception):
    pass


class _Alive:
    """What the next instructions may have to wait for: accesses to memory, and the last collectives."""

    def __init__(self, program: Program, timelines: Timelines, collectives: frozenset[int] = frozenset()) -> None:
        self._program = program
        self._timelines = timelines
        self._collectives = collectives

    def __len__(self) -> int:
        return len(self._timelines) + len(self._collectives)

    def copy(self) -> _Alive:
        """A snapshot."""
        return _Alive(self._program, self._timelines.copy(), self._collectives)

    def merge(self, other: _Alive) -> None:
        """Make everything alive that is alive in either."""
        self._timelines.merge(other._timelines)
        self._collectives |= other._collectives

    def visit(self, index: int) -> set[int]:
        """Record instruction `index`; the instructions visited before that it must wait for."""
        found = self._timelines.visit(index)
        instruction = self._program.instructions[index]
        if instruction.row.collective:
            found |= self._collectives
            # One that may have no work waits for nobody then: those before it are still to be waited for.
            kept = self._collectives if may_be_empty(instruction) else frozenset()
            self._collectives = kept | {index}
        return found


class _Walk:
    """Visits instructions in the order of execution: loop bodies twice, callees at each call, branches both ways.

    Two visits of a body show what its second trip waits for in its first, and every later trip is like the second.
    """

    def __init__(self, program: Program) -> None:
        self.found: defaultdict[int, set[int]] = defaultdict(set)
        self._program = program
        self._alive = _Alive(program, Timelines(Accesses(program)))
        self._pending: defaultdict[int, list[_Alive]] = defaultdict(list)  # by the index where paths meet
        self._budget = EFFORT * len(program.instructions) + _EFFORT_FREE
        calls = (i for i in program.instructions if i.row.mnemonic == "CALL")
        starts = sorted({0} | {i.attributes.get("target", 0) for i in calls})
        self._function_end = dict(pairwise([*starts, len(program.instructions)]))

    def function(self, start: int) -> None:
        """Visit one function: the code up to where the next one starts, as the verifier cuts it."""
        end = self._function_end[start]
        self._range(start, end, end)
        self._meet(end)

    def _range(self, begin: int, end: int, function_end: int) -> None:
        pc = begin
        while pc < end:
            self._meet(pc)
            self._spend(1)
            instruction = self._program.instructions[pc]
            attributes = instruction.attributes
            match instruction.row.mnemonic:
                case "LOOP":
                    last = attributes["end"]
                    count = attributes.get("count", 0)
                    skipped = None if isinstance(count, int) and count > 0 else self._snapshot()
                    for _trip in range(2):
                        self._range(pc + 1, last, function_end)
                        self._meet(last)
                    if skipped is not None:
                        self._merge(skipped)
                    pc = last
                case "BR":
                    self._pending[attributes["target"]].append(self._snapshot())
                case "RET":
                    self._pending[function_end].append(self._snapshot())
                case "CALL":
                    self.function(attributes["target"])
                case _ if instruction.row.operands:
                    waits = self._alive.visit(pc)
                    self.found[pc] |= waits
                    # What may have no work leaves those before it to be waited for: they may get many.
                    if instruction.row.collective:
                        self._spend(len(waits))
                    elif may_be_empty(instruction):
                        self._spend(max(0, len(waits) - CROWD))
            pc += 1

    def _snapshot(self) -> _Alive:
        self._spend(len(self._alive))
        return self._alive.copy()

    def _meet(self, pc: int) -> None:
        for other in self._pending.pop(pc, ()):
            self._merge(other)

    def _merge(self, other: _Alive) -> None:
        self._spend(len(other))
        self._alive.merge(other)

    def _spend(self, visits: int) -> None:
        self._budget -= visits
        if self._budget < 0:
            raise _TooManyPaths


def _serial(program: Program) -> list[Sequence[int]]:
    """Everything in program order: inside a block each waits for the one before, its first one for all there are.

    So does what comes behind one that may have no work.
    """
    starts = block_starts(program)
    result: list[Sequence[int]] = []
    everything = tuple(i for i, instruction in enumerate(program.instructions) if instruction.row.operands)
    before = everything
    for index, instruction in enumerate(program.instructions):
        if index in starts:
            before = everything
        result.append(before if instruction.row.operands else ())
        if instruction.row.operands:
            before = everything if may_be_empty(instruction) else (index,)
    return result


def _reduced(program: Program, found: dict[int, set[int]]) -> list[Sequence[int]]:
    """`found` without those that others among them wait for already, as sorted tuples.

    Sound inside one straight-line stretch of code only: there, all executions of j that come before i come before
    the executions of k between j and i too. And only through what is sure to wait: an instruction whose dims a
    register makes 0 has no work, and waits for nobody.
    """
    starts = block_starts(program)
    stretch_of: list[int] = []
    ancestors: list[int] = []  # bit n: waits, directly or not, for instruction n of its stretch
    result: list[Sequence[int]] = []
    begin = 0
    for index, instruction in enumerate(program.instructions):
        if index in starts or instruction.row.mnemonic in BARRIERS or index - begin == WINDOW:
            begin = index
        stretch_of.append(begin)
        mine = sorted((j for j in found.get(index, ()) if begin <= j < index), reverse=True)
        mask, kept = 0, []
        for j in mine:
            if not mask >> (j - begin) & 1:
                kept.append(j)
                mask |= ancestors[j] | 1 << (j - begin)
        ancestors.append(0 if may_be_empty(instruction) else mask)
        result.append(kept)
    for index, others in found.items():
        near = [j for j in others if stretch_of[index] <= j < index]
        # Nothing but what lies between runs between `near` and this one, so what those wait for is complete.
        sure = (j for j in near if not may_be_empty(program.instructions[j]))
        far = others.difference(near, *(found[j] for j in sure))
        result[index] = tuple(sorted([*result[index], *_reduce_far(far, stretch_of, ancestors)]))
    return [tuple(r) for r in result]


def _reduce_far(far: Collection[int], stretch_of: Sequence[int], ancestors: Sequence[int]) -> list[int]:
    """Those of `far` (all before or all after the waiting instruction in their stretch) that no other one covers."""
    covered: defaultdict[int, int] = defaultdict(int)
    kept = []
    for j in sorted(far, reverse=True):
        begin = stretch_of[j]
        if not covered[begin] >> (j - begin) & 1:
            kept.append(j)
            covered[begin] |= ancestors[j]
    return kept
