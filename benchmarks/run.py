"""Measure and write benchmarks/results/<device>.json: `python benchmarks/run.py --help`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import measure
import readme_table

import dla
from dla.emulator.api import gpu_missing
from dla.emulator.doctor import driver_version


def host() -> str:
    """The processor's name and how many of them there are."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return f"{found.group(1) if found else platform.processor()}, {os.cpu_count()} CPUs"


def device() -> str:
    """The GPU's name, or that there is none."""
    if gpu_missing() is not None:
        return "No GPU"
    import cupy

    name: str = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return name


def versions() -> dict[str, str]:
    """The versions that the figures depend on."""
    found = {"Python": platform.python_version()}
    for package in ("numpy", "lark", "cupy-cuda12x", "cupy-cuda13x"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    driver = driver_version()
    return found | ({"driver": driver} if driver else {})


def commit() -> str:
    """The commit that was measured; `+` after it where files differ from it."""
    root = Path(__file__).parent
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=root, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def measurements() -> list[measure.Measurement]:
    """Everything that this computer can measure."""
    machines = [dla.Machine("golden")] + ([dla.Machine("gpu")] if gpu_missing() is None else [])
    found = []
    for part in (measure.command_line([m.name for m in machines]), measure.front_end()):
        found += list(told(part))
    for machine in machines:
        for part in (measure.small_instruction(machine), measure.networks(machine)):
            found += list(told(part))
    return found


def told(part: Any) -> Any:
    """The measurements of one part, each shown as it comes."""
    for what, seconds in part:
        click.echo(f"{what}: {readme_table.shown(seconds)}")
        yield what, seconds


@click.command()
@click.option("--output", type=click.Path(path_type=Path), help="Write here instead of to benchmarks/results/.")
@click.option("--readme", is_flag=True, help="Write the tables of README.md from all results, too.")
def main(output: Path | None, readme: bool) -> None:
    """Measure what this computer can, and write it as JSON with device, versions and commit."""
    name = device()
    facts = {
        "device": name,
        "host": host(),
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "measurements": [{"what": what, "seconds": seconds} for what, seconds in measurements()],
    }
    path = output or readme_table.RESULTS / f"{re.sub(r'[^a-z0-9]+', '_', name.lower())}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=2) + "\n")
    click.echo(f"written: {path}")
    if readme:
        readme_table.main()


if __name__ == "__main__":
    main()
