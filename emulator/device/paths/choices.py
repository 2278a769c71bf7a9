"""Choices between ways to execute one instruction: what a path offers, what was measured, and what is taken.

A path offers every way that it has, with what its cost model says of each. Where somebody has measured the instruction
on this GPU (tune.py), the quickest that was found is taken, else the cheapest by the model. A way is a frozen dataclass
of plain fields, by which it is found again in what was measured: one that is no longer offered is not taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.program import Instruction

C = TypeVar("C")
_LINE = 128
"""Bytes: beyond this, how a view is aligned makes no difference."""


@dataclass(frozen=True)
class Offer(Generic[C]):
    """A way to execute an instruction, and about how long it takes, in clocks of a multiprocessor.

    `even`: the same where blocks that have fewer tiles than others go on with what comes next (parts.py).
    """

    choice: C
    clocks: float
    even: float | None = None


@dataclass(frozen=True)
class Measured:
    """The fields of the way that was quickest, and the seconds that it took."""

    fields: Mapping[str, Any]
    seconds: float


class Choices(Protocol):
    """What is known of instructions that were measured."""

    def measured(self, key: str) -> Measured | None:
        """The quickest way of the instruction that `key` describes; None where nobody measured it."""
        ...


@dataclass(frozen=True)
class Decision(Generic[C]):
    """How an instruction is executed, out of several ways; `seconds` is None where only the model speaks for it."""

    key: str
    offers: tuple[Offer[C], ...]  # the cheapest first
    choice: C
    seconds: float | None = None

    @property
    def offer(self) -> Offer[C]:
        """The offer of that way."""
        return next(offer for offer in self.offers if offer.choice == self.choice)


def decide(key: str, offers: Sequence[Offer[C]], choices: Choices | None) -> Decision[C]:
    """The way that was measured to be quickest, if it is among `offers`; else the first of them, the cheapest."""
    found = choices.measured(key) if choices else None
    if found is not None:
        for offer in offers:
            if fields_of(offer.choice) == found.fields:
                return Decision(key, tuple(offers), offer.choice, found.seconds)
    return Decision(key, tuple(offers), offers[0].choice)


def preferring(decision: Decision[C], extra: Callable[[C], float | None], worth: float) -> Decision[C]:
    """`decision` for the best of the ways that can do something more, unless it costs over `worth` clocks more.

    `extra`: clocks that this takes a way; None for those that cannot do it.
    """
    priced = [(o.clocks + more, o) for o in decision.offers if (more := extra(o.choice)) is not None]
    limit = worth + decision.offer.clocks
    clocks, best = min(priced, key=lambda p: p[0], default=(limit + 1.0, None))
    return decision if best is None or clocks > limit else Decision(decision.key, decision.offers, best.choice)


@lru_cache(maxsize=1024)
def fields_of(choice: Any) -> Mapping[str, Any]:
    """A way, a frozen dataclass, as JSON has it; not to be changed."""
    fields: dict[str, Any] = json.loads(json.dumps(asdict(choice)))
    return fields


def key_of(instruction: Instruction, ways: int, is_constant: Callable[[Descriptor], bool]) -> str:
    """All that the speed of `instruction` may depend on behind others, in a line: of a key, one way is the quickest.

    That is: its name, how many `ways` there are, each operand's type, bounds, strides and alignment, whether a register
    moves it or nothing writes it, and its attributes, but for the values of scalars.
    """
    parts = [f"{instruction.name} of {ways}"]
    for spec, d in zip(instruction.row.operands, instruction.operands, strict=True):
        if d is not None:
            dims = ",".join(f"<={dim.bound}" if isinstance(dim, Dynamic) else str(dim) for dim in d.dims)
            strides = ",".join(map(str, d.strides))
            aligned = min(_LINE, d.offset & -d.offset or _LINE)
            moved = "" if d.offset_register is None else f"+{d.offset_scale}"
            constant = "!" if is_constant(d) else ""
            parts.append(f"{spec.name}{constant}:{d.dtype.text}[{dims}]({strides})@{aligned}{moved}")
    for name, value in sorted(instruction.attributes.items()):
        parts.append(f"{name}={'?' if isinstance(value, float) else value}")
    return " ".join(parts)
