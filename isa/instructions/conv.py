"""CONV: convolution along one or two spatial axes, channels last, with an epilogue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dla.isa import epilogue, math_mode, windows
from dla.isa.attributes import Int, IntList
from dla.isa.bounds import F32_EPSILON, ErrorBound
from dla.isa.dtypes import FLOATS, Array
from dla.isa.records import EPILOGUE, WINDOW
from dla.isa.table import Alias, Constraint, Operand, Out, Role, Row, Site

MAX_SPREAD = 2**30
"""Largest size with gaps: machines count positions in i32."""


def convolve(x: Array, w: Array, groups: int, attributes: Mapping[str, Any]) -> Array:
    """Convolve x [N, S..., C] with w [O, K..., C / groups] -> [N, P..., O]: one matrix product per group.

    Groups of one channel have no product over channels: they are a weighted sum of their taps.
    """
    outputs, *kernel, depth = w.shape
    taps = windows.slide(x, windows.geometry(attributes, len(kernel), tuple(kernel)), 0.0)
    if depth == 1 and groups > 1:
        return _depthwise(taps, w)
    places = taps.shape[: 1 + len(kernel)]  # N, P...
    rows, terms = int(np.prod(places)), depth * int(np.prod(kernel))
    grouped = np.moveaxis(taps.reshape(*taps.shape[:-1], groups, depth), -2, 0)  # [groups, N, P..., K..., C / groups]
    patches = grouped.reshape(groups, rows, terms)
    kernels = w.reshape(groups, outputs // groups, terms)
    products = np.matmul(patches, kernels.swapaxes(1, 2))  # [groups, rows, O / groups]
    result: Array = products.swapaxes(0, 1).reshape(*places, outputs)
    return result


def _depthwise(taps: Array, w: Array) -> Array:
    """Windows [N, P..., K..., C] times w [O, K..., 1] -> [N, P..., O]: the sum over taps, one by one."""
    channels, outputs, kernel = taps.shape[-1], w.shape[0], w.shape[1:-1]
    kernels = w.reshape(channels, outputs // channels, *kernel)
    total = sum(taps[(..., *tap, slice(None), None)] * kernels[(..., *tap)] for tap in np.ndindex(*kernel))
    return np.asarray(total).reshape(*taps.shape[: 1 + len(kernel)], outputs)


def semantics(
    out: Out, x: Array, w: Array, *, groups: int, strides: tuple[int, ...], dilations: tuple[int, ...],
    pads: tuple[int, ...], window: tuple[int, ...], gaps: tuple[int, ...],
    math: str, **rest: Any,
) -> Array:  # fmt: skip
    """epilogue(convolution of x with w), accumulated in the machine's accumulator type.

    x [N, S..., C], w [O, K..., C / groups] -> [N, P..., O], with zeros around x and in its gaps; epilogue operands
    broadcast to it.
    """
    shape = {"strides": strides, "dilations": dilations, "pads": pads, "window": window, "gaps": gaps}
    with np.errstate(all="ignore"):
        product = convolve(math_mode.operand(x, math), math_mode.operand(w, math), groups, shape)
        return epilogue.apply(product, **rest)


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
    x, w, groups = operands["x"], operands["w"], attributes["groups"]
    terms = w.size // max(1, w.shape[0])
    mode = attributes["math"]
    value = convolve(math_mode.operand(x, mode), math_mode.operand(w, mode), groups, attributes)
    relative = (terms + 4) * 2 * F32_EPSILON + math_mode.error(mode)
    error = relative * convolve(np.abs(x), np.abs(w), groups, attributes)
    steps = {name: operands[name] for name in ("bias", "residual", "gate")}
    steps |= {name: attributes[name] for name in ("steps", "act", "act_alpha", "clamp_low", "clamp_high")}
    return epilogue.slack(error, value, **steps)


def _rank_fits(site: Site) -> bool:
    spatial = [len(site.dims.prefixes[name]) for name in "PSK"]
    one = spatial[0]
    return (spatial == [one] * 3 and 1 <= one <= windows.MAX_SPATIAL
            and windows.unused_at_default(site.attributes, one) and site.attributes["window"] == (1, 1))  # fmt: skip


def _channels_fit(site: Site) -> bool:
    groups = site.attributes["groups"]
    return bool(site["C"] == site["G"] * groups and site["O"] % groups == 0)


def _size_fits(site: Site) -> bool:
    positions, sizes, kernel = (site.dims.sizes(name) for name in "PSK")
    if not _rank_fits(site):
        return True  # C1 already says so
    return 0 not in kernel and windows.geometry(site.attributes, len(kernel), kernel).output(sizes) == positions


def _gaps_fit(site: Site) -> bool:
    if not _rank_fits(site) or not any(site.attributes["gaps"]):
        return True
    sizes = site.dims.sizes("S")
    return max(windows.geometry(site.attributes, len(sizes)).spread(sizes)) <= MAX_SPREAD


def _flops(dims: Mapping[str, int], attributes: Mapping[str, Any]) -> int:
    among: int = math.prod(gap + 1 for gap in attributes["gaps"])  # one element of x among so many that a window sees
    return 2 * dims["out"] * dims["w"] // max(1, dims["O"]) // among


ROW = Row(
    "CONV", 0x38, "convolution", "convolution",
    "Slides kernels over one or two spatial axes (cross-correlation, as networks mean it), channels last. Zeros "
    "surround x. The channels fall into `groups`; each group of outputs sees one group of inputs, so groups = C is a "
    "depthwise convolution. The sum is accumulated in f32, taken through the epilogue in the order written, and "
    "rounded once. In one dimension the second entry of strides, dilations and gaps counts, and pads are [0, left, 0, "
    "right]. `gaps` puts zeros between neighbours of x: with gaps = stride - 1 and kernels turned around it is the "
    "transposed convolution. Other layouts are views. " + math_mode.DESCRIPTION,
    types={"T": FLOATS, "O": FLOATS},
    operands=(
        Operand("out", Role.OUT, "[N, P..., O]", "O", "the result: sample, positions, output channel"),
        Operand("x", Role.IN, "[N, S..., C]", "T", "input: sample, positions, channel"),
        Operand("w", Role.IN, "[O, K..., G]", "T", "kernels: output channel, taps, channel within the group"),
        *epilogue.operands("[N, P..., O]"),
    ),
    attributes=(
        Int("groups", 384, "groups of channels", default=1, low=1, high=2**24),
        IntList("gaps", 416, "zeros between neighbours of x along each spatial axis; since ISA 1.1", high=2**24),
        math_mode.attribute(16),
    ),
    records=(WINDOW, EPILOGUE),
    static=("P", "S", "K", "C", "G", "O"),
    constraints=(
        Constraint(1, "out, x and w have the same number of spatial axes, one or two; with one, the first entry of "
                      "each pair is not used; `window` is not written (w gives it)", _rank_fits),
        Constraint(2, "C = G * groups, and groups divides O", _channels_fit),
        Constraint(3, "along each axis P = floor((S' + low + high - (dilation * (K - 1) + 1)) / stride) + 1, with S' = "
                      "(S - 1) * (gap + 1) + 1 (0 if S is), K >= 1 and no window larger than the padded x", _size_fits),
        epilogue.constraint(4),
        Constraint(5, "with gaps, S' is at most 2**30", _gaps_fit),
        math_mode.constraint(6),
    ),
    alias=Alias.NONE,
    semantics=semantics,
    error=ErrorBound("n = K... * G terms: (n + 4) * 2**-23 * CONV(|x|, |w|), carried through the epilogue, then one "
                     f"rounding; with math=tf32 ({math_mode.TF32_TEXT}) * CONV(|x|, |w|) more", _slack),
    flops=_flops,
    flops_text="2 * elements of out * K... * G / product of (gap + 1)",
    example="""
.program conv
.const x  : f32[1, 3, 3, 1] = [[[[1], [2], [3]], [[4], [5], [6]], [[7], [8], [9]]]]
.const w  : f32[1, 2, 2, 1] = [[[[1], [0]], [[0], [1]]]]
.const s  : f32[1, 4, 2] = [[[1, 10], [2, 20], [3, 30], [4, 40]]]
.const d  : f32[2, 3, 1] = [[[1], [1], [1]], [[0], [1], [0]]]
.const k  : f32[1, 3, 1] = [[[1], [2], [1]]]
.const b  : f32[1] = [-10]
.output y : f32[1, 2, 2, 1]
.output z : f32[1, 2, 2]
.output u : f32[1, 5, 1]
main:
    CONV y, x, w bias=b act=relu                        ;! y = [[[[0], [0]], [[2], [4]]]]
    CONV z, s, d strides=[1, 2] pads=[0, 1, 0, 0] groups=2  ;! z = [[[3, 10], [9, 30]]]
    CONV u, s[:, :3, :1], k gaps=[0, 1] pads=[0, 1, 0, 1]   ;! u = [[[2], [3], [4], [5], [6]]]
    HALT
""",
)  # fmt: skip
