"""What follows from a profile, and all its reports show: rates, shares of a roof, ratios, sums by kind.

`active` is how long one call took from when it could begin to when its last tile was done, on average over all calls:
the time that rates and native kernels are compared by. It comes from the trace, because the time on the critical path
is short where an instruction runs beside others, and `spent` counts what blocks wait that are early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dla.emulator.trace import Trace
from dla.isa.dtypes import Array
from dla.profiler.critical import Executions
from dla.profiler.figures import NANOSECOND
from dla.profiler.profile import Figures, Profile


@dataclass(frozen=True)
class Measured:
    """One instruction. What cannot be known is None."""

    figures: Figures
    share: float | None  # of the traced run
    active: float | None  # seconds of one call
    flops_rate: float | None  # operations per second
    bytes_rate: float | None
    of_roof: float | None  # 1: as fast as the ceilings allow
    of_native: float | None  # time of the native kernel / active: above 1, dla is faster
    intensity: float | None  # operations for each byte
    utilisation: float | None  # share of `active` that a multiprocessor works, on average over all of them


@dataclass(frozen=True)
class Kind:
    """All instructions of one name."""

    name: str
    written: int
    calls: int
    sums: Measured  # of all calls as if they were one, but for `spent`, which is by call


def measured(profile: Profile) -> tuple[Measured, ...]:
    """Every instruction, in program order; or the one that is `chosen`."""
    active = active_times(profile.trace)
    asked = (f for f in profile.figures if profile.chosen in (None, f.index))
    return tuple(_measured(figures, active.get(figures.index), profile) for figures in asked)


def _measured(figures: Figures, active: float | None, profile: Profile) -> Measured:
    active = active or None
    native = figures.native
    return Measured(
        figures=figures,
        share=_quotient(figures.time, profile.traced),
        active=active,
        flops_rate=_quotient(figures.flops, active) if figures.flops else None,
        bytes_rate=_quotient(figures.bytes, active) if figures.bytes else None,
        of_roof=_quotient(figures.roof, active) if figures.roof else None,
        of_native=_quotient(native.cold, active) if native else None,
        intensity=_quotient(figures.flops, figures.bytes) if figures.flops else None,
        utilisation=_utilisation(profile, figures.working, figures.calls * (active or 0.0)),
    )


def utilisation(profile: Profile) -> float | None:
    """The share of the traced run that a multiprocessor works, on average over all of them."""
    return _utilisation(profile, sum(figures.working for figures in profile.figures), profile.traced)


def _utilisation(profile: Profile, working: float, during: float) -> float | None:
    """None of a machine with one block: it works whenever something is done."""
    return _quotient(working, during) if profile.trace.blocks > 1 else None


def _quotient(above: float, below: float | None) -> float | None:
    return above / below if below else None


def kinds(profile: Profile) -> tuple[Kind, ...]:
    """Sums by name, the one that takes longest first; instructions that were never executed count as written."""
    by_name: dict[str, list[Measured]] = {}
    for one in measured(profile):
        by_name.setdefault(one.figures.name, []).append(one)
    found = (_kind(profile, name, members) for name, members in by_name.items())
    return tuple(sorted(found, key=lambda kind: (-kind.sums.figures.time, kind.name)))


def _kind(profile: Profile, name: str, members: Sequence[Measured]) -> Kind:
    ran = [m.figures for m in members if m.figures.calls]
    calls, spent = sum(f.calls for f in ran), sum(f.spent[0] for f in ran)
    whole = replace(
        members[0].figures, calls=1, time=sum(f.time for f in ran),
        spent=(spent, spent / max(calls, 1), min((f.spent[2] for f in ran), default=0.0),
               max((f.spent[3] for f in ran), default=0.0)),
        working=sum(f.working for f in ran), waiting=sum(f.waiting for f in ran),
        flops=sum(f.flops * f.calls for f in ran), bytes=sum(f.bytes * f.calls for f in ran),
        roof=sum(f.roof * f.calls for f in ran), native=None,
    )  # fmt: skip
    active = sum((m.active or 0.0) * m.figures.calls for m in members)
    return Kind(name, len(members), calls, _measured(whole, active, profile))


def active_times(trace: Trace) -> Mapping[int, float]:
    """Seconds of one call by instruction, for those that the trace has."""
    spans, executions = trace.spans, Executions(trace)
    long = executions.most(spans["done"]) - executions.least(np.maximum(spans["began"], spans["ready"]))
    calls = np.bincount(executions.instructions)
    total = np.bincount(executions.instructions, long)
    return {int(i): float(total[i] / calls[i]) * NANOSECOND for i in np.flatnonzero(calls)}


@dataclass(frozen=True)
class Rates:
    """What the whole machine did over time: `edges` in nanoseconds, one more than there are values."""

    edges: Array
    flops: Array  # operations per second, the average between two edges
    bytes: Array


def rates(profile: Profile, most: int) -> Rates:
    """Rates over time, in at most `most` equal stretches.

    The work of a call is spread over its blocks by their tiles, and over each block's time from when it could begin to
    when it was done.
    """
    spans = profile.trace.spans
    if not len(spans):
        return Rates(np.zeros(1, np.int64), np.empty(0), np.empty(0))
    begin = np.maximum(spans["began"], spans["ready"])
    end = np.maximum(spans["done"], begin + 1)
    tiles = np.bincount(spans["order"], weights=spans["tiles"])
    part = spans["tiles"] / np.maximum(tiles[spans["order"]], 1)
    first, last = int(begin.min()), int(end.max())
    edges = np.linspace(first, last, min(most, last - first) + 1).round().astype(np.int64)
    work = np.zeros((2, max(f.index for f in profile.figures) + 1))
    for figures in profile.figures:
        work[:, figures.index] = figures.flops, figures.bytes
    found = [_spread(begin, end, part * kind[spans["instruction"]], edges) for kind in work]
    return Rates(edges, *found)


def _spread(begin: Array, end: Array, weights: Array, edges: Array) -> Array:
    """Weights per second between each two of `edges`, each weight spread evenly from its begin to its end."""
    slope = weights / (end - begin)
    when = np.concatenate([begin, end])
    order = np.argsort(when, kind="stable")
    when = when[order]
    level = np.cumsum(np.concatenate([slope, -slope])[order])  # from each of `when` on
    done = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(when))])  # up to each of `when`
    return np.asarray(np.diff(np.interp(edges, when, done)).clip(0) / np.diff(edges) * 1e9)
