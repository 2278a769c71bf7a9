"""Pad in all its modes. Negative pads cut; axes of symbolic size are padded by concatenation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.isa.errors import ModelError

LONGEST = 1 << 24
"""Elements that are repeated along one axis by a table of them."""
MODES = ("constant", "reflect", "edge", "wrap")


def pad(c: Context) -> Value:
    """Pads of all axes or of some, before and after; they and the value were attributes before operator set 11."""
    x, mode = c[0], c.attribute("mode", "constant")
    if mode not in MODES:
        raise ModelError(f"mode '{mode}' is none of {', '.join(MODES)}")
    pads = c.sizes(1, "pads") if c.has(1) else list(c.attribute("pads", c.attribute("paddings", [])))
    axes = c.integers(3, "axes") if c.has(3) else list(range(x.rank))
    if len(pads) != 2 * len(axes):
        raise ModelError(f"{len(pads)} pads for {len(axes)} axes")
    low: list[Dim] = [0] * x.rank
    high: list[Dim] = [0] * x.rank
    for k, axis in enumerate(axes):
        at = c.axis(axis, x.rank)
        low[at], high[at] = pads[k], pads[len(axes) + k]
    for axis in range(x.rank):
        x, low[axis], high[axis] = _cut(c, x, axis, low[axis], high[axis])
    return constant(c, x, low, high) if mode == "constant" else _repeated(c, x, low, high, mode)


def _cut(c: Context, x: Value, axis: int, low: Dim, high: Dim) -> tuple[Value, Dim, Dim]:
    """The tensor x without what negative pads take away, and the pads that remain."""
    before = -low if isinstance(low, int) and low < 0 else 0
    after = -high if isinstance(high, int) and high < 0 else 0
    if before or after:
        size = x.dims[axis] - (before + after)
        if isinstance(size, int) and size < 0:
            raise ModelError(f"its pads take away more than there is along axis {axis} of {x.type}")
        x = c.b.part(x, axis, before, size)
    return x, 0 if before else low, 0 if after else high


def constant(c: Context, x: Value, low: Sequence[Dim], high: Sequence[Dim]) -> Value:
    """The tensor x with one number around it, by default 0."""
    value: Any = c.attribute("value", 0.0)
    if c.has(2):
        value = c.scalar(2, "pad value")
    value = value if x.dtype.is_float else int(value)
    finite = math.isfinite(value)  # PAD holds finite numbers only
    plain = [k for k in range(x.rank) if all(isinstance(d, int) for d in (x.dims[k], low[k], high[k])) and finite]
    before, after = ([_plain(p[k]) if k in plain else 0 for k in range(x.rank)] for p in (low, high))
    x = c.b.pad(x, before, after, value=value if finite else 0)
    for axis in (k for k in range(x.rank) if k not in plain and (low[k], high[k]) != (0, 0)):
        ends = [c.b.fill([*x.dims[:axis], n, *x.dims[axis + 1 :]], value, x.dtype) for n in (low[axis], high[axis])]
        x = c.b.concat([ends[0], x, ends[1]], axis)
    return x


def _plain(size: Dim) -> int:
    assert isinstance(size, int), "symbolic pads are made by concatenation"
    return size


def _repeated(c: Context, x: Value, low: Sequence[Dim], high: Sequence[Dim], mode: str) -> Value:
    """The tensor x with its own elements around it."""
    within = []
    for axis in range(x.rank):
        before, size, after = low[axis], x.dims[axis], high[axis]
        if before == 0 and after == 0:
            within.append(axis)
        elif not (isinstance(before, int) and isinstance(size, int) and isinstance(after, int)):
            x = _edges(c, x, axis, before, after, mode)
        elif max(before, after) <= {"reflect": size - 1, "wrap": size, "edge": max(before, after)}[mode] and size:
            within.append(axis)
        elif size and before + after <= LONGEST:
            # More than one reflection, or one period: which elements these are is known.
            x = c.b.gather(x, c.b.constant(np.pad(np.arange(size), (before, after), mode=_mode(mode))), axis)
        else:
            raise ModelError(f"axis {axis} of {x.type} cannot be padded by {before} and {after} in mode {mode}")
    sides = ([_plain(p[k]) if k in within else 0 for k in range(x.rank)] for p in (low, high))
    return c.b.pad(x, *sides, mode=mode)


def _mode(mode: str) -> Any:
    """A name that NumPy knows too."""
    return mode


def _edges(c: Context, x: Value, axis: int, low: Dim, high: Dim, mode: str) -> Value:
    """The first and the last slice repeated, where sizes are symbolic."""
    if mode != "edge":
        raise ModelError(
            f"mode {mode} along axis {axis} of {x.type}, which is symbolic", hint="fix this dim: --fix NAME=SIZE"
        )
    ends = []
    for at, size in ((0, low), (x.dims[axis] - 1, high)):
        ends.append(c.b.expand(c.b.part(x, axis, at, 1), [*x.dims[:axis], size, *x.dims[axis + 1 :]]))
    return c.b.concat([ends[0], x, ends[1]], axis)


RULES: dict[str, Callable[[Context], Any]] = {"Pad": pad}
