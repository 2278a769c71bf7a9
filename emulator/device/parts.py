"""Parts: large instructions of a chain are cut, and each part has its own rows of the result.

An instruction that waits for another one waits until all blocks are done with it. Where there are more tiles than
blocks, some blocks have one more than the others, which wait for these. But mostly its first rows need but the first
rows of what came before. So the plan cuts both in two. What parts wait for follows from their descriptors, as for all
instructions: while some blocks are still at work on the second part of one, others begin with the first of the next.

Where no block has more than one tile, the last of all blocks is still a good deal behind most, and all wait for what
comes from the L2 cache at the same time. So where all products that follow each other are like that, they are cut into
three or four: a part waits for that share of the blocks, and while one waits, another one loads.

Parts have the tiles that the whole would have, and every sum has its order: the result is the same, to the bit. Which
tiles that are may depend on whether there are parts, as then no block waits for those that have one more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from dla.emulator.blocks import BARRIERS
from dla.emulator.conflicts import conflicts
from dla.emulator.device.layout import COUNTERS, PATH_CONV, PATH_FLASH, PATH_GEMM, PATH_GENERIC
from dla.emulator.device.paths import Context, Schedule, schedule
from dla.emulator.device.paths.choices import Decision, Offer
from dla.isa.descriptor import Descriptor
from dla.isa.program import Instruction, Program

WORTH = 16_000
"""Clocks that a product takes, at least: controllers need their time for a part, also where a block has none of it."""
WORTH_ELEMENTS = 1 << 20
"""The same of the result of rows that memory bounds."""
PARTS = 2
SINGLE_PARTS, SINGLE_ROWS = 4, 128
"""Of a product of no more tiles than blocks: parts, at most; rows of a part, at least, since each reads all of b."""
SINGLE_CLOCKS = 24_000
"""What such a product takes, at most: the longer, the less is a wait, and the more of b has left the L2 cache then."""
MOST_BLOCKS = 0.5
"""Such products are cut if more than this share of the blocks have a tile of one of two that follow each other."""
MORE_TILES = 1 / 32
"""That all parts together may have, because cuts go through tiles."""
WORTH_ANOTHER_WAY = 0.9
"""What an instruction takes at most, beside the way that is the quickest by itself, so that it goes in another one."""
_CUT = {"GEMM": ("a",), "CONV": ("x",), "ATTENTION": ("q", "k", "v", "lse"), "NORM": ("x",), "EW": (), "ACT": ()}
"""What may be cut, and the operands that have to have the first axis of the result."""
_WHOLE = {"GEMM": ("b",), "CONV": ("w",), "NORM": ("gain", "bias", "mean", "var")}
"""Operands that do not have it. All others broadcast to the result."""
_SUBS = {"NORM": ("layer", "rms")}


@dataclass(frozen=True)
class Parted:
    """A program as it is executed."""

    program: Program
    origins: tuple[int, ...]  # for each instruction, the index of the one that it is, or is a part of
    decisions: Mapping[int, Decision[Any]] = field(default_factory=dict)  # of parts, by id: how the whole is executed

    def places(self) -> dict[int, range]:
        """Where the parts of each instruction that has any are, by its index in the original program."""
        begins: dict[int, int] = {}
        found = {}
        for at, origin in enumerate(self.origins):
            if begins.setdefault(origin, at) != at:
                found[origin] = range(begins[origin], at + 1)
        return found


def find(program: Program, context: Context) -> Parted:
    """Cut what is worth it in a verified `program`. `context` knows of it; what this adds to its tables is not used."""
    wholes, blocks = _candidates(program, context), context.target.blocks
    while len(wholes) > 1:
        linked = _linked(program, wholes, blocks)
        parted = _parted(program, wholes, linked)
        if len(parted.origins) > COUNTERS:  # each has its own
            left = wholes.keys() - linked
            if not left:
                break
        else:
            left = _unlike(parted, wholes, context) or _useless(parted, wholes, linked, blocks)
        if not left:
            return parted
        wholes = {index: whole for index, whole in wholes.items() if index not in left}
    return uncut(program)


def uncut(program: Program) -> Parted:
    """`program` without a cut."""
    return Parted(program, tuple(range(len(program.instructions))))


def _candidates(program: Program, context: Context) -> dict[int, Schedule]:
    """The schedules of instructions that are large enough for their parts to be, too; of straight-line code."""
    code = program.instructions
    if not context.target.hopper or any(i.row.mnemonic in BARRIERS for i in code[:-1]):
        return {}
    found = {}
    for index, instruction in enumerate(code):
        if cut(instruction, _places(instruction, 1, PARTS)):
            chosen = _in_turn(instruction, schedule(instruction, context), context)
            if _is_worth(instruction, chosen, context.target.blocks):
                found[index] = chosen
    return found


def _in_turn(instruction: Instruction, chosen: Schedule, context: Context) -> Schedule:
    """The schedule of a product whose parts leave no block waiting: then it does not matter how even its tiles are.

    So the way that makes the most of each tile may be better than the one that has a tile for each block.
    """
    decision = chosen.decision
    if decision is None or decision.seconds is not None or any(offer.even is None for offer in decision.offers):
        return chosen
    taken = decision.offer
    best = min(decision.offers, key=even_clocks)
    if even_clocks(best) > WORTH_ANOTHER_WAY * even_clocks(taken):
        return chosen
    decided = {id(instruction): replace(decision, choice=best.choice)}
    return schedule(instruction, replace(context, decided=decided))


def even_clocks(offer: Offer[Any]) -> float:
    """What a way takes in parts."""
    return offer.clocks if offer.even is None else offer.even


def _is_worth(instruction: Instruction, chosen: Schedule, blocks: int) -> bool:
    decision, out = chosen.decision, instruction.operands[0]
    if chosen.path in (PATH_GEMM, PATH_CONV) and decision is not None:
        return decision.offer.clocks >= WORTH
    if chosen.path == PATH_FLASH:
        return chosen.tiles >= blocks
    products = ("GEMM", "CONV", "ATTENTION")
    return chosen.path == PATH_GENERIC and instruction.row.mnemonic not in products and _size(out) >= WORTH_ELEMENTS


def _size(descriptor: Descriptor | None) -> int:
    return 0 if descriptor is None else descriptor.elements


def _parted(program: Program, wholes: Mapping[int, Schedule], linked: Set[int]) -> Parted:
    """The program with parts for each of `wholes`, as far as they can be cut between tiles."""
    executed: list[Instruction] = []
    origins: list[int] = []
    decisions: dict[int, Decision[Any]] = {}
    for index, instruction in enumerate(program.instructions):
        parts: Sequence[Instruction] = ()
        if index in wholes:
            decision = wholes[index].decision
            count = PARTS if index in linked else _single_parts(index, instruction, wholes[index])
            parts = cut(instruction, _places(instruction, _unit(instruction, decision), count))
            if decision is not None:
                decisions |= {id(part): decision for part in parts}
        executed += parts or (instruction,)
        origins += [index] * max(1, len(parts))
    return Parted(replace(program, instructions=tuple(executed)), tuple(origins), decisions)


def _unit(instruction: Instruction, decision: Decision[Any] | None) -> int:
    """Of what number the rows of a part are a multiple: those of a GEMM's tiles, or of a pair of them."""
    out = instruction.operands[0]
    if instruction.row.mnemonic != "GEMM" or decision is None or out is None or out.rank > 2:
        return 1
    rows: int = decision.choice.pair[0]
    return rows


def _linked(program: Program, wholes: Mapping[int, Schedule], blocks: int) -> Set[int]:
    """Those of `wholes` that are, or are connected to, other than products that give each block one tile at most."""
    before = conflicts(program)
    pairs = [{index, j} for index in wholes for j in before[index] if j in wholes]
    products = (PATH_GEMM, PATH_CONV)
    linked = {index for index, whole in wholes.items() if whole.path not in products or whole.tiles > blocks}
    while more := set().union(*(pair for pair in pairs if pair & linked)) - linked:
        linked |= more
    return linked


def _single_parts(index: int, instruction: Instruction, whole: Schedule) -> int:
    """How many parts one that is not linked is to have: two gain nothing. The first comes decoded with the launch."""
    out = instruction.operands[0]
    if index == 0 or out is None or whole.path != PATH_GEMM or whole.decision is None:
        return 1
    count = min(SINGLE_PARTS, out.elements // out.bounds[-1] // SINGLE_ROWS)
    return count if count > PARTS and whole.decision.offer.clocks <= SINGLE_CLOCKS else 1


def _places(instruction: Instruction, unit: int, count: int) -> tuple[int, ...]:
    """Where so many parts, or fewer, begin, but the first, in the result's first axis: at multiples of `unit`."""
    out = instruction.operands[0] if instruction.operands else None
    rows = out.bounds[0] if out is not None and out.rank else 0
    return tuple(sorted({rows * k // count // unit * unit for k in range(1, count)} - {0}))


def cut(instruction: Instruction, places: Sequence[int]) -> tuple[Instruction, ...]:
    """Parts that begin at 0 and at `places` of the result's first axis; none where that cannot be."""
    moving = _moving(instruction)
    if moving is None:
        return ()
    cuts = [0, *places, next(d.bounds[0] for d in instruction.operands if d is not None)]
    if not places or not all(begin < end for begin, end in pairwise(cuts)):
        return ()
    pairs = list(zip(instruction.operands, moving, strict=True))
    return tuple(
        replace(instruction, operands=tuple(_rows(d, *ends) if d is not None and moves else d for d, moves in pairs))
        for ends in pairwise(cuts)
    )


def _moving(instruction: Instruction) -> list[bool] | None:
    """For each operand, whether it has the first axis of the result; None where that is not so simple."""
    mnemonic, out = instruction.row.mnemonic, instruction.operands[0] if instruction.operands else None
    if mnemonic not in _CUT or instruction.sub not in _SUBS.get(mnemonic, (instruction.sub,)):
        return None
    if out is None or out.rank < 2 or any(d is not None and d.is_dynamic for d in instruction.operands):
        return None
    found = []
    for spec, descriptor in zip(instruction.row.operands, instruction.operands, strict=True):
        moves = descriptor is not None and descriptor.rank == out.rank and descriptor.bounds[0] == out.bounds[0]
        if descriptor is not None and spec.name in _WHOLE.get(mnemonic, ()):
            moves = False
            if mnemonic == "GEMM" and descriptor.rank > 2:
                return None  # each batch has its own
        elif descriptor is not None and not moves:
            broadcasts = descriptor.rank < out.rank or descriptor.bounds[0] == 1
            if spec.name in _CUT[mnemonic] or not broadcasts:
                return None
        found.append(moves)
    return found


def _rows(descriptor: Descriptor, begin: int, end: int) -> Descriptor:
    """A part of the first axis."""
    step = descriptor.strides[0] * descriptor.dtype.itemsize
    return replace(descriptor, dims=(end - begin, *descriptor.dims[1:]), offset=descriptor.offset + begin * step)


def _unlike(parted: Parted, wholes: Mapping[int, Schedule], context: Context) -> set[int]:
    """Those of `wholes` whose parts would be executed in another way."""
    code, places, found = parted.program.instructions, parted.places(), set()
    context = replace(context, decided=parted.decisions)
    for index, whole in wholes.items():
        if index not in places:
            found.add(index)
            continue
        parts = [schedule(code[at], context) for at in places[index]]
        alike = all((part.path, part.together) == (whole.path, whole.together) for part in parts)
        if whole.path != PATH_GENERIC:
            alike = alike and all(part.summary == whole.summary for part in parts)
        if not alike or sum(part.tiles for part in parts) > whole.tiles * (1 + MORE_TILES):
            found.add(index)
    return found


def _useless(parted: Parted, wholes: Mapping[int, Schedule], linked: Set[int], blocks: int) -> set[int]:
    """Those whose parts do not keep apart, or let nobody else begin earlier.

    Where one part would have to come after another, the whole reads what it writes: that is not the same. It is of use
    that a first part waits for parts of another instruction, but not for its last one, where one of the two has more
    tiles than there are blocks or, unless they are linked, a tile for most of the blocks.
    """
    before, places = conflicts(parted.program), parted.places()
    touching = {origin for origin, at in places.items() if any(j in at for i in at for j in before[i])}
    if touching:
        return touching
    useful: set[int] = set()
    for origin, at in places.items():
        for j in before[at[0]]:
            giver = parted.origins[j]
            if giver not in places or places[giver][-1] in before[at[0]]:
                continue
            most = max(wholes[giver].tiles, wholes[origin].tiles)
            if most > blocks * (1.0 if origin in linked else MOST_BLOCKS):
                useful |= {origin, giver}
    return places.keys() - useful
