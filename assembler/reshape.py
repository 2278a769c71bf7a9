"""Reshape without moving bytes: which strides show the same elements under another shape, if any do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from dla.isa.descriptor import Descriptor, Dim, Dynamic, bound_of
from dla.isa.shapes import show


class ReshapeError(Exception):
    """No strides show the tensor under that shape; the message says why."""

    def __init__(self, base: Descriptor, dims: tuple[Dim, ...], why: str, hint: str | None = None) -> None:
        super().__init__(f"{show(base.dims)} does not reshape to {show(dims)}: {why}")
        self.hint = hint


def reshape(base: Descriptor, dims: tuple[Dim, ...]) -> Descriptor:
    """`base` seen as `dims`, in row-major order. Raises ReshapeError if no strides do that.

    Both shapes are cut into the smallest groups of equal size, as NumPy does; a group of several axes must be
    contiguous in itself. A dynamic dim stays as it is: splitting or merging it would move elements when it changes.
    """
    old = [(d, s) for d, s in zip(base.dims, base.strides, strict=True) if d != 1]
    strides: list[int] = []
    taken = 0
    todo = list(dims)
    if any(bound_of(d) == 0 for d in (*base.dims, *dims)):
        return _empty(base, dims)
    while todo:
        group: list[Dim] = [todo.pop(0)]
        if group == [1]:
            strides.append(old[taken][1] * bound_of(old[taken][0]) if taken < len(old) else 1)
            continue
        if taken == len(old):
            raise _mismatch(base, dims)
        first, size, wanted = taken, bound_of(old[taken][0]), bound_of(group[0])
        while size != wanted:
            if size < wanted:
                taken += 1
                if taken == len(old):
                    raise _mismatch(base, dims)
                size *= bound_of(old[taken][0])
            elif todo:
                group.append(todo.pop(0))
                wanted *= bound_of(group[-1])
            else:
                raise _mismatch(base, dims)
        strides += _group(base, dims, old[first : taken + 1], group)
        taken += 1
    if taken != len(old):
        raise _mismatch(base, dims)
    return replace(base, dims=dims, strides=tuple(strides))


def _group(base: Descriptor, dims: tuple[Dim, ...], old: list[tuple[Dim, int]], new: list[Dim]) -> list[int]:
    """The strides of `new` dims, which hold as many elements as the `old` (dim, stride) pairs."""
    moving = [d for d, _ in old if isinstance(d, Dynamic)] + [d for d in new if isinstance(d, Dynamic)]
    if moving and not (len(old) == 1 and [d for d in new if d != 1] == [old[0][0]]):
        raise ReshapeError(base, dims, f"dim {moving[0]} is not a constant", "reshape the other dims and keep this one")
    for (_, outer), (inner_dim, inner) in pairwise(old):
        if outer != inner * bound_of(inner_dim):
            raise ReshapeError(base, dims, "the view has gaps there", "COPY it to a contiguous tensor first")
    strides: list[int] = []
    step = old[-1][1]
    for d in reversed(new):
        strides.append(step)
        step *= bound_of(d)
    return list(reversed(strides))


def _empty(base: Descriptor, dims: tuple[Dim, ...]) -> Descriptor:
    if base.elements != 0 or all(bound_of(d) for d in dims) or base.is_dynamic:
        raise _mismatch(base, dims)
    return replace(base, dims=dims, strides=(1,) * len(dims))


def _mismatch(base: Descriptor, dims: tuple[Dim, ...]) -> ReshapeError:
    return ReshapeError(base, dims, "the numbers of elements differ")
