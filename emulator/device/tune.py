"""Measuring what the cost model only guesses (`dla run --tune`): the quickest way to execute each instruction.

Each distinct instruction that has several ways is repeated in a small program of its own, each time after the one
before, and the ways that the model finds cheap are timed in it. Whoever does the timing is a function: a GPU's clock
(timer.py), or in tests anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dla.emulator.device import plan
from dla.emulator.device.paths import Target
from dla.emulator.device.paths.choices import Decision, Measured, decide, fields_of
from dla.emulator.device.tuned import Store
from dla.isa.descriptor import Descriptor, Segment
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import TENSOR_ALIGNMENT, Instruction, Program
from dla.isa.table import Role

WORTH_TRYING = 2.0
"""Times the cost of the cheapest way: what the model finds more expensive is not measured."""
MOST_WAYS = 12
"""Measured of one instruction."""
TRIAL_CLOCKS = 300_000
"""That the repetitions of a trial take together, about, by the model: 0.2 ms."""
REPEATS = range(4, 33)
ROTATED_BYTES = 2**27
"""Of operands that nothing writes, in a trial: more than a second-level cache keeps, as weights of a network are."""


@dataclass(frozen=True)
class Trial:
    """`repeats` executions of one instruction, each after the one before, that are to be timed in several `ways`."""

    program: Program
    repeats: int
    ways: tuple[Any, ...]


Timer = Callable[[Trial], Sequence[float]]
"""Seconds of one execution in each way."""


@dataclass(frozen=True)
class Only:
    """Choices that are the same whatever is asked for: a trial's."""

    way: Any

    def measured(self, key: str) -> Measured | None:
        """That way."""
        return Measured(fields_of(self.way), 0.0)


def measure(program: Program, target: Target, store: Store, timer: Timer, progress: Callable[[str], None]) -> None:
    """Measure the instructions of a verified `program` of which `store` knows nothing yet, and keep what is found.

    `progress` hears of it, before and after.
    """
    made = plan.build(program, {segment: segment.value << 40 for segment in Segment}, target, store)
    trials: dict[str, tuple[Decision[Any], Trial]] = {}
    for instruction, schedule in zip(made.wholes, made.schedules, strict=True):
        decision = schedule.decision
        if decision is None or decision.key in trials:
            continue
        if decide(decision.key, decision.offers, store).seconds is not None:  # also where another way is preferred
            continue
        ways = _worth_trying(decision)
        if len(ways) > 1:
            trials[decision.key] = decision, trial(instruction, decision.offers[0].clocks, ways)
    if not trials:
        progress("tuning: nothing that has not been measured")
        return
    progress(f"tuning: {sum(len(t.ways) for _, t in trials.values())} ways to execute {len(trials)} instructions")
    began, other = time.perf_counter(), 0
    for key, (decision, timed) in trials.items():
        found = _quickest(timed, timer)
        other += found.fields != fields_of(decision.choice)
        store.add({key: found})  # at once: whoever loses patience has this much
    progress(f"tuned in {time.perf_counter() - began:.1f} s: {other} of {len(trials)} are done in another way now")


def _quickest(timed: Trial, timer: Timer) -> Measured:
    """Of equally quick ways the one that the model finds cheapest."""
    seconds, way = min(zip(timer(timed), timed.ways, strict=True), key=lambda pair: pair[0])
    return Measured(fields_of(way), seconds)


def _worth_trying(decision: Decision[Any]) -> tuple[Any, ...]:
    """The ways that may be the quickest, the cheapest first."""
    most = decision.offers[0].clocks * WORTH_TRYING
    return tuple(offer.choice for offer in decision.offers[:MOST_WAYS] if offer.clocks <= most)


# ---- the program of a trial ----


def trial(instruction: Instruction, clocks: float, ways: tuple[Any, ...]) -> Trial:
    """A trial of `instruction` at its bounds, which takes about so many clocks once.

    It writes one place again and again, so each waits for the one before. What it reads and nothing writes lies in as
    many places as the second-level cache cannot keep, what is computed lies in one.
    """
    repeats = int(min(max(TRIAL_CLOCKS / clocks, REPEATS.start), REPEATS.stop - 1))
    used = dict.fromkeys(Segment, 0)
    constant = sum(_room(d) for d in instruction.operands if d is not None and _is_constant(d))
    copies = min(repeats, -(-ROTATED_BYTES // max(1, constant)))

    def place(descriptor: Descriptor, segment: Segment) -> Descriptor:
        offset = used[segment] + descriptor.offset % TENSOR_ALIGNMENT
        used[segment] += _room(descriptor)
        return replace(
            descriptor, segment=segment, dims=descriptor.bounds, offset=offset, offset_register=None, offset_scale=0
        )

    pairs = list(zip(instruction.row.operands, instruction.operands, strict=True))
    held = {
        spec.name: place(d, Segment.OUTPUT if spec.role is Role.OUT else Segment.STATE)
        for spec, d in pairs
        if d is not None and not _is_constant(d)
    }
    turns = []
    for _ in range(copies):
        operands = [d and (held.get(spec.name) or place(d, Segment.INPUT)) for spec, d in pairs]
        turns.append(replace(instruction, operands=tuple(operands)))
    body = [turns[k % copies] for k in range(repeats)]
    halt = Instruction(BY_MNEMONIC["HALT"])
    sizes = {segment: size for segment, size in used.items() if size}
    return Trial(Program("trial", (*body, halt), segment_bytes=sizes), repeats, ways)


def _is_constant(descriptor: Descriptor) -> bool:
    return descriptor.segment in (Segment.CONST, Segment.INPUT)


def _room(descriptor: Descriptor) -> int:
    """Bytes, with what is left free so that the next view is aligned, and this one as it was."""
    return -(-(descriptor.span + descriptor.offset % TENSOR_ALIGNMENT) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
