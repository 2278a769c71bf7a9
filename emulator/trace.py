"""When each block of a machine did what, in one run: what a machine records, and the profiler reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dla.isa.dtypes import Array

SPAN = np.dtype([
    ("order", "<u4"),
    ("instruction", "<u4"),
    ("block", "<u4"),
    ("tiles", "<u4"),
    ("began", "<i8"),
    ("ready", "<i8"),
    ("loaded", "<i8"),
    ("done", "<i8"),
    ("signalled", "<i8"),
])  # fmt: skip
"""What one block did of one instruction, once. Times are nanoseconds since the first block began.

`order`: how many instructions the run had executed before, scalar ones included: it tells passes of a loop apart, and
is the same for all blocks. `instruction`: its index in the program. `tiles`: how many of its tiles fell to this block.
`began`: the block's workers turned to it. `ready`: everything that it depends on was done (earlier than `began`, or
later: then the block waited). `loaded`: its first operands were in shared memory; `began` or `ready`, whichever is
later, where that is not known. `done`: its last tile was. `signalled`: other blocks could know. began, ready <=
loaded <= done <= signalled."""


@dataclass(frozen=True)
class Trace:
    """One run: an array of SPAN by block, then by time, and what surrounds it.

    `multiprocessors` is the multiprocessor of each block; `end` is when the last block ended, in nanoseconds since the
    first one began. `lost` counts spans for which there was no room: those recorded are then the first ones.
    """

    spans: Array
    multiprocessors: tuple[int, ...]
    end: int
    lost: int = 0

    @property
    def blocks(self) -> int:
        """How many blocks there were."""
        return len(self.multiprocessors)
