"""Discrete Fourier transforms: products with matrices made here in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.compiler.onnx.sizes import fixed_dim
from dla.isa.dtypes import Array
from dla.isa.errors import ModelError

LONGEST = 4096
"""Elements of a transform: a matrix has four times their square."""
_MOST_SAMPLES = 2**24  # of all frames together: their places are a table


def dft(c: Context) -> Value:
    """Along one axis of x [..., 1 or 2], whose last axis holds real and imaginary part."""
    x = c[0]
    given = c.scalar(2, "axis") if c.has(2) else c.attribute("axis", -2 if c.opset >= 20 else 1)
    axis = c.axis(int(given), x.rank)
    size = fixed_dim(x, axis)
    inverse, onesided = bool(c.attribute("inverse", 0)), bool(c.attribute("onesided", 0))
    usual = 2 * (size - 1) if inverse and onesided else size
    length = int(c.scalar(1, "length")) if c.has(1) else usual
    return transformed(c, x, axis, length, inverse=inverse, onesided=onesided)


def stft(c: Context) -> Value:
    """Transforms of overlapping frames of signals [B, L, 1 or 2]: [B, frames, bins, 2]."""
    x, step = c[0], int(c.scalar(1, "frame step"))
    window = c.optional(2)
    size = fixed_dim(x, 1)
    length = int(c.scalar(3, "frame length")) if c.has(3) else size if window is None else fixed_dim(window, 0)
    count = (size - length) // step + 1 if 0 < length <= size and step > 0 else 0
    if count < 1 or (window is not None and window.dims != (length,)):
        raise ModelError(f"frames of {length} elements every {step} of {x.type}")
    if length > LONGEST or count * length > _MOST_SAMPLES:
        raise ModelError(f"{count:,} frames of {length:,} elements: too many for a table of their places")
    at = np.arange(count)[:, None] * step + np.arange(length)
    frames = c.b.gather(x, c.b.constant(at), 1)
    if window is not None:
        frames = c.b.mul(frames, c.b.reshape(window, [length, 1]))
    return transformed(c, frames, 2, length, inverse=False, onesided=bool(c.attribute("onesided", 1)))


def transformed(c: Context, x: Value, axis: int, length: int, *, inverse: bool, onesided: bool) -> Value:
    """The transform of x along `axis`, cut or filled up with zeros to `length`."""
    size, parts = fixed_dim(x, axis), fixed_dim(x, x.rank - 1)
    if parts not in (1, 2) or axis == x.rank - 1 or not 1 <= length <= LONGEST or size > LONGEST:
        raise ModelError(f"a transform of length {length} along axis {axis} of {x.type}")
    table = matrix(size, parts, length, inverse=inverse, onesided=onesided)
    bins, made = table.shape[2:]
    moved = [k for k in range(x.rank - 1) if k != axis]
    rows = c.b.transpose(x, [*moved, axis, x.rank - 1])
    rows = c.b.reshape(rows, [*rows.dims[:-2], size * parts])
    flat = c.b.constant(table.reshape(size * parts, bins * made), x.dtype)
    result = c.b.reshape(c.b.matmul(rows, flat), [*rows.dims[:-1], bins, made])
    back = [0] * x.rank
    for k, a in enumerate([*moved, axis, x.rank - 1]):
        back[a] = k
    return c.b.transpose(result, back)


def matrix(size: int, parts: int, length: int, *, inverse: bool, onesided: bool) -> Array:
    """[size, parts, bins, parts of the result]: what each real and imaginary unit becomes."""
    units = np.eye(size)[:, None, :] * np.array([1, 1j])[:parts, None]
    if inverse and onesided:
        return np.asarray(np.fft.irfft(units, n=length)[..., None])
    found = np.fft.ifft(units, n=length) if inverse else np.fft.fft(units, n=length)
    if onesided:
        found = found[..., : length // 2 + 1]
    return np.stack([found.real, found.imag], axis=-1)


def mel_weights(c: Context) -> Value:
    """Triangles over the bins of a transform [bins, mels], as wide as ears hear; each rises from the peak before."""
    names = ("number of mel bins", "length of the transform", "sample rate", "lowest frequency", "highest frequency")
    mels, length, rate, low, high = (c.scalar(k, name) for k, name in enumerate(names))
    if not (0 < mels <= LONGEST and 0 < length <= LONGEST and rate > 0 and 0 <= low <= high <= rate):
        raise ModelError(f"{mels} mel bins from {low} to {high} Hz of transforms of {length} at {rate} Hz")
    ends = 2595 * np.log10(1 + np.array([low, high]) / 700)
    hertz = 700 * (10 ** ((ends[0] + np.arange(mels + 2) * (ends[1] - ends[0]) / (mels + 2)) / 2595) - 1)
    peaks = ((length + 1) * hertz // rate).astype(np.int64)
    bins = np.arange(length // 2 + 1)[:, None]
    left, peak, right = peaks[:-2], peaks[1:-1], peaks[2:]
    rise = np.where(peak > left, (bins - left) / np.maximum(peak - left, 1), 1.0)
    fall = np.where(right > peak, (right - bins) / np.maximum(right - peak, 1), 0.0)
    table = np.where((bins >= left) & (bins <= peak), rise, np.where((bins > peak) & (bins < right), fall, 0.0))
    return c.b.constant(table, c.element_type(c.attribute("output_datatype", 1)))


RULES: dict[str, Callable[[Context], Any]] = {"DFT": dft, "MelWeightMatrix": mel_weights, "STFT": stft}
