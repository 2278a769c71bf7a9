"""Small results that the next product takes as they come, word by word, ahead of the signal that all of them are there.

A signal takes its time: the release behind a block's stores waits for everything that the multiprocessor has under
way. So a plain streamed product (the giver) leaves its result in the exchange as well, memory of the machine's own,
from where others like it (takers) poll what they multiply. A taker still waits by counters for whatever the giver
waited for, and for all else that it depends on. Of the giver itself it needs no more than that result: when all of it
is there, the giver's blocks have read what they were to read. That a taker is done says nothing of its giver, so
whoever waits for the one waits for the other, too.

An ATTENTION of few queries gives likewise, and one that follows a product and the ROPE of its result takes part of it
(paths/rotation.py): what it writes has nothing to do with either of them, so it waits for neither. Where the product
can do without most of the blocks that such an ATTENTION may need, they have no part in it, and wait for its query with
all else at hand: keys, values, and where everything lies, which they would otherwise look up behind their part.

The machine has two sets of the exchange, which launches use in turns, and one place for each giver that runs once in a
launch at most; so nobody takes across a collective at which launches end (kernel/pause.cuh). For what is in a loop that
runs once, and whose body is straight-line code, there are TRIP_SETS of these places, which trips use in turns, and
blocks leave them without results again meanwhile (`end_trip` in kernel/controller.cuh). Other loops, and what is
called, take the ordinary way.

A counter tells of all executions so far. So a taker cannot wait for its giver in the trip before alone, and need not:
it does not touch what that left in memory. But ATTENTION reads keys and values that earlier trips have left, so it
takes only where what it waits for comes behind those.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dla.emulator.blocks import BARRIERS, block_starts, may_be_empty, register_accesses
from dla.emulator.device.layout import COUNTERS, MAX_WAITS, NORM_OF_ONE, PATH_HOST, PATH_STREAM, TRIP_SETS
from dla.emulator.device.paths import Context, Schedule, flash, rotation
from dla.emulator.device.paths.flash import FEW_TAKES_AT
from dla.emulator.device.paths.rotation import Rotation
from dla.emulator.device.paths.stream import GIVES_AT, NORM_AT, PLAIN_AT, TAKES_AT, is_row_major, sparing
from dla.emulator.device.placement import expected_tiles
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
SPARED_OF = 8
"""Blocks, of which one may be without work."""
LONGER, ENOUGH_LEFT = 2, 0.75
"""A product leaves blocks to a ROPE and an ATTENTION: as many as these may need, but no more than make its largest
share LONGER times what it was. If that is not ENOUGH_LEFT of what they may need, none."""
_PLACE = 1024
"""A giver's place is a multiple of."""
_PARTIALS = 0xFFFF
"""The bits of an ATTENTION's first number that say how many there may be."""


@dataclass(frozen=True)
class Loop:
    """What a loop's trips use in turns."""

    begin: int  # in a set, in bytes,
    bytes: int  # of the first of TRIP_SETS that follow each other


@dataclass(frozen=True)
class Left:
    """What a product leaves to the ATTENTION that takes its query."""

    blocks: int  # the first ones of all
    partials: int  # tiles that the ATTENTION may have at most: splits of its keys, of all groups


@dataclass
class Exchange:
    """Who takes from whom."""

    givers: dict[int, int] = field(default_factory=dict)  # of each taker
    passed: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by each taker: what it does not wait for
    takes: dict[int, int] = field(default_factory=dict)  # of each taker: where in a set it begins, in bytes
    places: dict[int, int] = field(default_factory=dict)  # of each giver: begin in a set, in bytes
    tables: dict[int, tuple[Descriptor, Descriptor]] = field(default_factory=dict)  # of takers that rotate
    spared: dict[int, int] = field(
        default_factory=dict
    )  # of each taker: blocks that are busy with its giver for longest
    left: dict[int, Left] = field(default_factory=dict)  # by the product, a giver
    loops: dict[int, Loop] = field(default_factory=dict)  # by the ENDLOOP
    set_bytes: int = 0

    def before(self, index: int, conflicting: Sequence[Sequence[int]]) -> Sequence[int]:
        """What an instruction waits for, where `conflicting` is what it has to come after, directly.

        What is not in front of it in the program is of the trip before. It does not wait for what is in front of it for
        the sake of that: if they had to be in order, so they would in the present trip.
        """
        found, passed = conflicting[index], self.passed.get(index)
        if passed is not None:
            inherited = {j for k in passed for j in conflicting[k] if j < k or j >= index}
            found = sorted({*found, *inherited} - {*passed})
        more = {k for j in found for k in self.passed.get(j, ()) if j < index or k >= index} if self.passed else ()
        return sorted({*found, *more}) if more else found

    def schedules(self, of: Sequence[Schedule], blocks: int) -> tuple[Schedule, ...]:
        """The schedules, in which givers and takers know their places."""
        found = list(of)
        for index, loop in self.loops.items():
            found[index] = replace(found[index], detail=(loop.bytes, loop.begin))
        for index in {*self.givers, *self.places}:
            numbers = list(found[index].detail)
            summary, product = found[index].summary, found[index].path == PATH_STREAM
            giver = self.givers.get(index)
            if index in self.places:
                if product:
                    numbers[GIVES_AT] = self.places[index] // _PIECE + 1
                else:
                    numbers[0] |= (self.places[index] // _PLACE + 1) << 16
            count = self.left[index].blocks if index in self.left else self.spared.get(index)
            if count is not None:
                fits = sparing(numbers, found[index].tiles, blocks, count)
                assert fits, "_leave and _spare have tried"
                summary += f", leaves {count} blocks" * (index in self.left)
            if giver is not None:
                numbers[TAKES_AT if product else FEW_TAKES_AT] = self.takes[index] // _PIECE + 1
                if giver in self.left and not product:
                    numbers[0] = numbers[0] & ~_PARTIALS | self.left[giver].partials
                summary += f", takes {'a' if product else 'q'} from {giver} as it comes"
            found[index] = replace(found[index], detail=tuple(numbers), summary=summary)
        return tuple(found)

    def apart(self) -> dict[int, tuple[int, int | None]]:
        """Takers that begin so many blocks behind the first of another instruction, or behind its last.

        That is the one that a taker does not wait for, between its giver and itself, or the giver, whose first blocks
        are spared.
        """
        found: dict[int, tuple[int, int | None]] = {k: (p[-1], None) for k, p in self.passed.items() if len(p) > 1}
        return found | {taker: (self.givers[taker], count) for taker, count in self.spared.items()}

    def leaving(self) -> dict[int, int]:
        """The products that begin behind so many of the first blocks."""
        return {giver: left.blocks for giver, left in self.left.items()}

    def add_rotated(self, places: tuple[int, int, int], program: Program, how: Rotation | None) -> None:
        """An ATTENTION, the last of three, takes what the product has made, ahead of the ROPE between them."""
        if how is not None and how.bytes <= MOST_BYTES:
            giver, rope, taker = places
            self.add(taker, giver, program, rope, offset=how.offset)
            self.tables[taker] = how.tables

    def add(self, taker: int, giver: int, program: Program, *between: int, offset: int = 0) -> None:
        """`taker` takes what lies from `offset` on in the giver's result, and does not wait for `between` either."""
        if giver not in self.places:
            out = _operand(program.instructions[giver], "out")
            self.places[giver] = self.set_bytes
            self.set_bytes += -(-out.elements * out.dtype.itemsize // _PLACE) * _PLACE
        self.givers[taker], self.passed[taker] = giver, (giver, *between)
        self.takes[taker] = self.places[giver] + offset

    def close(self, begin: int, end: int, conflicting: Sequence[Sequence[int]], program: Program) -> None:
        """End the loop of LOOP `begin` and ENDLOOP `end`: all that is there takes the ordinary way if some has to."""
        inside = range(begin, end)
        both = {k for k in inside if k in self.places or k in self.givers}
        if not both:
            return
        first = min(self.places[k] for k in both if k in self.places)
        waits = {k: self.before(k, conflicting) for k in inside}
        unsure = {k for k in inside if may_be_empty(program.instructions[k])}
        if all(self.is_behind(k, waits, unsure) for k in both if k in self.tables):
            self.loops[end] = Loop(first, self.set_bytes - first)
            self.set_bytes = first + TRIP_SETS * self.loops[end].bytes
            return
        self.set_bytes = first
        for each in (self.givers, self.passed, self.takes, self.places, self.tables, self.spared, self.left):
            for index in both & each.keys():
                del each[index]

    def is_behind(self, taker: int, waits: Mapping[int, Sequence[int]], unsure: Collection[int] = ()) -> bool:
        """Whether what a taker does not wait for, and so cannot for the trip before either, has been done in that.

        That has to follow from what instructions of the loop wait for, but those that are `unsure` to have any work.
        """
        reached: set[tuple[int, int]] = set()  # instruction, and trips ago
        left = [(taker, 0)]
        while left:
            index, ago = left.pop()
            for j in waits.get(index, ()):
                one = j, ago + (j >= index)
                if one not in reached and one[1] < 2 and j in waits:
                    reached.add(one)
                    left += [] if j in unsure else [one]
        return all((k, 1) in reached or (k, 0) in reached for k in self.passed[taker])


def find(
    program: Program, before: Sequence[Sequence[int]], schedules: Sequence[Schedule], context: Context
) -> Exchange:
    """What goes through the exchange; `before` as `conflicts` finds it."""
    found = Exchange()
    code = program.instructions
    plain = [each.path == PATH_STREAM and any(each.detail[PLAIN_AT:]) for each in schedules]
    if sum(plain) < 2 or len(schedules) > COUNTERS:  # else counters are shared
        return found
    block, loops = _blocks(program, {index for index, each in enumerate(schedules) if each.path == PATH_HOST})
    gives = [
        p or (flash.is_held(i, each) and is_row_major(_operand(i, "out")))
        for p, i, each in zip(plain, code, schedules, strict=True)
    ]
    for taker, instruction in enumerate(code):
        if taker in loops:
            found.close(loops[taker], taker, before, program)
        begin = block[taker]
        if begin is None or len(before[taker]) > MAX_WAITS:
            continue
        if not plain[taker]:
            front = rotation.in_front(program, taker, begin) if gives[taker] else None
            if front and plain[front[0]]:
                places = (*front, taker)
                waits = sum(len(before[j]) for j in places)
                splits, blocks = flash.least_splits(instruction), context.target.blocks
                if 2 * waits <= MAX_WAITS and splits and splits * flash.groups(instruction) <= blocks:
                    found.add_rotated(places, program, rotation.find(program, places, context))
                    _leave(found, places, splits * flash.groups(instruction), program, schedules, blocks)
            continue
        norm = schedules[taker].detail[NORM_AT]
        if norm and not norm & NORM_OF_ONE:
            continue
        for giver in before[taker]:
            if (
                max(0, taker - MOST_BETWEEN) <= giver < taker
                and gives[giver]
                and block[giver] == begin
                and 2 * (len(before[taker]) + len(before[giver])) <= MAX_WAITS
                and _fits(code[giver], instruction)
                and not _meets(program, context.reach, giver, taker)
            ):
                found.add(taker, giver, program)
                if not plain[giver]:
                    _spare(found, taker, flash.groups(code[giver]), schedules[taker], context.target.blocks)
    return found


def _spare(found: Exchange, taker: int, groups: int, chosen: Schedule, blocks: int) -> None:
    """Spares a product the blocks that put together, one for each of `groups`, what others have found."""
    if SPARED_OF * groups <= blocks and sparing(list(chosen.detail), chosen.tiles, blocks, groups):
        found.spared[taker] = groups


def _leave(
    found: Exchange, places: tuple[int, int, int], partials: int, program: Program, schedules: Sequence[Schedule],
    blocks: int,
) -> None:  # fmt: skip
    """Leave blocks to a ROPE and an ATTENTION of so many `partials`, if the product, the first of three, can."""
    product, rope, taker = places
    units, detail = schedules[product].tiles, list(schedules[product].detail)
    if taker not in found.tables or units < blocks or product in found.spared:
        return
    wanted = expected_tiles(program.instructions[rope], blocks) + partials
    left = min(wanted, blocks - math.ceil(units / (LONGER * math.ceil(units / blocks))))
    if left >= ENOUGH_LEFT * wanted and sparing(detail, units, blocks, left):
        found.left[product] = Left(left, partials)


def _blocks(program: Program, pauses: Collection[int]) -> tuple[list[int | None], dict[int, int]]:
    """For each instruction, where its stretch of straight-line code begins; None where it may run twice.

    But for loops without other loops, branches and calls, that run once: their LOOPs are given, by their ENDLOOPs.
    Behind `pauses` goes on another launch, with other places.
    """
    starts, code = block_starts(program) | {index + 1 for index in pauses}, program.instructions
    calls = [i.attributes.get("target", 0) for i in code if i.row.mnemonic == "CALL"]
    once = min(calls, default=len(code))
    found: list[int | None] = []
    loops: dict[int, int] = {}
    begin, depth, straight = 0, 0, 0  # behind the last ENDLOOP of such a loop
    for index, instruction in enumerate(code[:once]):
        begin = index if index in starts else begin
        if instruction.row.mnemonic == "LOOP":
            end = instruction.attributes["end"]
            inside = range(index + 1, end)
            if not depth and not any(code[i].row.mnemonic in BARRIERS or i in pauses for i in inside):
                loops[end], straight = index, end + 1
            depth += 1
        found.append(begin if not depth or index < straight else None)
        depth -= instruction.row.mnemonic == "ENDLOOP"
    return found + [None] * (len(code) - once), loops


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
