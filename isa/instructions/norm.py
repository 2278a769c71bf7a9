"""NORM: normalisation by the mean and variance of a row, a channel or a group of channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.attributes import F32, Int
from dla.isa.bounds import F32_EPSILON, ErrorBound
from dla.isa.dtypes import FLOATS, Array
from dla.isa.table import Alias, Constraint, Operand, Out, Role, Row, Site, Sub


def _grouped(x: Array, groups: int) -> tuple[Array, tuple[int, ...]]:
    """View x [N, S..., C] as [N, S..., groups, C / groups], and tell the axes over which one group extends."""
    return x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups), (*range(1, x.ndim - 1), x.ndim)


def centre_and_power(
    x: Array, sub: str, mean: Array | None, var: Array | None, groups: int
) -> tuple[Array | float, Array]:
    """What is subtracted from x, and the variance (mean square for rms); both broadcast to x."""
    if mean is not None and var is not None:
        return mean, var
    if sub == "rms":
        return 0.0, np.asarray(np.mean(x * x, axis=-1, keepdims=True))
    if sub == "layer":
        return np.mean(x, axis=-1, keepdims=True), np.var(x, axis=-1, keepdims=True)
    parts, axes = _grouped(x, groups)
    means, variances = np.mean(parts, axis=axes, keepdims=True), np.var(parts, axis=axes, keepdims=True)
    shape = (x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1])
    spread = (x.shape[0], *(1,) * (x.ndim - 2), *parts.shape[-2:])
    return np.broadcast_to(means, spread).reshape(shape), np.broadcast_to(variances, spread).reshape(shape)


def semantics(
    out: Out, x: Array, gain: Array | None, bias: Array | None, mean: Array | None, var: Array | None,
    *, sub: str, eps: float, groups: int,
) -> Array:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) * gain + bias, in the accumulator type; x [B..., C], the others [C]."""
    if x.size == 0:
        return x
    with np.errstate(all="ignore"):
        centre, power = centre_and_power(x, sub, mean, var, groups)
        y = (x - centre) / np.sqrt(power + eps)
        y = y if gain is None else y * gain
        return np.asarray(y if bias is None else y + bias)


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array | float:
    """Statistics of n elements are off by n roundings; a centre that is off by d shifts y, and adds d**2 to var."""
    x, sub, groups = operands["x"], attributes["sub"], attributes["groups"]
    if x.size == 0:
        return 0.0
    centre, power = centre_and_power(x, sub, operands["mean"], operands["var"], groups)
    scale = 1 / np.sqrt(power + attributes["eps"])
    size = 0 if sub == "batch" else x[0].size // groups if sub == "group" else x.shape[-1]
    relative = (size + 8) * 2 * F32_EPSILON
    magnitude = np.abs(x) if sub in ("rms", "batch") else centre_and_power(np.abs(x), sub, None, None, groups)[0]
    shift = 0.0 if sub == "rms" else relative * (magnitude + np.abs(centre))
    deviation = np.abs(x - centre)
    error = scale * (shift + deviation * (relative + shift * shift * scale * scale) + 2**-22 * np.abs(x))
    error = error * (1.0 if operands["gain"] is None else np.abs(operands["gain"]))
    ends = np.abs(reference) + (0.0 if operands["bias"] is None else np.abs(operands["bias"]))
    return np.asarray(error + 2**-22 * ends)


def _groups_fit(site: Site) -> bool:
    groups = site.attributes["groups"]
    return bool(groups >= 1 and site["C"] % groups == 0) if site.sub == "group" else not groups


ROW = Row(
    "NORM", 0x40, "normalisation", "normalise",
    "y = (x - mean) / sqrt(variance + eps), then times gain and plus bias where they are written. layer: mean and "
    "variance (of the population) over the last axis. rms: no mean; the mean square over the last axis. batch: mean "
    "and var are operands, one per channel (inference). group: x [N, S..., C] is normalised per sample and group of "
    "C / groups neighbouring channels, over all positions; groups = C is instance normalisation. Statistics are "
    "computed in the accumulator type, the variance from deviations (not as a difference of squares).",
    subs=(
        Sub("layer", 0, "over the last axis"), Sub("rms", 1, "over the last axis, without a mean"),
        Sub("batch", 2, "with given statistics per channel"), Sub("group", 3, "over positions and groups of channels"),
    ),
    types={"O": FLOATS, "T": FLOATS},
    operands=(
        Operand("out", Role.OUT, "[B..., C]", "O", "the result"),
        Operand("x", Role.IN, "[B..., C]", "T", "what is normalised"),
        Operand("gain", Role.IN, "[C]", FLOATS, "factor of each channel", optional=True),
        Operand("bias", Role.IN, "[C]", FLOATS, "term of each channel", optional=True),
        Operand("mean", Role.IN, "[C]", FLOATS, "mean of each channel, for batch", subs=("batch",)),
        Operand("var", Role.IN, "[C]", FLOATS, "variance of each channel, for batch", subs=("batch",)),
    ),
    attributes=(
        F32("eps", 384, "added to the variance", default=1e-5),
        Int("groups", 416, "groups of channels, for group; 0 elsewhere", high=2**24),
    ),
    positional=("out", "x", "gain", "bias", "mean", "var"),
    static=("C",),
    constraints=(
        Constraint(1, "groups divides C for group, and is written for group only",
                   _groups_fit),
        Constraint(2, "x has at least two axes for group",
                   lambda site: site.sub != "group" or len(site.dims.prefixes["B"]) >= 1),
        Constraint(3, "eps is not negative", lambda site: site.attributes["eps"] >= 0),
    ),
    alias=Alias.SAME,
    semantics=semantics,
    error=ErrorBound("n elements per statistic, r = (n + 8) * 2**-23, d = r * (mean(|x|) + |mean|), s = 1 / sqrt(var + "
                     "eps): |gain| s (d + |x - mean| (r + d**2 s**2) + 2**-22 |x|) + 2**-22 (|y| + |bias|), then one "
                     "rounding (rms: d = 0; batch: n = 0 and |x| for its mean)", _slack),
    flops=lambda dims, attributes: 8 * dims["out"],
    flops_text="8 * elements of out",
    example="""
.program norm
.const x : f32[2, 2] = [[1, 3], [-2, 2]]
.const g : f32[2] = [10, 100]
.const m : f32[2] = [1, 1]
.const v : f32[2] = [4, 4]
.output a : f32[2, 2]
.output b : f32[2, 2]
.output c : f32[2, 2]
main:
    NORM.layer a, x, g eps=0                ;! a = [[-10, 100], [-10, 100]]
    NORM.batch b, x mean=m var=v eps=0      ;! b = [[0, 1], [-1.5, 0.5]]
    NORM.group c, x groups=2 eps=1          ;! c = [[0, 0], [0, 0]]
    HALT
""",
)  # fmt: skip
