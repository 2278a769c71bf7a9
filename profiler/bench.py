"""A program run again and again: latencies, percentiles and throughput, after trtexec's manner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.emulator.binding import bind
from dla.isa.program import Program
from dla.profiler.stand import Stand, Timer
from dla.profiler.texts import duration, machine, printable

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Limits:
    """How long to go on: at least `duration` seconds and `iterations` runs, after `warmup` seconds and one run."""

    warmup: float = 0.2
    duration: float = 3.0
    iterations: int = 10


@dataclass(frozen=True)
class Bench:
    """What was measured of a program. Times are seconds; a latency is that of one run, its launch included."""

    name: str
    machine: str
    device: Mapping[str, str]
    dims: Mapping[str, int]
    cold: bool
    latencies: tuple[float, ...]  # in the order of the runs
    warmups: int
    ranks: int = 1  # all on this machine, in lockstep

    @property
    def throughput(self) -> float:
        """Runs per second of runs one after the other."""
        return len(self.latencies) / sum(self.latencies)

    def percentile(self, share: float) -> float:
        """The latency that `share` percent of the runs do not exceed."""
        return float(np.percentile(self.latencies, share, method="inverted_cdf"))


def bench(
    stand: Stand, program: Program, inputs: Mapping[str, Any], dims: Mapping[str, int], state: Mapping[str, Any],
    limits: Limits, *, cold: bool = False,
) -> Bench:  # fmt: skip
    """Run `program` within `limits`, from the same state each time. Raises the Trap of a run."""
    sizes = bind(program, inputs, dims).dims
    taken, warmups = latencies(stand.timer(program, inputs, sizes, state, cold=cold), limits)
    return Bench(program.name, stand.name, stand.device(), sizes, cold, taken, warmups, max(1, program.world))


def latencies(timer: Timer, limits: Limits) -> tuple[tuple[float, ...], int]:
    """Seconds of each run within `limits`; and how many runs were to warm up."""
    until, warmups = time.perf_counter() + limits.warmup, 0
    while not warmups or time.perf_counter() < until:
        timer()
        warmups += 1
    taken: list[float] = []
    until = time.perf_counter() + limits.duration
    while len(taken) < limits.iterations or time.perf_counter() < until:
        taken.append(max(timer(), 1e-9))
    return tuple(taken), warmups


def facts(found: Bench) -> dict[str, Any]:
    """`found` as JSON-able facts: seconds, and runs per second."""
    latencies = np.asarray(found.latencies)
    return {
        "program": found.name,
        "machine": found.machine,
        "device": dict(found.device),
        "dims": dict(found.dims),
        "ranks": found.ranks,
        "cache": "cold" if found.cold else "warm",
        "iterations": len(latencies),
        "warmup_iterations": found.warmups,
        "throughput_per_s": found.throughput,
        "latency_s": {
            "least": float(latencies.min()),
            "most": float(latencies.max()),
            "mean": float(latencies.mean()),
            **{f"p{share}": found.percentile(share) for share in PERCENTILES},
        },
    }


def parts(found: Bench) -> list[str]:
    """`found` in lines for people."""
    known = facts(found)
    dims = "".join(f", {name}={size}" for name, size in found.dims.items())
    dims += f", {found.ranks} ranks" if found.ranks > 1 else ""
    latency = known["latency_s"]
    rows = [("least", "least"), ("median", "p50"), *((f"{n} %", f"p{n}") for n in PERCENTILES[1:]), ("most", "most"),
            ("mean", "mean")]  # fmt: skip
    device = [value if key == "name" else f"{key} {value}" for key, value in found.device.items()]
    head = (
        f"{printable(found.name)} on {machine(found.machine)}{dims}: {len(found.latencies):,} runs after "
        f"{found.warmups:,} to warm up, caches {known['cache']}"
    )
    return [
        head,
        f"throughput   {found.throughput:,.1f} runs/s",
        *(f"{name:<12} {duration(latency[key])}" for name, key in rows),
        f"measured on {printable(', '.join(device))}",
    ]
