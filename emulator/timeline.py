"""Who touched which bytes of a segment, and has not been overtaken yet: what later instructions may wait for.

An access ends another one where it waited for that: who waits for the later one waits for both. But an instruction
whose dims a register makes 0 has no work, and waits for nobody. So it ends those only that have nothing to do either
whenever it has not: `idle_at` are the registers that may make it idle, a footprint's `void_at` those that make an
access none.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from dla.emulator.footprint import Footprint, solid

CROWD = 32
"""Accesses that may be alive in one place; the next one there waits for all, and later ones wait for it alone."""

_PLACE = Footprint._fields.index("void_at")
"""So many fields of a footprint say where it is."""

Access = tuple[int, Footprint]
"""(index of the instruction, what it touches)."""


@dataclass(slots=True)
class _Cell:
    """A range of bytes in which the same accesses are alive."""

    low: int
    high: int
    writers: list[Access]
    readers: list[Access]

    def copy(self, low: int, high: int) -> _Cell:
        """The part low..high of this cell."""
        return _Cell(low, high, [*self.writers], [*self.readers])

    def add(self, access: Access, *, writes: bool, idle_at: frozenset[int]) -> None:
        """Make `access` alive. A write ends those that touch exactly what it touches: it waited for them."""
        if writes:
            place = access[1][:_PLACE]
            self.writers = [w for w in self.writers if w[1][:_PLACE] != place or not idle_at <= w[1].void_at]
            self.readers = [r for r in self.readers if r[1][:_PLACE] != place or not idle_at <= r[1].void_at]
        alive = self.writers if writes else self.readers
        if access not in alive:
            alive.append(access)

    def outlasting(self, idle_at: frozenset[int]) -> _Cell:
        """What is alive of it behind an access that touches all of it."""
        left = [[one for one in alive if not idle_at <= one[1].void_at] for alive in (self.writers, self.readers)]
        return _Cell(self.low, self.high, *left)

    def merge(self, other: _Cell) -> None:
        """Make everything alive that is alive in either."""
        self.writers += [w for w in other.writers if w not in self.writers]
        self.readers += [r for r in other.readers if r not in self.readers]


class Timeline:
    """The accesses alive in one segment, by range of bytes."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._cells: list[_Cell] = []

    def __len__(self) -> int:
        return len(self._cells)

    def waits(self, where: Footprint, *, writes: bool) -> tuple[set[int], bool]:
        """The instructions that an access to `where` must wait for, and whether it must `stand` for all of them."""
        if where.low == where.high:
            return set(), False
        first, last = self._cover(where.first, where.last)
        found: set[int] = set()
        crowded = False
        for cell in self._cells[first:last]:
            found.update([j for j, other in cell.writers if not where.apart(other)])
            if writes and cell.readers:
                found.update([j for j, other in cell.readers if not where.apart(other)])
            crowded = crowded or len(cell.writers) + len(cell.readers) > CROWD
        if len(found) <= CROWD and not crowded:
            return found, False
        return {j for cell in self._cells[first:last] for j, _ in cell.writers + cell.readers}, True

    def record(
        self, index: int, where: Footprint, *, writes: bool, stand: bool, idle_at: frozenset[int] = frozenset()
    ) -> None:
        """Make the access alive, after `waits` has said what it waits for."""
        if where.low == where.high:
            return
        first, last = self._cover(where.first, where.last)
        if stand or (writes and not where.residues):
            whole = solid(where.first, where.last)._replace(void_at=where.void_at)
            cell = _Cell(where.first, where.last, [], [])
            for other in self._cells[first:last] if idle_at else ():
                cell.merge(other.outlasting(idle_at))
            cell.add((index, whole), writes=True, idle_at=idle_at)
            self._cells[first:last], self._starts[first:last] = [cell], [where.first]
            return
        for cell in self._cells[first:last]:
            cell.add((index, where), writes=writes, idle_at=idle_at)

    def copy(self) -> Timeline:
        """A snapshot."""
        other = Timeline()
        other._starts = [*self._starts]
        other._cells = [cell.copy(cell.low, cell.high) for cell in self._cells]
        return other

    def merge(self, other: Timeline) -> None:
        """Make everything alive that is alive in either: two paths of control flow meet here."""
        for theirs in other._cells:
            first, last = self._cover(theirs.low, theirs.high)
            for cell in self._cells[first:last]:
                cell.merge(theirs)

    def _cover(self, low: int, high: int) -> tuple[int, int]:
        """Make cells begin at `low` and end at `high` and leave no gap between; the range of their positions."""
        first = bisect_right(self._starts, low) - 1
        if first >= 0:
            cell = self._cells[first]
            if cell.low == low and cell.high == high:
                return first, first + 1
            if cell.low < low < cell.high:
                self._insert(first + 1, cell.copy(low, cell.high))
                cell.high = low
            if cell.low < low:
                first += 1
        else:
            first = 0
        at, position = first, low
        while position < high:
            if at == len(self._cells) or self._cells[at].low > position:
                end = high if at == len(self._cells) else min(high, self._cells[at].low)
                self._insert(at, _Cell(position, end, [], []))
            elif self._cells[at].high > high:
                self._insert(at + 1, self._cells[at].copy(high, self._cells[at].high))
                self._cells[at].high = high
            position = self._cells[at].high
            at += 1
        return first, at

    def _insert(self, at: int, cell: _Cell) -> None:
        self._cells.insert(at, cell)
        self._starts.insert(at, cell.low)
