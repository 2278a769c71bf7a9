"""Convolutions: ONNX's windows along one, two or three axes as those of the machine, along one or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.onnx.channels import channels_first, channels_last
from dla.compiler.onnx.context import Context
from dla.compiler.onnx.sizes import fixed, fixed_dim
from dla.compiler.shapes import shape_text
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

_MOST_PLANES = 1024
"""Of a kernel along three axes: each becomes an instruction."""


@dataclass(frozen=True)
class Window:
    """How a window moves along each of its axes; `gaps` zeros are between neighbours of its input."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    gaps: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements from the first to the last one that a window touches."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def along(self, *axes: int) -> Window:
        """The window along some of the axes."""
        parts = (self.kernel, self.strides, self.dilations, self.low, self.high, self.gaps)
        return Window(*(tuple(part[k] for k in axes) if part else () for part in parts))

    def attributes(self) -> dict[str, Any]:
        """As the attributes of CONV and POOL (without `window`), which have pairs."""
        one = self.rank == 1
        pads = (0, *self.low, 0, *self.high) if one else (*self.low, *self.high)
        found: dict[str, Any] = {"strides": (1, *self.strides) if one else self.strides, "pads": pads}
        found["dilations"] = (1, *self.dilations) if one else self.dilations
        return found | ({"gaps": (0, *self.gaps) if one else self.gaps} if any(self.gaps) else {})

    @property
    def pair(self) -> tuple[int, ...]:
        """The kernel as POOL's attribute `window`."""
        return (1, *self.kernel) if self.rank == 1 else self.kernel


def _numbers(c: Context, name: str, rank: int, default: int, low: int) -> tuple[int, ...]:
    found = tuple(int(v) for v in c.attribute(name) or [default] * rank)
    if len(found) != rank or min(found, default=low) < low:
        raise ModelError(f"{name} = {list(found)} for {rank} spatial axes")
    return found


def window_of(c: Context, kernel: Sequence[Dim], sizes: Sequence[Dim], *, kind: str | None = None) -> Window:
    """The window that a node's attributes describe, over axes of the given sizes; `kind` overrides auto_pad."""
    rank = len(sizes)
    if not 1 <= rank <= 3:
        raise ModelError(f"a window along {rank} axes: one to three are supported")
    if len(kernel) != rank or not all(isinstance(k, int) and k >= 1 for k in kernel):
        raise ModelError(f"a window of {shape_text(kernel)} along {rank} axes")
    taken = tuple(k for k in kernel if isinstance(k, int))
    pads = _numbers(c, "pads", 2 * rank, 0, 0)
    window = Window(taken, _numbers(c, "strides", rank, 1, 1), _numbers(c, "dilations", rank, 1, 1),
                    pads[:rank], pads[rank:])  # fmt: skip
    kind = kind or auto_pad(c)
    if kind == "NOTSET":
        return window
    none = (0,) * rank
    if kind == "VALID":
        return replace(window, low=none, high=none)
    totals = [max((-(-n // s) - 1) * s + r - n, 0)
              for n, s, r in zip(fixed(sizes), window.strides, window.reach, strict=True)]  # fmt: skip
    return _split_pads(window, totals, more_before=kind == "SAME_LOWER")


def auto_pad(c: Context) -> str:
    """The attribute of that name, or NOTSET. Raises ModelError for what ONNX does not know."""
    kind = str(c.attribute("auto_pad", "NOTSET"))
    if kind not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ModelError(f"auto_pad = {kind!r}")
    return kind


def _split_pads(window: Window, totals: Sequence[int], *, more_before: bool) -> Window:
    less, more = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return replace(window, low=more, high=less) if more_before else replace(window, low=less, high=more)


def convolve(
    b: GraphBuilder, x: Value, w: Value, bias: Value | None, window: Window, groups: int, dtype: DType | None = None
) -> Value:  # fmt: skip
    """Convolution of x [N, S..., C] with w [O, K..., C / groups] along one to three axes, in x's type or `dtype`."""
    if window.rank < 3:
        steps: dict[str, Any] = {"steps": ("bias",)} if bias is not None else {}
        return b.emit("CONV", [x, w, bias, None, None], dtype=dtype, groups=groups, **window.attributes(), **steps)
    return _convolve_planes(b, x, w, bias, window, groups, dtype or x.dtype)


def _convolve_planes(
    b: GraphBuilder, x: Value, w: Value, bias: Value | None, window: Window, groups: int, dtype: DType
) -> Value:  # fmt: skip
    """Along three axes: a sum over the taps of the first, each a convolution along the other two."""
    depth, plane = window.along(0), window.along(1, 2)
    if depth.kernel[0] > _MOST_PLANES:
        raise ModelError(f"kernels of more than {_MOST_PLANES} planes")
    x = _with_gaps(b, x, depth.gaps[0]) if depth.gaps else x
    x = b.pad(x, (0, depth.low[0], 0, 0, 0), (0, depth.high[0], 0, 0, 0))
    room = fixed_dim(x, 1) - depth.reach[0]
    if room < 0:
        raise ModelError(f"a window of {depth.reach[0]} along an axis of {x.dims[1]} with its padding")
    count = room // depth.strides[0] + 1
    total: Value | None = None
    for tap in range(depth.kernel[0]):
        start = tap * depth.dilations[0]
        planes = b.slice(x, {1: start}, {1: count}, {1: depth.strides[0]})
        flat = b.reshape(planes, (x.dims[0] * count, *x.dims[2:]))
        kernel = b.squeeze(b.part(w, 1, tap, 1), 1)
        last = tap == depth.kernel[0] - 1
        read = {"bias": bias if tap == 0 else None, "residual": total}
        steps = tuple(name for name, value in read.items() if value is not None)
        given: dict[str, Any] = {"steps": steps} if steps else {}
        total = b.emit("CONV", [flat, kernel, *read.values(), None], dtype=dtype if last else DType.F32, groups=groups,
                       **plane.attributes(), **given)  # fmt: skip
    assert total is not None, "a kernel has at least one tap"
    return b.reshape(total, (x.dims[0], count, *total.dims[1:]))


def _with_gaps(b: GraphBuilder, x: Value, gap: int) -> Value:
    """Put `gap` zeros between neighbours along the second axis of x [N, D, ...]."""
    size = fixed_dim(x, 1)
    if not gap or size < 2:
        return x
    rest = x.rank - 2
    spread = b.pad(b.unsqueeze(x, 2), (0,) * (3 + rest), (0, 0, gap, *(0,) * rest))
    flat = b.reshape(spread, (x.dims[0], size * (gap + 1), *x.dims[2:]))
    return b.part(flat, 1, 0, (size - 1) * (gap + 1) + 1)


def conv(c: Context) -> Value:
    """Cross-correlation."""
    x, w, bias = c[0], c[1], c.optional(2)
    groups = kernels_fit(c, x, w, w.dims[1:2], x.dims[1:2])
    window = window_of(c, w.dims[2:], x.dims[2:])
    return channels_first(c.b, convolve(c.b, channels_last(c.b, x), channels_last(c.b, w), bias, window, groups))


def kernels_fit(c: Context, x: Value, w: Value, depth: Sequence[Dim], channels: Sequence[Dim]) -> int:
    """The number of groups. Raises ModelError where input and kernels do not fit each other."""
    groups = int(c.attribute("group", 1))
    if x.rank != w.rank or x.rank < 3 or groups < 1 or depth[0] * groups != channels[0]:
        raise ModelError(f"{x.type} with kernels {w.type} in {groups} groups: their axes or channels do not fit")
    shape = c.attribute("kernel_shape")
    if shape is not None and tuple(shape) != w.dims[2:]:
        raise ModelError(f"kernel_shape = {list(shape)}, but the kernels are {w.type}")
    return groups


def conv_transpose(c: Context) -> Value:
    """The gradient of a convolution by its input: one over x with zeros between its elements, with turned kernels."""
    x, w, bias = c[0], c[1], c.optional(2)
    if x.rank < 3:
        raise ModelError(f"{x.type} has no spatial axes")
    groups = kernels_fit(c, x, w, w.dims[:1], [x.dims[1] * int(c.attribute("group", 1))])
    if fixed_dim(w, 0) % groups:
        raise ModelError(f"kernels {w.type} in {groups} groups")
    window, crop = _transposed(c, window_of(c, w.dims[2:], x.dims[2:], kind="NOTSET"), fixed(x.dims[2:]))
    y = convolve(c.b, channels_last(c.b, x), _turned(c.b, w, groups), bias, window, groups)
    y = c.b.slice(y, {1 + k: before for k, (before, _) in enumerate(crop)},
                  {1 + k: y.dims[1 + k] - before - after for k, (before, after) in enumerate(crop)})  # fmt: skip
    return channels_first(c.b, y)


def _transposed(c: Context, window: Window, sizes: tuple[int, ...]) -> tuple[Window, list[tuple[int, int]]]:
    """The window of the convolution that a transposed one is, and what to cut off its result on both sides."""
    extra, kind = _numbers(c, "output_padding", window.rank, 0, 0), auto_pad(c)
    full = [s * (n - 1) + r + e for s, n, r, e in zip(window.strides, sizes, window.reach, extra, strict=True)]
    wanted = c.attribute("output_shape")
    if wanted is not None:
        wanted = [int(n) for n in wanted][-window.rank :]
        if len(wanted) != window.rank:
            raise ModelError(f"output_shape = {wanted} for {window.rank} spatial axes")
    elif kind.startswith("SAME"):
        wanted = [n * s for n, s in zip(sizes, window.strides, strict=True)]
    if wanted is not None:
        totals = [n - m for n, m in zip(full, wanted, strict=True)]
        window = _split_pads(window, totals, more_before=kind != "SAME_UPPER")
    elif kind == "VALID":
        window = replace(window, low=(0,) * window.rank, high=(0,) * window.rank)
    low = [r - 1 - p for r, p in zip(window.reach, window.low, strict=True)]
    high = [r - 1 - p + e for r, p, e in zip(window.reach, window.high, extra, strict=True)]
    crop = [(max(-a, 0), max(-z, 0)) for a, z in zip(low, high, strict=True)]
    ones = (1,) * window.rank
    gaps = tuple(s - 1 for s in window.strides)
    turned = Window(window.kernel, ones, window.dilations, tuple(max(a, 0) for a in low),
                    tuple(max(z, 0) for z in high), gaps)  # fmt: skip
    return turned, crop


def _turned(b: GraphBuilder, w: Value, groups: int) -> Value:
    """Kernels [C, O / groups, K...], turned by half a turn, as [O, K..., C / groups]."""
    spatial = range(2, w.rank)
    if w.constant is not None:
        w = b.constant(np.ascontiguousarray(np.flip(w.constant, tuple(spatial))), name=w.name)
    else:
        for axis in spatial:
            size = fixed_dim(w, axis)
            w = b.gather(w, b.iota((size,), DType.I64, start=size - 1, step=-1), axis) if size > 1 else w
    channels, outputs, *kernel = fixed(w.dims)
    grouped = b.reshape(w, (groups, channels // groups, outputs, *kernel))
    rank = grouped.rank
    return b.reshape(b.transpose(grouped, (0, 2, *range(3, rank), 1)), (groups * outputs, *kernel, channels // groups))


RULES: dict[str, Callable[[Context], Any]] = {"Conv": conv, "ConvTranspose": conv_transpose}
