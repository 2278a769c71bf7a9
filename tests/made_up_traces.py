"""Traces of machines that are made up: random ones that a machine could have recorded, and ones that none could."""

from __future__ import annotations

import random

import numpy as np

from dla.emulator.conflicts import conflicts
from dla.emulator.trace import SPAN, Trace
from dla.isa.dtypes import Array
from dla.isa.program import Program


def executed(program: Program, orders: list[int], blocks: int, rng: random.Random, skew: int = 0) -> Trace:
    """What `blocks` blocks would record that execute the instructions `orders` one after the other.

    Each block does a part of most of them. Clocks of blocks differ by up to `skew` nanoseconds.
    """
    waits = conflicts(program)
    free, clock = [0] * blocks, [rng.randint(-skew, skew) for _ in range(blocks)]
    signalled: dict[int, int] = {}  # by instruction: its last execution so far
    spans: list[list[tuple[int, ...]]] = [[] for _ in range(blocks)]
    for order, index in enumerate(orders):
        ready = max((signalled[j] for j in waits[index] if j in signalled), default=0) + rng.randint(1, 30)
        taking_part = [b for b in range(blocks) if rng.random() < 0.8] or [rng.randrange(blocks)]
        ends = []
        for b in taking_part:
            began = free[b] + rng.randint(0, 20)
            loaded = max(began, ready) + rng.randint(0, 50)
            done = loaded + rng.randint(1, 500)
            free[b] = done
            ends.append(done + rng.randint(0, 40))
            times = (began, ready, loaded, done, ends[-1])
            spans[b].append((order, index, b, 1, *(max(0, t + clock[b]) for t in times)))
        signalled[index] = max(ends)
    end = max([*free, *signalled.values(), 0]) + rng.randint(0, 100)
    return Trace(spans_of([s for of_block in spans for s in of_block]), tuple(range(blocks)), end)


def spans_of(rows: list[tuple[int, ...]]) -> Array:
    """An array of SPAN."""
    return np.array(rows, SPAN)


def nonsense(instructions: int, count: int, rng: np.random.Generator) -> Trace:
    """Spans full of random numbers, by block."""
    spans = np.zeros(count, SPAN)
    spans["order"] = rng.integers(0, max(1, count), count)
    spans["instruction"] = rng.integers(0, instructions, count)
    spans["block"] = np.sort(rng.integers(0, 4, count))
    for name in ("began", "ready", "loaded", "done", "signalled"):
        spans[name] = rng.integers(-50, 1000, count)
    return Trace(spans, (0, 1, 2, 3), 900)
