"""What the traced build notes (kernel/trace.cuh), and how it becomes a Trace.

Roles of a block look at the clock of its multiprocessor, and the signaller notes what they saw. These clocks start
anywhere, and do not run alike: on an H200, those of two GPCs differ by up to 5 % in one launch. So each block notes
its own and the one that all have, at its beginning and at its end, and what lies between is interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dla.emulator.device.layout import TRACE_BLOCK, TRACE_SPAN
from dla.emulator.trace import SPAN, Trace
from dla.isa.dtypes import Array

ROOM = 32768
"""Spans of a block, unless another number is asked for."""


def table_bytes(blocks: int, room: int) -> int:
    """What the kernel is given to write to."""
    return blocks * (TRACE_BLOCK.dtype.itemsize + room * TRACE_SPAN.dtype.itemsize)


def trace(heads: Array, noted: Sequence[Array], origins: Sequence[int]) -> Trace:
    """The Trace of one run.

    `heads`: a record of TRACE_BLOCK for each block. `noted`: the spans of each, of TRACE_SPAN, in order; fewer than the
    block had works where there was no room. `origins`: of each instruction that is executed, its index in the program;
    those that an instruction was cut into count as executed with the first of them.
    """
    clocks = np.maximum((heads["ended_clock"] - heads["began_clock"]).astype(np.float64), 1)
    rates = (heads["ended_ns"] - heads["began_ns"]).astype(np.float64) / clocks  # nanoseconds per clock, of each block
    first = np.unique(np.asarray(origins), return_index=True)[1]  # executed first, of each instruction of the program
    parts = np.arange(len(origins)) - first[np.searchsorted(np.unique(origins), origins)]
    start = heads["began_ns"].min()
    spans = []
    for block, (head, found, rate) in enumerate(zip(heads, noted, rates, strict=True)):
        if found.size:
            times = {
                name: np.rint(
                    head["ended_ns"] - start - (head["ended_clock"] - found[name]).astype(np.int64) * rate
                ).astype(np.int64)
                for name in ("decoded", "ready", "loaded", "done", "signalled")
            }
            times["loaded"][found["loaded"] == 0] = 0
            spans.append(_spans(block, heads.size, found, times, parts, origins))
    return Trace(
        np.concatenate(spans) if spans else np.empty(0, SPAN),
        tuple(int(m) for m in heads["multiprocessor"]),
        int(heads["ended_ns"].max() - start),
        int(sum(int(head["works"]) - found.size for head, found in zip(heads, noted, strict=True))),
    )


def _spans(
    block: int, blocks: int, found: Array, times: dict[str, Array], parts: Array, origins: Sequence[int]
) -> Array:  # fmt: skip
    """Spans of one of the blocks: what came before the one before was done, was not its workers' yet."""
    spans = np.zeros(found.size, SPAN)
    executed = found["instruction"].astype(np.int64)
    spans["order"] = found["order"].astype(np.int64) - 1 - parts[executed]
    spans["instruction"] = np.asarray(origins)[executed]
    spans["block"] = block
    spans["tiles"] = -(-(found["tiles"].astype(np.int64) - found["first_tile"]) // blocks)
    done = np.maximum.accumulate(times["done"])
    spans["began"] = np.maximum(times["decoded"], np.concatenate([[np.iinfo(np.int64).min], done[:-1]]))
    spans["began"] = np.minimum(spans["began"], done)
    spans["ready"] = np.minimum(times["ready"], done)
    spans["loaded"] = np.clip(times["loaded"], np.maximum(spans["began"], spans["ready"]), done)
    spans["done"], spans["signalled"] = done, np.maximum(times["signalled"], done)
    return spans
