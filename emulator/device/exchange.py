"""Small results that the next product takes as they come, word by word, ahead of the signal that all of them are there.

A signal takes its time: the release behind a block's stores waits for everything that the multiprocessor has under
way. So a plain streamed product (the giver) leaves its result in the exchange as well, memory of the machine's own,
from where others like it (takers) poll what they multiply. A taker still waits by counters for whatever the giver
waited for, and for all else that it depends on. Of the giver itself it needs no more than that result: when all of it
is there, the giver's blocks have read what they were to read. That a taker is done says nothing of its giver, so
whoever waits for the one waits for the other, too.

The machine has two sets of the exchange, which launches use in turns, and one place for each giver. So givers and
takers are what runs once in a launch at most; loops and calls take the ordinary way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dla.emulator.blocks import block_starts, register_accesses
from dla.emulator.device.layout import COUNTERS, MAX_WAITS, NORM_OF_ONE, PATH_STREAM
from dla.emulator.device.paths import Schedule
from dla.emulator.device.paths.stream import GIVES_AT, NORM_AT, PLAIN_AT, TAKES_AT
from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.program import Instruction, Program
from dla.isa.reach import Reach
from dla.isa.registers import Register, s
from dla.isa.table import Role

MOST_BYTES = 16384
"""Of a result: each block polls all of it."""
MOST_BETWEEN = 16
"""Instructions from a giver to its taker."""
_PIECE = 16


@dataclass
class Exchange:
    """Who takes from whom."""

    givers: dict[int, int] = field(default_factory=dict)  # of each taker
    places: dict[int, int] = field(default_factory=dict)  # of each giver: begin in a set, in bytes
    set_bytes: int = 0

    def before(self, index: int, conflicting: Sequence[Sequence[int]]) -> Sequence[int]:
        """What an instruction waits for, where `conflicting` is what it has to come after, directly."""
        found, giver = conflicting[index], self.givers.get(index)
        if giver is not None:
            found = sorted({*found, *conflicting[giver]} - {giver})
        more = {self.givers[j] for j in found if j in self.givers} if self.givers else ()
        return sorted({*found, *more}) if more else found

    def schedules(self, of: Sequence[Schedule]) -> tuple[Schedule, ...]:
        """The schedules, in which givers and takers know their places."""
        found = list(of)
        for index in {*self.givers, *self.places}:
            numbers = list(found[index].detail)
            summary = found[index].summary
            if index in self.places:
                numbers[GIVES_AT] = self.places[index] // _PIECE + 1
            if index in self.givers:
                numbers[TAKES_AT] = self.places[self.givers[index]] // _PIECE + 1
                summary += f", takes a from {self.givers[index]} as it comes"
            found[index] = replace(found[index], detail=tuple(numbers), summary=summary)
        return tuple(found)


def find(program: Program, before: Sequence[Sequence[int]], schedules: Sequence[Schedule], reach: Reach) -> Exchange:
    """What goes through the exchange; `before` as `conflicts` finds it."""
    found = Exchange()
    plain = [each.path == PATH_STREAM and any(each.detail[PLAIN_AT:]) for each in schedules]
    if sum(plain) < 2 or len(schedules) > COUNTERS:  # else counters are shared
        return found
    block = _blocks(program)
    for taker, instruction in enumerate(program.instructions):
        if not plain[taker] or block[taker] is None or len(before[taker]) > MAX_WAITS:
            continue
        norm = schedules[taker].detail[NORM_AT]
        if norm and not norm & NORM_OF_ONE:
            continue
        for giver in before[taker]:
            if (
                max(0, taker - MOST_BETWEEN) <= giver < taker
                and plain[giver]
                and block[giver] == block[taker]
                and 2 * (len(before[taker]) + len(before[giver])) <= MAX_WAITS
                and _fits(program.instructions[giver], instruction)
                and not _meets(program, reach, giver, taker)
            ):
                found.givers[taker] = giver
                _place(found, program.instructions[giver], giver)
    return found


def _place(found: Exchange, instruction: Instruction, giver: int) -> None:
    if giver not in found.places:
        out = _operand(instruction, "out")
        found.places[giver] = found.set_bytes
        found.set_bytes += -(-out.elements * out.dtype.itemsize // 1024) * 1024


def _blocks(program: Program) -> list[int | None]:
    """For each instruction, where its stretch of straight-line code begins; None where it may run twice."""
    starts, code = block_starts(program), program.instructions
    calls = [i.attributes.get("target", 0) for i in code if i.row.mnemonic == "CALL"]
    found: list[int | None] = []
    begin, depth = 0, 0
    for index, instruction in enumerate(code):
        begin = index if index in starts else begin
        depth += instruction.row.mnemonic == "LOOP"
        found.append(None if depth or (calls and index >= min(calls)) else begin)
        depth -= instruction.row.mnemonic == "ENDLOOP"
    return found


def _operand(instruction: Instruction, name: str) -> Descriptor:
    operand = instruction.operand(name)
    assert operand is not None
    return operand


def _fits(giver: Instruction, taker: Instruction) -> bool:
    """Whether the result of one is a of the other, whole, in one place, and made of pairs."""
    out, a = _operand(giver, "out"), _operand(taker, "a")
    same = (out.segment, out.offset, out.dtype, out.elements) == (a.segment, a.offset, a.dtype, a.elements)
    fixed = not _registers(out) and not _registers(a)
    return (
        same
        and (fixed or out.dims == a.dims)
        and out.offset_register is None
        and a.offset_register is None
        and out.bounds[-1] % 2 == 0
        and out.elements * out.dtype.itemsize <= MOST_BYTES
    )


def _meets(program: Program, reach: Reach, giver: int, taker: int) -> bool:
    """Whether anything but the taker's a has to do with the giver's result.

    That is what the taker reads or writes besides, and what is written between the two: there, or to its registers.
    """
    out = _operand(program.instructions[giver], "out")
    others = [d for name, d in _operands(program.instructions[taker]) if name != "a"]
    registers = _registers(out)
    for index in range(giver + 1, taker):
        if registers & register_accesses(program.instructions[index])[1]:
            return True
        others += [d for _, d in _operands(program.instructions[index], only=Role.OUT)]
    low, high = reach.of(out)
    for other in others:
        begin, end = reach.of(other)
        if other.segment is out.segment and begin < high and low < end:
            return True
    return False


def _registers(d: Descriptor) -> set[Register | str]:
    return {s(dim.register) for dim in d.dims if isinstance(dim, Dynamic)}


def _operands(instruction: Instruction, only: Role | None = None) -> Iterator[tuple[str, Descriptor]]:
    for spec, descriptor in zip(instruction.row.operands, instruction.operands, strict=True):
        if descriptor is not None and only in (None, spec.role):
            yield spec.name, descriptor
