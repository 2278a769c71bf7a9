"""What a trace says of each instruction: how long it took, what that was in operations and bytes, and what it could be.

All sums over spans are NumPy's: a trace may have millions of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dla.assembler import instruction_texts
from dla.emulator.trace import Trace
from dla.isa import cost
from dla.isa.dtypes import Array
from dla.isa.program import Instruction, Program
from dla.isa.table import Role
from dla.profiler.critical import Executions
from dla.profiler.profile import Ceilings, Figures, Step

NANOSECOND = 1e-9


def figures(
    program: Program, trace: Trace, critical: Sequence[Step], ceilings: Ceilings, dims: Mapping[str, int],
    ways: Mapping[int, str] | None = None,
) -> tuple[Figures, ...]:  # fmt: skip
    """Figures of every instruction of `program`, in its order.

    `critical` is the critical path of `trace`; `dims` are the named dims of the run; `ways` says how the machine
    executes instructions, by index.
    """
    count = len(program.instructions)
    measured = _Measured(trace, count)
    time = times(critical, count)
    texts, sizes = instruction_texts(program), at_run(program, dims)
    return tuple(
        Figures(
            index, instruction.name, texts[index], program.location(index), int(measured.calls[index]),
            float(time[index]), measured.spent[index], float(measured.working[index]), float(measured.waiting[index]),
            *work(instruction, sizes, ceilings), (ways or {}).get(index, ""),
        )
        for index, instruction in enumerate(program.instructions)
    )  # fmt: skip


def times(critical: Sequence[Step], count: int) -> Array:
    """Seconds on the critical path of each of `count` instructions."""
    steps = [(step.instruction, step.end - step.begin) for step in critical if step.instruction is not None]
    which, long = np.array(steps, np.int64).reshape(-1, 2).T
    return np.asarray(np.bincount(which, long, minlength=count) * NANOSECOND)


def outside(critical: Sequence[Step]) -> float:
    """Seconds of the critical path that are no instruction's: before the first and behind the last one."""
    return sum(step.end - step.begin for step in critical if step.instruction is None) * NANOSECOND


class _Measured:
    """Calls, and seconds: spent per call, and averages over blocks; each by instruction."""

    def __init__(self, trace: Trace, count: int) -> None:
        spans, executions = trace.spans, Executions(trace)
        self.calls: Array = np.bincount(executions.instructions, minlength=count)
        begins = np.maximum(spans["began"], spans["ready"])
        spent = executions.most(spans["done"]) - executions.least(spans["began"])
        self.spent = self._spent(spent * NANOSECOND, executions, count)
        share = NANOSECOND / max(1, trace.blocks)
        self.working: Array = np.bincount(spans["instruction"], spans["done"] - begins, count) * share
        self.waiting: Array = np.bincount(spans["instruction"], begins - spans["began"], count) * share

    def _spent(self, each: Array, executions: Executions, count: int) -> list[tuple[float, float, float, float]]:
        """(total, mean, least, most) by instruction; zeros for those that were never executed."""
        total = np.bincount(executions.instructions, each, count)
        least, most = np.full(count, np.inf), np.zeros(count)
        np.minimum.at(least, executions.instructions, each)
        np.maximum.at(most, executions.instructions, each)
        calls = np.maximum(self.calls, 1)
        columns = (total, total / calls, np.where(self.calls > 0, least, 0.0), most)
        return [(a, b, c, d) for a, b, c, d in zip(*(column.tolist() for column in columns), strict=True)]


# -- the work of an instruction, and what it takes at least


def at_run(program: Program, dims: Mapping[str, int]) -> dict[int, int]:
    """The registers whose values are known throughout the run: those of named dims, which nothing writes."""
    return {symbol.register: dims[symbol.name] for symbol in program.dims if symbol.name in dims}


def work(instruction: Instruction, sizes: Mapping[int, int], ceilings: Ceilings) -> tuple[int, int, float]:
    """(operations, bytes, least seconds that the ceilings allow) of one execution, where registers have `sizes`."""
    if not instruction.row.operands:
        return 0, 0, 0.0
    sized = cost.sized(instruction, sizes)
    flops, nbytes = cost.flops(sized), cost.bytes_moved(sized)
    return flops, nbytes, max(flops / peak(instruction, ceilings), nbytes / ceilings.bytes_per_second)


def peak(instruction: Instruction, ceilings: Ceilings) -> float:
    """Operations per second that the hardware can do of this instruction's kind.

    By the type of the first tensor read (tf32 where the instruction asks for it), or the highest ceiling where none was
    measured for that: so that the roof is never higher than the hardware's.
    """
    pairs = zip(instruction.row.operands, instruction.operands, strict=True)
    read = [d.dtype.text for o, d in pairs if d is not None and o.role is Role.IN]
    kind = read[0] if read else ""
    if instruction.attributes.get("math") == "tf32":
        kind = "tf32"
    return ceilings.flops.get(kind, max(ceilings.flops.values(), default=math.inf))
