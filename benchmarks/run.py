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
import full_networks
import measure
import readme_table

import dla
from dla.emulator.api import gpu_missing
from dla.emulator.doctor import driver_version

PACKAGES = ("numpy", "lark", "onnx", "onnxruntime", "torch", "cupy-cuda12x", "cupy-cuda13x")


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
    for package in PACKAGES:
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


def full_network_measurements() -> list[dict[str, Any]]:
    """The facts of each full network, told as they come."""
    lacking = full_networks.missing()
    if lacking is not None:
        raise click.ClickException(lacking)
    found = []
    for facts in full_networks.measurements():
        click.echo(readme_table.network_line(facts))
        found.append(facts)
    return found


@click.command()
@click.option("--networks", is_flag=True, help="Measure full networks (minutes; needs torch) instead of all else.")
@click.option("--output", type=click.Path(path_type=Path), help="Write here instead of to benchmarks/results/.")
@click.option("--commit", "measured", metavar="NAME", help="The commit that is measured, where git cannot say.")
@click.option("--readme", is_flag=True, help="Write the tables of README.md from all results, too.")
def main(networks: bool, output: Path | None, measured: str | None, readme: bool) -> None:
    """Measure what this computer can, and write it as JSON with device, versions and commit."""
    name = device()
    facts: dict[str, Any] = {
        "device": name,
        "host": host(),
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": measured or commit(),
        "versions": versions(),
        "load": os.getloadavg()[0] / (os.cpu_count() or 1),  # 1: others could have kept every processor busy
    }
    if networks:
        facts["networks"] = full_network_measurements()
    else:
        facts["measurements"] = [{"what": what, "seconds": seconds} for what, seconds in measurements()]
    stem = re.sub(r"[^a-z0-9]+", "_", name.lower()) + ("_networks" if networks else "")
    path = output or readme_table.RESULTS / f"{stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=2) + "\n")
    click.echo(f"written: {path}")
    if readme:
        readme_table.main()


if __name__ == "__main__":
    main()
