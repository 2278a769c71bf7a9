"""Placement: the block that each instruction's first tile goes to, derived from what waits for what.

What a block's own workers did needs no counter, and what different blocks do happens at the same time. So the first
instruction that waits for another takes over its place: a chain of single tiles stays on one block. Others that wait
for the same one, and those that wait for nothing, begin behind everything placed so far: products of a few tiles each
that do not depend on each other (q, k and v; the branches of a network) find blocks of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

MOST_LOOKED_AT = 8
"""Of the instructions that one waits for, the latest so many: more are found in hostile programs only."""


def first_blocks(before: Sequence[Sequence[int]], widths: Sequence[int | None]) -> list[int]:
    """A block for each instruction, counted without end: it is to be taken modulo the number of blocks.

    `before`: for each instruction those that it waits for, in ascending order, as `conflicts` finds them. `widths`:
    tiles of each, so that what comes behind begins on the next block; None for those that no worker executes.
    """
    places: list[int] = [0] * len(widths)
    taken_over: set[int] = set()
    end = 0  # everything so far lies in front of it
    for index, width in enumerate(widths):
        if width is None:
            continue
        earlier = before[index][: bisect_left(before[index], index)]
        heirless = (j for j in reversed(earlier[-MOST_LOOKED_AT:]) if widths[j] is not None and j not in taken_over)
        left = next(heirless, None)
        if left is None:
            places[index] = end
        else:
            taken_over.add(left)
            places[index] = places[left]
        end = max(end, places[index] + width)
    return places
