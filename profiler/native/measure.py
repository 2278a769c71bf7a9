"""The native kernels of a program's instructions: each is found, checked and timed once, however often it occurs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dla.isa.program import Instruction, Program
from dla.isa.table import Exec
from dla.profiler.native import NATIVE, WHY_NOT, check, clock
from dla.profiler.native.given import Call, Given, NoNativeError
from dla.profiler.native.operands import made_up, settled
from dla.profiler.profile import Native

BUDGET_SECONDS = 0.2
"""That the repetitions of one kernel may take, with cold caches and again with warm ones."""


def natives(
    program: Program, sizes: Mapping[int, int], chosen: Callable[[int], bool],
    progress: Callable[[str], None] = lambda step: None, budget: float = BUDGET_SECONDS, *, machine: str,
) -> dict[int, Native | str]:  # fmt: skip
    """By index, for every tensor instruction that is `chosen`: its native kernel measured, or why there is none.

    `sizes` are the registers whose values are known throughout the run.
    """
    timer = clock.clock_for(machine)
    known: dict[Any, Native | str] = {}
    found = {}
    for index, instruction in enumerate(program.instructions):
        if instruction.row.unit is Exec.TENSOR and chosen(index):
            still = settled(instruction, sizes)
            key = _key(still)
            if key not in known:
                progress(f"{index} {instruction.name}")
                known[key] = measured(still, timer, budget)
            found[index] = known[key]
    return found


def _key(instruction: Instruction) -> Any:
    """Equal for instructions that are the same work: wherever their operands lie."""
    operands = tuple(d and (d.dtype, d.dims, d.strides) for d in instruction.operands)
    return instruction.row.opcode, instruction.sub, operands, repr(sorted(instruction.attributes.items()))


def measured(instruction: Instruction, timer: clock.Clock, budget: float = BUDGET_SECONDS) -> Native | str:
    """The native kernel of one settled instruction, or why there is none."""
    mnemonic = instruction.row.mnemonic
    if mnemonic in WHY_NOT:
        return WHY_NOT[mnemonic]
    try:
        with torch.inference_mode(), precision(instruction):
            tensors = made_up(instruction, timer.device)
            call = NATIVE[mnemonic](Given(instruction, tensors))
            agrees, error = check.judged(instruction, tensors, call.run())
            cold, warm = timer.times(lambda: _call(instruction, timer).run, budget)
            return Native(call.kernel + ", on the CPU" * (timer.device == "cpu"), cold, warm, agrees, error)
    except NoNativeError as reason:
        return str(reason)
    except (RuntimeError, NotImplementedError) as error:  # what PyTorch says of shapes and types that it does not take
        return f"PyTorch does not take it: {_first_line(error)}"


def _call(instruction: Instruction, timer: clock.Clock) -> Call:
    """The native call on new operands."""
    return NATIVE[instruction.row.mnemonic](Given(instruction, made_up(instruction, timer.device)))


@contextlib.contextmanager
def precision(instruction: Instruction) -> Iterator[None]:
    """f32 products as exactly as the instruction asks, while the body runs; and convolutions that were tuned."""
    tf32 = instruction.attributes.get("math") == "tf32"
    backends = torch.backends
    cudnn = backends.cudnn
    before = (backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit)
    backends.cuda.matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    cudnn.benchmark, cudnn.benchmark_limit = True, 0  # 0: all of its kernels are tried, not the ten likely ones
    try:
        yield
    finally:
        backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit = before


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
