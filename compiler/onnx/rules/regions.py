"""Samples between pixels, gathered and weighed: pools of regions of interest, and convolutions at given places."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.onnx.channels import channels_first, channels_last
from dla.compiler.onnx.context import Context
from dla.compiler.onnx.rules.grids import Sampling, crossed
from dla.compiler.onnx.rules.grids import taps as linear_taps
from dla.compiler.onnx.rules.windows import Window, window_of
from dla.compiler.onnx.sizes import fixed
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

_MOST_TAPS = 4096
"""Of a kernel, so that hostile sizes cost nothing."""


@dataclass(frozen=True)
class _Line:
    """Samples along one axis, for each region: the pixels before and after each, [R, P], and their weights."""

    before: Value
    after: Value
    near: Value  # weight of the one before
    far: Value  # weight of the one after; both are 0 where the sample is outside

    @property
    def ends(self) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
        return (self.before, self.near), (self.after, self.far)


def _line(b: GraphBuilder, start: Value, extent: Value, count: int, samples: int, size: int) -> _Line:
    """`count` bins of `samples` samples each along an axis of `size` pixels; start and extent are [R, 1]."""
    places = b.mul(b.iota((1, count * samples), DType.F32, axis=1, start=0.5), 1 / (count * samples))
    at = b.add(start, b.mul(extent, places))
    inside = b.cast(b.ew("and", b.ew("ge", at, -1), b.ew("le", at, size)), DType.F32)
    at = b.ew("min", b.ew("max", at, 0), size - 1)
    low = b.act("floor", at)
    far = b.sub(at, low)
    before = b.cast(low, DType.I64)
    after = b.ew("min", b.add(before, 1), size - 1)
    return _Line(before, after, b.mul(b.sub(1.0, far), inside), b.mul(far, inside))


def roi_align(c: Context) -> Value:
    """The mean or the largest of samples of each bin of each region; the largest is of single weighed pixels."""
    b, x, rois = c.b, c[0], c[1]
    if x.rank != 4 or rois.rank != 2 or rois.dims[1] != 4 or c[2].dims != rois.dims[:1]:
        raise ModelError(f"regions {rois.type} with samples {c[2].type} of {x.type}")
    samples, mode = int(c.attribute("sampling_ratio", 0)), str(c.attribute("mode", "avg"))
    if samples < 1 or mode not in ("avg", "max"):
        raise ModelError(f"sampling_ratio = {samples}, mode = {mode!r}: at least one sample, and avg or max are needed")
    height, width = fixed(x.dims[2:])
    shape = [int(c.attribute(name, 1)) for name in ("output_height", "output_width")]
    if min(*shape, height, width) < 1:
        raise ModelError(f"{shape[0]} x {shape[1]} bins in {height} x {width} pixels")
    starts, extents = _boxes(c, b.cast(rois, DType.F32))
    lines = [_line(b, b.part(starts, 1, k, 1), b.part(extents, 1, k, 1), shape[1 - k], samples, size)
             for k, size in enumerate((width, height))]  # fmt: skip
    pixels = b.reshape(channels_last(b, x), (x.dims[0] * height * width, x.dims[1]))
    first = b.mul(b.reshape(b.cast(c[2], DType.I64), (rois.dims[0], 1, 1)), height * width)
    corners = []
    for row, above in lines[1].ends:
        for column, beside in lines[0].ends:
            index = b.add(first, b.add(b.unsqueeze(b.mul(row, width), 2), b.unsqueeze(column, 1)))
            weight = b.unsqueeze(b.mul(b.unsqueeze(above, 2), b.unsqueeze(beside, 1)), 3)
            corners.append(b.mul(b.gather(pixels, index), b.cast(weight, x.dtype)))
    total, *others = corners
    for corner in others:
        total = b.ew("add" if mode == "avg" else "max", total, corner)
    split = b.reshape(total, (rois.dims[0], shape[0], samples, shape[1], samples, x.dims[1]))
    return channels_first(b, b.reduce("mean" if mode == "avg" else "max", split, [2, 4]))


def _boxes(c: Context, rois: Value) -> tuple[Value, Value]:
    """Where regions start and how far they extend, [R, 2] as (x, y), in pixels of the input."""
    b = c.b
    default = "half_pixel" if c.opset >= 16 else "output_half_pixel"
    halved = str(c.attribute("coordinate_transformation_mode", default)) == "half_pixel"
    scaled = b.mul(rois, float(c.attribute("spatial_scale", 1.0)))
    starts, ends = b.part(scaled, 1, 0, 2), b.part(scaled, 1, 2, 2)
    extents = b.sub(ends, starts)
    return (b.sub(starts, 0.5), extents) if halved else (starts, b.ew("max", extents, 1))


def deform_conv(c: Context) -> Value:
    """A convolution whose taps are moved by offsets, per position and group of channels, and weighed by a mask."""
    b, x, w, offset = c.b, c[0], c[1], c[2]
    groups, parts = int(c.attribute("group", 1)), int(c.attribute("offset_group", 1))
    if x.rank != 4 or w.rank != 4 or offset.rank != 4 or min(groups, parts) < 1:
        raise ModelError(f"{x.type} with kernels {w.type} and offsets {offset.type}: two spatial axes are supported")
    channels, height, width, outputs, depth, rows, columns = fixed((*x.dims[1:], *w.dims))
    window = window_of(c, (rows, columns), (height, width))
    taps, positions = rows * columns, offset.dims[2:]
    if (
        channels != depth * groups
        or outputs % groups
        or channels % parts
        or offset.dims[1] != 2 * parts * taps
        or taps > _MOST_TAPS
    ):
        raise ModelError(f"{x.type} with kernels {w.type} and offsets {offset.type}: their channels do not fit")
    samples, places = x.dims[0] * parts, dims.product((taps, *positions))
    moved = b.reshape(offset, (samples, taps, 2, *positions))
    index = b.mul(b.iota((samples, 1, 1), DType.I64), height * width)
    weights = None
    for axis, (size, stride) in enumerate(((height, width), (width, 1))):
        at = b.reshape(b.add(b.squeeze(b.part(moved, 2, axis, 1), 2), _corners(b, window, axis, positions)),
                       (samples, places, 1))  # fmt: skip
        place, weight = linear_taps(c, Sampling("linear", "zeros", aligned=False), at, size)
        index = crossed(c, "add", index, b.mul(b.cast(place, DType.I64), stride))
        weights = weight if weights is None or weight is None else crossed(c, "mul", weights, weight)
    assert weights is not None, "a linear tap has a weight"
    pixels = b.transpose(b.reshape(x, (x.dims[0], parts, channels // parts, height, width)), (0, 1, 3, 4, 2))
    picked = b.gather(b.reshape(pixels, (samples * height * width, channels // parts)), index)
    found = b.reduce("sum", b.mul(picked, b.cast(b.unsqueeze(weights, -1), x.dtype)), [2])
    if c.has(4):
        found = b.mul(found, b.reshape(c[4], (samples, places, 1)))
    sampled = b.reshape(found, (x.dims[0], parts, taps, dims.product(positions), channels // parts))
    return _weighed(c, sampled, w, groups, positions)


def _corners(b: GraphBuilder, window: Window, axis: int, positions: Sequence[Dim]) -> Value:
    """Where each tap is before it is moved, along one axis: [1, K, P, Q] with one of P and Q as 1."""
    taps = np.indices(window.kernel)[axis].reshape(1, -1, 1, 1) * window.dilations[axis]
    shape = [positions[k - 2] if k == 2 + axis else 1 for k in range(4)]
    first = b.iota(shape, DType.F32, axis=2 + axis, start=-window.low[axis], step=window.strides[axis])
    return b.add(first, b.constant(taps, DType.F32))


def _weighed(c: Context, x: Value, w: Value, groups: int, positions: Sequence[Dim]) -> Value:
    """The product of x [N, parts, K, P, C / parts] with kernels [O, C / groups, ...], and the bias: [N, O, P, Q]."""
    b, (outputs, depth, *kernel) = c.b, fixed(w.dims)
    terms = depth * math.prod(kernel)
    flat = b.reshape(b.transpose(x, (0, 3, 1, 4, 2)), (x.dims[0], x.dims[3], groups, terms))
    kernels = b.reshape(w, (groups, 1, outputs // groups, terms))
    made = b.matmul(b.transpose(flat, (2, 0, 1, 3)), b.swap(kernels))
    y = b.reshape(b.transpose(made, (1, 0, 3, 2)), (x.dims[0], outputs, *positions))
    return b.add(y, b.reshape(c[3], (outputs, 1, 1))) if c.has(3) else y


RULES: dict[str, Callable[[Context], Any]] = {"DeformConv": deform_conv, "RoiAlign": roi_align}
