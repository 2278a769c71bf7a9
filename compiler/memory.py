"""The memory plan: where in the arena each intermediate result lies, so that results alive together never overlap.

Offline dynamic storage allocation is NP-hard; several greedy orders, each placing block after block into the gaps that
earlier ones left, come within a few per cent of the lower bound on networks. See Pisarchyk and Lee, "Efficient Memory
Management for Deep Neural Net Inference" (2020) for the orders by size and by breadth. Where all of them miss the
bound, the best ones are repaired: what stuck out is placed earlier the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dla.isa.errors import InputError

_Integers = NDArray[np.int64]
_Fit = Callable[[_Integers, int], int]  # (sizes of the gaps, size of the block) -> index of the gap to use

_LIMIT = 2**62  # bytes of all blocks together: offsets and their sums stay in 64 bits
_GOOD_ENOUGH = 1.02  # of the lower bound: more orders are tried, and the best are repaired, until this is reached
_WORK = 150_000_000  # comparisons that all orders together may cost: about a second; the first order always runs
_STARTS = 4  # orders that are repaired, the best ones
_ROUNDS = 40  # of repair, for each
_FORWARD = (0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)  # how far a round moves a block forward, as a share of the order
_STEP = 2_000  # what placing one block costs beside its comparisons, in comparisons


@dataclass(frozen=True)
class Block:
    """A piece of memory of `size` bytes that is in use from instruction `first` to instruction `last`, both included.

    A result that an instruction writes is in use during it, and so is what that instruction reads: the two never share
    memory unless whoever makes the blocks gives both as one block (an operation in place).
    """

    size: int
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.size < 0 or not 0 <= self.first <= self.last:
            raise ValueError(f"not a block: {self}")


@dataclass(frozen=True)
class Plan:
    """An arena of `size` bytes in which block `i` lies at `offsets[i]`.

    `lower_bound` is the most bytes in use during any one instruction: no plan is smaller.
    """

    offsets: tuple[int, ...]
    size: int
    lower_bound: int


@dataclass(frozen=True)
class _Problem:
    """All blocks as arrays `[n]` of i64. Sizes are in units of the alignment, and none is 0; so is the lower bound."""

    size: _Integers
    first: _Integers
    last: _Integers
    breadth: _Integers  # [instructions]: units in use during each

    @property
    def lower_bound(self) -> int:
        return int(self.breadth.max(initial=0))


def plan(blocks: Sequence[Block], alignment: int = 256) -> Plan:
    """Offsets, multiples of `alignment`, for `blocks`: no two that are in use at the same instruction overlap.

    Sizes are rounded up to the alignment, in the lower bound too. Blocks of size 0 lie at offset 0. The same blocks
    always give the same plan. Raises InputError if all blocks together pass 2**62 bytes.
    """
    if sum(block.size + alignment for block in blocks) >= _LIMIT:
        raise InputError(
            "the intermediate results have 2**62 bytes or more at the largest dims", hint="lower the bounds of the dims"
        )
    kept = [i for i, block in enumerate(blocks) if block.size]
    problem = _problem([blocks[i] for i in kept], alignment)
    best = _best_offsets(problem)
    offsets = [0] * len(blocks)
    for i, offset in zip(kept, best.tolist(), strict=True):
        offsets[i] = offset * alignment
    height = int((best + problem.size).max(initial=0))
    return Plan(tuple(offsets), height * alignment, problem.lower_bound * alignment)


def _problem(blocks: Sequence[Block], alignment: int) -> _Problem:
    size = np.array([-(-block.size // alignment) for block in blocks], np.int64)
    # Only the order of the instructions matters: those at which nothing begins or ends are left out.
    times = sorted({t for block in blocks for t in (block.first, block.last)})
    at = {t: i for i, t in enumerate(times)}
    first = np.array([at[block.first] for block in blocks], np.int64)
    last = np.array([at[block.last] for block in blocks], np.int64)
    change = np.zeros(len(times) + 1, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return _Problem(size, first, last, np.cumsum(change)[:-1])


@dataclass(frozen=True)
class _Attempt:
    """Where the blocks lie after they were placed in `order`, each in the gap that `fit` chose."""

    height: int  # units: the size of the arena
    offsets: _Integers
    order: _Integers
    fit: _Fit


def _attempt(problem: _Problem, order: _Integers, fit: _Fit) -> _Attempt:
    offsets = _place(problem, order, fit)
    return _Attempt(int((offsets + problem.size).max()), offsets, order, fit)


def _best_offsets(problem: _Problem) -> _Integers:
    """Those of the smallest arena that the orders, and repairs of the best ones, find within `_WORK`."""
    if not len(problem.size):
        return problem.size
    affordable = max(1, _WORK // (len(problem.size) * (len(problem.size) // 2 + _STEP)))
    enough = int(problem.lower_bound * _GOOD_ENOUGH)
    attempts: list[_Attempt] = []
    for order, fit in [(order, fit) for order in _ORDERS for fit in _FITS][:affordable]:
        attempts.append(_attempt(problem, order(problem), fit))
        if attempts[-1].height <= enough:
            return attempts[-1].offsets
    attempts.sort(key=lambda attempt: attempt.height)
    best, left = attempts[0], affordable - len(attempts)
    for start in attempts[:_STARTS]:
        rounds = min(_ROUNDS, left)
        left -= rounds
        best = min(best, _repaired(problem, start, rounds, enough), key=lambda attempt: attempt.height)
        if best.height <= enough:
            break
    return best.offsets


def _by(*keys: _Integers) -> _Integers:
    """Indices of blocks by `keys`, the most important one first; ties in order of the blocks."""
    return np.lexsort(keys[::-1])


def _by_size(problem: _Problem) -> _Integers:
    return _by(-problem.size, problem.first)


def _by_breadth(problem: _Problem) -> _Integers:
    """All blocks of the instruction with most bytes in use, largest first; then those of the next, and so on."""
    rank = np.empty(len(problem.breadth), np.int64)
    rank[np.argsort(-problem.breadth, kind="stable")] = np.arange(len(rank))
    spans = zip(problem.first.tolist(), problem.last.tolist(), strict=True)
    return _by(_minima(rank, list(spans)), -problem.size, problem.first)


def _minima(values: _Integers, spans: Sequence[tuple[int, int]]) -> _Integers:
    """The smallest of `values[first : last + 1]` for each span, from a table of minima over powers of two."""
    table = [values]
    while 2 ** len(table) <= len(values):
        half = 2 ** (len(table) - 1)
        table.append(np.minimum(table[-1][:-half], table[-1][half:]))
    levels = [(last - first + 1).bit_length() - 1 for first, last in spans]
    found = [
        min(int(table[k][first]), int(table[k][last + 1 - 2**k]))
        for k, (first, last) in zip(levels, spans, strict=True)
    ]
    return np.array(found, np.int64)


def _by_area(problem: _Problem) -> _Integers:
    """Bytes times instructions: what is large or in use for long."""
    return _by(-(problem.size * (problem.last - problem.first + 1).astype(np.float64)), problem.first)


def _by_duration(problem: _Problem) -> _Integers:
    return _by(problem.first - problem.last, -problem.size, problem.first)


def _by_time(problem: _Problem) -> _Integers:
    """In the order in which a program would allocate them, of those at one instruction the most lasting ones first."""
    return _by(problem.first, -problem.last, -problem.size)


_ORDERS: tuple[Callable[[_Problem], _Integers], ...] = (_by_size, _by_breadth, _by_area, _by_duration, _by_time)


def _smallest_gap(gaps: _Integers, size: int) -> int:
    """The index of the smallest of `gaps` that holds `size`; the last gap has no end."""
    return int(np.argmin(np.where(gaps >= size, gaps, _LIMIT * 2 - 1)))


def _lowest_gap(gaps: _Integers, size: int) -> int:
    return int(np.argmax(gaps >= size))


_FITS: tuple[_Fit, ...] = (_smallest_gap, _lowest_gap)


def _place(problem: _Problem, order: _Integers, fit: _Fit) -> _Integers:
    """Offsets of the blocks, placed one after another in `order` into a gap between those placed before."""
    n = len(order)
    offsets = np.zeros(n, np.int64)
    placed = np.empty((4, n), np.int64)  # start, end, first, last of those placed so far, by start
    start, end, first, last = placed
    blocks = zip(order.tolist(), problem.size[order].tolist(), problem.first[order].tolist(),
                 problem.last[order].tolist(), strict=True)  # fmt: skip
    for count, (index, size, begins, ends) in enumerate(blocks):
        meets = ((first[:count] <= ends) & (last[:count] >= begins)).nonzero()[0]
        floors = np.zeros(len(meets) + 1, np.int64)  # where each gap begins
        np.maximum.accumulate(end[meets], out=floors[1:])
        gaps = np.append(start[meets], 2 * _LIMIT - 1) - floors
        offset = offsets[index] = floors[fit(gaps, size)]
        at = int(start[:count].searchsorted(offset))
        placed[:, at + 1 : count + 1] = placed[:, at:count]
        placed[:, at] = offset, offset + size, begins, ends
    return offsets


def _repaired(problem: _Problem, start: _Attempt, rounds: int, enough: int) -> _Attempt:
    """The best of `start` and `rounds` more, each placing those blocks earlier that stick out of the lower bound.

    Blocks move forward by less and less of the order, so that what works early is refined and not thrown away again.
    """
    n = len(start.order)
    rank = np.empty(n)
    rank[start.order] = np.arange(n)
    best = last = start
    for i in range(rounds):
        sticks_out = last.offsets + problem.size > problem.lower_bound
        order = np.argsort(rank - sticks_out * (n * _FORWARD[i * len(_FORWARD) // rounds]), kind="stable")
        rank[order] = np.arange(n)
        last = _attempt(problem, order, start.fit)
        best = min(best, last, key=lambda attempt: attempt.height)
        if best.height <= enough:
            break
    return best
