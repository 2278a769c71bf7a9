"""What the plots of a page draw, as JSON-able facts: times are microseconds, but for the timeline's own unit."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.lifetimes import usage
from dla.profiler.measures import Measured
from dla.profiler.profile import Profile
from dla.profiler.texts import printable

SPANS = 60_000
"""Of a timeline; where there are more, neighbours on a block are drawn as one."""
STEPS = 5_000
"""Of the critical path on a timeline, the longest."""
TENSORS = 2_000
"""Of a memory plan, the largest."""


def points(shown: Sequence[Measured]) -> list[dict[str, Any]]:
    """The instructions of the roofline plot and of the bars, in program order."""
    return [
        {
            "index": m.figures.index,
            "name": printable(m.figures.name),
            "calls": m.figures.calls,
            "active": None if m.active is None else m.active * 1e6,
            "share": m.share,
            "flops": m.figures.flops,
            "bytes": m.figures.bytes,
            "flops_rate": m.flops_rate,
            "bytes_rate": m.bytes_rate,
            "of_roof": m.of_roof,
            "intensity": m.intensity,
            "utilisation": m.utilisation,
            "native": None if m.figures.native is None else {
                "kernel": printable(m.figures.native.kernel),
                "cold": m.figures.native.cold * 1e6,
                "warm": None if m.figures.native.warm is None else m.figures.native.warm * 1e6,
                "ratio": m.of_native,
                "agrees": m.figures.native.agrees,
            },
        }
        for m in shown
        if m.figures.calls
    ]  # fmt: skip


def timeline(profile: Profile) -> dict[str, Any]:
    """Spans by row, in columns of u32 as base64: row, instruction, begin, wait, length in units of `unit` ns.

    A row is a block; those of a multiprocessor stand beside each other.
    """
    spans = profile.trace.spans
    began, done = spans["began"], np.maximum(spans["done"], spans["began"])
    wait = np.clip(spans["ready"], began, done) - began
    block, instruction = spans["block"].astype(np.int64), spans["instruction"].astype(np.int64)
    merged = len(spans) > SPANS
    if merged:
        block, instruction, began, wait, done = _merged(block, instruction, began, wait, done)
    places = np.array(profile.trace.multiprocessors, np.int64)
    rows = np.argsort(np.argsort(places, kind="stable"))  # of each block
    block = rows[block]
    order = np.argsort(block, kind="stable")
    end = int(max(profile.trace.end, done.max(initial=0), 1))
    unit = -(-end // 2**31)
    columns = [block, instruction, *(column // unit for column in (began, wait, done - began))]
    steps = sorted(profile.critical, key=lambda s: s.begin - s.end)[:STEPS]
    return {
        "unit": unit,
        "end": end // unit,
        "merged": merged,
        "count": len(block),
        "columns": base64.b64encode(np.stack(columns)[:, order].astype("<u4").tobytes()).decode(),
        "multiprocessors": np.sort(places).tolist(),
        "names": [printable(figures.name) for figures in profile.figures],
        "critical": [
            [max(s.begin, 0) // unit, s.end // unit, int(rows[s.block]), s.instruction]
            for s in sorted(steps, key=lambda s: s.begin)
            if s.instruction is not None
        ],
    }


def _merged(block: Array, instruction: Array, began: Array, wait: Array, done: Array) -> tuple[Array, ...]:
    """Fewer spans: of those that begin in the same stretch of time on a block, one, named after the longest."""
    stretches = max(1, SPANS // (int(block.max()) + 1))
    at = (began - began.min()) * stretches // (int(began.max() - began.min()) + 1)
    first = np.flatnonzero(np.concatenate([[True], (np.diff(block) != 0) | (np.diff(at) != 0)]))
    group = np.cumsum(np.isin(np.arange(len(block)), first)) - 1
    longest = np.lexsort((done - began, group))
    last_of = np.append(first[1:], len(block)) - 1
    waits = np.add.reduceat(wait, first)
    return block[first], instruction[longest[last_of]], began[first], waits, np.maximum.reduceat(done, first)


def memory(profile: Profile) -> dict[str, Any]:
    """Who has which bytes of scratch memory during which instructions."""
    if not profile.program.segment_bytes.get(Segment.SCRATCH):
        return {"size": 0, "in_use": [], "tensors": []}
    used = usage(profile.program)
    large = sorted(used.lifetimes, key=lambda life: (-life.nbytes, life.first))[:TENSORS]
    return {
        "size": used.size,
        "most": used.lower_bound,
        "peak": used.peak,
        "instructions": len(used.in_use),
        "left_out": len(used.lifetimes) - len(large),
        "tensors": [[printable(t.name), t.offset, t.nbytes, t.first, t.last] for t in large],
    }


def roofs(profile: Profile) -> dict[str, Any]:
    """The lines of the roofline plot: bytes a second, and operations a second by dtype; 0 and none if not measured."""
    ceilings = profile.ceilings
    known = {printable(k): v for k, v in ceilings.flops.items() if math.isfinite(v) and v > 0}
    measured = math.isfinite(ceilings.bytes_per_second) and ceilings.bytes_per_second > 0
    return {"bytes": ceilings.bytes_per_second, "flops": known} if measured else {"bytes": 0.0, "flops": {}}
