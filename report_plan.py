"""The device machine's plan as text (`dla inspect --plan`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dla.report import quantity, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from dla.emulator.device.paths import Choices, Transport
    from dla.emulator.device.plan import Plan
    from dla.isa.program import Instruction, Program


def view(
    program: Program, dims: Mapping[str, int], ranks: int | None = None, transport: Transport | None = None
) -> tuple[dict[str, Any], list[Table | str]]:  # fmt: skip
    """The plan of a verified `program` for the GPU at hand, an H200 without one, as facts and as text.

    With what `dla run --tune` has measured on that GPU. It is that of runs with `dims`, the others at their bounds.
    `ranks` and `transport` as in `planned`. Raises InputError for dims from 2**31 on or that the program does not have,
    and where it is for another number of ranks.
    """
    from dla.console import note
    from dla.emulator.binding import checked_dims
    from dla.emulator.device import gpu, tuned
    from dla.emulator.device.laid_out import laid_out
    from dla.emulator.device.specialise import Specialiser

    here = gpu.present()
    shown = here or gpu.H200
    hopper = shown.architecture == gpu.HOPPER
    choices = tuned.store(here, note) if here else None
    laid = laid_out(program, hopper=hopper)
    specialiser = Specialiser(laid.program)
    sizes = specialiser.sizes({symbol.name: symbol.bound for symbol in program.dims} | checked_dims(program, dims))
    made, steps = planned(
        specialiser.program(sizes), shown.multiprocessors, hopper=hopper, choices=choices, ranks=ranks,
        transport=transport,
    )  # fmt: skip
    name = shown.name if here else f"an {shown.name}, as there is no GPU here"
    target = f"{name} ({shown.multiprocessors} multiprocessors{', Hopper paths' if hopper else ''})"
    about = {"target": target, "dims": {x.name: x.bound for x in made.executed.dims}, "exact": sizes.exact}
    parts = plan_parts(made, steps, _heading(made, about))
    if laid.matrices:
        parts.insert(1, f"{quantity(laid.nbytes, 'B')} of constants are transposed when the program is loaded")
    return about | {"transposed_bytes": laid.nbytes} | plan_facts(made, steps), parts


@dataclass(frozen=True)
class Step:
    """What the plan says of one instruction, or of one of its parts. Instructions are numbered as they are executed."""

    instruction: int
    part_of: int | None  # its number in the program
    name: str
    result: str  # type and shape of what it writes, at the largest dims that the plan is for
    path: str
    how: str  # tile shape, splits: the path's own words
    measured_us: float | None  # by --tune, where that decided how
    modelled: bool  # the cost model decided
    waits_for: tuple[int, ...] | None  # instructions; None for all before it
    first_block: int


def planned(
    program: Program, blocks: int, *, hopper: bool, choices: Choices | None = None, ranks: int | None = None,
    transport: Transport | None = None,
) -> tuple[Plan, list[Step]]:  # fmt: skip
    """The plan for a GPU of so many multiprocessors, with Hopper's paths or without, and what it says in words.

    `choices` knows what was measured there. `ranks`: None for as many as the program declares, or one. `transport`:
    None for memory that GPUs reach, for as many ranks as that serves. Addresses are made up, so no GPU is needed.
    `program` is verified. Raises InputError for dims of 2**31 and more, and where it is for another number of ranks, or
    these are too many for `transport`.
    """
    from dla.emulator.device import plan
    from dla.emulator.device.layout import MOST_RANKS, PATHS, WAIT_FOR_ALL
    from dla.emulator.device.paths import Target
    from dla.emulator.device.paths.parties import few_enough
    from dla.emulator.ranks import world_of
    from dla.isa.descriptor import Segment

    world = world_of(program, ranks)
    transport = transport or ("peer" if world <= MOST_RANKS else "nccl")
    if transport == "peer":
        few_enough(world)
    # Of rank 0; those of others differ in whom they send to.
    target = Target(blocks, hopper=hopper, world=world, transport=transport if world > 1 else "peer")
    made = plan.build(program, {s: s.value << 40 for s in Segment}, target, choices)
    parts = {origin for origin, count in Counter(made.origins).items() if count > 1}
    steps = []
    for index, origin in enumerate(made.origins):
        instruction = program.instructions[origin]
        if not instruction.row.operands:
            continue
        is_part = origin in parts
        if is_part:
            instruction = made.executed.instructions[index]
        chosen, waits = made.schedules[index], made.waits[index]
        needed = None if waits[1] == WAIT_FOR_ALL else tuple(int(i) for i in made.before[index])
        seconds = chosen.decision.seconds if chosen.decision else None
        path, how = PATHS[chosen.path], chosen.summary
        if index in made.fused:
            path, how = "fused", "done by " + " ".join(map(str, made.fused[index]))
        steps.append(
            Step(
                index, origin if is_part else None, instruction.name, _result(instruction), path, how,
                None if seconds is None else seconds * 1e6, chosen.decision is not None and seconds is None,
                needed, int(waits[3]),
            )
        )  # fmt: skip
    return made, steps


def plan_facts(made: Plan, steps: list[Step]) -> dict[str, Any]:
    """The plan as facts."""
    return {
        "image_bytes": int(made.images.nbytes),
        "tensor_maps": len(made.maps),
        "workspace_bytes": made.workspace_bytes,
        "instructions": [asdict(step) for step in steps],
    }


def _heading(made: Plan, about: Mapping[str, Any]) -> str:
    """What the plan is of, and for."""
    sign = "=" if about["exact"] else "<="
    sizes = "".join(f", {name} {sign} {size}" for name, size in about["dims"].items())
    return f"plan of {made.executed.name} for {about['target']}{sizes}"


def plan_parts(made: Plan, steps: list[Step], heading: str) -> list[Table | str]:
    """A line on the whole, and a table of the instructions that touch memory."""
    head = (
        f"{heading}: {quantity(made.images.nbytes, 'B')} of instructions, "
        f"{len(made.maps)} tensor maps, {quantity(made.workspace_bytes, 'B')} of workspace"
    )
    found = table("", "instruction", "result", "path", "how", "chosen", "waits for", "first block")
    for step in steps:
        waits = "all before" if step.waits_for is None else " ".join(map(str, step.waits_for))
        chosen = "modelled" if step.modelled else ""
        if step.measured_us is not None:
            chosen = f"measured ({step.measured_us:.1f} us)"
        number = str(step.instruction) + ("" if step.part_of is None else f" (part of {step.part_of})")
        found.add_row(number, step.name, step.result, step.path, step.how, chosen, waits, str(step.first_block))
    return [head, found]


def _result(instruction: Instruction) -> str:
    """Type and shape of the first operand that is written, else of the first there is."""
    pairs = [(o, d) for o, d in zip(instruction.row.operands, instruction.operands, strict=True) if d is not None]
    written = [d for o, d in pairs if o.role.value == "out"] or [d for _, d in pairs]
    return f"{written[0].dtype.text}[{', '.join(map(str, written[0].bounds))}]" if written else ""
