"""The figures in README.md are those that were measured."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dla.tests.benchmark_scripts import importable

ROOT = Path(__file__).parent.parent

OF_RANKS = {"ranks", "blocks"}
"""What benchmarks/ranks.py measures, together or one of them."""


@pytest.fixture(scope="module")
def readme_table() -> Iterator[ModuleType]:
    """benchmarks/readme_table.py, which is a script and in no package."""
    with importable():
        yield importlib.import_module("readme_table")


def test_the_readme_agrees_with_the_committed_measurements(readme_table: ModuleType) -> None:
    """Writing the table again changes nothing."""
    readme = (ROOT / "README.md").read_text()
    assert readme_table.replaced(readme, readme_table.tables()) == readme


def test_results_say_where_they_come_from() -> None:
    """Each result names device, host, versions and commit, and has positive times."""
    results = [json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("*.json")]
    assert results
    for facts in results:
        assert {"device", "host", "taken", "commit", "versions"} <= facts.keys()
        assert sum(kind in facts for kind in ("measurements", "networks", "speed")) == (not facts.keys() & OF_RANKS)
        assert all(m["seconds"] > 0 for m in facts.get("measurements", []))
        times = [v for n in facts.get("networks", []) for key, v in n.items() if key.endswith("_seconds")]
        assert all(seconds > 0 for seconds in times)
        assert all(row["seconds"] > 0 for kind in OF_RANKS for row in facts.get(kind, []))
        assert all(us["ours"] > 0 for row in facts.get("speed", []) for us in (row.get("cold_us", {"ours": 1}),))


NETWORK = {
    "network": "BERT-base", "threads": 2, "sizes": {"batch": 1, "sequence": 128}, "compile_seconds": 0.9,
    "memory_bytes": 500_000_000, "weights_bytes": 400_000_000, "instructions": 99, "per_layer": 7, "arena_bytes": 1000,
    "lower_bound_bytes": 1000, "golden_seconds": 0.5, "onnxruntime_seconds": 0.25, "error": 2.5e-6,
}  # fmt: skip


def test_a_full_network_is_a_line(readme_table: ModuleType, tmp_path: Path) -> None:
    """What was not measured (here on the GPU) is a dash."""
    facts = {"device": "No GPU", "host": "a host", "versions": {"numpy": "2"}, "commit": "c", "networks": [NETWORK]}
    (tmp_path / "no_gpu_networks.json").write_text(json.dumps(facts))
    line = "| BERT-base (batch 1, sequence 128) | 900 ms | 1.25 | 99 | 7 | 1.000 | 500 ms | - | 250 ms | 2.5e-06 |"
    table = readme_table.tables(tmp_path).splitlines()
    assert table[0] == "No GPU (host: a host; numpy 2; commit c):"
    assert table[-1] == line
    assert {text.count("|") for text in table[-3:]} == {len(readme_table.NETWORK_COLUMNS) + 1}


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us"), (3e-8, "30 ns")]
)
def test_times_are_shown_in_the_unit_that_fits(readme_table: ModuleType, seconds: float, text: str) -> None:
    """Three digits are enough."""
    assert readme_table.shown(seconds) == text
