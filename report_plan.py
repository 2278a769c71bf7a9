"""The device machine's plan as text (`dla inspect --plan`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dla.report import quantity, table

if TYPE_CHECKING:
    from rich.table import Table

    from dla.emulator.device.plan import Plan
    from dla.isa.program import Instruction, Program

PATHS = ("generic", "gemm", "stream", "conv", "flash")
"""Names of the ways in which the machine executes tensor instructions, by layout.PATH_..."""


H200 = 132
"""Multiprocessors, and so blocks, of the GPU that plans are shown for."""


def view(program: Program) -> tuple[dict[str, Any], list[Table | str]]:
    """The plan of a verified `program` for an H200, as facts and as text. Raises InputError for dims from 2**31 on."""
    made, steps = planned(program, H200, hopper=True)
    target = f"an H200 ({H200} multiprocessors, Hopper's paths)"
    return plan_facts(made, steps, target), plan_parts(program, made, steps, target)


@dataclass(frozen=True)
class Step:
    """What the plan says of one instruction."""

    instruction: int
    name: str
    result: str  # type and shape of what it writes, at the largest dims
    path: str
    how: str  # tile shape, splits: the path's own words
    waits_for: tuple[int, ...] | None  # instructions; None for all before it
    first_block: int


def planned(program: Program, blocks: int, *, hopper: bool) -> tuple[Plan, list[Step]]:
    """The plan for a GPU of so many multiprocessors, with Hopper's paths or without, and what it says in words.

    Addresses are made up, so no GPU is needed. `program` is verified. Raises InputError for dims of 2**31 and more.
    """
    from dla.emulator.conflicts import conflicts
    from dla.emulator.device import plan
    from dla.emulator.device.layout import WAIT_FOR_ALL
    from dla.emulator.device.paths import Target
    from dla.isa.descriptor import Segment

    made = plan.build(program, {s: s.value << 40 for s in Segment}, Target(blocks, hopper=hopper))
    before = conflicts(program)
    steps = []
    for index, instruction in enumerate(program.instructions):
        if not instruction.row.operands:
            continue
        chosen, waits = made.schedules[index], made.waits[index]
        needed = None if waits[1] == WAIT_FOR_ALL else tuple(int(i) for i in before[index])
        first = int(waits[3]) % blocks
        steps.append(
            Step(index, instruction.name, _result(instruction), PATHS[chosen.path], chosen.summary, needed, first)
        )
    return made, steps


def plan_facts(made: Plan, steps: list[Step], target: str) -> dict[str, Any]:
    """The plan as facts."""
    return {
        "target": target,
        "image_bytes": int(made.images.nbytes),
        "tensor_maps": len(made.maps),
        "workspace_bytes": made.workspace_bytes,
        "instructions": [asdict(step) for step in steps],
    }


def plan_parts(program: Program, made: Plan, steps: list[Step], target: str) -> list[Table | str]:
    """A line on the whole, and a table of the instructions that touch memory."""
    head = (
        f"plan of {program.name} for {target}: {quantity(made.images.nbytes, 'B')} of instructions, "
        f"{len(made.maps)} tensor maps, {quantity(made.workspace_bytes, 'B')} of workspace"
    )
    found = table("", "instruction", "result", "path", "how", "waits for", "first block")
    for step in steps:
        waits = "all before" if step.waits_for is None else " ".join(map(str, step.waits_for))
        found.add_row(str(step.instruction), step.name, step.result, step.path, step.how, waits, str(step.first_block))
    return [head, found]


def _result(instruction: Instruction) -> str:
    """Type and shape of the first operand that is written, else of the first there is."""
    pairs = [(o, d) for o, d in zip(instruction.row.operands, instruction.operands, strict=True) if d is not None]
    written = [d for o, d in pairs if o.role.value == "out"] or [d for _, d in pairs]
    return f"{written[0].dtype.text}[{', '.join(map(str, written[0].bounds))}]" if written else ""
