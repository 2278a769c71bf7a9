r"""How well code fits the instruction cache, and what PADDING (emulator/device/kernel/padding.cuh) does to that.

Nsight Compute counts how often each instruction of the machine is executed, of rows of `speed.py`; its Python module
reads the report. Where it lies is `extras/python` in the folder of Nsight Compute.

    ncu -o layout -k dla_machine --section SourceCounters --profile-from-start off python \
        benchmarks/code_layout.py execute "MiniLM shape b1 s128" "GPT-2-small shape b1 s128"
    PYTHONPATH=... python benchmarks/code_layout.py judge layout.ncu-rep ~/.cache/dla/machine-....cubin
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from dla.emulator.device.elf import Elf

LINE = 128
"""Bytes of a line of an instruction cache (docs/machine.md)."""
PLACES, WAYS = 256, 4
"""Of the cache that those of a GPC share, as far as layouts tell (docs/machine.md): places, and lines at each."""
PADDED = "$dla_machine$_Z10trap_indexxRK5Block"
"""The function that holds the padding: those behind it move with it."""
INSTRUCTION = 16
"""Bytes of one, and of one of padding."""
OFTEN = 1500
"""Executions of an instruction by warps: more than one by each worker of an H200 (1,056)."""
BEST = 5
"""Paddings to name."""
KERNEL = Path(__file__).parent.parent / "emulator" / "device" / "kernel"


@click.group()
def main() -> None:
    """See the head of this file."""


@main.command()
@click.argument("names", nargs=-1, required=True)
def execute(names: Sequence[str]) -> None:
    """Launches the work of rows of `speed.py` by these names, each once while ncu counts."""
    import torch
    from speed import attention, chains, convolution, decode, matrix, networks, pointwise
    from speed.bench import Bench

    families = (chains, matrix, attention, pointwise, convolution, decode, networks)
    rows = {row.name: row for family in families for row in family.ROWS}
    if unknown := [name for name in names if name not in rows]:
        raise click.BadParameter(f"speed.py has no row {unknown[0]!r}; it has {', '.join(sorted(rows))}")
    bench = Bench(quick=True, compile_mode=None)
    for name in names:
        with bench.stream():
            case = rows[name].case(bench)
            case.work.ours()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
            case.work.ours()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()


@main.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("cubin", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def judge(report: Path, cubin: Path) -> None:
    """Says how many lines of code find no room in each launch of REPORT, and what padding would be better.

    CUBIN is the kernel that was launched, made of this source.
    """
    try:
        moved_from = -(-Elf(cubin.read_bytes()).symbol(PADDED).place // LINE)
    except (KeyError, ValueError) as error:
        raise click.BadParameter(f"{cubin} is not the machine with all its instructions: {error}") from error
    period = PLACES * LINE // INSTRUCTION
    launches = list(executed(report))
    now = [too_many(lines, moved_from, 0) for lines in launches]
    for number, (lines, beyond) in enumerate(zip(launches, now, strict=True), 1):
        click.echo(f"launch {number}: {len(lines)} lines, {beyond} of them beyond {WAYS} at a place")
    paddings = sorted((sum(too_many(lines, moved_from, by) for lines in launches), by) for by in range(PLACES))
    for beyond, by in paddings[:BEST]:
        padding = (padding_now() + by * LINE // INSTRUCTION) % period
        click.echo(f"PADDING = {padding}: {beyond} instead of {sum(now)}")


def padding_now() -> int:
    """PADDING as it is, in instructions."""
    found = re.search(r"PADDING = (\d+);", (KERNEL / "padding.cuh").read_text())
    assert found, "padding.cuh says how much padding there is"
    return int(found[1])


def executed(report: Path) -> Iterator[list[int]]:
    """Of each launch of the machine in a report: numbers of the lines of code that are executed OFTEN times or more."""
    try:
        reader = importlib.import_module("ncu_report")
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: PYTHONPATH has to name extras/python of Nsight Compute") from error
    context = reader.load_report(str(report))
    for part in (context.range_by_idx(i) for i in range(context.num_ranges())):
        for launch in (part.action_by_idx(i) for i in range(part.num_actions())):
            if "dla_machine" not in launch.name():
                continue
            counts = launch.metric_by_name("inst_executed")
            addresses = counts.correlation_ids()
            often = {addresses.as_uint64(i): counts.as_uint64(i) for i in range(counts.num_instances())}
            begin = min(often)
            yield sorted({(address - begin) // LINE for address, count in often.items() if count >= OFTEN})


def too_many(lines: Sequence[int], moved_from: int, by: int) -> int:
    """How many of `lines` find no room, if those from number `moved_from` on lie `by` lines further on."""
    at = Counter((line + (by if line >= moved_from else 0)) % PLACES for line in lines)
    return sum(max(0, count - WAYS) for count in at.values())


if __name__ == "__main__":
    main()
