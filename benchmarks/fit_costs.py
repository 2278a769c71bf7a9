"""Fit the cost table of products (`COSTS` in paths/tilings.py) to a GPU: `python benchmarks/fit_costs.py`.

Every way to execute a product is timed on a grid of shapes, as `dla run --tune` does it, and written to
benchmarks/costs/<device>.json. The table is then fitted to the times, and printed beside the present one with what
either costs: how much longer the way that it chooses takes than the quickest one. `--from FILE` needs no GPU.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import run

import dla
from dla.emulator.device import tune
from dla.emulator.device.paths import tilings
from dla.emulator.device.paths.choices import fields_of
from dla.emulator.device.paths.tilings import COSTS, Choice, Costs

FOLDER = Path(__file__).parent / "costs"
BLOCKS = 132
CLOCK_KHZ = 1_980_000
"""Of an H200, where the driver does not say."""
SHAPES = (
    *((n, n, n) for n in (256, 512, 768, 1024, 1536, 2048, 4096)),
    *((m, 4096, 4096) for m in (32, 64, 128, 256, 512, 1024)),
    (512, 3072, 768), (512, 768, 3072), (128, 768, 768), (128, 1152, 384), (128, 384, 1536), (1024, 2304, 768),
    (128, 384, 384), (128, 768, 3072), (64, 1024, 1024), (49, 2048, 512), (49, 512, 2048), (196, 256, 1024),
    (64, 1024, 784), (1024, 1024, 784), (128, 128, 8192), (4096, 256, 256), (8192, 8192, 512),
    (3136, 64, 576), (784, 128, 1152), (196, 256, 2304), (49, 512, 4608), (25088, 128, 1152), (1568, 512, 4608),
    (3136, 64, 64), (3136, 256, 64), (3136, 64, 256), (3136, 128, 256), (784, 512, 128), (784, 512, 256),
    (784, 128, 512), (784, 256, 512), (196, 1024, 256), (196, 1024, 512), (196, 512, 1024), (49, 2048, 1024),
    (128, 2304, 768), (128, 3072, 768), (128, 1536, 384), (1024, 1024, 832), (900, 2048, 2048), (1024, 3072, 768),
    (256, 1024, 1024), (256, 2048, 1024), (512, 1024, 1024), (2048, 768, 768), (400, 3072, 768), (1600, 512, 512),
)  # fmt: skip
"""(rows, columns, depth): squares, few rows, layers of networks, convolutions of one sample and of many."""
TILES = (*tilings.TILES, tilings.LINE_TILE, *tilings.LOW_TILES)
TURNS = 3
ROUNDS = 30
"""Steps of the fit in each turn."""
NUDGES = (-0.7, -0.35, -0.15, 0.15, 0.35, 0.7)
"""In logarithms: half, or twice as much."""
PULL = 1e-3
"""Towards the present table, in the units of the residuals: a number that no time depends on stays as it is."""
STEP = 1e-3
"""Of the differences that stand for derivatives, in logarithms: the model has kinks, which a smaller step would see."""

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Sample:
    """A product of `shape` on `blocks` blocks took `clocks` in the way `choice`."""

    shape: Shape
    choice: Choice
    clocks: float
    blocks: int = BLOCKS

    def modelled(self, costs: Costs) -> float:
        """What the table says instead."""
        rows, columns, depth = self.shape
        return tilings.clocks(self.choice, rows, columns, 1, self.blocks, depth, costs)


# ---- the fit ----


def fit(samples: Sequence[Sample], present: Costs = COSTS) -> Costs:
    """The table that is closest to the samples: least squares of the logarithms, by Levenberg and Marquardt's method.

    Ways weigh the less, the slower they are beside the quickest of their shape: those are not chosen anyway.
    """
    names = list(asdict(present))
    goal = np.log([sample.clocks for sample in samples])
    best = {shape: min(s.clocks for s in samples if s.shape == shape) for shape in {s.shape for s in samples}}
    weights = np.array([best[sample.shape] / sample.clocks for sample in samples])
    began = np.log([getattr(present, name) for name in names])

    def residuals(at: np.ndarray) -> np.ndarray:
        costs = Costs(**dict(zip(names, np.exp(at).tolist(), strict=True)))
        modelled = np.log([sample.modelled(costs) for sample in samples])
        return np.concatenate([weights * (modelled - goal), math.sqrt(PULL) * (at - began)])

    found = began
    for _ in range(TURNS):
        found = _least_squares(residuals, _nudged(residuals, found))
    return Costs(**dict(zip(names, np.exp(found).tolist(), strict=True)))


def _nudged(residuals: Callable[[np.ndarray], np.ndarray], at: np.ndarray) -> np.ndarray:
    """`at`, each number in turn by a good deal larger or smaller where that is better.

    Where another limit decides, slopes do not show that a number is wrong.
    """
    for k in range(len(at)):
        tried = [at + nudge * np.eye(len(at))[k] for nudge in (0.0, *NUDGES)]
        at = min(tried, key=lambda there: float(residuals(there) @ residuals(there)))
    return at


def _least_squares(residuals: Callable[[np.ndarray], np.ndarray], at: np.ndarray) -> np.ndarray:
    """Where the sum of the squares of `residuals` is least, as far as can be seen from `at`."""
    damping, here = 1e-2, residuals(at)
    for _ in range(ROUNDS):
        steps = np.eye(len(at)) * STEP
        slopes = np.stack([(residuals(at + step) - here) / STEP for step in steps], axis=1)
        normal = slopes.T @ slopes
        move = np.linalg.solve(normal + damping * np.diag(normal.diagonal()), -slopes.T @ here)
        there = residuals(at + np.clip(move, -1, 1))
        if there @ there < here @ here:
            at, here, damping = at + np.clip(move, -1, 1), there, damping / 3
        else:
            damping *= 4
    return at


def regrets(samples: Sequence[Sample], costs: Costs) -> dict[Shape, float]:
    """For each shape, the time of the way that `costs` chooses, divided by that of the quickest."""
    found = {}
    for shape in dict.fromkeys(sample.shape for sample in samples):
        ways = [sample for sample in samples if sample.shape == shape]
        chosen = min(ways, key=lambda sample: sample.modelled(costs))
        found[shape] = chosen.clocks / min(way.clocks for way in ways)
    return found


# ---- the measurements ----


def trials() -> Iterator[tuple[Shape, tune.Trial]]:
    """Of each shape, all ways: weights lie as the compiler lays them, column after column."""
    for rows, columns, depth in SHAPES:
        program = dla.assemble(
            f".state a : bf16[{rows}, {depth}]\n.input b : bf16[{columns}, {depth}]\n"
            f".output y : bf16[{rows}, {columns}]\nmain:\n    GEMM y, a, b.T\n    HALT\n"
        )
        offers = tilings.offers(rows, columns, 1, BLOCKS, depth, tiles=TILES, pairs=True, together=True)
        ways = tuple(offer.choice for offer in offers)
        yield (rows, columns, depth), tune.trial(program.instructions[0], offers[0].clocks, ways)


def measured(timer: tune.Timer, seconds: float) -> list[dict[str, Any]]:
    """Every way of each shape in microseconds, as it is written; no shape is begun after so many seconds."""
    began, found = time.perf_counter(), []
    for shape, trial in trials():
        if time.perf_counter() - began > seconds:
            click.echo(f"no time left for {shape} and what follows it")
            break
        taken = timer(trial)
        ways = [{"way": fields_of(w), "us": s * 1e6} for w, s in zip(trial.ways, taken, strict=True)]
        found.append({"shape": shape, "ways": ways})
    return found


def samples_of(facts: dict[str, Any]) -> list[Sample]:
    """The samples of a file: of ways that there still are."""
    found = []
    for entry in facts["shapes"]:
        rows, columns, depth = shape = tuple(entry["shape"])
        offers = tilings.offers(rows, columns, 1, facts["blocks"], depth, tiles=TILES, pairs=True, together=True)
        offered = [offer.choice for offer in offers]
        for way in entry["ways"]:
            for choice in offered:
                if fields_of(choice) == way["way"]:
                    clocks = way["us"] / 1e6 * facts["clock_hz"]
                    found.append(Sample(shape, choice, clocks, facts["blocks"]))
    return found


def measure_here(opcodes: str, commit: str | None, seconds: float) -> dict[str, Any]:
    """The facts of a file, measured on this process's GPU. Raises BackendError without one."""
    from dla.emulator.device import build
    from dla.emulator.device.machine import DeviceMachine

    only = frozenset(filter(None, opcodes.split(","))) or None
    cupy = build.import_cupy()
    machine = DeviceMachine(only=only)
    kernel = build.kernel(checked=False, architecture=None, only=only, progress=click.echo)
    if kernel.blocks != BLOCKS or not kernel.target.hopper:
        click.echo(f"note: this GPU has {kernel.blocks} multiprocessors; ways are those of {BLOCKS}, Hopper's")
    return {
        "device": run.device(), "host": run.host(), "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or run.commit(), "versions": run.versions(), "blocks": kernel.blocks,
        "clock_hz": cupy.cuda.Device().attributes.get("ClockRate", CLOCK_KHZ) * 1000,
        "shapes": measured(machine.timer(kernel), seconds),
    }  # fmt: skip


# ---- what is printed ----


def report(samples: Sequence[Sample], fitted: Costs, present: Costs = COSTS) -> Iterator[str]:
    """Both tables, and what each one's choices cost."""
    yield f"{'':14}{'present':>10}{'fitted':>10}"
    for name, value in asdict(present).items():
        yield f"{name:14}{value:>10.5g}{getattr(fitted, name):>10.4g}"
    before, after = regrets(samples, present), regrets(samples, fitted)
    yield "\nregret: the time of the way chosen / the quickest one's"
    for shape, regret in before.items():
        yield f"{'x'.join(map(str, shape)):>18}{regret:>10.3f}{after[shape]:>10.3f}"
    for name, of in (("median", statistics.median), ("worst", max)):
        yield f"{name:>18}{of(before.values()):>10.3f}{of(after.values()):>10.3f}"
    yield f"\nCOSTS = {rounded(fitted)}"


def rounded(costs: Costs) -> Costs:
    """To three digits: more are not known."""
    return replace(costs, **{name: float(f"{value:.3g}") for name, value in asdict(costs).items()})


@click.command()
@click.option("--from", "source", type=click.Path(path_type=Path, exists=True), help="Fit to this file; no GPU needed.")
@click.option("--output", type=click.Path(path_type=Path), help="Write here instead of to benchmarks/costs/.")
@click.option("--commit", metavar="NAME", help="The commit that is measured, where git is not there to say.")
@click.option("--opcodes", default="", metavar="LIST", help="A kernel of these instructions only: GEMM.")
@click.option("--seconds", type=float, default=45.0, show_default=True, help="Begin no shape after this long.")
def main(source: Path | None, output: Path | None, commit: str | None, opcodes: str, seconds: float) -> None:
    """Time all ways to execute products, fit the cost table, and print it beside the present one."""
    facts = json.loads(source.read_text()) if source else measure_here(opcodes, commit, seconds)
    samples = samples_of(facts)
    fitted = fit(samples)
    click.echo("\n".join(report(samples, fitted)))
    path = output or source or FOLDER / f"{re.sub(r'[^a-z0-9]+', '_', facts['device'].lower())}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(facts | {"costs": {"present": asdict(COSTS), "fitted": asdict(fitted)}}, indent=1) + "\n"
    )
    click.echo(f"written: {path}")


if __name__ == "__main__":
    main()
