"""Accesses of instructions, and what must wait for what inside one straight-line block of code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from dla.emulator.footprint import Footprint, footprint
from dla.emulator.timeline import Timeline
from dla.isa.attributes import Target
from dla.isa.descriptor import Descriptor, Dynamic, Segment
from dla.isa.program import Instruction, Program
from dla.isa.reach import Reach
from dla.isa.registers import Register, RegisterClass, s
from dla.isa.scalar_attributes import Reg
from dla.isa.table import Role

BARRIERS = frozenset(("HALT", "LOOP", "ENDLOOP", "BR", "CALL", "RET"))
"""Instructions that end a straight-line block."""

_ALWAYS = -1
"""In the place of a register: a dim that is always 0."""
_NONE: frozenset[int] = frozenset()
_Product = tuple[frozenset[int], int]
"""The registers that make it 0, and its bound."""


class Accesses:
    """The accesses of single instructions to writable segments; footprints are worked out once per descriptor."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._instructions = program.instructions
        self._reach = Reach(program)
        self._footprints: dict[int, Footprint] = {}  # by id of the descriptor, which the program keeps alive

    def of(self, index: int) -> tuple[list[tuple[Segment, Footprint]], list[tuple[Segment, Footprint]]]:
        """(reads, writes) of instruction `index`; read-only segments are left out."""
        reads: list[tuple[Segment, Footprint]] = []
        writes: list[tuple[Segment, Footprint]] = []
        instruction = self._instructions[index]
        for spec, descriptor in zip(instruction.row.operands, instruction.operands, strict=True):
            if descriptor is not None and descriptor.segment.writable:
                access = descriptor.segment, self._footprint(descriptor)
                (writes if spec.role is Role.OUT else reads).append(access)
        return reads, writes

    def idle_at(self, index: int) -> frozenset[int]:
        """The registers that may make instruction `index` one without work; none where it is sure to have some."""
        sizes = set(_unsure(self._instructions[index]))
        return _NONE.union(*(self._zero_at.get(size, (size,)) for size in sizes)) if sizes else _NONE

    @cached_property
    def _zero_at(self) -> Mapping[int, frozenset[int]]:
        return zero_at(self._program)

    def _footprint(self, descriptor: Descriptor) -> Footprint:
        found = self._footprints.get(id(descriptor))
        if found is None:
            found = footprint(descriptor, self._reach)
            if descriptor.is_dynamic:
                sizes = [dim.register for dim in descriptor.dims if isinstance(dim, Dynamic)]
                found = found._replace(void_at=_NONE.union(*(self._zero_at.get(size, _NONE) for size in sizes)))
            self._footprints[id(descriptor)] = found
        return found


class Timelines:
    """The timelines of all writable segments."""

    def __init__(self, accesses: Accesses) -> None:
        self._accesses = accesses
        self.by_segment = {segment: Timeline() for segment in Segment if segment.writable}

    def __len__(self) -> int:
        return sum(len(timeline) for timeline in self.by_segment.values())

    def copy(self) -> Timelines:
        """A snapshot."""
        other = Timelines(self._accesses)
        other.by_segment = {segment: timeline.copy() for segment, timeline in self.by_segment.items()}
        return other

    def merge(self, other: Timelines) -> None:
        """Make everything alive that is alive in either."""
        for segment, timeline in other.by_segment.items():
            self.by_segment[segment].merge(timeline)

    def visit(self, index: int) -> set[int]:
        """Record instruction `index`; the instructions visited before that it must wait for."""
        reads, writes = self._accesses.of(index)
        idle_at = self._accesses.idle_at(index)
        # What it writes is recorded last, so that it does not wait for itself (but for its execution before).
        asked = [self.by_segment[segment].waits(where, writes=True) for segment, where in writes]
        found: set[int] = set()
        for waits, _ in asked:
            found |= waits
        for segment, where in reads:
            timeline = self.by_segment[segment]
            waits, stand = timeline.waits(where, writes=False)
            found |= waits
            timeline.record(index, where, writes=False, stand=stand, idle_at=idle_at)
        for (segment, where), (_, stand) in zip(writes, asked, strict=True):
            self.by_segment[segment].record(index, where, writes=True, stand=stand, idle_at=idle_at)
        return found


def may_be_empty(instruction: Instruction) -> bool:
    """Whether a dim is 0, or held by a register, which may be 0: then it may be an instruction without work.

    Such a one waits for nobody, and is done at once. So who waits for it does not wait for those before it.
    """
    return next(_unsure(instruction), None) is not None


def _unsure(instruction: Instruction) -> Iterator[int]:
    """The registers of its dims, and _ALWAYS for each dim that is 0."""
    for descriptor in instruction.operands:
        for dim in descriptor.dims if descriptor is not None else ():
            if isinstance(dim, Dynamic):
                yield dim.register
            elif dim == 0:
                yield _ALWAYS


def zero_at(program: Program) -> Mapping[int, frozenset[int]]:
    """Of each integer register that holds the same wherever it is a dim, those any of which makes it 0 by being 0.

    Nobody writes it, or only the code that a run begins with, before any operand has such a dim. Where that multiplies
    what the run is given as its dims, those are what makes the product 0.
    """
    end = max(0, min(block_starts(program), default=0) - 1)
    written = [register_accesses(instruction)[1] for instruction in program.instructions]
    changing, sizes = set[Register | str]().union(*written[end:]), set[Register | str]()
    for index, instruction in enumerate(program.instructions):
        changing |= written[index] & sizes
        sizes |= {s(register) for register in _unsure(instruction) if register != _ALWAYS}
    given = (d for d in program.dims if not any(s(d.register) in some for some in written))
    products = {d.register: (frozenset((d.register,)), d.bound) for d in given}
    for instruction in program.instructions[:end]:
        to = instruction.attributes.get("dst")
        product = _product(instruction, products)
        if isinstance(to, Register) and to.is_int:
            products.pop(to.index, None)
            products |= {to.index: product} if product else {}
    return {
        register: products[register][0] if register in products else frozenset((register,))
        for register in range(RegisterClass.INT.count)
        if s(register) not in changing
    }


def _product(instruction: Instruction, known: Mapping[int, _Product]) -> _Product | None:
    """What makes the result of a multiplication 0, and its bound; None for others, and where it may overflow."""
    if instruction.name != "ALU.mul":
        return None
    zero_at, bound = _NONE, 1
    factors = instruction.row.with_defaults(instruction.attributes)
    for factor in (factors["a"], factors["b"]):
        if isinstance(factor, Register) and factor.is_int and factor.index in known:
            zero_at, bound = zero_at | known[factor.index][0], bound * known[factor.index][1]
        elif isinstance(factor, int) and factor > 0:
            bound *= factor
        else:
            return None
    return (zero_at, bound) if bound < 2**63 else None


def block_starts(program: Program) -> frozenset[int]:
    """Instructions that control flow may reach other than from the one before, or only conditionally."""
    found = set()
    for index, instruction in enumerate(program.instructions):
        if instruction.row.mnemonic in BARRIERS:
            found.add(index + 1)
            specs = instruction.row.all_attributes
            found |= {v for k, v in instruction.attributes.items() if isinstance(specs[k], Target)}
    return frozenset(found)


def block_dependencies(program: Program, begin: int, end: int) -> list[set[int]]:
    """For each instruction of the straight-line block begin..end, those of the block it must wait for, from 0.

    Memory, registers (read, written, or in a descriptor) and the order of probes and of collectives count.
    """
    timelines = Timelines(Accesses(program))
    written: dict[Register | str, int] = {}
    readers: dict[Register | str, set[int]] = {}
    result = []
    for index in range(begin, end):
        instruction = program.instructions[index]
        found = {j - begin for j in timelines.visit(index)} - {index - begin}
        reads, writes = register_accesses(instruction)
        for name in (*reads, *writes):
            found |= {written[name]} if name in written else set()
        for name in writes:
            found |= readers.pop(name, set())
        found.discard(index - begin)
        for name in writes:
            written[name] = index - begin
        for name in reads:
            readers.setdefault(name, set()).add(index - begin)
        result.append(found)
    return result


def register_accesses(instruction: Instruction) -> tuple[set[Register | str], set[Register | str]]:
    """(read, written) registers of one instruction.

    "probes" stands for the reports that PROBE leaves, "ranks" for the order of collectives, which all ranks keep.
    """
    reads: set[Register | str] = set()
    writes: set[Register | str] = set()
    specs = instruction.row.all_attributes
    for name, value in instruction.attributes.items():
        if isinstance(value, Register):
            spec = specs[name]
            (writes if isinstance(spec, Reg) and spec.writable else reads).add(value)
    for descriptor in instruction.operands:
        if descriptor is not None and descriptor.is_dynamic:
            reads |= {s(register) for register in _registers(descriptor)}
    if instruction.row.mnemonic == "PROBE":
        writes.add("probes")
    if instruction.row.collective:
        writes.add("ranks")
    return reads, writes


def _registers(descriptor: Descriptor) -> Iterable[int]:
    if descriptor.offset_register is not None:
        yield descriptor.offset_register
    yield from (d.register for d in descriptor.dims if isinstance(d, Dynamic))
