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

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements from the first to the last one that a window touches: dilation * (window - 1) + 1."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilations, self.window, strict=True))

    def output(self, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
        """Number of positions, floor((size + low + high - reach) / stride) + 1; None where no window fits."""
        room = [n + a + b - r for n, a, b, r in zip(sizes, self.low, self.high, self.reach, strict=True)]
        if any(r < 0 for r in room):
            return None
        return tuple(r // s + 1 for r, s in zip(room, self.strides, strict=True))


def geometry(attributes: Mapping[str, Any], rank: int, window: tuple[int, ...] | None = None) -> Geometry:
    """The geometry of an instruction with `rank` spatial axes; `window` replaces the record's (CONV has weights)."""
    pads = attributes["pads"]
    low, high = pads[:MAX_SPATIAL], pads[MAX_SPATIAL:]
    given = window or attributes["window"]
    pairs = (given, attributes["strides"], attributes["dilations"], low, high)
    return Geometry(*(tuple(pair)[len(pair) - rank :] for pair in pairs))


def unused_at_default(attributes: Mapping[str, Any], rank: int) -> bool:
    """Whether a one-dimensional instruction leaves the first entry of each pair alone."""
    pairs = ("window", "strides", "dilations")
    return rank == MAX_SPATIAL or (
        all(attributes[name][0] == 1 for name in pairs) and attributes["pads"][0] == attributes["pads"][2] == 0
    )


def is_default(attributes: Mapping[str, Any]) -> bool:
    """Whether nothing in the WINDOW record is written."""
    return all(attributes[a.name] == a.default for a in WINDOW.attributes)


def slide(x: Array, shape: Geometry, fill: float) -> Array:
    """Every window of x [N, S..., C], padded with `fill`: a view [N, P..., K..., C], P positions of K elements.

    Channels stay innermost, as they are in memory: what is computed from the windows then walks over neighbours.
    """
    rank = x.ndim - 2
    if any(shape.low) or any(shape.high):
        x = np.pad(x, [(0, 0), *zip(shape.low, shape.high, strict=True), (0, 0)], constant_values=fill)
    dense = np.moveaxis(sliding_window_view(x, shape.reach, axis=tuple(range(1, 1 + rank))), 1 + rank, -1)
    steps = [slice(None, None, s) for s in shape.strides]
    taps = [slice(None, None, d) for d in shape.dilations]
    return np.asarray(dense[(slice(None), *steps, *taps)])
