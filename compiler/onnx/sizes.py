"""Sizes that a rule must know: not only their largest values."""

from __future__ import annotations

from collections.abc import Sequence

from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.shapes import shape_text
from dla.isa.errors import ModelError


def fixed(sizes: Sequence[Dim]) -> tuple[int, ...]:
    """`sizes`, if none is symbolic. Raises ModelError."""
    found = tuple(d for d in sizes if isinstance(d, int))
    if len(found) != len(sizes):
        raise ModelError(
            f"sizes {shape_text(sizes)}: symbolic sizes are not supported here", hint="fix these dims: --fix NAME=SIZE"
        )
    return found


def fixed_dim(x: Value, axis: int) -> int:
    """Dim `axis` of `x`, if there is one and it is not symbolic. Raises ModelError."""
    size = x.dims[axis] if axis < x.rank else None
    if not isinstance(size, int):
        raise ModelError(f"axis {axis} of {x.type} must have a known size", hint="fix this dim: --fix NAME=SIZE")
    return size
