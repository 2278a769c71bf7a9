"""The speed table as text, for the terminal and for README.md, and plots of the sweeps; all from the JSON alone."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speed.row import CLIFF

Facts = dict[str, Any]
COLUMNS = ("work", "against", "native", "ours", "reached", "warm", "must", "aim", "", "error")
ABOUT = (
    "Medians. Native and ours take turns in one process on the same data, with the second-level cache flushed before "
    "each; `warm` is the same ratio without that. `dep`: per dependent instruction of a running program, against the "
    "same chain in a CUDA graph. Reached: native time / ours, or ours alone where a bar is a time. Error: the largest, "
    "as a share of what the instruction's bound allows, or (`n`) of twice the native kernels' own error; `!` marks a "
    "row whose error is larger or whose reruns differ."
)


def number(value: float | None, unit: str = "") -> str:
    """Three digits."""
    return "-" if value is None else f"{value:#.3g}".rstrip(".") + unit


def cells(facts: Facts) -> list[tuple[str, ...]]:
    """A row of the table for each bar, or one for a row without any."""
    lines = []
    times = facts.get("cold_us", {})
    limit = " n" if "native" in facts["error_limit"] else ""
    error = ("" if facts["right"] else "! ") + number(facts["error"]) + limit
    nobody = {"against": "", "must": None, "aim": None, "unit": "us", "reached": times.get("ours"), "met": None}
    for bar in facts["bars"] or [nobody]:
        unit = "" if bar["unit"] == "x" else f" {bar['unit']}"
        sign = {True: "yes", False: "no", None: ""}[bar["met"]]
        lines.append((
            facts["name"], bar["against"] or "-", number(times.get(bar["against"])), number(times.get("ours")),
            number(bar["reached"], unit), number(bar.get("warm")), number(bar["must"], unit), number(bar["aim"], unit),
            sign, error,
        ))  # fmt: skip
    return lines


def table_rows(rows: Sequence[Facts]) -> list[tuple[str, ...]]:
    """Cells of the rows that have bars."""
    return [line for facts in rows if facts["bars"] for line in cells(facts)]


def text(rows: Sequence[Facts]) -> list[str]:
    """The table for a terminal: every row, aligned."""
    lines = [COLUMNS, *(line for facts in rows for line in cells(facts))]
    widths = [max(len(line[k]) for line in lines) for k in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def markdown(facts: Facts, stem: str) -> list[str]:
    """The table for README.md: rows with bars, then the plot of each sweep."""
    rows = [f"| {' | '.join(line)} |" for line in table_rows(facts["speed"])]
    met = [bar["met"] for row in facts["speed"] for bar in row["bars"] if bar["met"] is not None]
    lines = [ABOUT, "", f"{sum(met)} of {len(met)} bars are met.", ""]
    lines += [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", *rows]
    if sweeps(facts["speed"]):
        lines += ["", f"![cost grows as work grows](benchmarks/results/{stem}.svg)"]
        lines += ["", *(f"- {line}" for line in cliffs(facts["speed"]))]
    return lines


def sweeps(rows: Sequence[Facts]) -> dict[str, list[tuple[int, float, float]]]:
    """By title: (size, microseconds of ours, of the fastest native kernel) in order of size."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for facts in rows:
        natives = [us for name, us in facts.get("cold_us", {}).items() if name != "ours"]
        if "sweep" in facts and natives:
            point = (facts["sweep"]["size"], facts["cold_us"]["ours"], min(natives))
            found.setdefault(facts["sweep"]["title"], []).append(point)
    return {title: sorted(points) for title, points in found.items()}


def cliffs(rows: Sequence[Facts]) -> list[str]:
    """Of each sweep, where the ratio to native changes most from one size to the next, and where it is worst."""
    found = []
    for title, points in sweeps(rows).items():
        ratios = [(size, native / ours) for size, ours, native in points]
        size, worst = min(ratios, key=lambda point: point[1])
        text = f"{title}: native / dla is {number(worst)} at the worst (size {size})"
        if len(ratios) > 1:
            steps = [(max(a, b) / min(a, b), f"{m} to {n}") for (m, a), (n, b) in itertools.pairwise(ratios)]
            change, where = max(steps)
            text += f", and changes by a factor of {number(change)} at most from one size to the next ({where})"
        found.append(text)
    return found


def digest(rows: Sequence[Facts]) -> str:
    """What a plot is of: so that a test can tell a stale one without drawing it again."""
    return hashlib.sha256(json.dumps(sweeps(rows)).encode()).hexdigest()[:16]


def plots(folder: Path) -> None:
    """Draw the sweeps of each result beside it, as <result>.svg."""
    import matplotlib as mpl  # only who draws needs it

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "dla", "svg.fonttype": "none", "font.size": 8}
    from matplotlib import pyplot

    for path in sorted(folder.glob("*_speed.json")):
        rows = json.loads(path.read_text())["speed"]
        found = sweeps(rows)
        if not found:
            continue
        figure, axes = pyplot.subplots(2, len(found), figsize=(5.2 * len(found), 5), squeeze=False, sharex="col")
        for k, (title, points) in enumerate(found.items()):
            sizes, ours, native = zip(*points, strict=True)
            times, ratios = axes[0][k], axes[1][k]
            times.set_title(title, fontsize=7)
            times.plot(sizes, ours, "o-", label="dla", markersize=3)
            times.plot(sizes, native, "s--", label="native", markersize=3)
            times.set(xscale="log", yscale="log", ylabel="us")
            times.set_xscale("log", base=2)
            times.legend()
            ratios.plot(sizes, [b / a for a, b in zip(ours, native, strict=True)], "o-", markersize=3)
            ratios.axhline(1, color="grey", linewidth=0.7)
            ratios.axhline(1 / CLIFF, color="grey", linewidth=0.7, linestyle=":")
            ratios.set(xlabel=title.split()[0] + " size", ylabel="native / dla", ylim=(0, None))
        figure.tight_layout()
        drawn = path.with_suffix(".svg")
        figure.savefig(drawn, metadata={"Date": None, "Creator": None, "Description": f"sweeps {digest(rows)}"})
        pyplot.close(figure)
