"""What a row of the speed table is: work, done by the machine and by native kernels, and bars that it is held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speed.bench import Bench
    from speed.check import Check

FASTEST = "fastest native"
COMPILED = "compiled + CUDA graph"
"""What torch.compile made with all its tuning, in a CUDA graph."""
CLIFF = 1.3
"""In a sweep, ours may take so many times as long as the fastest native kernel, anywhere."""
BETWEEN = (17, 33, 65, 100, 129, 192, 257, 384, 513, 1025)
"""Sizes of a sweep beside powers of two: just past them, where paths and tiles change, and far from them."""


def sizes(most: int) -> list[int]:
    """The points of a sweep from 1 to `most`, a power of two."""
    return sorted({*(2**k for k in range(most.bit_length())), *(size for size in BETWEEN if size < most)})


Action = Callable[[], object]
"""Enqueues work on the current stream, and returns at once."""


@dataclass(frozen=True)
class Bar:
    """What must hold, and what is aimed at.

    Against a native kernel: how many times as fast as that the machine is at least. Where `against` is empty: the
    most that the work may take, in the row's unit.
    """

    against: str
    must: float
    aim: float | None = None


@dataclass(frozen=True)
class Work:
    """The same work in ours and theirs; `natives` are by name."""

    ours: Action
    natives: Mapping[str, Action] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A row's work, ready to be timed.

    With `twice`, which is as much again in one run, the time of one of `count` instructions is the difference of the
    two, so that what a run costs once does not count. `wall` measures by itself instead, in seconds.
    """

    work: Work
    check: Callable[[], Check]
    twice: Work | None = None
    count: int = 1
    wall: Callable[[], float] | None = None


@dataclass(frozen=True)
class Row:
    """`case` puts the work together. `compiled` says that natives go through torch.compile, which takes minutes.

    `unit` is that of a bar without a native kernel, "us" or "ms". `sweep` is (title, size) of a point of a plot.
    """

    family: str
    name: str
    case: Callable[[Bench], Case]
    bars: tuple[Bar, ...] = ()
    unit: str = "us"
    compiled: bool = False
    sweep: tuple[str, int] | None = None


@dataclass(frozen=True)
class Summary:
    """The geometric mean, or the `worst`, of the rows whose names start with `prefix`, held to bars itself.

    A bar against FASTEST is against whichever native kernel is fastest in each row.
    """

    family: str
    name: str
    prefix: str
    bars: tuple[Bar, ...]
    worst: bool = False
