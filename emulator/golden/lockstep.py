"""Ranks in lockstep, in one process: each goes on to its next collective, then all execute it together.

The verifier has seen to it that the next collective of every rank is the same one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dla.emulator.golden.execution import Execution, gathered
from dla.isa.errors import Trap
from dla.isa.program import Program
from dla.isa.ranks import lists_of


def lockstep(program: Program, ranks: Sequence[Execution], orders: Sequence[random.Random | None]) -> None:
    """Run all `ranks` of `program` to HALT. Raises the Trap of the first rank that traps, which it names."""
    steps = [execution.steps(order) for execution, order in zip(ranks, orders, strict=True)]
    while True:
        index = _next(steps)
        if index is None:
            return
        brought = []
        for rank, execution in enumerate(ranks):
            with on_rank(rank):
                brought.append(execution.bring(index))
        for members in lists_of(program.groups, program.instructions[index].attributes.get("group", 0), len(ranks)):
            given = gathered([brought[rank] for rank in members])
            for rank in members:
                with on_rank(rank):
                    ranks[rank].take(index, given, members)


def _next(steps: Sequence[Iterator[int]]) -> int | None:
    """The collective that all ranks have come to, None if that is the end."""
    reached = []
    for rank, step in enumerate(steps):
        with on_rank(rank):
            reached.append(next(step, None))
    if len(set(reached)) != 1:
        raise Trap("internal", f"ranks have come to different collectives, at instructions {reached}")
    return reached[0]


@contextmanager
def on_rank(rank: int) -> Iterator[None]:
    """Names `rank` in a Trap that is raised inside."""
    try:
        yield
    except Trap as trap:
        raise trap.at(rank=rank) from None
