"""Resize and Upsample: every axis by itself, with tables of source positions and weights made here in f64.

Interpolation, nearest neighbours and antialiasing only differ in their tables; see `table`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.compiler.onnx.sizes import fixed_dim
from dla.compiler.shapes import shape_text
from dla.isa.dtypes import Array, DType
from dla.isa.errors import ModelError

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
LONGEST = 1 << 18
"""Elements of a resized axis, so that tables stay small."""
MODES = ("nearest", "linear", "cubic")


@dataclass(frozen=True)
class Method:
    """How positions of the result become positions of the input, and how its elements are weighted there."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    antialias: bool
    exclude_outside: bool


@dataclass(frozen=True)
class Axis:
    """One axis: its size and what it becomes; `roi` are the ends of the part that is taken (tf_crop_and_resize)."""

    size: int
    scale: float
    result: int
    roi: tuple[float, float]


def resize(c: Context) -> Value:
    """By scales or sizes of all axes or of some."""
    x = c[0]
    method = _method(c)
    if c.opset < 11:
        return _resized(c, x, method, _by_scales(x, range(x.rank), _floats(c, 1, "scales"), {}))
    axes = [c.axis(int(a), x.rank) for a in c.attribute("axes", range(x.rank))]
    roi = {}
    if method.coordinates == "tf_crop_and_resize":
        ends = _floats(c, 1, "region") if c.has(1) else []
        if len(ends) != 2 * len(axes):
            raise ModelError(f"a region of {len(axes)} axes needs {2 * len(axes)} numbers, not {len(ends)}")
        roi = {a: (ends[k], ends[len(axes) + k]) for k, a in enumerate(axes)}
    scales = _floats(c, 2, "scales") if c.has(2) else []
    if scales:
        return _resized(c, x, method, _by_scales(x, axes, scales, roi))
    if not c.has(3):
        raise ModelError("it has neither scales nor sizes")
    return _resized(c, x, method, _by_sizes(c, x, axes, c.sizes(3, "sizes"), roi))


def upsample(c: Context) -> Value:
    """By scales, which were an attribute before operator set 9."""
    x = c[0]
    scales = _floats(c, 1, "scales") if c.has(1) else [float(s) for s in c.required("scales")]
    method = Method(_mode(c), "asymmetric", "floor", -0.75, False, False)
    return _resized(c, x, method, _by_scales(x, range(x.rank), scales, {}))


def _mode(c: Context) -> str:
    given = str(c.attribute("mode", "nearest"))
    return {"bilinear": "linear", "trilinear": "linear"}.get(given, given)


def _method(c: Context) -> Method:
    older = c.opset < 11
    method = Method(
        _mode(c),
        c.attribute("coordinate_transformation_mode", "asymmetric" if older else "half_pixel"),
        c.attribute("nearest_mode", "floor" if older else "round_prefer_floor"),
        float(c.attribute("cubic_coeff_a", -0.75)),
        bool(c.attribute("antialias", 0)),
        bool(c.attribute("exclude_outside", 0)),
    )
    for given, known in ((method.mode, MODES), (method.coordinates, COORDINATES), (method.nearest, NEAREST)):
        if given not in known:
            raise ModelError(f"mode '{given}' is none of {', '.join(known)}")
    return method


def _floats(c: Context, index: int, what: str) -> list[float]:
    return [float(v) for v in c.known(index, what).reshape(-1)]


def _by_scales(
    x: Value, axes: Sequence[int], scales: Sequence[float], roi: dict[int, tuple[float, float]]
) -> dict[int, Axis]:
    if len(scales) != len(axes) or not all(0 < s < math.inf for s in scales):
        raise ModelError(f"scales {list(scales)} for {len(axes)} axes")
    found = {}
    for axis, scale in zip(axes, scales, strict=True):
        if scale != 1 or roi.get(axis, (0, 1)) != (0, 1):
            size = fixed_dim(x, axis)
            found[axis] = Axis(size, scale, math.floor(size * scale), roi.get(axis, (0.0, 1.0)))
    return found


def _by_sizes(
    c: Context, x: Value, axes: Sequence[int], sizes: Sequence[Any], roi: dict[int, tuple[float, float]]
) -> dict[int, Axis]:
    fixed = [n for a, n in zip(axes, sizes, strict=False) if isinstance(n, int) or n == x.dims[a]]
    if not len(fixed) == len(sizes) == len(axes):
        raise ModelError(f"sizes {shape_text(sizes)} for {len(axes)} axes of {x.type}")
    policy = c.attribute("keep_aspect_ratio_policy", "stretch")
    changed = {
        a: int(n) for a, n in zip(axes, sizes, strict=True)
        if n != x.dims[a] or policy != "stretch" or roi.get(a, (0, 1)) != (0, 1)
    }  # fmt: skip
    scales = {a: n / max(fixed_dim(x, a), 1) for a, n in changed.items()}
    if policy != "stretch" and scales:
        if policy not in ("not_larger", "not_smaller"):
            raise ModelError(f"policy '{policy}' is none of stretch, not_larger, not_smaller")
        scale = (min if policy == "not_larger" else max)(scales.values())
        scales = dict.fromkeys(scales, scale)
        changed = {a: int(scale * fixed_dim(x, a) + 0.5) for a in changed}
    return {a: Axis(fixed_dim(x, a), scales[a], n, roi.get(a, (0.0, 1.0))) for a, n in changed.items()}


def _resized(c: Context, x: Value, method: Method, axes: dict[int, Axis]) -> Value:
    y, outside = x, {}
    if method.mode != "nearest" and not x.dtype.is_float:
        y = c.b.cast(x, DType.F32)
    for number, axis in axes.items():
        if not 0 <= axis.result <= (LONGEST if axis.size else 0):
            raise ModelError(f"axis {number} of {x.type} cannot be resized to {axis.result} elements")
        if axis.result == 0:
            y = c.b.part(y, number, 0, 0)
            continue
        at, extrapolated = positions(method, axis)
        indices, weights = table(method, axis, at)
        if method.mode == "nearest":
            y = c.b.gather(y, c.b.constant(indices[:, 0], DType.I64), number)
        else:
            y = c.b.interpolate(y, indices, weights, number)
        if extrapolated.any():
            outside[number] = extrapolated
    y = y if x.dtype.is_float or y.dtype is x.dtype else c.b.cast(c.b.act("round", y), x.dtype)
    for number, mask in outside.items():
        line = [-1 if k == number else 1 for k in range(x.rank)]
        value = c.attribute("extrapolation_value", 0.0)
        y = c.b.select(c.b.constant(mask.reshape(line)), value, y)
    return y


def positions(method: Method, axis: Axis) -> tuple[Array, Array]:
    """For each element of the result, where in the input it lies, in f64; and whether that is outside of it.

    Outside is told for tf_crop_and_resize only; the other modes go on with the elements at the ends.
    """
    p = np.arange(axis.result, dtype=np.float64)
    exact, inside = axis.scale * axis.size, np.zeros(axis.result, bool)
    half = (p + 0.5) / axis.scale - 0.5
    if method.coordinates == "align_corners":
        return (np.zeros_like(p) if exact == 1 else p * (axis.size - 1) / (exact - 1)), inside
    if method.coordinates == "asymmetric":
        return p / axis.scale, inside
    if method.coordinates == "pytorch_half_pixel":
        return (np.full_like(p, -0.5) if exact == 1 else half), inside
    if method.coordinates == "half_pixel_symmetric":
        return axis.size / 2 * (1 - axis.result / exact) + half, inside
    if method.coordinates == "half_pixel":
        return half, inside
    start, end = axis.roi
    last = axis.size - 1
    at = np.full_like(p, (end - start) * last / 2) if exact == 1 else p * (end - start) * last / (exact - 1)
    at = at + start * last
    return at, (at < 0) | (at > last)


def table(method: Method, axis: Axis, at: Array) -> tuple[Array, Array]:
    """Indices and weights [P, K] of the elements that each element of the result is made of.

    K is 1, 2 or 4 around `at`; with antialiasing it grows as the axis shrinks. Beyond the ends the last element counts.
    """
    if method.mode == "nearest":
        found = _nearest(at, method.nearest)
        return np.clip(found, 0, axis.size - 1).astype(np.int64)[:, None], np.ones((len(at), 1))
    # An element exactly at `at` is the left one of its pair, with all the weight.
    scale = min(axis.scale, 1.0) if method.antialias else 1.0
    reach = (1 if method.mode == "linear" else 2) / scale
    first = math.floor(-reach) + 1
    taps = np.arange(first, 2 - first)
    left = np.ceil(at) - 1
    indices = left[:, None] + taps
    distance = np.abs(indices - at[:, None]) * scale
    weights = np.clip(1 - distance, 0, 1) if method.mode == "linear" else _cubic(distance, method.cubic)
    if method.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    if method.exclude_outside:
        weights = np.where((indices < 0) | (indices >= axis.size), 0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return np.clip(indices, 0, axis.size - 1).astype(np.int64), weights


def _nearest(at: Array, rule: str) -> Array:
    """The nearest whole position; `rule` says which of two that are equally near, or which side always."""
    if rule == "floor":
        return np.asarray(np.floor(at))
    if rule == "ceil":
        return np.asarray(np.ceil(at))
    return np.asarray(np.ceil(at - 0.5) if rule == "round_prefer_floor" else np.floor(at + 0.5))


def _cubic(d: Array, a: float) -> Array:
    """Keys' kernel (Cubic Convolution Interpolation for Digital Image Processing, 1981) at distances `d`."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.asarray(np.where(d <= 1, near, np.where(d < 2, far, 0)))


RULES: dict[str, Callable[[Context], Any]] = {"Resize": resize, "Upsample": upsample}
