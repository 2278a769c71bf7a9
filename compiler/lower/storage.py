"""Where values lie: pieces of a segment, and strided views of them.

A view's dims may be symbolic. Its strides are those of the tensor at its bounds, as in descriptors, so they are always
numbers: a view exists only where that is enough to find every element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dla.compiler import dims
from dla.compiler.dims import Dim
from dla.compiler.shapes import runs
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array, DType


@dataclass(eq=False)
class Storage:
    """A contiguous piece of one segment. `first` and `last` are the instructions between which it is alive."""

    segment: Segment
    dtype: DType
    dims: tuple[Dim, ...]
    name: str = ""
    array: Array | None = None  # of a constant
    cut: int | None = None  # the axis of a constant along which `array` has the pieces of all ranks
    owner: int = 0  # id of the value that alone lies in it; 0 where several do
    first: int | None = None
    last: int = -1
    offset: int = field(default=0, init=False)  # bytes; set when everything is known

    @property
    def nbytes(self) -> int:
        """Bytes at the bounds of its dims."""
        return math.prod(dims.bound(d) for d in self.dims) * self.dtype.itemsize

    def touch(self, index: int) -> None:
        """Keep it alive at instruction `index`."""
        self.first = index if self.first is None else min(self.first, index)
        self.last = max(self.last, index)


@dataclass(frozen=True)
class View:
    """Elements of a storage: element (i0, ...) is `offset + sum(i_k * strides[k])` elements after its start."""

    storage: Storage
    dims: tuple[Dim, ...]
    strides: tuple[int, ...]
    offset: Dim = 0

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the storage, row-major."""
        return (
            self.offset == 0
            and dims.product(self.dims) == dims.product(self.storage.dims)
            and self.strides == strides_of(self.dims)
        )

    @property
    def is_repeated(self) -> bool:
        """Whether several of its elements lie in the same place, along an axis that was broadcast."""
        return any(d != 1 and s == 0 for d, s in zip(self.dims, self.strides, strict=True))

    @property
    def canonical(self) -> View:
        """The view with no step along axes of size 1: what tells whether two views are of the same elements."""
        strides = tuple(0 if d == 1 else s for d, s in zip(self.dims, self.strides, strict=True))
        return View(self.storage, self.dims, strides, self.offset)

    def transpose(self, perm: Sequence[int]) -> View:
        """With axes in another order."""
        return View(self.storage, tuple(self.dims[k] for k in perm), tuple(self.strides[k] for k in perm), self.offset)

    def slice(self, starts: Sequence[Dim], sizes: Sequence[Dim], steps: Sequence[int]) -> View:
        """The elements at start, start + step, ... of every axis."""
        offset = self.offset
        for start, stride in zip(starts, self.strides, strict=True):
            offset = start * stride + offset
        strides = tuple(stride * step for stride, step in zip(self.strides, steps, strict=True))
        return View(self.storage, tuple(sizes), strides, offset)

    def expand(self, shape: Sequence[Dim]) -> View:
        """Broadcast to `shape`: repeated axes have stride 0."""
        new = len(shape) - len(self.dims)
        strides = [0] * new + [
            0 if old == 1 and size != 1 else stride
            for old, size, stride in zip(self.dims, shape[new:], self.strides, strict=True)
        ]
        return View(self.storage, tuple(shape), tuple(strides), self.offset)

    def reshape(self, shape: Sequence[Dim]) -> View | None:
        """In another shape of as many elements; None where strides cannot say it.

        Runs of axes whose products agree are taken together: the old ones of a run must lie as one axis would, and
        that one is then split.
        """
        old = [(d, s) for d, s in zip(self.dims, self.strides, strict=True) if d != 1]
        new = [d for d in shape if d != 1]
        if 0 in self.dims or 0 in shape:
            return View(self.storage, tuple(shape), strides_of(shape), self.offset)
        matching = runs([d for d, _ in old], new)
        if matching is None:
            return None
        found: list[int] = []
        for taken, made in matching:
            step = _merged([old[k] for k in taken])
            split = None if step is None else _split([new[k] for k in made], step)
            if split is None:
                return None
            found += split
        rest = iter(found)
        strides = tuple(0 if d == 1 else next(rest) for d in shape)
        return View(self.storage, tuple(shape), strides, self.offset)


def whole(storage: Storage) -> View:
    """All of `storage`, row-major."""
    return View(storage, storage.dims, strides_of(storage.dims))


def strides_of(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Row-major strides, in elements, at the bounds; 0 along axes of size 1."""
    strides: list[int] = []
    step = 1
    for dim in reversed(shape):
        strides.append(0 if dim == 1 else step)
        step *= max(1, dims.bound(dim))
    return tuple(reversed(strides))


def _merged(axes: Sequence[tuple[Dim, int]]) -> int | None:
    """The stride of the one axis that `axes` are, if they lie like one."""
    for (_, outer), (size, inner) in pairwise(axes):
        if not isinstance(size, int) or outer != inner * size:
            return None
    return axes[-1][1]


def _split(shape: Sequence[Dim], step: int) -> list[int] | None:
    """Strides of the axes into which one axis of stride `step` falls."""
    strides: list[int] = []
    for position, size in reversed(list(enumerate(shape))):
        strides.append(step)
        if position and not isinstance(size, int):
            return None
        step *= size if isinstance(size, int) else 1
    return strides[::-1]
