"""The figures in README.md are those that were measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def readme_table() -> ModuleType:
    """benchmarks/readme_table.py, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("readme_table", ROOT / "benchmarks" / "readme_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_agrees_with_the_committed_measurements(readme_table: ModuleType) -> None:
    """Writing the table again changes nothing."""
    readme = (ROOT / "README.md").read_text()
    assert readme_table.replaced(readme, readme_table.tables()) == readme


def test_results_say_where_they_come_from() -> None:
    """Each result names device, host, versions and commit, and has positive times."""
    results = [json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("*.json")]
    assert results
    for facts in results:
        assert {"device", "host", "taken", "commit", "versions", "measurements"} <= facts.keys()
        assert all(m["seconds"] > 0 for m in facts["measurements"])


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us"), (3e-8, "30 ns")]
)
def test_times_are_shown_in_the_unit_that_fits(readme_table: ModuleType, seconds: float, text: str) -> None:
    """Three digits are enough."""
    assert readme_table.shown(seconds) == text
