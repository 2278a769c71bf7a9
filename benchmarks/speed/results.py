"""The file of results: it grows row by row, and parts from several machines of one kind make one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from speed.measure import Facts, summary
from speed.row import Row, Summary

SAME = ("device", "commit", "only")
"""What parts must have in common."""


class Results:
    """Rows in the order of `rows`, then `summaries` over them, written to `path` whenever one is added.

    `about` says where they come from: device, commit, host, versions, and `only` where the kernel lacks rows. Rows that
    are in `path` already stay, if all of SAME is.
    """

    def __init__(self, path: Path, about: Facts, rows: Sequence[Row], summaries: Sequence[Summary]) -> None:
        self.path = path
        self._about = {key: value for key, value in about.items() if key not in ("speed", "taken")}
        self._order = {row.name: place for place, row in enumerate([*rows, *summaries])}
        self._summaries = summaries
        self.rows: list[Facts] = []
        if path.exists():
            held = json.loads(path.read_text())
            self.rows = held["speed"] if self.fits(held) else []

    def fits(self, other: Facts) -> bool:
        """Whether another file's rows belong with these."""
        return all(other.get(key) == self._about.get(key) for key in SAME)

    def has(self, name: str) -> bool:
        """Whether the row called `name` has been measured, with all that its bars are against."""
        found = next((row for row in self.rows if row["name"] == name), None)
        return found is not None and all(bar["met"] is not None for bar in found["bars"])

    def add(self, *new: Facts) -> None:
        """Put rows in the place of older ones of their names, and write the file."""
        derived = {row.name for row in self._summaries}
        kept = {row["name"]: row for row in (*self.rows, *new) if row["name"] in self._order}
        measured = [row for name, row in kept.items() if name not in derived]
        over = [summary(row, measured) for row in self._summaries]
        self.rows = sorted([*measured, *(row for row in over if row)], key=lambda row: self._order[row["name"]])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        taken: dict[str, Any] = {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "speed": self.rows}
        self.path.write_text(json.dumps(self._about | taken, indent=1) + "\n")
