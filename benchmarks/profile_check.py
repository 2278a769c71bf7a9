"""Is a profile right? `python benchmarks/profile_check.py programs/digits_transformer.dla`.

The five instructions that take longest are left out of the program, one at a time: what it then takes less is to be
what the profile says of that instruction. And all that the profile attributes is to be what a run takes that is not
traced. Exit code 1 beyond --limit and --sum-limit.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import run as benchmark

from dla.arguments import inputs_for, parsed_dims, source
from dla.isa.errors import DlaError
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction, Program
from dla.options import ModelOptions, model_options
from dla.profiler.run import measured, times
from dla.profiler.stand import Stand, stand_for

WORTH = 0.02
"""Share of the run that an instruction has at least: less drowns in what clocks and launches differ by."""


def without(program: Program, index: int) -> Program:
    """`program` with a NOP for the instruction at `index`."""
    instructions = list(program.instructions)
    instructions[index] = Instruction(BY_MNEMONIC["NOP"])
    return replace(program, instructions=tuple(instructions))


@click.command()
@click.argument("program")
@click.option("--set", "dims", multiple=True, metavar="NAME=SIZE")
@click.option("--backend", default="auto")
@click.option("--count", default=5, help="So many instructions.")
@click.option("--repeat", default=41, help="Runs of each, of which the median counts.")
@click.option("--limit", default=0.10, help="How far off an instruction's time may be.")
@click.option("--sum-limit", default=0.03, help="How far off all of them together.")
@click.option("--output", type=click.Path(path_type=Path), help="Write what was found as JSON.")
@model_options
def main(
    program: str, model: ModelOptions, dims: tuple[str, ...], backend: str, count: int, repeat: int, limit: float,
    sum_limit: float, output: Path | None,
) -> None:  # fmt: skip
    """Compare a profile with timing that knows nothing of it."""
    origin, stand = source(program, model, (), parsed_dims(dims)), stand_for(backend)
    inputs = inputs_for(origin, (), 1, parsed_dims(dims))
    found, _ = measured(stand, origin.program, inputs, parsed_dims(dims), repeat=repeat)
    attributed = found.traced + found.launch
    off = attributed / found.wall - 1
    print(f"a run {found.wall * 1e6:.2f} us, all that was attributed {attributed * 1e6:.2f} us: {off:+.1%}")
    long = sorted((f for f in found.figures if f.time > WORTH * found.traced), key=lambda f: -f.time)
    rows = []
    for figures in long:
        try:
            less = taken_less(stand, origin.program, figures.index, inputs, found.dims, repeat)
        except DlaError:  # what it writes is read: the program is none without it
            continue
        rows.append((figures.index, figures.name, figures.time, less))
        said, line = figures.time, f"{figures.index:4} {figures.name:16}"
        print(f"{line} profile {said * 1e6:8.2f} us, left out {less * 1e6:8.2f} us: {said / less - 1:+.1%}")
        if len(rows) == count:
            break
    if output is not None:
        keys = ("index", "name", "profile_s", "left_out_s")
        instructions = [dict(zip(keys, row, strict=True)) for row in rows]
        facts = {
            "program": program, "device": dict(found.device), "commit": benchmark.commit(), "wall_s": found.wall,
            "attributed_s": attributed, "instructions": instructions,
        }  # fmt: skip
        output.write_text(json.dumps(facts, indent=2) + "\n")
    sys.exit(abs(off) > sum_limit or any(abs(time / less - 1) > limit for *_, time, less in rows))


def taken_less(
    stand: Stand, program: Program, index: int, inputs: Mapping[str, Any], dims: Mapping[str, int], repeat: int
) -> float:  # fmt: skip
    """Seconds that `program` takes less without the instruction: both in turns, so that clocks do not drift apart."""
    shorter = without(program, index)
    rounds = [
        (times(stand, program, inputs, dims, {}, repeat // 4), times(stand, shorter, inputs, dims, {}, repeat // 4))
        for _ in range(4)
    ]
    whole, shorter_one = ([t for both in rounds for t in both[k]] for k in range(2))
    return statistics.median(whole) - statistics.median(shorter_one)


if __name__ == "__main__":
    main()
