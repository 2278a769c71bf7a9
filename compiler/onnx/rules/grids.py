"""GridSample: elements of images at positions that another tensor gives.

Each axis has its taps, their places and their weights; the taps of all axes together are rows of the channels-last
images, which one GATHER picks and a weighted sum joins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.graph import Value
from dla.compiler.onnx.channels import channels_first, channels_last
from dla.compiler.onnx.context import Context
from dla.compiler.onnx.sizes import fixed
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

_A = -0.75  # of Keys' cubic kernel, as in Resize
_NAMES = {"bilinear": "linear", "bicubic": "cubic"}  # before operator set 20
_TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
_NEAR, _FAR = (_A + 2, -(_A + 3), 0, 1), (_A, -5 * _A, 8 * _A, -4 * _A)
_POLYNOMIALS = {"linear": ((-1, 1), (-1, 1)), "cubic": (_FAR, _NEAR, _NEAR, _FAR)}
"""For each tap, its weight as a polynomial in its distance, highest power first."""
PADDINGS = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class Sampling:
    """The attributes of one GridSample."""

    mode: str
    padding: str
    aligned: bool


def grid_sample(c: Context) -> Value:
    """Images [N, C, S...] at positions [N, P..., axes], from -1 to 1 with the last axis first: [N, C, P...]."""
    x, grid, spatial = c[0], c[1], c[0].rank - 2
    mode = str(c.attribute("mode", "linear"))
    how = Sampling(_NAMES.get(mode, mode), c.attribute("padding_mode", "zeros"), bool(c.attribute("align_corners", 0)))
    if how.mode not in _TAPS or how.padding not in PADDINGS:
        raise ModelError(f"mode '{how.mode}' with padding '{how.padding}'")
    if spatial < 1 or grid.rank != x.rank or grid.dims[-1] != spatial:
        raise ModelError(f"positions {grid.type} in images {x.type}")
    sizes = fixed(x.dims[2:])
    batch, points, total = x.dims[0], dims.product(grid.dims[1:-1]), dims.product(sizes)
    flat = c.b.reshape(c.b.cast(grid, DType.F32), [batch, points, spatial])
    index = c.b.mul(c.b.iota([batch, 1, 1], DType.I64), c.b.fill((), total, DType.I64))
    weights: Value | None = None
    for axis, size in enumerate(sizes):
        at = c.b.part(flat, -1, spatial - 1 - axis, 1)
        place, weight = taps(c, how, _pixel(c, how, at, size), size)
        stride = dims.product(sizes[axis + 1 :])
        index = crossed(c, "add", index, c.b.mul(c.b.cast(place, DType.I64), c.b.fill((), stride, DType.I64)))
        weights = weight if weights is None or weight is None else crossed(c, "mul", weights, weight)
    picked = c.b.gather(c.b.reshape(channels_last(c.b, x), [batch * total, x.dims[1]]), index)
    if weights is not None:
        picked = c.b.mul(picked, c.b.cast(c.b.unsqueeze(weights, -1), x.dtype))
    joined = c.b.reduce("sum", picked, [2]) if len(_TAPS[how.mode]) > 1 else c.b.squeeze(picked, 2)
    shaped = c.b.reshape(joined, [batch, *grid.dims[1:-1], x.dims[1]])
    return channels_first(c.b, shaped)


def crossed(c: Context, kind: str, a: Value, b: Value) -> Value:
    """Every tap of a [N, P, K] with every one of b [N, P, L]: [N, P, K * L]."""
    made = c.b.ew(kind, c.b.unsqueeze(a, 3), c.b.unsqueeze(b, 2))
    return c.b.reshape(made, [*made.dims[:2], dims.product(made.dims[2:])])


def _pixel(c: Context, how: Sampling, at: Value, size: int) -> Value:
    """Positions from -1 to 1 as positions among the elements of an axis; those outside are brought back."""
    if how.aligned:
        pixel = c.b.mul(c.b.add(at, 1), (size - 1) / 2)
    else:
        pixel = c.b.mul(c.b.sub(c.b.mul(c.b.add(at, 1), size), 1), 0.5)
    if how.mode == "nearest":
        pixel = c.b.act("round", pixel)
    if how.padding == "reflection":
        return _reflected(c, how, pixel, size)
    if how.padding == "border":
        low, high = _ends(how, size)
        outside = c.b.ew("or", c.b.ew("lt", pixel, low), c.b.ew("gt", pixel, high))
        return c.b.select(outside, _clipped(c, pixel, size), pixel)
    return pixel


def _ends(how: Sampling, size: int) -> tuple[float, float]:
    """Where an axis begins and ends: at the middle of its elements, or at their edges."""
    return (0.0, size - 1.0) if how.aligned else (-0.5, size - 0.5)


def _clipped(c: Context, at: Value, size: int) -> Value:
    return c.b.ew("min", c.b.ew("max", at, 0), size - 1)


def _reflected(c: Context, how: Sampling, at: Value, size: int) -> Value:
    """Mirrored at both ends as often as needed: a triangle wave."""
    low, high = _ends(how, size)
    if high == low:
        return c.b.mul(at, 0)
    phase = c.b.ew("mod", c.b.sub(at, low), 2 * (high - low))
    return c.b.add(c.b.ew("min", phase, c.b.sub(2 * (high - low), phase)), low)


def taps(c: Context, how: Sampling, at: Value, size: int) -> tuple[Value, Value | None]:
    """The places [N, P, K] of the elements around `at`, all within the axis, and their weights (None: all 1)."""
    offsets = c.b.constant(np.array(_TAPS[how.mode], np.float32))
    base = at if how.mode == "nearest" else c.b.act("floor", at)
    place = c.b.add(base, offsets)
    weight: Value | None = None
    if how.mode != "nearest":
        distance = c.b.act("abs", c.b.sub(at, place))
        first, *rest = (c.b.constant(np.array(f, np.float32)) for f in zip(*_POLYNOMIALS[how.mode], strict=True))
        weight = first
        for factor in rest:
            weight = c.b.add(c.b.mul(weight, distance), factor)
    if how.padding == "zeros":
        inside = c.b.ew("eq", place, _clipped(c, place, size))
        kept = c.b.cast(inside, DType.F32)
        weight = kept if weight is None else c.b.mul(weight, kept)
    if how.padding == "reflection":
        place = c.b.act("round", _reflected(c, how, place, size))
    return _clipped(c, place, size), weight


RULES: dict[str, Callable[[Context], Any]] = {"GridSample": grid_sample}
