"""`make conformance`: run the suite on each machine that there is; write the scoreboards and docs/conformance.md."""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click

import dla
from conformance import page, suite
from dla.emulator.api import gpu_missing

SCORES = Path(__file__).parent
GPU_PROCESSES = 8  # each holds a context of the device

Job = tuple[str, str, str]  # backend, kind, name
Outcome = tuple[str | None, float]  # why it does not pass, seconds


def outcome(job: Job) -> Outcome:
    """Run one case. Raises what is no DlaError, with the case's name."""
    backend, kind, name = job
    began = time.perf_counter()
    try:
        reason = suite.failure(suite.case(kind, name), backend)
    except BaseException as error:
        error.add_note(f"in the {kind} test {name} on {backend}: a defect, for each refusal is a DlaError")
        raise
    return reason, time.perf_counter() - began


def device(backend: str) -> str:
    """What ran the tests."""
    if backend == "golden":
        return "NumPy"
    import cupy

    name: str = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return name


def versions() -> dict[str, str]:
    """The versions that the outcome depends on."""
    return {"dla": dla.__version__} | {name: importlib.metadata.version(name) for name in ("onnx", "numpy")}


def scores(jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Names that pass, and those that do not with their reasons, by kind."""
    tests: dict[str, Any] = {kind: {"passed": [], "failed": {}} for kind in suite.KINDS}
    for (_, kind, name), (reason, _) in zip(jobs, outcomes, strict=True):
        if reason is None:
            tests[kind]["passed"].append(name)
        else:
            tests[kind]["failed"][name] = reason
    return tests


def measured(backend: str, processes: int) -> dict[str, Any]:
    """Run everything on one backend."""
    jobs = [(backend, kind, name) for kind in suite.KINDS for name in suite.names(kind)]
    # Forked processes share the cases that were just made. A device, however, is only opened in them.
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        outcomes = list(pool.map(outcome, jobs, chunksize=16))
        used = pool.submit(device, backend).result()
    tests = scores(jobs, outcomes)
    for kind, found in tests.items():
        click.echo(f"{backend} {kind}: {len(found['passed'])} of {len(found['passed']) + len(found['failed'])}")
    seconds, (_, _, slowest) = max(zip((s for _, s in outcomes), jobs, strict=True))
    click.echo(f"slowest: {slowest}, {seconds:.2f} s")
    return {"backend": backend, "device": used, "versions": versions(), "tests": tests}


@click.command()
@click.option("--backend", "backends", multiple=True, type=click.Choice(list(suite.DEVICES)),
              help="Default: golden, and gpu where there is one.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1), default=os.cpu_count(), show_default=True)
def main(backends: Sequence[str], processes: int) -> None:
    """Run ONNX's conformance suite and write the scoreboards."""
    if not backends:
        with ProcessPoolExecutor(1) as pool:  # a process that asked for devices cannot be forked
            missing = pool.submit(gpu_missing).result()
        backends = ["golden"] + ([] if missing else ["gpu"])
        click.echo(f"backends: {', '.join(backends)}" + (f" (no gpu: {missing})" if missing else ""))
    for backend in backends:
        found = measured(backend, processes if backend == "golden" else min(processes, GPU_PROCESSES))
        (SCORES / f"{backend}.json").write_text(json.dumps(found, indent=1) + "\n")
    page.PAGE.write_text(page.text(page.boards()))


if __name__ == "__main__":
    main()
