"""Sliding windows over spatial axes: the geometry that CONV and POOL share.

Tensors are channels-last: [N, S..., C] with one or two spatial axes S. One-dimensional instructions use the second
entry of each pair in a WINDOW record, and `left` and `right` of its pads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dla.isa.dtypes import Array
from dla.isa.records import WINDOW

MAX_SPATIAL = 2


@dataclass(frozen=True)
class Geometry:
    """How a window moves, per spatial axis: the values of a WINDOW record for one or two axes."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]  # elements added before
    high: tuple[int, ...]  # elements added after
    gaps: tuple[int, ...]  # zeros between neighbours

    def spread(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes with gaps: (size - 1) * (gap + 1) + 1, and 0 of nothing."""
        return tuple((n - 1) * (gap + 1) + 1 if n else 0 for n, gap in zip(sizes, self.gaps, strict=True))

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements from the first to the last one that a window touches: dilation * (window - 1) + 1."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilations, self.window, strict=True))

    def output(self, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
        """Number of positions, floor((size with gaps + low + high - reach) / stride) + 1; None where no window fits."""
        spread = self.spread(sizes)
        room = [n + a + b - r for n, a, b, r in zip(spread, self.low, self.high, self.reach, strict=True)]
        if any(r < 0 for r in room):
            return None
        return tuple(r // s + 1 for r, s in zip(room, self.strides, strict=True))


def geometry(attributes: Mapping[str, Any], rank: int, window: tuple[int, ...] | None = None) -> Geometry:
    """The geometry of an instruction with `rank` spatial axes.

    `window` replaces the record's (CONV has weights); gaps are 0 where there is no such attribute (POOL).
    """
    pads = attributes["pads"]
    low, high = pads[:MAX_SPATIAL], pads[MAX_SPATIAL:]
    given = window or attributes["window"]
    gaps = attributes.get("gaps", (0,) * MAX_SPATIAL)
    pairs = (given, attributes["strides"], attributes["dilations"], low, high, gaps)
    return Geometry(*(tuple(pair)[len(pair) - rank :] for pair in pairs))


def unused_at_default(attributes: Mapping[str, Any], rank: int) -> bool:
    """Whether a one-dimensional instruction leaves the first entry of each pair alone."""
    pairs = ("window", "strides", "dilations")
    return rank == MAX_SPATIAL or (
        all(attributes[name][0] == 1 for name in pairs)
        and attributes["pads"][0] == attributes["pads"][2] == attributes.get("gaps", (0,))[0] == 0
    )


def is_default(attributes: Mapping[str, Any]) -> bool:
    """Whether nothing in the WINDOW record is written."""
    return all(attributes[a.name] == a.default for a in WINDOW.attributes)


def slide(x: Array, shape: Geometry, fill: float) -> Array:
    """Every window of x [N, S..., C], padded with `fill`: a view [N, P..., K..., C], P positions of K elements.

    Channels stay innermost, as they are in memory: what is computed from the windows then walks over neighbours.
    """
    rank = x.ndim - 2
    if any(shape.gaps):
        x = _with_gaps(x, shape, fill)
    if any(shape.low) or any(shape.high):
        x = np.pad(x, [(0, 0), *zip(shape.low, shape.high, strict=True), (0, 0)], constant_values=fill)
    dense = np.moveaxis(sliding_window_view(x, shape.reach, axis=tuple(range(1, 1 + rank))), 1 + rank, -1)
    steps = [slice(None, None, s) for s in shape.strides]
    taps = [slice(None, None, d) for d in shape.dilations]
    return np.asarray(dense[(slice(None), *steps, *taps)])


def _with_gaps(x: Array, shape: Geometry, fill: float) -> Array:
    """Put `fill` between neighbours along the spatial axes."""
    spread: Array = np.full((x.shape[0], *shape.spread(x.shape[1:-1]), x.shape[-1]), fill, x.dtype)
    spread[(slice(None), *(slice(None, None, gap + 1) for gap in shape.gaps))] = x
    return spread
