"""Programs as they are for runs of one size: tiles that suit the largest run leave most of a GPU idle in a small one.

A plan is made for bounds. So dims get those that a run needs: each the next power of two, so that few plans serve all
sizes; and where a run's dims are these numbers themselves, registers are gone from the program's shapes and addresses.
What a program computes from its dims, before its first loop or branch, counts as they do.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from dla.emulator.blocks import BARRIERS, register_accesses
from dla.emulator.golden.scalar import Registers, alu
from dla.isa.descriptor import Descriptor, Dim, Dynamic
from dla.isa.errors import Trap
from dla.isa.program import Instruction, Program
from dla.isa.reach import Reach
from dla.isa.registers import Register, RegisterClass, s

_GROWING: dict[str, Callable[[int, int], int]] = {"add": operator.add, "mul": operator.mul, "min": min, "max": max}
"""Operations whose result is largest where their operands are, of numbers that are not negative; unless it wraps."""
_WRAPS = 2**63
"""Numbers from here on are others in an integer register."""
_GIVEN = -1
"""In the place of an instruction: registers that are set when a run begins."""


class Sizes(NamedTuple):
    """What a plan is for: the largest value of each named dim, in the program's order; `exact`: and no smaller ones."""

    bounds: tuple[int, ...]
    exact: bool


class Specialiser:
    """Which sizes there are plans for, of one program, and the programs that these are made of."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._writes = Counter(register for each in program.instructions for register in register_accesses(each)[1])
        self.largest = Sizes(tuple(symbol.bound for symbol in program.dims), exact=True)
        """Of a run with all dims at their bounds."""

    def sizes(self, dims: Mapping[str, int]) -> Sizes:
        """The least that a run with these `dims` fits."""
        own = tuple(dims[symbol.name] for symbol in self._program.dims)
        powers = (1 << max(0, size - 1).bit_length() for size in own)
        bounds = tuple(map(min, powers, self.largest.bounds))
        return Sizes(bounds, bounds == own)

    def program(self, sizes: Sizes) -> Program:
        """The program for runs of these sizes alone; its tensors lie where they lay."""
        if not self._program.dims:
            return self._program
        dims = tuple(replace(x, bound=size) for x, size in zip(self._program.dims, sizes.bounds, strict=True))
        known = _Known(self._program, {x.register: x.bound for x in dims}, self._writes, exact=sizes.exact)
        instructions = tuple(known.applied(index, each) for index, each in enumerate(self._program.instructions))
        return replace(self._program, instructions=instructions, dims=dims)


@dataclass(frozen=True)
class _Value:
    """What a register holds, or at most holds, behind the instruction at index `since`."""

    number: int
    since: int


class _Known:
    """The integer registers of which something is known, and what follows for instructions."""

    def __init__(
        self, program: Program, given: Mapping[int, int], writes: Mapping[Register | str, int], *, exact: bool
    ) -> None:
        self._exact = exact
        self._reach = Reach(program)
        self._values = {register: _Value(number, _GIVEN) for register, number in given.items()}
        for index, instruction in _first_block(program):
            target = instruction.attributes.get("dst")
            if isinstance(target, Register) and target.cls is RegisterClass.INT and writes[target] == 1:
                number = self._computed(instruction)
                if number is not None:
                    self._values[target.index] = _Value(number, index)

    def applied(self, index: int, instruction: Instruction) -> Instruction:
        """The instruction at `index` with what is known there."""
        operands = instruction.operands
        if not any(d is not None and d.is_dynamic for d in operands):
            return instruction
        # All operands of an instruction agree on what is a register. One beyond its bound is left: it has to trap.
        dims = [dim for d in operands if d is not None for dim in d.dims if isinstance(dim, Dynamic)]
        beyond = frozenset(
            dim.register for dim in dims
            if self._exact and (number := self._at(dim.register, index)) is not None and not 0 <= number <= dim.bound
        )  # fmt: skip
        return replace(instruction, operands=tuple(d and self._descriptor(d, index, beyond) for d in operands))

    def _at(self, register: int, index: int) -> int | None:
        value = self._values.get(register)
        return None if value is None or index <= value.since else value.number

    def _descriptor(self, descriptor: Descriptor, index: int, beyond: frozenset[int]) -> Descriptor:
        dims = tuple(self._dim(dim, index, beyond) for dim in descriptor.dims)
        found = replace(descriptor, dims=dims) if dims != descriptor.dims else descriptor
        return self._placed(found, index) if self._exact else found

    def _dim(self, dim: Dim, index: int, beyond: frozenset[int]) -> Dim:
        if not isinstance(dim, Dynamic) or dim.register in beyond:
            return dim
        number = self._at(dim.register, index)
        if number is None:
            return dim
        return number if self._exact else Dynamic(dim.register, min(dim.bound, number))

    def _placed(self, descriptor: Descriptor, index: int) -> Descriptor:
        """`descriptor` without its offset register, if that is known, and moves it to where it may lie."""
        register = descriptor.offset_register
        number = None if register is None else self._at(register, index)
        if number is None:
            return descriptor
        low, high = self._reach.of(descriptor)
        offset = descriptor.offset + number * descriptor.offset_scale
        moved = replace(descriptor, offset=offset, offset_register=None, offset_scale=0)
        return moved if low <= offset and offset + moved.span <= high else descriptor

    def _computed(self, instruction: Instruction) -> int | None:
        """What an instruction of the first block leaves in an integer register; None where that is not known."""
        name, sub = instruction.row.mnemonic, instruction.sub
        operands = [instruction.attributes.get(key, 0) for key in (("src",) if name == "MOV" else ("a", "b"))]
        numbers = [self._number(operand) for operand in operands]
        if name not in ("MOV", "ALU") or None in numbers:
            return None
        held = [number for number in numbers if number is not None]
        if not self._exact and min(held) < 0:
            return None
        if name == "MOV":
            return held[0]
        if not self._exact:
            most = _GROWING[sub](held[0], held[1]) if sub in _GROWING else _WRAPS
            return most if most < _WRAPS else None
        registers = Registers()
        try:
            alu(registers, sub, s(0), held[0], held[1])
        except Trap:
            return None  # it has to trap
        return registers.ints[0]

    def _number(self, operand: object) -> int | None:
        """An integer operand of the first block, where every register that is known has been written."""
        if isinstance(operand, Register):
            value = self._values.get(operand.index) if operand.cls is RegisterClass.INT else None
            return None if value is None else value.number
        return operand if isinstance(operand, int) else None


def _first_block(program: Program) -> Iterator[tuple[int, Instruction]]:
    """The instructions that every run executes first, each once: no branch goes back."""
    for index, instruction in enumerate(program.instructions):
        if instruction.row.mnemonic in BARRIERS:
            return
        yield index, instruction
