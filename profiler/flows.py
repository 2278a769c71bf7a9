"""Which span led to which: the arrows of a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from dla.emulator.conflicts import conflicts
from dla.isa.dtypes import Array
from dla.profiler.profile import Profile

FEW = 1000
"""Executions of a run of which all dependencies are shown; of longer ones, those along the critical path."""
MOST = 5000
"""Dependencies beside the critical path: with more, those along it say more alone."""


def flows(profile: Profile) -> Array:
    """[n, 2]: the span that was waited for and the one that waited, as indices of the trace's spans, each pair once.

    The first is never later than when the second could begin, so that arrows point ahead in time.
    """
    spans = profile.trace.spans
    found = dict.fromkeys(_along(profile))
    if len(spans) and len(profile.program.instructions) <= FEW and int(spans["order"].max()) < FEW:
        others = [pair for pair in _dependencies(profile) if pair not in found]
        found |= dict.fromkeys(others if len(others) <= MOST else [])
    pairs = np.array(list(found), np.int64).reshape(-1, 2)
    source, target = spans[pairs[:, 0]], spans[pairs[:, 1]]
    return np.asarray(pairs[source["began"] < np.maximum(target["began"], target["ready"])])


def _along(profile: Profile) -> Iterator[tuple[int, int]]:
    """From each step of the critical path to the next, where both are in the trace."""
    steps = [step for step in profile.critical if step.instruction is not None]
    spans = profile.trace.spans
    keys = spans["block"].astype(np.int64) << 32 | spans["order"]
    order = np.argsort(keys)
    wanted = np.array([step.block << 32 | step.order for step in steps], np.int64)
    at = np.searchsorted(keys, wanted, sorter=order)
    places = order[np.minimum(at, len(order) - 1)] if len(order) else at
    known = keys[places] == wanted if len(order) else np.zeros(len(at), np.bool_)
    for one, other in pairwise(range(len(steps))):
        if known[one] and known[other] and places[one] != places[other]:
            yield int(places[one]), int(places[other])


def _dependencies(profile: Profile) -> Iterator[tuple[int, int]]:
    """From the last block of what an execution waits for to the first block of the execution."""
    spans = profile.trace.spans
    waits = conflicts(profile.program)
    latest: dict[int, int] = {}  # by instruction: the span that its last execution so far ended with
    by_order = np.argsort(spans["order"], kind="stable")
    borders = np.flatnonzero(np.diff(spans["order"][by_order])) + 1
    for members in np.split(by_order, borders):
        here = spans[members]
        index = int(here["instruction"][0])
        target = int(members[np.maximum(here["began"], here["ready"]).argmin()])
        for other in waits[index]:
            if other in latest:
                yield latest[other], target
        latest[index] = int(members[here["done"].argmax()])
