"""The measurements: each returns seconds, the median of several repetitions. Nothing here gates anything."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import dla
from dla.emulator.device import plan
from dla.emulator.device.paths import Target
from dla.isa.container import read_bytes, write_bytes
from dla.isa.descriptor import Segment

PROGRAMS = Path(__file__).parent.parent / "programs"
NETWORKS = ("digits_mlp", "digits_cnn", "digits_transformer")
BATCHES = (1, 450)
CHAIN = 2000
"""Dependent instructions in the short chain; the long one has twice as many, so that the difference has no start-up."""
LINES = 10_000

Measurement = tuple[str, float]
"""(what was measured, seconds)."""


def median_of(repetitions: int, action: Callable[[], object]) -> float:
    """Median time of `action` in seconds, after one run that does not count."""
    action()
    return statistics.median(_timed(action) for _ in range(repetitions))


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def chain(length: int) -> str:
    """A program of `length` small instructions, each of which needs the result of the one before."""
    body = "\n".join("    EW.add b, a, 1" if i % 2 == 0 else "    EW.add a, b, 1" for i in range(length))
    return f""".program chain
.input  x : f32[64]
.output y : f32[64]
.scratch a : f32[64]
.scratch b : f32[64]
main:
    COPY a, x
{body}
    COPY y, {"ba"[length % 2 == 0]}
    HALT
"""


def small_instruction(machine: dla.Machine) -> Iterator[Measurement]:
    """Time per dependent elementwise instruction on 64 numbers."""
    seconds = []
    for length in (CHAIN, 2 * CHAIN):
        session = machine.load(dla.assemble(chain(length)))
        inputs = {"x": np.zeros(64, np.float32)}
        assert session.run(inputs)["y"][0] == length
        session.run(inputs)
        seconds.append(statistics.median(session.run(inputs).elapsed for _ in range(7)))
    yield f"dependent EW.add on f32[64], each ({machine.name})", (seconds[1] - seconds[0]) / CHAIN


def networks(machine: dla.Machine) -> Iterator[Measurement]:
    """The three digit networks: inputs on the host to outputs on the host, program already loaded."""
    images = load_file(PROGRAMS / "data" / "digits.safetensors")["test_images"]
    for name in NETWORKS:
        session = machine.load(dla.load(PROGRAMS / f"{name}.dla"))
        for batch in BATCHES:
            inputs = {"images": images[:batch]}
            yield (
                f"{name}, batch {batch}, start to finish ({machine.name})",
                median_of(9, lambda session=session, inputs=inputs: session.run(inputs)),
            )


def front_end() -> Iterator[Measurement]:
    """Assembling, writing, reading, verifying and planning 10,000 instructions."""
    text = chain(LINES)
    yield f"assemble {LINES:,} lines", median_of(3, lambda: dla.assemble(text))
    program = dla.assemble(text)
    data = write_bytes(program)
    yield f"write {LINES:,} instructions as .dlab", median_of(5, lambda: write_bytes(program))
    yield f"read {LINES:,} instructions from .dlab", median_of(5, lambda: read_bytes(data))
    yield f"verify {LINES:,} instructions", median_of(5, lambda: dla.verify(program))
    bases = {segment: 2**20 * int(segment) for segment in Segment}
    yield f"plan {LINES:,} instructions for the GPU", median_of(5, lambda: plan.build(program, bases, Target()))


def command_line(machines: Sequence[str]) -> Iterator[Measurement]:
    """Wall times of commands, process start included."""

    def wall(*args: str) -> float:
        command = [sys.executable, "-c", f"from dla.cli import main; main({list(args)})"]
        return median_of(9, lambda: subprocess.run(command, check=True, capture_output=True))

    yield "`dla --help`", wall("--help")
    program = str(PROGRAMS / "vector_add.dla")
    for name in machines:
        yield f"`dla run vector_add.dla --random 1` ({name})", wall("run", program, "--random", "1", "--backend", name)
