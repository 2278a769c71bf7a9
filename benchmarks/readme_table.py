"""The table of measurements in README.md, made from benchmarks/results/*.json."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- benchmarks: begin (written by `make bench`) -->", "<!-- benchmarks: end -->"


def shown(seconds: float) -> str:
    """Three digits and the unit that fits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def tables(results: Path = RESULTS) -> str:
    """One table per result file: what was measured, and where."""
    parts = []
    for path in sorted(results.glob("*.json")):
        facts = json.loads(path.read_text())
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        lines = [f"| {m['what']} | {shown(m['seconds'])} |" for m in facts["measurements"]]
        parts.append(
            "\n".join(
                [
                    f"{facts['device']} (host: {facts['host']}; {versions}; commit {facts['commit']}):",
                    "",
                    "| what | median time |",
                    "|---|---|",
                    *lines,
                ]
            )
        )
    return "\n\n".join(parts)


def replaced(readme: str, table: str) -> str:
    """`readme` with `table` between its markers."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> None:
    """Write the tables into README.md."""
    path = ROOT / "README.md"
    path.write_text(replaced(path.read_text(), tables()))


if __name__ == "__main__":
    main()
