"""Reshapes that regroup rows of symbolic length: packed without gaps row by row, and unpacked again.

Strides are those of the tensor at its bounds, so shorter rows leave gaps between them that a view cannot skip.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from dla.compiler import dims
from dla.compiler.dims import Dim, Expr
from dla.compiler.graph import Node, TensorType
from dla.compiler.lower.storage import View, strides_of, whole
from dla.isa.descriptor import Segment

if TYPE_CHECKING:
    from dla.compiler.lower.lowering import Lowering


def repacked(lowering: Lowering, node: Node, view: View) -> View:
    """A reshape that regroups rows of symbolic length: packed without gaps row by row, and unpacked again."""
    value = node.output
    packed = whole(lowering.storage(Segment.SCRATCH, TensorType(value.dtype, (value.type.elements,)), value.name))
    for place, rows in _rows(lowering, view, packed):
        lowering.copy(place, rows)
    found = packed.reshape(value.dims)
    if found is None:
        found = lowering.fresh(value)
        for place, rows in _rows(lowering, found, packed):
            lowering.copy(rows, place)
    return found


def _rows(lowering: Lowering, view: View, packed: View) -> Iterator[tuple[View, View]]:
    """(piece of `packed`, the same elements of `view`), inside loops over the axes that must be counted.

    From the last symbolic axis on, elements lie as far apart in both, so that is one piece.
    """
    shape = view.dims
    inner = max((k for k, d in enumerate(shape) if isinstance(d, Expr)), default=0)
    size = dims.product(shape[inner:])
    with ExitStack() as loops:
        at: Dim = 0
        for axis in range(inner):
            index = 0 if shape[axis] == 1 else loops.enter_context(lowering.loop(f"row{axis}", shape[axis]))
            view = dataclasses.replace(view, offset=view.offset + index * view.strides[axis])
            at = at * shape[axis] + index
        piece = View(packed.storage, shape[inner:], strides_of(shape[inner:]), at * size)
        yield piece, View(view.storage, shape[inner:], view.strides[inner:], view.offset)
