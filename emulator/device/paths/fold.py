"""REDUCE of floats: room for the results of blocks that share a fold, where there are too few folds for all blocks."""

from __future__ import annotations

from dla.emulator.device.layout import PATH_GENERIC, WARP, WORKER_WARPS
from dla.emulator.device.paths.tilings import MAX_WORKSPACE
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.instructions.reduce import INDEX_SUBS
from dla.isa.program import Instruction

RESULTS = WORKER_WARPS * WARP
"""Results of a group (kernel/fold.cuh) that may be split over blocks, at most."""
WORTH = 1 << 15
"""Elements of x from which on it is worth it: each block should have some thousands."""


def split(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of a REDUCE of many floats to few; kernel/fold.cuh says what is split, and how often."""
    if instruction.row.mnemonic != "REDUCE" or instruction.sub == "logsumexp":
        return None
    out, x = instruction.operand("out"), instruction.operand("x")
    if out is None or x is None or not x.dtype.is_float or x.elements < WORTH:
        return None
    blocks = context.target.blocks
    if out.elements * 2 > blocks * RESULTS or context.workspace_bytes >= MAX_WORKSPACE:
        return None
    counters = -(-blocks // 32) * 32 * 4
    at = context.workspace(counters + blocks * RESULTS * (8 if instruction.sub in INDEX_SUBS else 4))
    return Schedule(PATH_GENERIC, (blocks, at & 0xFFFFFFFF, at >> 32), "folds may be split over blocks")
