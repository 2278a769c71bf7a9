"""Last rows: a few of a product that would take a whole round of tiles more are an instruction of their own.

A product of 1,025 rows has tiles for a row more than there are blocks for, and takes as long as one of 2,000. So the
plan makes two of it: one of 1,024 rows, and one of the last row, which takes as long as its other matrix takes to be
read. Each is executed as any such product is, tuned, and cut in parts (parts.py); what waits for what follows from
their descriptors. The last rows have sums in another order than in the whole, within the same bound.
"""

from __future__ import annotations

from dataclasses import replace

from dla.emulator.blocks import BARRIERS
from dla.emulator.conflicts import conflicts
from dla.emulator.device import parts
from dla.emulator.device.layout import COUNTERS, PATH_GEMM, PATH_STREAM
from dla.emulator.device.parts import Parted
from dla.emulator.device.paths import Context, schedule, stream
from dla.isa.program import Instruction, Program

MOST = 16
"""Rows that are streamed, or go in the lowest tiles."""
UNIT = 64
"""What is left has a multiple of so many rows: there are tiles of 64, 128 and 256."""
WORTH = 0.95
"""What both take together, at most, as a share of what the whole takes."""


def find(program: Program, context: Context) -> Parted:
    """Cut the last rows off where that is quicker, in straight-line code of a verified `program`.

    `context` knows of the program; what this adds to its tables is not used. Only the model decides: what was measured
    is how each of the two is executed best.
    """
    code = program.instructions
    if not context.target.hopper or any(i.row.mnemonic in BARRIERS for i in code[:-1]):
        return parts.uncut(program)
    context = replace(context, choices=None, maps={})
    cuts = {index: both for index, instruction in enumerate(code) if (both := _both(instruction))}
    in_parts = parts.find(program, context).places() if cuts else {}
    executed: list[Instruction] = []
    origins: list[int] = []
    for index, instruction in enumerate(code):
        both = cuts.get(index, ())
        if both and not _is_quicker(both, instruction, context, in_parts=index in in_parts):
            both = ()
        executed += both or (instruction,)
        origins += [index] * max(1, len(both))
    found = Parted(replace(program, instructions=tuple(executed)), tuple(origins))
    if len(origins) == len(code) or len(origins) > COUNTERS or _touch(found):
        return parts.uncut(program)
    return found


def _both(instruction: Instruction) -> tuple[Instruction, ...]:
    """All rows of a product but a few, and these; none where it has no such rows, or cannot be cut."""
    out = instruction.operands[0] if instruction.row.mnemonic == "GEMM" else None
    if out is None or len(out.dims) != len(("rows", "columns")):
        return ()
    rows = out.bounds[0]
    return parts.cut(instruction, (rows - rows % UNIT,)) if 1 <= rows % UNIT <= MOST and rows > UNIT else ()


def _is_quicker(both: tuple[Instruction, ...], whole: Instruction, context: Context, *, in_parts: bool) -> bool:
    """Whether both of them are, one behind the other; `in_parts`: no block would wait for tiles of the whole."""
    begins = replace(context, first=both[0]) if context.first is whole else context
    most, few, all_rows = schedule(both[0], begins), schedule(both[1], context), schedule(whole, context)
    if most.decision is None or all_rows.decision is None or few.path not in (PATH_STREAM, PATH_GEMM):
        return False
    if few.path == PATH_STREAM:
        more = stream.clocks(both[1], begun=True)
    else:
        assert few.decision is not None
        more = few.decision.offers[0].clocks
    offers = all_rows.decision.offers
    beside = min(map(parts.even_clocks, offers)) if in_parts else offers[0].clocks
    return most.decision.offers[0].clocks + more < WORTH * beside


def _touch(found: Parted) -> bool:
    """Whether one of the two would have to wait for the other anywhere: then the whole reads what it writes."""
    before = conflicts(found.program)
    return any(set(before[i]) & set(at) for at in found.places().values() for i in at)
