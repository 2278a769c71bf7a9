"""The native kernels of a program's instructions: each is found, checked and timed once, however often it occurs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dla.isa.program import Instruction, Program
from dla.isa.table import Exec
from dla.profiler.native import check, clock
from dla.profiler.native.given import NoNativeError
from dla.profiler.native.library import Library
from dla.profiler.native.operands import made_up, settled
from dla.profiler.profile import Native

BUDGET_SECONDS = 0.2
"""That the repetitions of one kernel may take, with cold caches and again with warm ones."""


def natives(
    program: Program, sizes: Mapping[int, int], chosen: Callable[[int], bool],
    progress: Callable[[str], None] = lambda step: None, budget: float = BUDGET_SECONDS, *, library: Library,
) -> dict[int, Native | str]:  # fmt: skip
    """By index, for every tensor instruction that is `chosen`: its native kernel measured, or why there is none.

    `sizes` are the registers whose values are known throughout the run.
    """
    timer = library.clock()
    known: dict[Any, Native | str] = {}
    found = {}
    for index, instruction in enumerate(program.instructions):
        if instruction.row.unit is Exec.TENSOR and chosen(index):
            still = settled(instruction, sizes)
            key = _key(still)
            if key not in known:
                progress(f"{index} {instruction.name}")
                known[key] = measured(still, library, timer, budget)
            found[index] = known[key]
    return found


def _key(instruction: Instruction) -> Any:
    """Equal for instructions that are the same work: wherever their operands lie."""
    operands = tuple(d and (d.dtype, d.dims, d.strides) for d in instruction.operands)
    return instruction.row.opcode, instruction.sub, operands, repr(sorted(instruction.attributes.items()))


def measured(
    instruction: Instruction, library: Library, timer: clock.Clock, budget: float = BUDGET_SECONDS
) -> Native | str:  # fmt: skip
    """The native kernel of one settled instruction, or why there is none."""
    mnemonic = instruction.row.mnemonic
    if mnemonic in library.why_not:
        return library.why_not[mnemonic]
    try:
        with library.asked(instruction):
            tensors = made_up(instruction, library)
            agrees, error = check.judged(library, instruction, tensors, library.run(instruction, tensors)())
            cold, warm = timer.times(lambda: library.run(instruction, made_up(instruction, library)), budget)
            return Native(library.kernel(instruction, tensors) + library.suffix, cold, warm, agrees, error)
    except NoNativeError as reason:
        return str(reason)
    except library.refusals as error:
        return f"{library.name} does not take it: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
