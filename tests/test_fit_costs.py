"""The cost table is fitted to times as it should be: here to times that a table made up."""

from __future__ import annotations

import dataclasses
import importlib
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner

from dla.emulator.device.paths.tilings import COSTS, Costs
from dla.tests.benchmark_scripts import importable

ROOT = Path(__file__).parent.parent
HZ = 1.98e9


@pytest.fixture(scope="module")
def fit_costs() -> Iterator[ModuleType]:
    """benchmarks/fit_costs.py, which is a script and in no package."""
    with importable():
        yield importlib.import_module("fit_costs")


DIFFERENT = {"multiplies": 0.7, "block_bytes": 1.3, "all_bytes": 0.8, "start": 2.5, "piece": 0.5, "meet": 3.0}
"""Numbers of a GPU beside those of the present table."""


def true_costs() -> Costs:
    """The table of that GPU."""
    return dataclasses.replace(COSTS, **{name: getattr(COSTS, name) * factor for name, factor in DIFFERENT.items()})


@pytest.fixture(scope="module")
def facts(fit_costs: ModuleType) -> dict:
    """A file of results as that GPU would have it, its times 2 % off this way or that."""
    rng = np.random.default_rng(1)

    def timer(trial):
        d = trial.program.instructions[0]
        (rows, columns), depth = d.operand("out").bounds, d.operand("a").bounds[-1]
        samples = [fit_costs.Sample((rows, columns, depth), way, 1.0) for way in trial.ways]
        return [s.modelled(true_costs()) / HZ * rng.normal(1, 0.02) for s in samples]

    shapes = fit_costs.measured(timer, 60)
    about = {"device": "Some GPU", "host": "h", "taken": "now", "commit": "c", "versions": {}}
    return about | {"blocks": 132, "clock_hz": HZ, "shapes": shapes}


def test_the_table_that_made_the_times_is_found(fit_costs, facts):
    """What decides times within a quarter, times within a twentieth; what it chooses is nearly the quickest way."""
    samples = fit_costs.samples_of(facts)
    assert {sample.shape for sample in samples} == set(fit_costs.SHAPES)
    assert len(samples) == sum(len(entry["ways"]) for entry in facts["shapes"])
    fitted = fit_costs.fit(samples[::9])  # time goes by their number; the others are asked below, too
    for name in ("multiplies", "block_bytes", "start", "meet"):
        assert getattr(fitted, name) == pytest.approx(getattr(true_costs(), name), rel=0.25), name
    off = [abs(sample.modelled(fitted) / sample.clocks - 1) for sample in samples]
    assert statistics.median(off) < 0.05
    before, after = (fit_costs.regrets(samples, costs).values() for costs in (COSTS, fitted))
    assert statistics.median(after) <= statistics.median(before)
    assert max(after) < min(1.1, max(before))


def test_what_no_time_depends_on_stays(fit_costs, facts):
    """Without splits nothing is known of `meet`."""
    samples = [s for s in fit_costs.samples_of(facts) if s.choice.splits == 1][::10]
    assert fit_costs.fit(samples).meet == pytest.approx(COSTS.meet, rel=0.01)


def test_a_file_is_fitted_without_a_gpu_and_says_what_it_was_fitted_to(fit_costs, facts, tmp_path):
    """The tables stand beside the times; a way that there is no longer is passed over."""
    path = tmp_path / "some_gpu.json"
    gone = json.loads(json.dumps(facts))
    del gone["shapes"][5:]
    gone["shapes"][0]["ways"].append({"way": {"tile": {"rows": 1, "columns": 1}, "splits": 1}, "us": 1e-9})
    path.write_text(json.dumps(gone))
    result = CliRunner().invoke(fit_costs.main, ["--from", str(path)])
    assert result.exit_code == 0, result.output
    assert "median" in result.output
    assert "COSTS = Costs(" in result.output
    held = json.loads(path.read_text())
    assert held["costs"]["present"] == dataclasses.asdict(COSTS)
    assert held["costs"]["fitted"].keys() == held["costs"]["present"].keys()
    assert held["shapes"] == gone["shapes"]


def test_no_shape_is_begun_after_the_time_is_up(fit_costs):
    """What was measured until then is there."""
    assert len(fit_costs.measured(lambda trial: [1e-6] * len(trial.ways), -1)) == 0
