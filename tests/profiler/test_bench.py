"""Repeated runs: percentiles, throughput and limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dla
from dla.isa.errors import InputError, Trap
from dla.profiler.bench import Bench, Limits, bench, facts, parts
from dla.profiler.stand import GoldenStand

DOUBLE = ".program double\n.input x : f32[n <= 4]\n.output y : f32[n]\nmain:\n    EW.add y, x, x\n    HALT\n"
TRAPPING = ".program t\n.output y : i64[]\nmain:\n    FILL y, 1\n    ASSERT p0\n    HALT\n"
X = {"x": np.ones(3, np.float32)}


def made(*latencies: float) -> Bench:
    """A bench with these latencies."""
    return Bench("net", "golden", {"name": "a processor", "numpy": "2"}, {"n": 3}, False, latencies, 1)


def test_runs_go_on_until_both_limits_are_reached() -> None:
    """So many runs at least, and so long at least; the runs to warm up do not count."""
    found = bench(GoldenStand(), dla.assemble(DOUBLE), X, {}, {}, Limits(0.0, 0.0, 7))
    assert (len(found.latencies), found.warmups) == (7, 1)
    assert (found.machine, dict(found.dims)) == ("golden", {"n": 3})
    longer = bench(GoldenStand(), dla.assemble(DOUBLE), X, {}, {}, Limits(0.01, 0.05, 1))
    assert len(longer.latencies) > 1
    assert longer.warmups > 1


def test_traps_and_bad_inputs_end_it() -> None:
    """Nothing is told of runs that did not end."""
    with pytest.raises(Trap, match="assertion failed"):
        bench(GoldenStand(), dla.assemble(TRAPPING), {}, {}, {}, Limits(0, 0, 1))
    with pytest.raises(InputError, match="missing input 'x'"):
        bench(GoldenStand(), dla.assemble(DOUBLE), {}, {}, {}, Limits(0, 0, 1))


def test_ranks_are_told() -> None:
    """A run of several is no run of one."""
    ranks = DOUBLE.replace(".input", ".world 3\n.input").replace("EW.add y, x, x", "ALLREDUCE.sum y, x")
    found = bench(GoldenStand(), dla.assemble(ranks), {"x": np.ones(4, np.float32)}, {}, {}, Limits(0, 0, 2))
    assert facts(found)["ranks"] == 3
    assert parts(found)[0].startswith("double on golden (NumPy), n=4, 3 ranks: 2 runs")
    assert facts(made(1.0))["ranks"] == 1


def test_percentiles_are_latencies_that_occurred() -> None:
    """So many percent of the runs took no longer."""
    found = made(*[k / 1000 for k in range(1, 101)])
    assert [found.percentile(p) for p in (50, 90, 95, 99)] == [0.05, 0.09, 0.095, 0.099]
    assert found.throughput == pytest.approx(100 / 5.05)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=50))
def test_facts_are_in_order(latencies: list[float]) -> None:
    """Least, percentiles and most never decrease."""
    told: dict[str, Any] = facts(made(*latencies))
    known = told["latency_s"]
    order = [known[key] for key in ("least", "p50", "p90", "p95", "p99", "most")]
    assert order == sorted(order)
    assert known["least"] <= known["mean"] * (1 + 1e-9)
    assert told["iterations"] == len(latencies)


def test_lines_for_people() -> None:
    """Machine, dims, runs, throughput, latencies and surroundings."""
    lines = parts(made(0.001, 0.001, 0.003))
    assert lines[0] == "net on golden (NumPy), n=3: 3 runs after 1 to warm up, caches warm"
    assert lines[1] == "throughput   600.0 runs/s"
    assert "median       1 ms" in lines
    assert "99 %         3 ms" in lines
    assert lines[-1] == "measured on a processor, numpy 2"
