"""Placement: the block that each instruction's first tile goes to, derived from what waits for what.

Products, whose weights are loaded ahead of what they wait for, go round all blocks, each beginning where the one before
ended: those that do not depend on each other (q, k and v; branches) have blocks of their own, and a small one in a
chain finds blocks that have had time to load its weights. Of everything else, the first instruction that waits for
another takes over its place, since what a block's own workers did needs no counter: a chain of single tiles stays on
one block. But what waits for a product of several tiles is on blocks that had none of them, if there are enough: when
it may begin, these have found out what they have to do. What waits for a product that all blocks had a part in would
wait for all of them anywhere; it goes to the first blocks, always the same, and such a product begins where the first
block is one of those with fewer of its tiles, so that its workers are ready for what follows when the last block is
done. The others begin behind what goes on at the same time. A product that leaves some blocks to what takes its result
as it comes begins behind these, which are the first ones, too.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dla.isa.program import Instruction

MOST_LOOKED_AT = 16
"""Of the instructions that one waits for, and of those that may go on beside it, the latest so many."""
TILE_ELEMENTS = 2048
"""Elements that a handler gives a block at a time, about: how many tiles it makes is known on the device alone."""
TILE_ROWS = ((1024, 4), (2048, 2))
"""Rows of up to so many columns that handlers give a block, where there are few: half of its teams (rows.cuh)."""
FEW_ROWS_BLOCKS, FEW_COLUMNS = 4, 512
"""With so many blocks for each row, and more columns than these, warps share one: it is a block's."""
BY_ROWS = ("NORM.layer", "NORM.rms", "SOFTMAX.soft", "SOFTMAX.log")


@dataclass(frozen=True)
class Share:
    """What an instruction has for the blocks: so many tiles, about. `ahead`: copies run ahead of what it waits for.

    Where so many blocks work `together`, it begins at a multiple of that.
    """

    tiles: int
    ahead: bool = False
    together: int = 1


def expected_tiles(instruction: Instruction, blocks: int) -> int:
    """What a handler makes of an instruction, for so many blocks, about."""
    most = max((d for d in instruction.operands if d is not None), key=lambda d: d.elements, default=None)
    if most is None:
        return 1
    tiles, last = math.ceil(most.elements / TILE_ELEMENTS), len(most.bounds) - 1
    if instruction.name in BY_ROWS and instruction.attributes.get("axis", last) == last:
        columns = max(1, most.bounds[last])
        rows = most.elements // columns
        shared = columns > FEW_COLUMNS and rows <= blocks // FEW_ROWS_BLOCKS
        tiles = rows if shared else math.ceil(rows / next((n for limit, n in TILE_ROWS if columns <= limit), 1))
    return min(blocks, max(1, tiles))


def first_blocks(
    before: Sequence[Sequence[int]],
    shares: Sequence[Share | None],
    blocks: int,
    apart: Mapping[int, tuple[int, int | None]] | None = None,
    leaving: Mapping[int, int] | None = None,
) -> list[int]:
    """The first of so many blocks for each instruction; 0 for those that no worker executes, whose share is None.

    `before`: for each instruction those that it waits for, in ascending order, as `conflicts` finds them; but those in
    `apart` begin so many blocks behind the first one of another instruction, or behind its last one; and products in
    `leaving` behind so many of the first blocks, unless they are in `apart`.
    """
    places: list[int] = [0] * len(shares)  # counted without end
    ends = [0] * len(shares)
    taken_over: set[int] = set()
    products: set[int] = set()
    everywhere: set[int] = set()  # products that all blocks have a part in
    turn = 0  # where the next product begins
    for index, share in enumerate(shares):
        if share is None:
            continue
        at = bisect_left(before[index], index)
        earlier = [j for j in before[index][max(0, at - MOST_LOOKED_AT) : at] if shares[j] is not None]
        since = max(earlier[-1] if earlier else 0, index - MOST_LOOKED_AT)
        beside = [ends[j] for j in range(since, index) if shares[j] is not None and j not in earlier]
        left = next((j for j in reversed(earlier) if j not in taken_over), None)
        if apart and index in apart:
            other, count = apart[index]
            places[index] = ends[other] if count is None else places[other] + count
        elif leaving and index in leaving:
            places[index] = turn + (leaving[index] - turn) % blocks
        elif share.ahead:
            places[index] = -(-max([turn, *beside]) // share.together) * share.together
            if share.together == 1:
                places[index] = _sparing_the_first(places[index], share.tiles, blocks)
        elif left is not None:
            taken_over.add(left)
            if left in everywhere and share.tiles < blocks:
                places[index] = -(-ends[left] // blocks) * blocks
            else:  # behind more tiles than blocks are those blocks that had fewer of them
                tiles = ends[left] - places[left]
                beside_it = left in products and 1 < tiles <= blocks - share.tiles
                places[index] = ends[left] if beside_it or tiles >= blocks else places[left]
        else:
            places[index] = max(beside, default=turn)
        ends[index] = places[index] + share.tiles
        if share.ahead:
            turn = ends[index]
            products.add(index)
            if share.tiles >= blocks:
                everywhere.add(index)
    return [place % blocks for place in places]


def _sparing_the_first(place: int, tiles: int, blocks: int) -> int:
    """`place`, or the next one from which the first block gets no more of so many tiles than any other."""
    more = tiles % blocks
    if tiles < blocks or more == 0 or 1 <= place % blocks <= blocks - more:
        return place
    return place + (1 - place) % blocks
