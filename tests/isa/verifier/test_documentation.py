"""docs/verifier.md speaks of every rule, in the rule's own words."""

from __future__ import annotations

from pathlib import Path

from dla.isa.verifier import RULES

PAGE = Path(__file__).parents[3] / "docs" / "verifier.md"


def test_page_lists_the_rules_as_they_are() -> None:
    """The table in docs/verifier.md is the table in isa/verifier/rules.py."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| V-")]
    assert rows == [f"| {rule} | {meaning} |" for rule, meaning in RULES.items()]
