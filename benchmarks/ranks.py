"""Several GPUs: ALLREDUCE inside the machine beside NCCL's, and blocks of a Transformer that are cut for them.

`python benchmarks/ranks.py --help` says how. Blocks are those of tensor_parallel.py. Of ALLREDUCE, ours: what one more
adds to a program in which each takes what the one before made. NCCL's: a CUDA graph on each GPU with so many of them,
one behind the other, divided by their number. f32, sums; medians; in one process.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import run as benchmark
import tensor_parallel

import dla

SIZES = tuple(2**n for n in (12, 14, 16, 18, 20, 23, 26))
"""Bytes."""
MUST = {2**12: 0.5, 2**16: 0.5, 2**18: 0.6, 2**20: 0.9, 2**23: 1.05, 2**26: 1.05}
"""How much of NCCL's time it may take."""
PROGRAM = """
.state a : f32[{elements}]
.state b : f32[{elements}]
main:
    LOOP s0, {trips}
        ALLREDUCE.sum b, a
        ALLREDUCE.sum a, b
    ENDLOOP
    HALT
"""
ROUNDS = 15
RUNS = 20  # whose sums are looked at
GRAPH = 40  # calls of NCCL in a graph


def trips(size: int) -> tuple[int, int]:
    """How often the loops of a short and of a long program turn."""
    return (10, 110) if size <= 2**20 else (2, 12)


def ours(machine: dla.Machine, size: int) -> float:
    """Seconds of one ALLREDUCE of `size` bytes among others."""
    few, many = trips(size)
    sessions = [machine.load(dla.assemble(PROGRAM.format(elements=size // 4, trips=count))) for count in (few, many)]
    taken: list[list[float]] = [[], []]
    for _ in range(ROUNDS + 2):  # the first runs are warm-up
        for session, seconds in zip(sessions, taken, strict=True):
            seconds.append(session.run({}).elapsed)
    short, long = (statistics.median(seconds[2:]) for seconds in taken)
    return (long - short) / (2 * (many - few))


def right(machine: dla.Machine, size: int, ranks: int) -> bool:
    """Whether the sums are those of the definition, left to right, rounded after each, in all of RUNS runs."""
    elements = size // 4
    program = dla.assemble(
        f".input x : f32[{elements}]\n.output y : f32[{elements}]\nmain:\n    ALLREDUCE.sum y, x\n    HALT\n"
    )
    x = np.random.default_rng(size).standard_normal((ranks, elements), np.float32)
    wanted = x[0]
    for one in x[1:]:
        wanted = wanted + one
    session = machine.load(program)
    return all(np.array_equal(one, wanted) for _ in range(RUNS) for one in session.run({"x": x})["y"])


class Nccl:
    """NCCL's communicators of `gpus` in this process."""

    def __init__(self, gpus: Sequence[int]) -> None:
        import cupy
        from cupy.cuda import nccl

        self._cupy, self._nccl, self._gpus = cupy, nccl, gpus
        self._comms = nccl.NcclCommunicator.initAll(list(gpus))
        self._streams = self._on_each(lambda _: cupy.cuda.Stream(non_blocking=True))

    def _on_each(self, act: Callable[[int], Any]) -> list[Any]:
        found = []
        for place, gpu in enumerate(self._gpus):
            with self._cupy.cuda.Device(gpu):
                found.append(act(place))
        return found

    def seconds(self, size: int) -> float:
        """Of one allReduce of `size` bytes among others of a graph."""
        cupy, nccl, elements = self._cupy, self._nccl, size // 4
        buffers = self._on_each(lambda _: (cupy.zeros(elements, "float32"), cupy.zeros(elements, "float32")))

        def once() -> None:
            nccl.groupStart()
            self._on_each(lambda i: self._comms[i].allReduce(
                buffers[i][0].data.ptr, buffers[i][1].data.ptr, elements, nccl.NCCL_FLOAT32, nccl.NCCL_SUM,
                self._streams[i].ptr,
            ))  # fmt: skip
            nccl.groupEnd()

        once()
        self._on_each(lambda i: self._streams[i].synchronize())
        relaxed = cupy.cuda.runtime.streamCaptureModeRelaxed
        self._on_each(lambda i: self._streams[i].begin_capture(relaxed))
        for _ in range(GRAPH):
            once()
        graphs = self._on_each(lambda i: self._streams[i].end_capture())
        taken = []
        for _ in range(ROUNDS + 2):
            began, ended = (self._on_each(lambda _: cupy.cuda.Event()) for _ in range(2))
            self._on_each(lambda i: began[i].record(self._streams[i]))  # noqa: B023
            self._on_each(lambda i: graphs[i].launch(self._streams[i]))
            self._on_each(lambda i: ended[i].record(self._streams[i]))  # noqa: B023
            self._on_each(lambda i: self._streams[i].synchronize())
            taken.append(max(cupy.cuda.get_elapsed_time(b, e) for b, e in zip(began, ended, strict=True)) / 1e3)
        return statistics.median(taken[2:]) / GRAPH


def row(size: int, machine: dla.Machine, gpus: Sequence[int], nccl: Nccl | None) -> dict[str, Any]:
    """One size: seconds, what they are of NCCL's, and whether the sums are right."""
    seconds, native = ours(machine, size), nccl.seconds(size) if nccl else None
    share = None if native is None else seconds / native
    return {
        "bytes": size, "seconds": seconds, "nccl_seconds": native, "share": share, "must": MUST.get(size),
        "right": right(machine, size, len(gpus)),
    }  # fmt: skip


@click.command()
@click.option("--gpus", default="0,1", help="Numbers of GPUs, a rank on each.")
@click.option("--transport", type=click.Choice(["peer", "nccl"]), help="How ranks send, if not as the GPUs can.")
@click.option("--only", type=click.Choice(["allreduce", "blocks"]), help="Measure one of the two.")
@click.option("--commit", default=None, help="What was measured, where it is no git checkout.")
@click.option("--output", type=click.Path(path_type=Path), help="Write JSON.")
def main(gpus: str, transport: str | None, only: str | None, commit: str | None, output: Path | None) -> None:
    """Measure ALLREDUCE from 4 KB to 64 MB, and Llama's blocks with their weights cut, beside one GPU."""
    numbers = tuple(map(int, gpus.split(",")))
    machine = dla.Machine("gpu", gpus=numbers, transport=transport)
    facts: dict[str, Any] = {
        "device": f"{len(numbers)} x {benchmark.device()}", "host": benchmark.host(), "versions": benchmark.versions(),
        "commit": commit or benchmark.commit(), "taken": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    if transport is not None:
        facts["transport"] = transport
    if only != "blocks":
        nccl = Nccl(numbers) if len(set(numbers)) == len(numbers) > 1 else None
        facts["ranks"] = told(row(size, machine, numbers, nccl) for size in SIZES)
    if only != "allreduce":
        facts["blocks"] = told(tensor_parallel.rows(dla.Machine("gpu"), machine, len(numbers)))
    if output is not None:
        output.write_text(json.dumps(facts, indent=2) + "\n")


def told(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows, each shown as it comes."""
    found = []
    for one in rows:
        found.append(one)
        click.echo(json.dumps(one))
    return found


if __name__ == "__main__":
    main()
