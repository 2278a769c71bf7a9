"""V-RANKS: every rank executes the same collectives, in the same order, with the same shapes.

A register or a byte of memory *differs* if it may hold other values on another rank: RANK does, and inputs, state and
shards, and whatever is computed from such; so does what is written where not all ranks get. Named dims do not (machines
see to that), nor does what a collective gives to all ranks alike. An instruction is *apart* if a branch or a loop that
depends on something that differs decides which ranks execute it; where ranks meet again, that ends. Registers are
followed through the program in the order of execution, memory as a whole. Collectives that are not apart, with dims
that do not differ, are the same on every rank: all ranks execute the same program.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from dla.isa.descriptor import Descriptor, Dynamic, Segment
from dla.isa.program import Instruction, Program
from dla.isa.reach import Range, Reach
from dla.isa.registers import RANK, Register, s
from dla.isa.scalar_attributes import Reg
from dla.isa.table import Exec, Role
from dla.isa.verifier.control import Flow
from dla.isa.verifier.initialisation import Spans
from dla.isa.verifier.registers import written
from dla.isa.verifier.rules import Report

_HINT = ("let all ranks execute it; a flag that ALLREDUCE or BROADCAST gives to all ranks may decide, if nothing else "
         "writes its tensor")  # fmt: skip
_MAX_PASSES = 32


def check(program: Program, flow: Flow, report: Report) -> None:
    """Report collectives that not all ranks execute alike."""
    if program.world == 1 or not any(instruction.row.collective for instruction in program.instructions):
        return
    found = _Analysis(program, flow)
    found.solve()
    for index, instruction in enumerate(program.instructions):
        if not instruction.row.collective:
            continue
        if index in found.apart:
            cause = found.apart[index]
            where = program.location(cause) or f"instruction {cause}"
            what = program.instructions[cause].name
            report.reject("V-RANKS", f"{instruction.name}: not all ranks get here, since {what} at {where} may go "
                          "another way on another rank", index, _HINT)  # fmt: skip
            continue
        for register in found.differing_dims(index):
            report.reject("V-RANKS", f"{instruction.name}: dim {register} may be another one on another rank", index,
                          "ranks work on equal shapes: compute it from WORLD, named dims and constants")  # fmt: skip


class _Analysis:
    """The least fixed point of what differs, and which instructions are apart."""

    def __init__(self, program: Program, flow: Flow) -> None:
        self.apart: dict[int, int] = {}  # instruction -> the branch or loop because of which it is
        self._program, self._flow = program, flow
        self._reach = Reach(program)
        self._differs = [1 << RANK.code] * len(program.instructions)  # registers before each, as bits of their codes
        self._memory = {segment: Spans() for segment in Segment}
        self._followers = _followers(program)
        self._returned = [0] * len(program.instructions)  # registers at the ends of functions, by their starts
        self._together = list(range(len(program.instructions) + 1))  # itself, or a later one if it is apart
        self._starts = sorted(flow.functions)
        for segment in (Segment.INPUT, Segment.STATE):
            self._memory[segment].add(0, program.segment_bytes.get(segment, 0))
        for shard in program.shards:
            piece = program.by_name[shard.tensor].descriptor
            self._memory[Segment.CONST].add(piece.offset, piece.offset + piece.span)

    def solve(self) -> None:
        """Repeat until nothing more is found. After many passes everything is taken to differ: the rest is quick."""
        passes = 0
        while self._pass():
            passes += 1
            if passes == _MAX_PASSES:
                self._differs = [-1] * len(self._differs)
                for segment, memory in self._memory.items():
                    memory.add(0, self._program.segment_bytes.get(segment, 0))

    def differing_dims(self, index: int) -> list[Register]:
        """Registers that hold dims of instruction `index` and may differ."""
        views = (view for view in self._program.instructions[index].operands if view is not None)
        registers = {s(dim.register) for view in views for dim in view.dims if isinstance(dim, Dynamic)}
        return sorted((r for r in registers if self._is_different(r, index)), key=lambda r: r.code)

    def _is_different(self, register: Register, index: int) -> bool:
        return bool(self._differs[index] >> register.code & 1)

    def _pass(self) -> bool:
        """One pass over the program. Whether it found anything new."""
        changed = False
        for index, instruction in enumerate(self._program.instructions):
            depends = self._depends(index, instruction)
            after = self._differs[index]
            for register in written(instruction):
                bit = 1 << register.code
                after = after | bit if depends or index in self.apart else after & ~bit
            if instruction.row.mnemonic == "ENDLOOP" and index in self.apart:  # it counts, on those that get here
                for register in written(self._program.instructions[instruction.attributes.get("begin", 0)]):
                    after |= 1 << register.code
            for following in self._followers[index]:
                changed |= _include(self._differs, following, after)
            if instruction.row.mnemonic == "RET":
                changed |= _include(self._returned, self._start_of(index), after)
            elif instruction.row.mnemonic == "CALL":
                changed |= _include(self._differs, index + 1, self._returned[instruction.attributes.get("target", 0)])
            if instruction.row.unit is Exec.TENSOR:
                changed |= self._write(index, instruction, depends)
            if depends and instruction.row.mnemonic in ("BR", "LOOP"):
                changed |= self._part(index)
        return changed

    def _depends(self, index: int, instruction: Instruction) -> bool:
        """Whether something that differs goes into `instruction`."""
        specs = instruction.row.all_attributes
        for name, value in instruction.attributes.items():
            spec = specs[name]
            read = isinstance(value, Register) and not (isinstance(spec, Reg) and spec.writable)
            if read and self._is_different(value, index):
                return True
        if instruction.row.alike and not instruction.attributes.get("group", 0):
            return False
        if instruction.row.collective:
            return True
        return any(
            self._is_placed_differently(view, index) or self._memory[view.segment].touches(*self._reach.of(view))
            for view in _operands(instruction, Role.IN)
        )

    def _is_placed_differently(self, view: Descriptor, index: int) -> bool:
        registers = [dim.register for dim in view.dims if isinstance(dim, Dynamic)]
        registers += [] if view.offset_register is None else [view.offset_register]
        return any(self._is_different(s(register), index) for register in registers)

    def _write(self, index: int, instruction: Instruction, depends: bool) -> bool:
        """Note the bytes that differ after `instruction`. Whether any are new."""
        changed = False
        for view in _operands(instruction, Role.OUT):
            if depends or index in self.apart or self._is_placed_differently(view, index):
                memory, (start, end) = self._memory[view.segment], self._reach.of(view)
                if not memory.covers(start, end):
                    memory.add(start, end)
                    changed = True
        return changed

    def _part(self, cause: int) -> bool:
        """Note what is apart because ranks go different ways at `cause`. Whether any of it is new."""
        before = len(self.apart)
        waiting = [*self._skipped(cause)]
        while waiting:
            begin, end = waiting.pop()
            index = self._next_together(begin)
            while index < end:
                self.apart[index] = cause
                self._together[index] = index + 1
                waiting += self._follows(index, cause)
                index = self._next_together(index)
        return len(self.apart) > before

    def _next_together(self, index: int) -> int:
        """The first instruction from `index` on that is not apart."""
        path = []
        while self._together[index] != index:
            path.append(index)
            index = self._together[index]
        for one in path:
            self._together[one] = index
        return index

    def _skipped(self, index: int) -> Iterator[Range]:
        """What a rank executes, and another one does not, if a branch or a loop goes different ways for them."""
        attributes = self._program.instructions[index].attributes
        if self._program.instructions[index].row.mnemonic == "LOOP":
            yield index + 1, attributes["end"] + 1
            return
        yield index + 1, attributes["target"]
        for loop, _ in zip(self._flow.around(index), range(attributes.get("leaves", 0)), strict=False):
            yield loop + 1, self._flow.ends[loop] + 1  # the others may go through the loop again

    def _follows(self, index: int, cause: int) -> Iterator[Range]:
        """What else is apart if `index` is."""
        match self._program.instructions[index].row.mnemonic:
            case "BR":
                yield from self._skipped(index)
            case "CALL":
                target = self._program.instructions[index].attributes.get("target", 0)
                yield target, self._flow.functions[target].end
            case "RET":
                yield index, self._flow.functions[self._start_of(index)].end
            case "HALT":  # while others go on: with all that may come after `cause`, or be called from there
                main = self._start_of(cause) == 0
                begin = min([cause + 1, *self._flow.around(cause)])
                yield (begin, self._flow.functions[0].end) if main else (0, len(self._program.instructions))

    def _start_of(self, index: int) -> int:
        """The start of the function that instruction `index` is in."""
        return self._starts[bisect_right(self._starts, index) - 1]


def _operands(instruction: Instruction, role: Role) -> Iterator[Descriptor]:
    for spec, view in zip(instruction.row.operands, instruction.operands, strict=True):
        if view is not None and spec.role is role and view.span:
            yield view


def _include(sets: list[int], index: int, more: int) -> bool:
    """Add `more` to a set of bits. Whether any are new."""
    new = bool(more & ~sets[index])
    sets[index] |= more
    return new


def _followers(program: Program) -> list[list[int]]:
    """For each instruction, those that may be executed right after it, but for returns to callers."""
    found = []
    for index, instruction in enumerate(program.instructions):
        attributes = instruction.attributes
        match instruction.row.mnemonic:
            case "HALT" | "RET":
                following = []
            case "CALL":
                following = [attributes.get("target", 0)]
            case "BR":
                always = attributes.get("if") is None and attributes.get("unless") is None
                following = [attributes["target"]] if always else [attributes["target"], index + 1]
            case "LOOP":
                following = [index + 1, attributes["end"] + 1]
            case "ENDLOOP":
                following = [attributes.get("begin", 0) + 1, index + 1]
            case _:
                following = [index + 1]
        found.append(following)
    return found
