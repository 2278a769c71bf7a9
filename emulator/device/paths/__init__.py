"""Hot paths: what fits tensor cores and copy engines is found here, from descriptors alone, when a program is loaded.

A path is a function `schedule(instruction, context)` that answers how its half of the kernel (kernel/hopper) is to
execute an instruction, or None where it does not apply. What no path takes, the row's handler executes.
"""

from __future__ import annotations

from collections.abc import Callable

from dla.emulator.device.paths import conv, flash, fold, gemm, host, parties, pixels, shares, stream
from dla.emulator.device.paths.choices import Choices
from dla.emulator.device.paths.types import GENERIC, Context, Schedule, Target, Transport
from dla.isa.program import Instruction

__all__ = [
    "GENERIC", "HOPPER_PATHS", "PORTABLE_PATHS", "Choices", "Context", "Path", "Schedule", "Target", "Transport",
    "schedule",
]  # fmt: skip

Path = Callable[[Instruction, Context], Schedule | None]
HOPPER_PATHS: tuple[Path, ...] = (
    gemm.schedule, stream.schedule, conv.schedule, pixels.schedule, flash.few_rows, flash.schedule,
)  # fmt: skip
"""In the order in which they are asked."""
PORTABLE_PATHS: tuple[Path, ...] = (
    flash.few_rows, flash.few_queries, fold.split, shares.claimed, host.collective, parties.party,
)  # fmt: skip
"""What handlers of rows are told, on every GPU; asked last."""


def schedule(instruction: Instruction, context: Context) -> Schedule:
    """The first path that takes `instruction`, else the generic one."""
    for path in (*(HOPPER_PATHS if context.target.hopper else ()), *PORTABLE_PATHS):
        found = path(instruction, context)
        if found is not None:
            return found
    return GENERIC
