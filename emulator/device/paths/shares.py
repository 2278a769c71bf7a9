"""Rows that stream memory: a counter from which blocks claim their shares as they get on, where there is much to do."""

from __future__ import annotations

from dla.emulator.device.layout import CLAIMS_AT, PATH_GENERIC
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.program import Instruction

CLAIMED = {"SOFTMAX": None, "NORM": ("layer", "rms"), "COPY": None, "ACT": None, "EW": None}
"""Rows whose handlers claim shares, and their kinds, None for all (kernel/claims.cuh)."""
WORTH = 1 << 22
"""Bytes of the result from which on it is worth it: each block then takes several shares."""
UNIT = 1024


def claimed(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of a large instruction whose handler may claim shares; it finds out for itself whether it does."""
    kinds = CLAIMED.get(instruction.row.mnemonic, ())
    if kinds is not None and instruction.sub not in kinds:
        return None
    out = instruction.operand("out")
    if out is None or out.elements * out.dtype.itemsize < WORTH:
        return None
    place = context.workspace(UNIT) // UNIT + 1
    return Schedule(PATH_GENERIC, (0,) * CLAIMS_AT + (place,), "blocks claim shares as they get on")
