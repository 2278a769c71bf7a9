"""What a program contains and asks for, before it runs: for people who inspect it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dla.isa import shapes
from dla.isa.descriptor import Segment
from dla.isa.program import Instruction, Program


@dataclass(frozen=True)
class Work:
    """Work of one or more executions, with every dynamic dim at its bound."""

    executions: int = 0
    flops: int = 0
    nbytes: int = 0  # bytes of all operands, each counted as often as it is used

    def __add__(self, other: Work) -> Work:
        return Work(self.executions + other.executions, self.flops + other.flops, self.nbytes + other.nbytes)

    def times(self, count: int) -> Work:
        """The work of `count` such executions."""
        return Work(self.executions * count, self.flops * count, self.nbytes * count)


@dataclass(frozen=True)
class Summary:
    """How often each instruction is written, and how much work a run does at most."""

    mix: dict[str, int]  # name -> times written, most frequent first
    work: dict[str, Work]  # name -> work of all its executions; branches taken as written, functions called once
    total: Work
    segments: dict[Segment, int]  # bytes


def work_of(instruction: Instruction) -> Work:
    """One execution of `instruction`. Its shapes must fit its row (the verifier sees to that)."""
    row = instruction.row
    bindings = shapes.Bindings({}, {})
    sizes: dict[str, int] = {}
    nbytes = 0
    for operand, descriptor in zip(row.operands, instruction.operands, strict=True):
        if descriptor is not None:
            shapes.unify(shapes.parse(operand.shape), descriptor.dims, bindings, operand.name)
            sizes[operand.name] = descriptor.elements
            nbytes += descriptor.elements * descriptor.dtype.itemsize
    sizes |= {name: bindings.size(name) for name in bindings.dims}
    return Work(1, row.flops(sizes, row.with_defaults(instruction.attributes)), nbytes)


def summarise(program: Program) -> Summary:
    """Count the instructions of a verified program, and the work of one run."""
    mix: Counter[str] = Counter()
    work: dict[str, Work] = {}
    trips = [1]
    for instruction in program.instructions:
        mix[instruction.name] += 1
        done = work_of(instruction).times(trips[-1])
        work[instruction.name] = work.get(instruction.name, Work()) + done
        if instruction.row.mnemonic == "LOOP":
            count = instruction.attributes.get("max") or instruction.attributes["count"]
            trips.append(trips[-1] * int(count))
        elif instruction.row.mnemonic == "ENDLOOP":
            trips.pop()
    total = sum(work.values(), Work())
    return Summary(dict(mix.most_common()), work, total, dict(program.segment_bytes))
