"""POOL: the largest or the mean of sliding windows, or of all positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dla.isa import windows
from dla.isa.attributes import Flag
from dla.isa.bounds import F32_EPSILON, ErrorBound
from dla.isa.dtypes import FLOATS, NUMBERS, Array
from dla.isa.records import WINDOW
from dla.isa.table import Constraint, Operand, Out, Role, Row, Site, Sub, only_for


def semantics(out: Out, x: Array, *, sub: str, count_include_pad: bool, **window: Any) -> Array:
    """Pool x [N, S..., C] -> [N, P..., C], in the accumulator type; P is all ones for the global ones."""
    spatial = x.ndim - 2
    positions = tuple(range(1, 1 + spatial))
    if sub == "global_max":
        return np.asarray(np.max(x, axis=positions, keepdims=True))
    if sub == "global_avg":
        with np.errstate(all="ignore"):
            return np.asarray(np.sum(x, axis=positions, keepdims=True) / np.asarray(np.prod(x.shape[1:-1]), x.dtype))
    shape = windows.geometry(window, spatial)
    taps = tuple(range(1 + spatial, 1 + 2 * spatial))
    if sub == "max":
        lowest = -np.inf if out.dtype.is_float else np.iinfo(out.dtype.numpy).min
        return np.asarray(np.max(windows.slide(x, shape, lowest), axis=taps))
    inside = np.ones((1, *x.shape[1:-1], 1), x.dtype)
    counts = np.sum(windows.slide(inside, shape, 1.0 if count_include_pad else 0.0), axis=taps)
    with np.errstate(all="ignore"):
        return np.asarray(np.sum(windows.slide(x, shape, 0.0), axis=taps) / counts)


def _types_fit(site: Site) -> bool:
    given, result = site.types["T"], site.types["O"]
    return result.is_float if given.is_float else result is given and site.sub in ("max", "global_max")


def _rank_fits(site: Site) -> bool:
    spatial = len(site.dims.prefixes["S"])
    return (len(site.dims.prefixes["P"]) == spatial and 1 <= spatial <= windows.MAX_SPATIAL
            and windows.unused_at_default(site.attributes, spatial))  # fmt: skip


def _size_fits(site: Site) -> bool:
    positions, sizes = site.dims.sizes("P"), site.dims.sizes("S")
    if not _rank_fits(site):
        return True  # C1 already says so
    if site.sub.startswith("global"):
        return windows.is_default(site.attributes) and 0 not in sizes and positions == (1,) * len(sizes)
    return windows.geometry(site.attributes, len(sizes)).output(sizes) == positions


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array | float:
    x, sub = operands["x"], attributes["sub"]
    if sub in ("max", "global_max"):
        return 0.0
    terms = int(np.prod(x.shape[1:-1])) if sub == "global_avg" else int(np.prod(attributes["window"]))
    rest = {name: attributes[name] for name in ("sub", "count_include_pad", *(a.name for a in WINDOW.attributes))}
    magnitude = semantics(Out(np.shape(reference), FLOATS[0]), np.abs(x), **rest)
    return np.asarray((terms + 4) * 2 * F32_EPSILON * magnitude)


def _flops(dims: Mapping[str, int], attributes: Mapping[str, Any]) -> int:
    return max(dims["x"], dims["out"] * int(np.prod(attributes["window"])))


ROW = Row(
    "POOL", 0x3B, "convolution", "largest or mean of windows",
    "Slides a window over one or two spatial axes, channels last, and keeps the largest element or the mean of each "
    "channel. Padding counts as -infinity (the type's lowest integer) for max; for avg it is left out of the mean, or "
    "counts as 0 with count_include_pad. A window without any element gives that lowest value, or NaN. A NaN in the "
    "window gives NaN. The global ones see all positions. In one dimension the second entry of window, strides and "
    "dilations counts, and pads are [0, left, 0, right].",
    subs=(
        Sub("max", 0, "largest of a window"), Sub("avg", 1, "mean of a window; floats"),
        Sub("global_max", 2, "largest of all positions"), Sub("global_avg", 3, "mean of all positions; floats"),
    ),
    types={"O": NUMBERS, "T": NUMBERS},
    operands=(
        Operand("out", Role.OUT, "[N, P..., C]", "O", "the result: sample, positions, channel"),
        Operand("x", Role.IN, "[N, S..., C]", "T", "input: sample, positions, channel"),
    ),
    attributes=(Flag("count_include_pad", 16, "POOL.avg: count padding as zeros"),),
    records=(WINDOW,),
    static=("P", "S"),
    constraints=(
        Constraint(1, "out and x have the same number of spatial axes, one or two; with one, the first entry of each "
                      "pair is not used", _rank_fits),
        Constraint(2, "along each axis P = floor((S + low + high - (dilation * (window - 1) + 1)) / stride) + 1 and no "
                      "window is larger than the padded x; the global ones have P = 1, S >= 1 and write no window, "
                      "strides, dilations or pads", _size_fits),
        Constraint(3, "floats give a float type; integers give their own type, and have no mean", _types_fit),
        Constraint(4, "count_include_pad is written for POOL.avg only", only_for("count_include_pad", "avg")),
    ),
    semantics=semantics,
    error=ErrorBound("max 0; means of n elements (n + 4) * 2**-23 * POOL(|x|); then one rounding; integers equal",
                     _slack),
    flops=_flops,
    flops_text="elements of out * elements of the window (global: elements of x)",
    example="""
.program pool
.const x : f32[1, 2, 4, 1] = [[[[1], [2], [3], [4]], [[5], [6], [7], [8]]]]
.const v : f32[1, 4, 1] = [[[1], [2], [3], [4]]]
.output m : f32[1, 1, 2, 1]
.output a : f32[1, 3, 1]
.output g : f32[1, 1, 1, 1]
main:
    POOL.max        m, x window=[2, 2] strides=[2, 2]                       ;! m = [[[[6], [8]]]]
    POOL.avg        a, v window=[1, 2] strides=[1, 2] pads=[0, 1, 0, 1]     ;! a = [[[1], [2.5], [4]]]
    POOL.global_avg g, x                                                    ;! g = [[[[4.5]]]]
    HALT
""",
)  # fmt: skip
