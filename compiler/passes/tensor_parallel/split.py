"""How the elements of a tensor are spread over ranks, and what views make of that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dla.compiler import dims
from dla.compiler.dims import Dim
from dla.compiler.graph import Node
from dla.compiler.shapes import runs
from dla.isa.names import shown


class Refused(Exception):
    """What is cut cannot stay so; `origins` are to blame."""

    def __init__(self, reason: str, origins: frozenset[int]) -> None:
        super().__init__(reason)
        self.reason, self.origins = reason, origins


@dataclass(frozen=True)
class Trace:
    """Where a segment is among the columns of a product: its element i begins at column `first + i * unit`."""

    product: int  # id of the node
    first: int
    unit: int


@dataclass(frozen=True)
class Split:
    """Each rank has a part of a tensor: of every segment of `axis`, in ascending order, an equal piece.

    The axis is any number of periods long, and a period is `segments` long, one after the other: queries, keys and
    values of a joint product, say. `origins` are the ids of the products, states and inputs that are cut for it.

    A row of a cache may be written with something behind it, which belongs to no row: from `foreign` on the axis has
    other segments, `tail`. Seen as rows, only those before number `rows` of the axis in front hold rows, then.
    """

    axis: int
    segments: tuple[int, ...]
    origins: frozenset[int]
    traces: tuple[tuple[Trace, ...], ...] = ()  # of each segment; empty where that is not known
    foreign: Dim | None = None
    tail: tuple[int, ...] = ()
    rows: Dim | None = None

    @property
    def period(self) -> int:
        """How long a period is."""
        return sum(self.segments)

    @property
    def is_plain(self) -> bool:
        """Whether it is the same everywhere along the axis."""
        return self.foreign is None and self.rows is None

    def like(self, other: Split) -> bool:
        """Whether ranks have the same of both."""
        return (self.axis, self.segments) == (other.axis, other.segments)

    def moved(self, axis: int) -> Split:
        """The same of another axis."""
        return replace(self, axis=axis)


def local(shape: Sequence[Dim], split: Split | None, world: int) -> tuple[Dim, ...]:
    """The sizes of what one rank has of a tensor of `shape`."""
    return tuple(shape) if split is None else tuple(
        share(d, world) if k == split.axis else d for k, d in enumerate(shape)
    )  # fmt: skip


def share(size: Dim, world: int) -> Dim:
    """One rank's part of a size, or of a position, which is a multiple of the number of ranks."""
    part = dims.divide(size, world)
    assert part is not None, "segments divide by the number of ranks"
    return part


def reshaped(split: Split, old: Sequence[Dim], new: Sequence[Dim], world: int) -> Split | None:
    """The split of a reshape from `old` to `new`; None where ranks would not have parts of one axis of it."""
    found = neighbours(split.axis, old, new)
    if found is None or split.rows is not None:
        return None
    before, after = found
    inner = _number([old[k] for k in before if k > split.axis])
    if inner is None or (split.foreign is not None and inner != 1):
        return None
    flat = replace(split, segments=tuple(s * inner for s in split.segments), traces=_finer(split.traces, inner))
    return _placed(flat, [(k, new[k]) for k in after], world)


def neighbours(axis: int, old: Sequence[Dim], new: Sequence[Dim]) -> tuple[list[int], list[int]] | None:
    """The axes of `old` that become axes of `new` together with `axis`, and those; axes of size 1 are left out."""
    given, made = ([k for k, d in enumerate(shape) if d != 1] for shape in (old, new))
    for taken, got in runs([old[k] for k in given], [new[k] for k in made]) or ():
        before, after = [given[k] for k in taken], [made[k] for k in got]
        if axis in before:
            return before, after
    return None


def _placed(flat: Split, axes: Sequence[tuple[int, Dim]], world: int) -> Split | None:
    """The split of one axis, `flat`, after it fell into `axes` (position, size)."""
    (axis, _), *rest = axes
    inner = _number([size for _, size in rest])
    if inner is None:
        return None
    if all(s % (inner * world) == 0 for s in flat.segments):
        if inner != 1 and flat.foreign is not None:
            return None
        traces = tuple(tuple(replace(t, unit=t.unit * inner) for t in found) for found in flat.traces)
        return replace(flat, axis=axis, segments=tuple(s // inner for s in flat.segments), traces=traces)
    if not rest:
        return None
    if inner % flat.period == 0:
        if flat.foreign is None:
            return _placed(replace(flat, traces=()), rest, world)
        # Rows, one after the other, and something behind the last one that was written.
        rows = dims.divide(flat.foreign, flat.period)
        if inner != flat.period or rows is None or len(rest) != 1:
            return None
        return replace(flat, axis=rest[0][0], foreign=None, tail=(), rows=rows, traces=())
    if flat.is_plain and set(flat.segments) == {inner}:
        return _placed(replace(flat, segments=(inner,), traces=()), rest, world)
    return None


def _number(sizes: Sequence[Dim]) -> int | None:
    """The product of `sizes`, if that is no symbolic one."""
    found = dims.product(sizes)
    return found if isinstance(found, int) else None


def _finer(traces: tuple[tuple[Trace, ...], ...], parts: int) -> tuple[tuple[Trace, ...], ...]:
    """The traces of segments whose elements fall into so many each."""
    if any(t.unit % parts for found in traces for t in found):
        return ()
    return tuple(tuple(replace(t, unit=t.unit // parts) for t in found) for found in traces)


def cut(split: Split, start: Dim, size: Dim) -> Split | None:
    """The split of `size` elements from `start` on along the axis; None where they are not whole segments."""
    segments = split.segments
    if split.foreign is not None:
        start, segments = start - split.foreign, split.tail
    if not isinstance(start, int) or not isinstance(size, int):
        return None
    ends = [sum(segments[:k]) for k in range(len(segments) + 1)]
    if start not in ends or start + size not in ends:
        return None
    kept = slice(ends.index(start), ends.index(start + size))
    traces = split.traces[kept] if split.foreign is None else ()
    return replace(split, segments=segments[kept], traces=traces, foreign=None, tail=())


def written(split: Split, part: Split, start: Dim, size: Dim, part_size: Dim) -> Split | None:
    """The split of something, of `size` along its axis, with a part written over it; None where they differ."""
    origins = split.origins | part.origins
    if split.axis != part.axis or not split.is_plain or not part.is_plain:
        return None
    if start == 0 and part_size == size:
        return replace(split, origins=origins, traces=()) if split.like(part) else None
    if dims.divide(start, split.period) is None or part_size != part.period:
        return None
    rest, whole = part.segments, 0
    while rest[: len(split.segments)] == split.segments:
        rest, whole = rest[len(split.segments) :], whole + 1
    if whole == 0:
        return None
    foreign = start + whole * split.period if rest else None
    return replace(split, origins=origins, traces=(), foreign=foreign, tail=rest)


def name_of(node: Node) -> str:
    """What people call a node: where it came from."""
    return shown(node.label or node.name)


def origins_of(splits: Iterable[Split | None]) -> frozenset[int]:
    """What is to blame where these do not go together."""
    return frozenset[int]().union(*(s.origins for s in splits if s is not None))
