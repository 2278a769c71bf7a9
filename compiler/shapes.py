"""Arithmetic of shapes: broadcasting, orders of axes, and which axes of one shape are which of another."""

from __future__ import annotations

from collections.abc import Sequence

from dla.compiler import dims
from dla.compiler.dims import Dim
from dla.isa.errors import ModelError


def shape_text(shape: Sequence[Dim]) -> str:
    """`[batch, 3]`."""
    return "[" + ", ".join(map(str, shape)) + "]"


def axis_of(axis: int, rank: int) -> int:
    """`axis`, which may count from the end, as a position in a tensor of that rank. Raises ModelError."""
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} does not exist in a tensor of rank {rank}")
    return axis % rank


def broadcast(shapes: Sequence[Sequence[Dim]], what: str = "operands") -> tuple[Dim, ...]:
    """NumPy's broadcast of `shapes`. Raises ModelError."""
    if shapes and all(shape == shapes[0] for shape in shapes):
        return tuple(shapes[0])  # nearly always, and the types of all nodes are asked for after every pass
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        sizes = [s[axis] for s in shapes if len(s) >= -axis]
        wide = [d for d in dict.fromkeys(sizes) if d != 1]
        if len(wide) > 1:
            texts = " and ".join(shape_text(s) for s in shapes)
            raise ModelError(f"{what} of shapes {texts} do not broadcast to each other")
        result.append(wide[0] if wide else 1)
    return tuple(result)


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The order of axes that undoes a transposition by `perm`."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def runs(old: Sequence[Dim], new: Sequence[Dim]) -> list[tuple[range, range]] | None:
    """The shortest runs of neighbouring axes of two shapes that have equal products; None where there are none.

    [4, 6, 5] and [2, 12, 5] are 4 * 6 = 2 * 12 and 5 = 5. Axes of size 1 at the end of `new` belong to its last run.
    """
    found: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        first, second = i, j
        have, want = old[i], new[j]
        i, j = i + 1, j + 1
        while have != want:
            if dims.bound(have) < dims.bound(want) or dims.divide(want, have) is not None:
                if i == len(old):
                    return None
                have, i = have * old[i], i + 1
            else:
                if j == len(new):
                    return None
                want, j = want * new[j], j + 1
        found.append((range(first, i), range(second, j)))
    if i < len(old) or any(d != 1 for d in new[j:]) or (j < len(new) and not found):
        return None
    if found:
        found[-1] = (found[-1][0], range(found[-1][1].start, len(new)))
    return found


def common_split(given: Sequence[Dim], wanted: Sequence[Dim]) -> list[Dim] | None:
    """The coarsest shape, without axes of size 1, from which both shapes are made by merging neighbours; or None."""
    left, right = ([d for d in shape if d != 1] for shape in (given, wanted))
    split: list[Dim] = []
    while left and right:
        a, b = left.pop(0), right.pop(0)
        if a == b:
            split.append(a)
        elif (rest := dims.divide(b, a)) is not None:
            split.append(a)
            right.insert(0, rest)
        elif (rest := dims.divide(a, b)) is not None:
            split.append(b)
            left.insert(0, rest)
        else:
            return None
    return None if left or right else split


def merged_axes(given: Sequence[Dim], merged: Sequence[Dim]) -> list[list[int]] | None:
    """For each axis of the shape `merged` the axes of `given` that it consists of; None where axes are split.

    Axes of size 1 may belong to any group; they go to the one before.
    """
    groups: list[list[int]] = []
    axis = 0
    for size in merged:
        group: list[int] = []
        total: Dim = 1
        while total != size and axis < len(given):
            total = total * given[axis]
            group.append(axis)
            axis += 1
        if total != size:
            return None
        groups.append(group)
    rest = list(range(axis, len(given)))
    if any(given[k] != 1 for k in rest):
        return None
    if rest and not groups:
        return None
    for k in rest:
        groups[-1].append(k)
    return groups
