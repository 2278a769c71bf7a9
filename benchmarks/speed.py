"""Measure the machine beside native kernels: `python benchmarks/speed.py --rows 'GEMM bf16'`.

Rows are measured one after the other and written as they come, so a run that is cut short, or several runs of parts,
add up to one file, as long as they are of one commit on one kind of device. Nothing here gates anything.
"""

from __future__ import annotations

import gc
import json
import re
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import readme_table
import run
import speed_table
import torch
from speed import attention, chains, convolution, decode, matrix, measure, networks, pointwise
from speed.bench import Bench
from speed.row import Row

import dla

FAMILIES = (chains, matrix, attention, pointwise, convolution, decode, networks)
"""In this order, so that what takes longest (torch.compile) comes last."""
ROWS: list[Row] = sorted((row for family in FAMILIES for row in family.ROWS), key=lambda row: row.compiled)
SUMMARIES = [*matrix.SUMMARIES, *attention.SUMMARIES, *convolution.SUMMARIES]


class Results:
    """The file of results, which grows row by row; what another commit or device measured is not added to."""

    def __init__(self, path: Path, commit: str) -> None:
        self.path = path
        self._facts: dict[str, Any] = {
            "device": run.device(), "host": run.host(), "commit": commit,
            "versions": run.versions() | {"torch": torch.__version__, "cuDNN": str(torch.backends.cudnn.version())},
        }  # fmt: skip
        self.rows: list[measure.Facts] = []
        if path.exists():
            held = json.loads(path.read_text())
            if all(held[key] == self._facts[key] for key in ("device", "commit")):
                self.rows = held["speed"]

    def add(self, facts: measure.Facts) -> None:
        """Put a row in the place of an older one of its name, order all, and write the file."""
        order = {row.name: place for place, row in enumerate([*ROWS, *SUMMARIES])}
        kept = [row for row in self.rows if row["name"] != facts["name"] and row["name"] in order]
        derived = {summary.name for summary in SUMMARIES}
        kept = [row for row in kept if row["name"] not in derived] + [facts]
        kept += [found for summary in SUMMARIES if (found := measure.summary(summary, kept)) is not None]
        self.rows = sorted(kept, key=lambda row: order[row["name"]])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        taken = {"taken": datetime.now(UTC).isoformat(timespec="seconds")}
        self.path.write_text(json.dumps(self._facts | taken | {"speed": self.rows}, indent=1) + "\n")


@click.command()
@click.option("--rows", default="", metavar="REGEX", help="Only rows whose family or name this finds.")
@click.option("--quick", is_flag=True, help="Fewer repetitions and reruns.")
@click.option("--skip-compiled", is_flag=True, help="Leave natives that torch.compile makes out.")
@click.option("--compile-mode", default="max-autotune-no-cudagraphs", show_default=True, help="torch.compile's mode.")
@click.option("--output", type=click.Path(path_type=Path), help="Write here instead of to benchmarks/results/.")
@click.option("--seconds", type=float, help="Begin no row after this long.")
@click.option("--commit", metavar="NAME", help="The commit that is measured, where git is not there to say.")
@click.option("--readme", is_flag=True, help="Write the tables of README.md and the plots from all results, too.")
def main(
    rows: str, quick: bool, skip_compiled: bool, compile_mode: str, output: Path | None, seconds: float | None,
    commit: str | None, readme: bool,
) -> None:  # fmt: skip
    """Measure rows of the speed table, write them as JSON, and print the table."""
    began = time.perf_counter()
    bench = Bench(quick=quick, compile_mode=None if skip_compiled else compile_mode)
    stem = re.sub(r"[^a-z0-9]+", "_", run.device().lower())
    results = Results(output or readme_table.RESULTS / f"{stem}_speed.json", commit or run.commit())
    chosen = [row for row in ROWS if re.search(rows, f"{row.family} {row.name}", re.IGNORECASE)]
    failed = []
    for row in chosen:
        if seconds is not None and time.perf_counter() - began > seconds:
            click.echo(f"no time left for {row.name} and what follows it")
            break
        try:
            results.add(facts := measure.measured(bench, row))
        except (dla.isa.errors.DlaError, RuntimeError, AssertionError) as error:
            failed.append(row.name)
            click.echo(f"{row.name}: {''.join(traceback.format_exception_only(error)).strip()[:300]}")
            if not isinstance(error, dla.isa.errors.DlaError):
                click.echo("".join(traceback.format_tb(error.__traceback__)[-2:]))
            continue
        click.echo(" | ".join(speed_table.cells(facts)[0]))
        gc.collect()  # sessions and graphs hold on to GPU memory
    click.echo("\n" + "\n".join(speed_table.text(results.rows)))
    if failed:
        click.echo(f"not measured: {', '.join(failed)}")
    click.echo(f"written: {results.path}")
    if readme:
        speed_table.plots(readme_table.RESULTS)
        readme_table.main()


if __name__ == "__main__":
    main()
