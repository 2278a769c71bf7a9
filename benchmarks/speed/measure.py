"""Measuring rows, and judging them: what goes into the JSON for each."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from speed.bench import RERUNS, ROUNDS, Bench
from speed.prepared import FALLBACK, label
from speed.row import COMPILED, FASTEST, Bar, Case, Row, Summary, Work

Facts = dict[str, Any]
OURS = "ours"
SCALE = {"us": 1e6, "ms": 1e3}
SWEEP_ROUNDS = 11
"""Of a point: there are many, and their neighbours tell which to believe."""


def measured(bench: Bench, row: Row) -> Facts:
    """Times with the cache cold and warm in microseconds, errors, and how the row stands to its bars."""
    with bench.stream():
        if row.compiled:
            bench.load_native(row.name)
        case = row.case(bench)
        if case.wall is not None:
            cold = warm = {OURS: sorted(case.wall() for _ in range(5))[2] * 1e6}
        else:
            most = ROUNDS if row.sweep is None else SWEEP_ROUNDS
            cold, warm = (_each(bench, case, cold=cold, most=most) for cold in (True, False))
        check = case.check()
    facts: Facts = {
        "name": row.name,
        "family": row.family,
        "cold_us": cold,
        "warm_us": warm,
        "error": check.error,
        "error_limit": check.limit,
        "identical": check.identical,
        "reruns": RERUNS,
        "right": check.identical and check.error <= 1,
        "bars": [facts for bar in row.bars for facts in judged(bar, cold, warm, row.unit)],
    }
    if row.compiled:
        facts["compile_mode"] = bench.compile_mode
    if row.sweep is not None:
        facts["sweep"] = dict(zip(("title", "size"), row.sweep, strict=True))
    return facts


def _each(bench: Bench, case: Case, *, cold: bool, most: int) -> dict[str, float]:
    """Microseconds by name, of one run or of one instruction."""
    once = bench.times(_actions(case.work), cold=cold, most=most)
    if case.twice is None:
        return {name: seconds / case.count * 1e6 for name, seconds in once.items()}
    twice = bench.times(_actions(case.twice), cold=cold, most=most)
    return {name: (twice[name] - once[name]) / case.count * 1e6 for name in once}


def _actions(work: Work) -> dict[str, Any]:
    return {OURS: work.ours, **work.natives}


def judged(bar: Bar, cold: Mapping[str, float], warm: Mapping[str, float], unit: str) -> list[Facts]:
    """A bar, what was reached, and whether it holds; `reached` is None where the native kernel was left out.

    Where that is a network that could not be tuned in full, what was reached against the one in its place follows.
    """
    facts: Facts = {"against": bar.against, "must": bar.must, "aim": bar.aim, "unit": unit if not bar.against else "x"}
    if not bar.against:
        reached = cold[OURS] / 1e6 * SCALE[unit]
        return [facts | {"reached": reached, "met": reached <= bar.must}]

    def beside(native: str) -> Facts:
        return {"reached": cold[native] / cold[OURS], "warm": warm[native] / warm[OURS]}

    if bar.against in cold:
        found = beside(bar.against)
        return [facts | found | {"met": found["reached"] >= bar.must}]
    missing = facts | {"reached": None, "warm": None, "met": None}
    instead = label(FALLBACK)
    if bar.against != COMPILED or instead not in cold:
        return [missing]
    return [missing, {"against": instead, "must": None, "aim": None, "unit": "x", **beside(instead), "met": None}]


def summary(row: Summary, found: Sequence[Facts]) -> Facts | None:
    """What `row` comes to over what has been measured; None where that is nothing."""
    parts = [facts for facts in found if facts["family"] == row.family and facts["name"].startswith(row.prefix)]
    one = min if row.worst else statistics.geometric_mean
    if not parts:
        return None
    bars = []
    for bar in row.bars:
        ratios = {kind: one(_ratio(part[f"{kind}_us"], bar.against) for part in parts) for kind in ("cold", "warm")}
        facts = {"against": bar.against, "must": bar.must, "aim": bar.aim, "unit": "x"}
        bars.append(facts | {"reached": ratios["cold"], "warm": ratios["warm"], "met": ratios["cold"] >= bar.must})
    return {
        "name": row.name, "family": row.family, "of": len(parts), "bars": bars,
        "error": max(part["error"] for part in parts), "error_limit": parts[0]["error_limit"],
        "identical": all(part["identical"] for part in parts), "right": all(part["right"] for part in parts),
    }  # fmt: skip


def _ratio(times: Mapping[str, float], against: str) -> float:
    """How many times as fast as native ours is."""
    natives = [us for name, us in times.items() if name != OURS]
    return (min(natives) if against == FASTEST else times[against]) / times[OURS]
