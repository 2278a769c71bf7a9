"""A million damaged files: `python benchmarks/fuzz_million.py`. Takes minutes; prints what became of them as JSON.

The same cases as tests/trust/test_fuzz.py, but with other seeds, twenty times as many mutations, and every bit flip of
every seed file with the hash repaired behind it. Ends with an error if any does anything but what it may.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click

FUZZ = Path(__file__).parent.parent / "tests" / "trust" / "fuzz.py"


@click.command(help=__doc__)
@click.option("--mutations", default=1_000_000, show_default=True)
@click.option("--processes", default=os.cpu_count() or 1, show_default=True)
def main(mutations: int, processes: int) -> None:
    """Share the cases out and add the counts up."""
    shares = [mutations // processes + (i < mutations % processes) for i in range(processes)]
    runs = [
        subprocess.Popen(
            [sys.executable, str(FUZZ), "--mutations", str(share), "--seed", str(1000 + i), "--flips",
             f"{i}/{processes}", "--repair"],
            stdout=subprocess.PIPE, text=True,
        )
        for i, share in enumerate(shares)
    ]  # fmt: skip
    outputs = [run.communicate()[0] for run in runs]
    if any(run.returncode for run in runs):
        raise click.ClickException("a file did what it may not: its base64 and the traceback are above")
    total: Counter[str] = Counter()
    for output in outputs:
        total.update(json.loads(output))
    peaks = {key: max(json.loads(o)[key] for o in outputs) for key in ("memory_growth", "largest_file", "seconds")}
    click.echo(json.dumps({**total, **peaks}, indent=2))


if __name__ == "__main__":
    main()
