"""One run on the golden machine: the instruction loop, and the two units that it feeds."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.emulator.blocks import BARRIERS, block_dependencies, block_starts
from dla.emulator.golden.memory import Memory, Resolved
from dla.emulator.golden.recorder import Recorder
from dla.emulator.golden.scalar import Registers, alu, compare
from dla.emulator.result import Probe, statistics
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array, DType, convert
from dla.isa.errors import TimeoutTrap, Trap
from dla.isa.program import Instruction, Program
from dla.isa.ranks import ALONE, COUNTED, Member, RankTable
from dla.isa.registers import Register
from dla.isa.shapes import parse
from dla.isa.table import Exec, Out, result_arrays

Perturb = Callable[[Array, Array, Resolved], Array]
"""(exact float result, tolerance, where it goes) -> another result that a machine may give; f64, of the same shape."""

Brought = Mapping[str, Array]
"""What one rank brings to a collective, by operand."""


@dataclass(frozen=True)
class Executed:
    """One instruction that was executed, for `trace`."""

    index: int
    name: str
    operands: tuple[str, ...]  # "out: f32[64, 10] output+0"
    outputs: Mapping[str, Probe]  # statistics of what it wrote
    elapsed: float  # seconds
    location: str | None = None
    rank: int | None = None  # in a run of several ranks


@dataclass
class _Loop:
    begin: int
    counter: Register
    count: int


class Execution:
    """The state of one run. `run` ends at HALT or by raising Trap."""

    def __init__(
        self, program: Program, memory: Memory, registers: Registers, accumulator: np.dtype[Any],
        trace: Callable[[Executed], None] | None = None, perturb: Perturb | None = None, timeout: float | None = None,
        recorder: Recorder | None = None,
    ) -> None:  # fmt: skip
        self.probes: dict[int, Probe] = {}
        self._program = program
        self._memory = memory
        self._registers = registers
        self._accumulator = accumulator
        self._trace = trace
        self._perturb = perturb
        self._recorder = recorder
        self._deadline = math.inf if timeout is None else time.perf_counter() + timeout
        self._messages = dict(program.debug.messages) if program.debug else {}
        self._attributes: dict[int, dict[str, Any]] = {}  # with defaults, by instruction index
        self._loops: list[_Loop] = []
        self._returns: list[int] = []
        self._collectives = {i for i, instruction in enumerate(program.instructions) if instruction.row.collective}
        self._given: tuple[Brought, Member] = {}, ALONE  # to the collective that is being executed

    def run(self, order: random.Random | None = None) -> None:
        """Execute from instruction 0 to HALT as the only rank; see `steps`."""
        for index in self.steps(order):
            self.take(index, gathered([self.bring(index)]), (0,))

    def steps(self, order: random.Random | None = None) -> Iterator[int]:
        """Execute from instruction 0 to HALT; `order` picks a random legal order inside each straight-line block.

        Stops before each collective, and gives its index: `take` executes it, and the next step goes on behind it.
        """
        pc: int | None = 0
        if order is None:
            while pc is not None:
                if pc in self._collectives:
                    yield pc
                    pc += 1
                else:
                    pc = self._traced(pc)
            return
        instructions, starts = self._program.instructions, block_starts(self._program)
        blocks: dict[int, list[set[int]]] = {}
        while pc is not None:
            if instructions[pc].row.mnemonic in BARRIERS:
                pc = self._traced(pc)
                continue
            if pc not in blocks:
                end = next(i for i in range(pc + 1, len(instructions) + 1)
                           if i in starts or instructions[i].row.mnemonic in BARRIERS)  # fmt: skip
                blocks[pc] = block_dependencies(self._program, pc, end)
            for index in shuffled(pc, blocks[pc], order):
                if index in self._collectives:
                    yield index
                else:
                    self._traced(index)
            pc += len(blocks[pc])

    def bring(self, index: int) -> Brought:
        """What this rank brings to the collective at `index`: copies of its inputs, as semantics gets them."""
        instruction = self._program.instructions[index]
        try:
            places = self._places(instruction)
            inputs = [o.name for o in instruction.row.inputs if o.name in places]
            return {name: self._widened(places[name], raw=instruction.row.raw).copy() for name in inputs}
        except Trap as trap:
            raise trap.at(instruction=index, location=self._program.location(index)) from None

    def take(self, index: int, brought: Brought, ranks: Sequence[int]) -> None:
        """Execute the collective at `index`: `brought` is what the ranks of its group, `ranks`, bring, `gathered`."""
        self._given = brought, self._member(index, ranks)
        self._traced(index)

    def _member(self, index: int, ranks: Sequence[int]) -> Member:
        """What this rank is among those of the group of a collective."""
        rank, pairs = self._registers.rank, self._program.instructions[index].attributes.get("pairs")
        listed = self._program.pairs[pairs - 1].pairs if pairs else ()
        source = next((ranks.index(sender) for sender, receiver in listed if receiver == rank), None)
        return Member(ranks.index(rank), len(ranks), source)

    def outputs(self) -> dict[str, Array]:
        """Copies of the output tensors, at the sizes that their dims have now."""
        found = {}
        for tensor in self._program.in_segment(Segment.OUTPUT):
            try:
                found[tensor.name] = self._memory.read(self._resolve(tensor.descriptor)).copy()
            except Trap as trap:
                written = trap.category != "uninitialised"
                problem = trap.detail if written else "parts of it were never written"
                raise Trap(trap.category, f"output '{tensor.name}' at HALT: {problem}") from None
        return found

    def _traced(self, index: int) -> int | None:
        """Execute instruction `index`, and say so; the index of the next one, None after HALT."""
        try:
            if time.perf_counter() > self._deadline:
                raise TimeoutTrap("timeout", "the run took longer than it was allowed to")
            if self._recorder is not None:
                recorded_from = time.perf_counter_ns()
                following = self._execute(index)
                self._recorder(index, recorded_from)
                return following
            if self._trace is None:
                return self._execute(index)
            places = self._places(self._program.instructions[index])
            began = time.perf_counter()
            following = self._execute(index)
            self._trace(self._describe(index, places, time.perf_counter() - began))
        except Trap as trap:
            raise trap.at(instruction=index, location=self._program.location(index)) from None
        return following

    def _execute(self, index: int) -> int | None:
        instruction = self._program.instructions[index]
        if instruction.row.unit is Exec.TENSOR:
            self._tensor(index, instruction)
            return index + 1
        control = _CONTROL.get(instruction.row.mnemonic)
        if control is not None:
            return control(self, index, self._resolved_attributes(index, instruction, keep_registers=True))
        _SCALAR[instruction.row.mnemonic](self, index, instruction)
        return index + 1

    # -- the tensor unit

    def _tensor(self, index: int, instruction: Instruction) -> None:
        """Read and widen operands, compute by the row's semantics, round once, store."""
        row = instruction.row
        places = self._places(instruction)
        first = places[row.outputs[0].name]
        out = Out(first.shape, first.descriptor.dtype)
        attributes = self._resolved_attributes(index, instruction)
        operands: dict[str, Array | None]
        if row.collective:
            operands, attributes = self._together(index, places, attributes)
        else:
            operands = {
                o.name: self._widened(places[o.name], raw=row.raw) if o.name in places else None for o in row.inputs
            }
        results = result_arrays(row, row.semantics(out, **operands, **attributes))  # type: ignore[misc]
        for spec, result in zip(row.outputs, results, strict=True):
            if spec.name not in places or result is None:
                continue
            place = places[spec.name]
            if self._perturb is not None and place.descriptor.dtype.is_float:
                tolerance = row.error.tolerance(result, place.descriptor.dtype, operands, attributes)
                result = self._perturb(result, np.broadcast_to(tolerance, result.shape), place)
            self._memory.write(place, convert(result, place.descriptor.dtype))

    def _together(
        self, index: int, places: Mapping[str, Resolved], attributes: Mapping[str, Any]
    ) -> tuple[dict[str, Array | None], dict[str, Any]]:
        """Operands and attributes of a collective. Traps ("extent") where it does not have a part for each rank."""
        given, member = self._given
        for spec, place in ((o, places[o.name]) for o in self._program.instructions[index].row.operands):
            if COUNTED in parse(spec.shape).fixed and place.shape[0] != member.size:
                raise Trap("extent", f"{spec.name} has {place.shape[0]} parts, and the group has {member.size} ranks")
        tables = [a.name for a in self._program.instructions[index].row.attributes if isinstance(a, RankTable)]
        return dict(given), {**attributes, **dict.fromkeys(tables, member)}

    def _places(self, instruction: Instruction) -> dict[str, Resolved]:
        """Where the operands that are present lie."""
        pairs = zip(instruction.row.operands, instruction.operands, strict=True)
        return {spec.name: self._resolve(d) for spec, d in pairs if d is not None}

    def _resolve(self, descriptor: Any) -> Resolved:
        return self._memory.resolve(descriptor, self._registers.ints)

    def _widened(self, place: Resolved, *, raw: bool) -> Array:
        """An operand as semantics gets it: floats in the accumulator's type, integers as i64, bools as they are."""
        return widen(self._memory.read(place), place.descriptor.dtype, self._accumulator, raw=raw)

    def _resolved_attributes(
        self, index: int, instruction: Instruction, *, keep_registers: bool = False
    ) -> dict[str, Any]:
        """Attributes with defaults, `sub` where the row has some, and registers' values in place of registers."""
        if index not in self._attributes:
            attributes = instruction.row.with_defaults(instruction.attributes)
            if instruction.row.subs:
                attributes["sub"] = instruction.sub
            self._attributes[index] = attributes
        attributes = self._attributes[index]
        if keep_registers:
            return attributes
        return {k: self._registers.get(v) if isinstance(v, Register) else v for k, v in attributes.items()}

    # -- the scalar unit

    def _loads(self, index: int, instruction: Instruction) -> None:
        (x,) = self._places(instruction).values()
        self._registers.set(instruction.attributes["dst"], self._memory.read(x).reshape(()).item())

    def _probe(self, index: int, instruction: Instruction) -> None:
        (x,) = self._places(instruction).values()
        tag = instruction.attributes.get("tag", 0)
        values = self._memory.read(x)
        self.probes[tag] = statistics(values, tag=tag, instruction=index, message=self._messages.get(index))

    def _assert(self, index: int, instruction: Instruction) -> None:
        if not self._registers.get(instruction.attributes["cond"]):
            code = instruction.attributes.get("code", 0)
            text = self._messages.get(index)
            raise Trap("assert", f"assertion failed, code {code}" + (f": {text}" if text else ""))

    def _mov(self, index: int, instruction: Instruction) -> None:
        attributes = self._resolved_attributes(index, instruction, keep_registers=True)
        self._registers.set(attributes["dst"], self._registers.get(attributes["src"]))

    def _alu(self, index: int, instruction: Instruction) -> None:
        alu(self._registers, **self._resolved_attributes(index, instruction, keep_registers=True))

    def _cmp(self, index: int, instruction: Instruction) -> None:
        compare(self._registers, **self._resolved_attributes(index, instruction, keep_registers=True))

    # -- control flow: each gives the index of the next instruction

    def _halt(self, index: int, attributes: dict[str, Any]) -> int | None:
        return None

    def _loop(self, index: int, attributes: dict[str, Any]) -> int | None:
        count = attributes["count"]
        if isinstance(count, Register):
            value = self._registers.get(count)
            if not 0 <= value <= attributes["max"]:
                raise Trap("loop", f"{count} is {value}, outside 0..{attributes['max']}")
            count = int(value)
        self._registers.set(attributes["counter"], 0)
        if count == 0:
            return int(attributes["end"]) + 1
        self._loops.append(_Loop(index, attributes["counter"], count))
        return index + 1

    def _endloop(self, index: int, attributes: dict[str, Any]) -> int | None:
        loop = self._loops[-1]
        done = int(self._registers.get(loop.counter)) + 1
        self._registers.set(loop.counter, done)
        if done < loop.count:
            return loop.begin + 1
        self._loops.pop()
        return index + 1

    def _br(self, index: int, attributes: dict[str, Any]) -> int | None:
        wanted, refused = attributes["if"], attributes["unless"]
        taken = (wanted is None or self._registers.get(wanted)) and not (refused and self._registers.get(refused))
        if not taken:
            return index + 1
        if attributes["leaves"]:
            del self._loops[-attributes["leaves"] :]
        return int(attributes["target"])

    def _call(self, index: int, attributes: dict[str, Any]) -> int | None:
        self._returns.append(index + 1)
        return int(attributes["target"])

    def _ret(self, index: int, attributes: dict[str, Any]) -> int | None:
        return self._returns.pop()

    # -- tracing

    def _describe(self, index: int, places: Mapping[str, Resolved], elapsed: float) -> Executed:
        instruction = self._program.instructions[index]
        written = {o.name for o in instruction.row.outputs if o.name in places}
        operands = [
            f"{name}: {p.descriptor.dtype.text}{list(p.shape)} {p.descriptor.segment.text}+{p.offset}"
            for name, p in places.items()
        ]
        return Executed(
            index, instruction.name, tuple(operands),
            {name: statistics(self._memory.read(places[name])) for name in written},
            elapsed, self._program.location(index), self._registers.rank if self._registers.world > 1 else None,
        )  # fmt: skip


_SCALAR: dict[str, Callable[[Execution, int, Instruction], None]] = {
    "NOP": lambda execution, index, instruction: None,
    "MOV": Execution._mov,
    "ALU": Execution._alu,
    "CMP": Execution._cmp,
    "LOADS": Execution._loads,
    "ASSERT": Execution._assert,
    "PROBE": Execution._probe,
}
_CONTROL: dict[str, Callable[[Execution, int, dict[str, Any]], int | None]] = {
    "HALT": Execution._halt,
    "LOOP": Execution._loop,
    "ENDLOOP": Execution._endloop,
    "BR": Execution._br,
    "CALL": Execution._call,
    "RET": Execution._ret,
}


def gathered(brought: Sequence[Brought]) -> Brought:
    """What several ranks bring, with a leading axis of these ranks."""
    return {name: np.stack([one[name] for one in brought]) for name in brought[0]}


def widen(values: Array, dtype: DType, accumulator: np.dtype[Any], *, raw: bool) -> Array:
    """`values` of `dtype` as a row's semantics gets them (see `Row`)."""
    if raw or dtype is DType.BOOL:
        return values
    return values.astype(accumulator if dtype.is_float else np.int64, copy=False)


def shuffled(first: int, dependencies: Sequence[Collection[int]], order: random.Random) -> list[int]:
    """A random topological order of the instructions first, first + 1, ...; `dependencies[i]` are indices from 0."""
    waiting = [len(d) for d in dependencies]
    followers: list[list[int]] = [[] for _ in dependencies]
    for i, needed in enumerate(dependencies):
        for j in needed:
            followers[j].append(i)
    ready = [i for i, n in enumerate(waiting) if n == 0]
    chosen: list[int] = []
    while ready:
        at = order.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        i = ready.pop()
        chosen.append(first + i)
        for k in followers[i]:
            waiting[k] -= 1
            if waiting[k] == 0:
                ready.append(k)
    return chosen
