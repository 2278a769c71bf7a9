"""Random programs that the verifier accepts: random instructions over random views, with loops, branches and calls.

random_program(random.Random(seed))             a program of several instructions
tiny_program(pieces, random.Random(seed))       one instruction: inputs in, outputs out
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from generators import Drawer, Pieces, Shape, random_pieces, registers, sized

from dla.isa.descriptor import MAX_RANK, Descriptor, Dim, Dynamic, Segment, bound_of, contiguous
from dla.isa.dtypes import Array, DType, convert
from dla.isa.instructions import BY_MNEMONIC, ROWS
from dla.isa.program import TENSOR_ALIGNMENT, ConstBlock, DimSymbol, Instruction, Program, Tensor
from dla.isa.ranks import RankPairs
from dla.isa.registers import BY_NAME, Register
from dla.isa.table import Alias, Exec, Operand, Role, Row

N = DimSymbol("n", 31, 5)
"""The named dim of random programs."""
ALONE = RankPairs("alone", ((0, 0),))
"""The pairs of random programs, whose worlds have one rank."""
MAX_ELEMENTS = 2**14
TENSOR_ROWS = tuple(row for row in ROWS if row.unit is Exec.TENSOR)
_TRAPPING = ("div", "mod", "pow")  # of integers: by zero, or to a negative power


@dataclass
class _Axis:
    """How one axis of a view lies in a declared tensor: declared extent, first position, step."""

    extent: Dim
    start: int = 0
    step: int = 1
    moved_by: int = 0  # largest value of the register that moves it


@dataclass
class Builder:
    """A program in the making."""

    rng: random.Random
    views: bool = True  # whether operands may be views
    draw: Drawer = field(init=False)
    tensors: list[Tensor] = field(default_factory=list)
    constants: list[ConstBlock] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    ends: dict[Segment, int] = field(default_factory=dict)
    written: list[Descriptor] = field(default_factory=list)  # what later instructions may read
    guarded: int = 0  # branches around what comes next: it may never write a whole output
    functions: list[tuple[int, list[Pieces]]] = field(default_factory=list)  # (index of the CALL, body)

    def __post_init__(self) -> None:
        self.draw = Drawer(self.rng, dynamic=(Dynamic(N.register, N.bound),))

    def tensor(self, segment: Segment, dtype: DType, dims: Shape, limit: int = 10) -> Descriptor:
        """A new tensor; constants get random values, integers below `limit`."""
        offset = -(-self.ends.get(segment, 0) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
        descriptor = contiguous(segment, dtype, dims, offset)
        self.ends[segment] = offset + descriptor.span
        self.tensors.append(Tensor(f"t{len(self.tensors)}", descriptor))
        if segment is Segment.CONST and descriptor.span:
            values = random_values(self.rng, dtype, sized(dims), limit)
            self.constants.append(ConstBlock(offset, np.ascontiguousarray(values).reshape(-1).view(np.uint8)))
        return descriptor

    def place(self, operand: Operand, shape: Shape, dtype: DType, limit: int = 10) -> Descriptor:
        """Memory for one operand: what was written before, or a new tensor, or a view of one."""
        fitting = [d for d in self.written if d.dims == shape and d.dtype is dtype]
        if operand.role is Role.IN and fitting and operand.name != "indices" and self.draw.chance():
            return self.rng.choice(fitting)
        readable = [Segment.CONST] if operand.name == "indices" else [Segment.INPUT, Segment.CONST, Segment.STATE]
        writable = [Segment.SCRATCH, Segment.STATE] + ([] if self.guarded else [Segment.OUTPUT])
        segment = self.rng.choice(readable if operand.role is Role.IN else writable)
        empty = 0 in sized(shape)  # its address could lie outside of everything
        if not self.views or empty or segment is Segment.OUTPUT or self.draw.chance(0.4):
            return self.tensor(segment, dtype, shape, limit)
        return self._view(segment, dtype, shape, operand.role is Role.IN, limit)

    def _view(self, segment: Segment, dtype: DType, shape: Shape, is_input: bool, limit: int) -> Descriptor:
        axes = [None if is_input and self.draw.chance(0.15) else self._axis(d) for d in shape]  # None: stride 0
        declared = [i for i, axis in enumerate(axes) if axis is not None]
        if self.draw.chance(0.4):
            self.rng.shuffle(declared)
        extents = [a.extent for i in declared if (a := axes[i]) is not None]
        extra = self.draw.chance(0.2) and len(declared) < MAX_RANK  # an axis that an index takes away
        index = self.rng.randint(0, 2) if extra else 0
        dims = (*([index + 1] if extra else []), *extents)
        if np.prod(sized(dims), dtype=np.float64) > MAX_ELEMENTS:
            return self.tensor(segment, dtype, shape, limit)
        base = self.tensor(segment, dtype, dims, limit)
        if base.span == 0:  # no address lies inside of nothing
            axes, index = [a and _Axis(a.extent) for a in axes], 0
        strides, offset, register, scale = [0] * len(shape), 0, None, 0
        if extra:
            offset += index * base.strides[0]
        for i, stride in zip(declared, base.strides[int(extra) :], strict=True):
            axis = axes[i]
            assert axis is not None
            strides[i] = stride * axis.step
            offset += axis.start * stride
            if axis.moved_by and register is None:
                register, scale = self.rng.randrange(8), stride * dtype.itemsize
                self._move(BY_NAME[f"s{register}"], self.rng.randint(0, axis.moved_by))
        address = base.offset + offset * dtype.itemsize
        return Descriptor(segment, dtype, shape, tuple(strides), address, register, scale)

    def _axis(self, dim: Dim) -> _Axis:
        if self.draw.chance(0.5):
            return _Axis(dim)
        start, step = self.rng.randint(0, 2), self.rng.choice([1, 1, 2]) if isinstance(dim, int) else 1
        moved_by = self.rng.choice([0, 0, 2])
        length = (bound_of(dim) - 1) * step + 1 if bound_of(dim) else 0
        return _Axis(start + length + self.rng.randint(0, 2) + moved_by, start, step, moved_by)

    def _move(self, register: Register, value: int) -> None:
        self.code.append(Instruction(BY_MNEMONIC["MOV"], "", (), _without_defaults("MOV", dst=register, src=value)))

    def add(self, pieces: Pieces) -> None:
        """Append one instruction; its outputs may be read afterwards."""
        limit = 10
        if any(o.name == "indices" for o in pieces.row.inputs):
            limit = bound_of(pieces.shapes["x"][pieces.attributes["axis"]])
        instruction = pieces.instruction(lambda o, shape, dtype: self.place(o, shape, dtype, limit))
        self.code.append(self._in_place(instruction))
        self.written += [d for o, d in zip(pieces.row.operands, self.code[-1].operands, strict=True)
                         if d is not None and o.role is Role.OUT and not d.offset_register]  # fmt: skip

    def _in_place(self, instruction: Instruction) -> Instruction:
        """`instruction`, perhaps with its output where one of its inputs is."""
        row, operands = instruction.row, list(instruction.operands)
        if row.alias is not Alias.SAME or self.draw.chance(0.7):
            return instruction
        for operand, descriptor in zip(row.operands, operands, strict=True):
            out = operands[0]
            if operand.role is not Role.IN or descriptor is None or out is None or 0 in descriptor.strides:
                continue
            if descriptor in self.written and descriptor.dims == out.dims and descriptor.dtype is out.dtype:
                others = [d for d in operands[1:] if d is not None and d != descriptor]
                if all(d.segment is not descriptor.segment for d in others):
                    return Instruction(row, instruction.sub, (descriptor, *operands[1:]), instruction.attributes)
        return instruction

    def block(self, count: int, rows: tuple[Row, ...], depth: int = 0) -> None:
        """Append about `count` instructions, some of them in loops and behind branches."""
        for _ in range(count):
            choice = self.rng.random()
            if choice < 0.06 and depth < 3:
                self._loop(rows, depth)
            elif choice < 0.12:
                self._branch(rows, depth)
            elif choice < 0.15 and depth == 0:
                self.functions.append((len(self.code), [self._tensor_pieces(rows)]))
                self.code.append(Instruction(BY_MNEMONIC["CALL"]))
            elif choice < 0.3:
                self.add(self._scalar_pieces())
            else:
                self.add(self._tensor_pieces(rows))

    def _tensor_pieces(self, rows: tuple[Row, ...]) -> Pieces:
        while True:
            pieces = random_pieces(self.rng.choice(rows), self.draw)
            integers = not any(d.is_float for d in pieces.dtypes.values())
            if not (pieces.row.mnemonic == "EW" and pieces.sub in _TRAPPING and integers):
                return pieces

    def _scalar_pieces(self) -> Pieces:
        while True:
            pieces = random_pieces(
                BY_MNEMONIC[self.rng.choice(["MOV", "ALU", "CMP", "LOADS", "PROBE", "NOP"])], self.draw
            )
            if pieces.sub not in _TRAPPING:
                return pieces

    def _loop(self, rows: tuple[Row, ...], depth: int) -> None:
        begin, breaks = len(self.code), []
        trips = self.rng.randint(1, 3)
        loop: dict[str, object] = {"counter": BY_NAME[f"s{16 + depth}"], "count": trips}
        if self.draw.chance(0.3):
            self._move(BY_NAME["s20"], trips)
            begin += 1
            loop |= {"count": BY_NAME["s20"], "max": 3}
        self.code.append(Instruction(BY_MNEMONIC["LOOP"]))
        self.block(self.rng.randint(1, 3), rows, depth + 1)
        if self.draw.chance(0.3):
            breaks.append(len(self.code))
            self.code.append(Instruction(BY_MNEMONIC["BR"]))
        end = len(self.code)
        self.code.append(Instruction(BY_MNEMONIC["ENDLOOP"], "", (), {"begin": begin} if begin else {}))
        self.code[begin] = Instruction(BY_MNEMONIC["LOOP"], "", (), loop | {"end": end})
        for index in breaks:
            attributes = {"target": end + 1, "leaves": 1, self._condition(): self.rng.choice(registers("p"))}
            self.code[index] = Instruction(BY_MNEMONIC["BR"], "", (), attributes)

    def _branch(self, rows: tuple[Row, ...], depth: int) -> None:
        """A branch over a block; what the block writes may not be read afterwards."""
        index, known = len(self.code), list(self.written)
        self.code.append(Instruction(BY_MNEMONIC["BR"]))
        self.guarded += 1
        self.block(self.rng.randint(1, 2), rows, depth + 1)
        self.guarded -= 1
        attributes = {"target": len(self.code), self._condition(): self.rng.choice(registers("p"))}
        self.code[index] = Instruction(BY_MNEMONIC["BR"], "", (), attributes)
        self.written = known

    def _condition(self) -> str:
        return self.rng.choice(["if", "unless"])

    def program(self, name: str = "random") -> Program:
        """Everything, ended by HALT and the bodies of functions."""
        self.code.append(Instruction(BY_MNEMONIC["HALT"]))
        known = list(self.written)
        for index, body in self.functions:
            self.code[index] = Instruction(BY_MNEMONIC["CALL"], "", (), {"target": len(self.code)})
            self.written = []
            for pieces in body:
                self.add(pieces)
            self.code.append(Instruction(BY_MNEMONIC["RET"]))
        self.written = known
        uses_n = any(
            isinstance(d, Dynamic) and d.register == N.register for t in self.tensors for d in t.descriptor.dims
        )
        return Program(
            name=name, instructions=tuple(self.code), tensors=tuple(self.tensors), dims=(N,) if uses_n else (),
            segment_bytes=dict(sorted(self.ends.items())), constants=tuple(self.constants), world=1, pairs=(ALONE,),
        )  # fmt: skip


def _without_defaults(mnemonic: str, **attributes: object) -> dict[str, object]:
    known = BY_MNEMONIC[mnemonic].all_attributes
    return {n: v for n, v in attributes.items() if v != known[n].default}


def random_values(rng: random.Random, dtype: DType, shape: tuple[int, ...], limit: int = 10) -> Array:
    """Random values: floats from the normal distribution, some special; integers from 0 below `limit`."""
    generator = np.random.default_rng(rng.randrange(2**32))
    if dtype is DType.BOOL:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if not dtype.is_float:
        return generator.integers(0, max(1, limit), shape).astype(dtype.numpy)  # 0: of an axis without elements
    values = generator.standard_normal(shape)
    special = generator.random(shape)
    values = np.where(special < 0.02, np.nan, np.where(special > 0.98, -np.inf, values))
    return convert(np.where((special > 0.5) & (special < 0.6), np.rint(values), values), dtype)


def random_program(rng: random.Random, *, instructions: int = 8, rows: tuple[Row, ...] = TENSOR_ROWS) -> Program:
    """A random program of about `instructions` instructions out of `rows`, over views of random tensors.

    To run it, give dim n a value from 1 to 5: perhaps no input mentions it.
    """
    builder = Builder(rng)
    builder.block(instructions, rows)
    return builder.program()


def tiny_program(pieces: Pieces, rng: random.Random, *, views: bool = True) -> Program:
    """A program of one instruction: its inputs are inputs, constants or state; its outputs output, scratch or state."""
    builder = Builder(rng, views=views)
    builder.add(pieces)
    return builder.program(f"tiny_{pieces.row.mnemonic.lower()}")
