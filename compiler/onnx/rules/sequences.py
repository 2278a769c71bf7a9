"""Sequences of tensors: lists of the importer, of a length that is known; nothing of them is left in the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dla.compiler.dims import Dim, minimum
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context, Item, materialise
from dla.compiler.onnx.known import Tensors
from dla.compiler.onnx.rules.slices import cut
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

LONGEST = 1000
"""Parts that a tensor may be split into."""


def construct(c: Context) -> Tensors:
    """The inputs as a sequence."""
    return Tensors(tuple(_tensor(item) for item in c.inputs))


def at(c: Context) -> Item:
    """The tensor at a position."""
    found = _sequence(c)
    item: Item = found.parts[_position(c, 1, len(found.parts) - 1)]
    return item


def insert(c: Context) -> Tensors:
    """A tensor more, at a position or at the end."""
    parts = _sequence(c).parts
    position = _position(c, 2, len(parts)) if c.has(2) else len(parts)
    return Tensors((*parts[:position], _tensor(c.inputs[1]), *parts[position:]))


def erase(c: Context) -> Tensors:
    """All but the tensor at a position, or the last one."""
    parts = _sequence(c).parts
    if not parts:
        raise ModelError("nothing can be taken out of an empty sequence")
    position = _position(c, 1, len(parts) - 1) if c.has(1) else len(parts) - 1
    return Tensors((*parts[:position], *parts[position + 1 :]))


def length(c: Context) -> Value:
    """How many tensors there are."""
    return c.b.constant(np.array(len(_sequence(c).parts)), DType.I64)


def split(c: Context) -> Tensors:
    """Parts along an axis: of one size (the last may be smaller), of given sizes, or of 1, perhaps without the axis."""
    x = c[0]
    axis = c.axis(int(c.attribute("axis", 0)), x.rank)
    size = x.dims[axis]
    single = not c.has(1)
    given = np.array(1) if single else c.known(1, "sizes of parts")
    if given.ndim == 0:
        each = 1 if single else c.integers(1, "size of parts")[0]
        if not isinstance(size, int) or each < 1 or size > each * LONGEST:
            raise ModelError(f"axis {axis} of {x.type} in parts of {each}", hint="fix this dim: --fix NAME=SIZE")
        sizes: list[Dim] = [minimum(each, size - start) for start in range(0, size, each)]
    else:
        sizes = c.sizes(1, "sizes of parts")
    parts = cut(c.b, x, axis, sizes)
    if single and not c.attribute("keepdims", 1):
        parts = [c.b.squeeze(part, axis) for part in parts]
    return Tensors(tuple(parts))


def concat(c: Context) -> Value:
    """All tensors one after the other along an axis, which may be a new one."""
    parts = [materialise(c.b, part) for part in _sequence(c).parts]
    if not parts:
        raise ModelError("nothing can be made of an empty sequence")
    new = bool(c.attribute("new_axis", 0))
    axis = c.axis(int(c.required("axis")), parts[0].rank + new)
    if new:
        parts = [c.b.reshape(part, [*part.dims[:axis], 1, *part.dims[axis:]]) for part in parts]
    return c.b.concat(parts, axis)


def _sequence(c: Context) -> Tensors:
    found = c.inputs[0] if c.has(0) else None
    if not isinstance(found, Tensors):
        raise ModelError("its first input is no sequence")
    return found


def _tensor(item: Item | None) -> Item:
    if item is None or isinstance(item, Tensors):
        raise ModelError("sequences are made of tensors")
    return item


def _position(c: Context, index: int, last: int) -> int:
    """Input `index`, which may count from the end: a position up to `last`."""
    (position,) = c.integers(index, "position")
    count = len(_sequence(c).parts)
    if not -count <= position <= last:
        raise ModelError(f"position {position} of a sequence of {count}")
    return position + count if position < 0 else position


RULES: dict[str, Callable[[Context], Any]] = {
    "ConcatFromSequence": concat,
    "SequenceAt": at,
    "SequenceConstruct": construct,
    "SequenceEmpty": lambda c: Tensors(()),
    "SequenceErase": erase,
    "SequenceInsert": insert,
    "SequenceLength": length,
    "SplitToSequence": split,
}
