"""Constants of which each rank has a piece."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from dla.compiler.graph import Node
from dla.compiler.lower.matrices import is_weight
from dla.compiler.operators import source
from dla.isa.dtypes import Array

if TYPE_CHECKING:
    from dla.compiler.lower.lowering import Lowering


def piece(lowering: Lowering, node: Node) -> None:
    """A SHARD: memory for one rank's piece. Steps of loops have the same one as what is around them."""
    constant, axis, segments = source(node), node.attributes["axis"], node.attributes["segments"]
    assert constant.constant is not None, "only constants are cut"
    key = id(constant), axis, segments, is_weight(node.output)
    if key not in lowering.pieces:
        whole = by_rank(constant.constant, axis, segments, node.attributes["ranks"])
        lowering.pieces[key] = lowering.constant(node.output, whole, axis)
    lowering.settle(node.output, lowering.pieces[key])


def by_rank(whole: Array, axis: int, segments: tuple[int, ...], ranks: int) -> Array:
    """The elements of `whole` rank by rank along `axis`: of each segment a piece, for the first rank, the next, ..."""
    if len(segments) == 1:
        return whole  # lies so already
    places = []
    for rank in range(ranks):
        for end, size in zip(accumulate(segments), segments, strict=True):
            width = size // ranks
            places.append(np.arange(end - size + rank * width, end - size + (rank + 1) * width))
    return whole.take(np.concatenate(places), axis)
