"""Random programs that the verifier accepts, run on the golden machine: a script, run by test_soundness.py.

    python tests/trust/soundness.py --accepted 5000 --seed 0

Programs are drawn from the table: instructions with strided, broadcast, overlapping and register-addressed views, in
loops, branches and functions, on one rank or several. The machine checks every address. An accepted program must end,
or trap for a reason that its data gives; a trap for an address or a dim is in order only where `unproven` said that it
could happen. Anything else ends the script with a traceback. The last line is a JSON object of counts.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))  # generators.py, which other tests share
from generators import Drawer, random_pieces

from dla.emulator.golden.machine import GoldenMachine
from dla.isa.container import read_bytes, write_bytes
from dla.isa.descriptor import Descriptor, Dynamic, Segment, bound_of, contiguous
from dla.isa.dtypes import Array, DType
from dla.isa.errors import Trap, VerifyError
from dla.isa.instructions import BY_MNEMONIC, ROWS
from dla.isa.program import ConstBlock, DimSymbol, Instruction, Program, Tensor
from dla.isa.ranks import RankPairs
from dla.isa.registers import RANK, p, s
from dla.isa.table import Exec, Operand, Role, Row
from dla.isa.verifier import unproven, verify

TENSOR_ROWS = [row for row in ROWS if row.unit is Exec.TENSOR]
SCALAR_ROWS = [BY_MNEMONIC[name] for name in ("MOV", "ALU", "CMP", "LOADS", "PROBE")]
READABLE = (Segment.INPUT, Segment.CONST, Segment.STATE, Segment.SCRATCH)
WRITABLE = (Segment.OUTPUT, Segment.STATE, Segment.SCRATCH)
NAMED_DIM = DimSymbol("n", 31, 5)
DYNAMIC = (Dynamic(31, 5), Dynamic(31, 3), Dynamic(4, 4), Dynamic(0, 4))
ADDRESS_REGISTERS = (0, 1, 4, 5, 31)
DATA_TRAPS = {"arithmetic", "index", "loop", "assert", "uninitialised", "extent"}


class ProgramWriter:
    """Draws one program. Registers: s0..s2 count loops, s4 and s5 are addresses and dims, s8..s15 hold anything."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.world = rng.choice((1, 1, 2, 3))
        self.draw = Drawer(rng, largest=5, dynamic=DYNAMIC, ranks=self.world)
        self.code: list[Instruction | None] = []
        self.used = dict.fromkeys(Segment, 0)  # bytes
        self.written: list[Descriptor] = []
        self.tensors: list[Tensor] = []
        self.calls: list[int] = []

    def program(self) -> Program:
        """The program: some blocks, HALT, and perhaps a function."""
        self.block(depth=0, instructions=self.rng.randint(1, 5))
        self.add("HALT")
        function = len(self.code)
        for site in self.calls:
            self.code[site] = _scalar("CALL", target=function)
        if self.calls:
            self.block(depth=2, instructions=2, calls=False)
            self.add("RET")
        sizes = {segment: size + self.rng.choice((0, 0, 64)) for segment, size in self.used.items()}
        data = np.frombuffer(self.rng.randbytes(sizes[Segment.CONST]), np.uint8) % 4
        constants = (ConstBlock(0, data),) if data.size else ()
        code = tuple(i for i in self.code if i is not None)
        ring = RankPairs("ring", tuple((rank, (rank + 1) % self.world) for rank in range(self.world)))
        return Program(
            "random", code, tuple(self.tensors), (NAMED_DIM,), sizes, constants, world=self.world, pairs=(ring,)
        )

    def add(self, name: str, **attributes: Any) -> None:
        """Append a scalar instruction."""
        self.code.append(_scalar(name, **attributes))

    def block(self, depth: int, instructions: int, calls: bool = True) -> None:
        """Append some instructions, loops, branches and calls."""
        for _ in range(instructions):
            kind = self.rng.random()
            if kind < 0.15 and depth < 3:
                self.loop(depth)
            elif kind < 0.22:
                self.branch(depth)
            elif kind < 0.26 and calls:
                self.calls.append(len(self.code))
                self.code.append(None)
            elif kind < 0.5:
                self.scalar()
            else:
                self.code.append(self.tensor_instruction(self.rng.choice(TENSOR_ROWS)))

    def loop(self, depth: int) -> None:
        """A loop, from which a branch may leave."""
        begin = len(self.code)
        self.code.append(None)
        self.block(depth + 1, self.rng.randint(1, 2), calls=False)
        leaving = len(self.code)
        if self.rng.random() < 0.2:
            self.code.append(None)
        end = len(self.code)
        self.add("ENDLOOP", begin=begin)
        if end > leaving:
            self.code[leaving] = _scalar("BR", target=end + 1, unless=p(self.rng.randrange(4)), leaves=1)
        count: dict[str, Any] = {"count": self.rng.randint(0, 4)}
        if self.rng.random() < 0.4:
            count = {"count": s(self.rng.choice((4, 5, 8, 31))), "max": self.rng.randint(1, 5)}
        self.code[begin] = _scalar("LOOP", counter=s(depth), end=end, **count)

    def branch(self, depth: int) -> None:
        """Some instructions that a branch may skip."""
        at = len(self.code)
        self.code.append(None)
        self.block(depth, 1, calls=False)
        condition: dict[str, Any] = {self.rng.choice(("if", "unless")): p(self.rng.randrange(4))}
        self.code[at] = _scalar("BR", target=len(self.code), **condition)

    def scalar(self) -> None:
        """Something that changes registers: any scalar instruction, or one that makes an address."""
        rng = self.rng
        if rng.random() < 0.4:
            row = rng.choice(SCALAR_ROWS)
            self.code.append(self.tensor_instruction(row))
            return
        target, source = s(rng.choice((4, 5))), rng.choice((*(s(i) for i in (0, 4, 5, 8, 31)), RANK))
        sub = rng.choice(("add", "sub", "mul", "mod", "min", "max", "and", "shr", "div"))
        if rng.random() < 0.5:
            self.add("MOV", dst=target, src=rng.randint(0, 4))
        else:
            self.add(f"ALU.{sub}", dst=target, a=source, b=rng.randint(1, 5))

    def tensor_instruction(self, row: Row) -> Instruction:
        """An instruction of `row` on random views."""
        pieces = random_pieces(row, self.draw)
        before = list(self.written)
        instruction = pieces.instruction(lambda operand, shape, dtype: self.place(operand, shape, dtype, before))
        self.written += [d for o, d in zip(row.operands, instruction.operands, strict=True) if d and o.role is Role.OUT]
        return instruction

    def place(self, operand: Operand, shape: tuple[Any, ...], dtype: DType, written: list[Descriptor]) -> Descriptor:
        """A view of `shape` for `operand`: what was written before, or somewhere in a segment."""
        rng = self.rng
        alike = [d for d in written if d.dims == shape and d.dtype is dtype]
        if alike and rng.random() < 0.6:
            return rng.choice(alike)
        segment = rng.choice(WRITABLE if operand.role is Role.OUT else READABLE)
        if segment is Segment.SCRATCH and operand.role is Role.IN and rng.random() < 0.9:
            segment = Segment.STATE
        strides = self.strides(shape, operand.role is Role.IN)
        view = Descriptor(segment, dtype, shape, strides)
        offset = -(-self.used[segment] // 16) * 16
        if rng.random() < 0.08:
            offset = rng.randrange(offset + 1) // dtype.itemsize * dtype.itemsize
        room = view.span
        register, scale = None, 0
        if rng.random() < 0.2:
            register = rng.choice(ADDRESS_REGISTERS)
            scale = rng.choice((1, 2, max(1, view.span // dtype.itemsize), -1)) * dtype.itemsize
            room += rng.choice((4, 5, 5, 3)) * abs(scale)
            if rng.random() < 0.5 and room:
                flat = contiguous(segment, DType.U8, (room,), offset)
                self.tensors.append(Tensor(f"t{len(self.tensors)}", flat))
        self.used[segment] = max(self.used[segment], offset + room)
        return Descriptor(segment, dtype, shape, strides, offset, register, scale)

    def strides(self, shape: tuple[Any, ...], may_repeat: bool) -> tuple[int, ...]:
        """Row-major, or with axes in another order, gaps between rows, or elements that repeat."""
        rng = self.rng
        order = list(range(len(shape)))[::-1]
        if rng.random() < 0.2:
            rng.shuffle(order)
        strides, step = [0] * len(shape), 1
        for axis in order:
            strides[axis] = step
            step *= max(1, bound_of(shape[axis])) + (rng.random() < 0.1)
            if may_repeat and rng.random() < 0.05:
                strides[axis] = rng.choice((0, 0, 1))
        return tuple(strides)


def _scalar(name: str, **attributes: Any) -> Instruction:
    mnemonic, _, sub = name.partition(".")
    row = BY_MNEMONIC[mnemonic]
    kept = {n: v for n, v in attributes.items() if v != row.all_attributes[n].default}
    return Instruction(row, sub, (None,) * len(row.operands), kept)


def _by_rank(program: Program, tensor: Tensor) -> Array:
    """Zeros on rank 0, ones on rank 1, and so on."""
    zeros = np.zeros(tensor.descriptor.bounds, tensor.descriptor.dtype.numpy)
    if program.world == 1:
        return zeros
    return np.stack([zeros + zeros.dtype.type(rank) for rank in range(program.world)])


def check(program: Program, dim: int) -> str:
    """Run an accepted program with the named dim at `dim`. Returns "ran" or the trap's category."""
    data = write_bytes(program)
    if write_bytes(read_bytes(data)) != data:
        raise AssertionError("the file does not give itself back")
    session = GoldenMachine().load(program)
    if program.world > 1:  # so that ranks go different ways
        session.set_state({t.name: _by_rank(program, t) for t in program.in_segment(Segment.STATE)})
    try:
        session.run({t.name: _by_rank(program, t) for t in program.in_segment(Segment.INPUT)}, {"n": dim})
    except Trap as trap:
        # "outside" is an address or a dim; rows also trap with "extent" where a dim is 0 that may not be.
        if trap.category == "extent" and "outside" in trap.detail:
            if trap.instruction not in {index for index, _ in unproven(program)}:
                raise
        elif trap.category not in DATA_TRAPS:  # "internal" where ranks are at different collectives, for one
            raise
        return trap.category
    return "ran"


def main() -> None:
    """Draw programs until enough were accepted, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--accepted", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    rules: collections.Counter[str] = collections.Counter()
    rows: collections.Counter[str] = collections.Counter()
    began = time.perf_counter()
    while counts["accepted"] < options.accepted:
        seed = f"{options.seed}/{counts['drawn']}"
        counts["drawn"] += 1
        rng = random.Random(seed)
        program = ProgramWriter(rng).program()
        try:
            verify(program)
        except VerifyError as error:
            rules.update({r.rule for r in error.rejections})
            continue
        counts["accepted"] += 1
        counts["instructions"] += len(program.instructions)
        rows.update({i.row.mnemonic for i in program.instructions})
        try:
            counts[check(program, rng.randint(0, NAMED_DIM.bound))] += 1
        except BaseException:
            print(f"program {seed}", file=sys.stderr)
            raise
    missing = sorted({row.mnemonic for row in (*TENSOR_ROWS, *SCALAR_ROWS)} - set(rows))
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({**counts, "missing": missing, "rejected": rules, "seconds": seconds}))


if __name__ == "__main__":
    main()
