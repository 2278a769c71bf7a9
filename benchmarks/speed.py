"""Measure the machine beside native kernels: `python benchmarks/speed.py --rows 'GEMM bf16'`.

Rows are measured one after the other and written as they come, so a run that is cut short, or several runs of parts,
add up to one file, as long as they are of one commit on one kind of device: by --missing, or by --merge of several
files. Nothing here gates anything.
"""

from __future__ import annotations

import gc
import json
import re
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import click
import readme_table
import run
import speed_table
import torch
from speed import attention, chains, convolution, decode, matrix, measure, networks, others, pointwise
from speed.bench import Bench
from speed.prepared import FOLDER, Prepared
from speed.results import Results
from speed.row import Row

from dla.isa.errors import DlaError

FAMILIES = (chains, matrix, attention, pointwise, convolution, decode, networks)
ROWS: list[Row] = sorted((row for family in FAMILIES for row in family.ROWS), key=lambda row: row.compiled)
"""In this order, so that what takes longest comes last: torch.compile, then building other kernels of the machine."""
ROWS += others.ROWS
SUMMARIES = [*matrix.SUMMARIES, *attention.SUMMARIES, *convolution.SUMMARIES]


def about(commit: str | None, only: frozenset[str]) -> measure.Facts:
    """Where this process measures."""
    versions = run.versions() | {"torch": torch.__version__, "cuDNN": str(torch.backends.cudnn.version())}
    facts = {"device": run.device(), "host": run.host(), "commit": commit or run.commit(), "versions": versions}
    return facts | ({"only": sorted(only)} if only else {})


def results_for(output: Path | None, facts: measure.Facts) -> Results:
    """The file for what `facts` is about: `output`, or the one of the device in benchmarks/results/."""
    stem = re.sub(r"[^a-z0-9]+", "_", facts["device"].lower())
    return Results(output or readme_table.RESULTS / f"{stem}_speed.json", facts, ROWS, SUMMARIES)


def merged(output: Path | None, parts: Sequence[Path]) -> Results:
    """One file out of several."""
    held = [json.loads(part.read_text()) for part in parts]
    results = results_for(output, held[0])
    for part, facts in zip(parts, held, strict=True):
        if not results.fits(facts):
            raise click.ClickException(f"{part} is not of the same commit and device as {parts[0]}")
        results.add(*facts["speed"])
    return results


@click.command()
@click.option("--rows", default="", metavar="REGEX", help="Only rows whose family or name this finds.")
@click.option("--quick", is_flag=True, help="Fewer repetitions.")
@click.option("--skip-compiled", is_flag=True, help="Leave natives that torch.compile makes out.")
@click.option(
    "--natives",
    type=click.Path(path_type=Path),
    default=FOLDER,
    show_default=True,
    help="Where compile_natives.py put them; those it did not compile are left out.",
)
@click.option("--compile-mode", metavar="MODE", help="Compile natives here instead, one by one, in this mode.")
@click.option("--output", type=click.Path(path_type=Path), help="Write here instead of to benchmarks/results/.")
@click.option("--seconds", type=float, help="Begin no row after this long.")
@click.option("--missing", is_flag=True, help="Only rows that the file does not have yet.")
@click.option("--commit", metavar="NAME", help="The commit that is measured, where git is not there to say.")
@click.option("--opcodes", default="", metavar="LIST", help="A kernel of these instructions only: GEMM,COPY.")
@click.option(
    "--merge",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="Measure nothing: put the rows of such files together. May be given several times.",
)
@click.option("--readme", is_flag=True, help="Write the tables of README.md and the plots from all results, too.")
def main(
    rows: str, quick: bool, skip_compiled: bool, natives: Path, compile_mode: str | None, output: Path | None,
    seconds: float | None, missing: bool, commit: str | None, opcodes: str, merge: tuple[Path, ...], readme: bool,
) -> None:  # fmt: skip
    """Measure rows of the speed table, write them as JSON, and print the table."""
    only = frozenset(filter(None, opcodes.split(",")))
    if only and output is None:
        raise click.UsageError("--opcodes needs --output: the file of the whole machine is another one")
    if merge:
        results, failed = merged(output, merge), []
    else:
        results = results_for(output, about(commit, only))
        chosen = [row for row in ROWS if re.search(rows, f"{row.family} {row.name}", re.IGNORECASE)]
        chosen = [row for row in chosen if not (missing and results.has(row.name))]
        prepared = None if skip_compiled or compile_mode else Prepared(natives)
        bench = Bench(quick=quick, compile_mode=None if skip_compiled else compile_mode, natives=prepared, only=only)
        failed = measure_rows(bench, chosen, results, seconds)
    click.echo("\n" + "\n".join([*speed_table.text(results.rows), *speed_table.cliffs(results.rows)]))
    if failed:
        click.echo(f"not measured: {', '.join(failed)}")
    click.echo(f"written: {results.path}")
    if readme:
        speed_table.plots(readme_table.RESULTS)
        readme_table.main()


def measure_rows(bench: Bench, rows: Sequence[Row], results: Results, seconds: float | None) -> list[str]:
    """Measure rows and show each as it comes; the names of those that could not be measured."""
    began = time.perf_counter()
    failed = []
    for row in rows:
        if seconds is not None and time.perf_counter() - began > seconds:
            click.echo(f"no time left for {row.name} and what follows it")
            break
        try:
            results.add(facts := measure.measured(bench, row))
        except (DlaError, RuntimeError, AssertionError) as error:
            failed.append(row.name)
            click.echo(f"{row.name}: {''.join(traceback.format_exception_only(error)).strip()[:300]}")
            if not isinstance(error, DlaError):
                click.echo("".join(traceback.format_tb(error.__traceback__)[-2:]))
            continue
        click.echo(" | ".join(speed_table.cells(facts)[0]))
        if row.compiled and bench.natives is not None and facts["compile_mode"] is None:
            click.echo(f"{row.name}: its native was not compiled beforehand (benchmarks/compile_natives.py)")
        gc.collect()  # sessions and graphs hold on to GPU memory
    return failed


if __name__ == "__main__":
    main()
