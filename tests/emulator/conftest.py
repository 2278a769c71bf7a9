"""Shared by the emulator's tests: run a text on the golden machine, and random programs of many small overlaps."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import dla
from dla.isa.descriptor import Descriptor, Dim, Dynamic, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import DimSymbol, Instruction, Program, Tensor
from dla.isa.registers import p, s

Run = Callable[..., dla.Result]
MakeProgram = Callable[..., Program]

ROWS, COLUMNS = 4, 4
BYTES = 256  # of scratch
SIZES = (DimSymbol("n", 28, 4), DimSymbol("m", 29, 2), DimSymbol("half", 30, 2))
"""The dims of programs with sized views."""
DOUBLE, CHANGING = 3, 2
"""Registers: one that holds twice the last of them, and one that holds now this, now that."""


@pytest.fixture
def run() -> Run:
    """Assemble a text, verify it, and run it once on the golden machine with the given inputs, dims and options."""

    def run(
        text: str, inputs: Mapping[str, Any] | None = None, dims: Mapping[str, int] | None = None, **options: Any
    ) -> dla.Result:
        return dla.Machine("golden", **options).run(dla.assemble(text), inputs or {}, dims)

    return run


@pytest.fixture
def overlapping_program() -> MakeProgram:
    """`make(seed, length, control=..., sized=...)`: i32 additions on overlapping views of 256 bytes of scratch.

    With `apart`, no result shares bytes with what it is made of: a GPU gives it, too.
    """
    return _Generator.make


class _Generator:
    """Views are rows, blocks of columns, odd and even elements, flat ranges; some move with a register.

    Where they are `sized`, some have dims in registers: the run's dims, a multiple of one, and one that changes.
    """

    def __init__(self, seed: int, *, sized: bool, apart: bool) -> None:
        self.random = random.Random(seed)
        self.apart = apart
        self.code: list[Instruction] = []
        self.rows: list[Dim] = [4, 4, *(Dynamic(r, 4) for r in (DOUBLE, CHANGING, 28))] if sized else [4]
        self.columns: list[Dim] = [2, 2, Dynamic(29, 2)] if sized else [2]
        self.shape: tuple[Dim, Dim] = 4, 2

    @classmethod
    def make(
        cls, seed: int, length: int, *, control: bool = False, sized: bool = False, apart: bool = False
    ) -> Program:
        """A program of about `length` instructions; with `control`, in loops, branches and functions."""
        self = cls(seed, sized=sized, apart=apart)
        whole = contiguous(Segment.SCRATCH, DType.I32, (BYTES // 4,))
        out = contiguous(Segment.OUTPUT, DType.I32, (BYTES // 4,))
        if sized:
            self.emit("ALU", sub="mul", dst=s(DOUBLE), a=s(SIZES[-1].register), b=2)
        self.emit("IOTA", (whole,))
        self.body(length, depth=2 if control else 0)
        self.emit("COPY", (out, whole))
        self.emit("HALT")
        if control:
            self.functions()
        tensors = (Tensor("memory", whole), Tensor("out", out))
        return Program(
            f"random{seed}", tuple(self.code), tensors,
            segment_bytes={Segment.SCRATCH: BYTES, Segment.OUTPUT: BYTES}, dims=SIZES if sized else (),
        )  # fmt: skip

    def emit(self, mnemonic: str, operands: tuple[Descriptor | None, ...] = (), sub: str = "", **given: Any) -> int:
        row = BY_MNEMONIC[mnemonic]
        padded = operands + (None,) * (len(row.operands) - len(operands))
        self.code.append(Instruction(row, sub, padded, given))
        return len(self.code) - 1

    def replace(self, index: int, **given: Any) -> None:
        old = self.code[index]
        self.code[index] = Instruction(old.row, old.sub, old.operands, {**old.attributes, **given})

    def body(self, length: int, depth: int) -> None:
        while length > 0:
            kind = self.random.randrange(12) if depth else 0
            if kind == 1:
                length -= self.loop(min(length, 6), depth)
            elif kind == 2:
                length -= self.branch(min(length, 4), depth)
            elif kind == 3:
                self.emit("CALL", target=-1)  # filled in by `functions`
                length -= 1
            else:
                self.tensor()
                length -= 1

    def loop(self, length: int, depth: int) -> int:
        counter, trips = s(10 + depth), self.random.randrange(4)
        if self.random.random() < 0.5:
            self.emit("MOV", dst=s(20), src=trips)
            begin = self.emit("LOOP", counter=counter, count=s(20), max=8)
        else:
            begin = self.emit("LOOP", counter=counter, count=trips)
        self.body(length, depth - 1)
        end = self.emit("ENDLOOP", begin=begin)
        self.replace(begin, end=end)
        return length + 2

    def branch(self, length: int, depth: int) -> int:
        self.emit("CMP", sub="lt", dst=p(0), a=s(1), b=self.random.randrange(-2, 8))
        at = self.emit("BR", **{"if": p(0)})
        self.body(length, depth - 1)
        self.replace(at, target=len(self.code))
        self.emit("NOP")
        return length + 2

    def functions(self) -> None:
        calls = [i for i, instruction in enumerate(self.code) if instruction.row.mnemonic == "CALL"]
        starts = []
        for _ in range(2 if calls else 0):
            starts.append(len(self.code))
            self.body(3, depth=0)
            self.emit("RET")
        for call in calls:
            self.replace(call, target=self.random.choice(starts))

    def tensor(self) -> None:
        if self.random.random() < 0.15:
            self.emit("ALU", sub="add", dst=s(1), a=s(1), b=1)
            self.emit("ALU", sub="and", dst=s(1), a=s(1), b=3)
        if len(self.rows) > 1:
            self.shape = self.random.choice(self.rows), self.random.choice(self.columns)
            if self.random.random() < 0.1:
                self.emit("MOV", dst=s(CHANGING), src=self.random.randrange(5))
        places = self.random.sample(range(3), 3) if self.apart else [self.random.randrange(3) for _ in range(3)]
        views = [self.view(64 * place) for place in places]
        self.emit("EW", tuple(views), sub=self.random.choice(("add", "sub", "xor")))

    def view(self, base: int) -> Descriptor:
        """A view of 8 elements of scratch, so that any three fit one EW."""
        match self.random.randrange(3 if self.apart else 5):
            case 0:  # two rows of a 4 x 4 matrix
                return contiguous(Segment.SCRATCH, DType.I32, self.shape, base + 16 * self.random.randrange(3))
            case 1:  # two columns of it
                return Descriptor(Segment.SCRATCH, DType.I32, self.shape, (4, 1), base + 4 * self.random.randrange(3))
            case 2:  # odd or even elements
                return Descriptor(Segment.SCRATCH, DType.I32, self.shape, (4, 2), base + 4 * self.random.randrange(2))
            case 3:  # one row, repeated
                return Descriptor(Segment.SCRATCH, DType.I32, self.shape, (0, 1), base + 4 * self.random.randrange(8))
            case _:  # moves with a register from 0 to 3
                return Descriptor(Segment.SCRATCH, DType.I32, self.shape, (2, 1), base, 1, 16)
