"""Quantisation of 8 bits, and products of quantised tensors.

A float becomes an integer by rounding to nearest even and saturating, as COPY saturates; products are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.onnx.channels import channels_first, channels_last
from dla.compiler.onnx.context import Context
from dla.compiler.onnx.rules.linear import integer_product
from dla.compiler.onnx.rules.windows import convolve, kernels_fit, window_of
from dla.compiler.onnx.sizes import fixed_dim
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

_EXACT = 2**24
"""Whole numbers up to this size are exact in f32."""
_MOST_PARTS = 1024
"""Of one convolution."""
_WIDE = {4: (0, 2**16 - 1), 5: (-(2**15), 2**15 - 1)}
"""Limits of u16 and i16, by ONNX's numbers: the machine holds them as i32, which would not saturate there."""


def _quantised(
    b: GraphBuilder, x: Value, zero: Value | None, dtype: DType, limits: tuple[int, int] | None = None
) -> Value:  # fmt: skip
    """Float x, already divided by its scale, rounded, moved by the zero point, and saturated."""
    if dtype not in (DType.I8, DType.U8) and limits is None:
        raise ModelError(f"quantisation to {dtype.text}: the machine has i8 and u8")
    y = b.act("round", x)
    if zero is not None and not _is_zero(zero):
        y = b.add(b.cast(y, DType.F32), b.cast(zero, DType.F32))
    if limits is not None:
        y = b.ew("min", b.ew("max", b.cast(y, DType.F32), limits[0]), limits[1])
    return b.cast(y, dtype)


def _is_zero(value: Value) -> bool:
    return value.constant is not None and not np.any(value.constant)


def quantize_linear(c: Context) -> Value:
    """Round and saturate x / scale + zero, per tensor, along an axis, or in blocks."""
    x, scale, zero = c[0], c[1], c.optional(2)
    wanted = int(c.attribute("output_dtype", 0))
    dtype = zero.dtype if zero is not None else c.element_type(wanted) if wanted else DType.U8
    precision = int(c.attribute("precision", 0))
    kind = c.element_type(precision) if precision else scale.dtype
    ratio = c.b.div(c.b.cast(x, kind), c.b.cast(_spread(c, scale, x), kind))
    return _quantised(c.b, ratio, None if zero is None else _spread(c, zero, x), dtype, _WIDE.get(wanted))


def dequantize_linear(c: Context) -> Value:
    """Compute (x - zero) * scale in the type of the result."""
    x, scale, zero = c[0], c[1], c.optional(2)
    wanted = int(c.attribute("output_dtype", 0))
    dtype = c.element_type(wanted) if wanted else scale.dtype
    if zero is not None and not _is_zero(zero):
        # In i32 if that is x's type, which floats do not hold exactly.
        narrow = x.dtype in (DType.I8, DType.U8)
        x, zero = (c.b.cast(v, dtype) if narrow else v for v in (x, zero))
        x = c.b.sub(x, _spread(c, zero, c[0]))
    return c.b.mul(c.b.cast(x, dtype), c.b.cast(_spread(c, scale, c[0]), dtype))


def _spread(c: Context, value: Value, x: Value) -> Value:
    """A scale or zero point so that it broadcasts to x: of the tensor, along the axis, or of blocks along it."""
    b = c.b
    if value.type.elements == 1:
        return b.reshape(value, ())
    axis = c.axis(int(c.attribute("axis", 1)), x.rank)
    if value.rank == 1 and x.rank != 1:
        return b.reshape(value, (value.dims[0], *(1,) * (x.rank - 1 - axis)))
    if value.rank != x.rank or value.dims == x.dims:
        return value
    blocks, block = fixed_dim(value, axis), int(c.attribute("block_size", 0))
    size = fixed_dim(x, axis)
    block = block or -(-size // blocks)
    repeated = b.expand(b.unsqueeze(value, axis + 1), (*value.dims[: axis + 1], block, *value.dims[axis + 1 :]))
    flat = b.reshape(repeated, (*value.dims[:axis], blocks * block, *value.dims[axis + 1 :]))
    return b.part(flat, axis, 0, size)


def dynamic_quantize_linear(c: Context) -> tuple[Value, Value, Value]:
    """Quantise to u8 by the range of x, which is widened to have 0 in it."""
    b, x = c.b, c[0]
    low, high = b.ew("min", b.reduce("min", x), 0), b.ew("max", b.reduce("max", x), 0)
    scale = b.div(b.sub(high, low), 255)
    zero = b.cast(b.act("round", b.div(b.act("neg", low), scale)), DType.U8)
    return _quantised(b, b.div(x, scale), zero, DType.U8), scale, zero


def matmul_integer(c: Context) -> Value:
    """The i32 product of 8-bit matrices less their zero points."""
    return integer_product(c.b, c[0], c[1], _row_zero(c, 2, 0), _column_zero(c, 3))


def qlinear_matmul(c: Context) -> Value:
    """The product of quantised matrices, quantised."""
    b = c.b
    whole = integer_product(b, c[0], c[3], _row_zero(c, 2, 0), _column_zero(c, 5))
    scale = b.mul(b.cast(_as_column(b, c[1], c[0]), DType.F32), b.cast(_scalar(b, c[4]), DType.F32))
    return _requantised(c, whole, b.div(scale, b.cast(_scalar(b, c[6]), DType.F32)), c[7])


def _requantised(c: Context, whole: Value, scale: Value, zero: Value) -> Value:
    scaled = c.b.mul(c.b.cast(whole, DType.F32), scale)
    return _quantised(c.b, scaled, _scalar(c.b, zero), zero.dtype)


def _scalar(b: GraphBuilder, value: Value) -> Value:
    return b.reshape(value, ()) if value.type.elements == 1 else value


def _as_column(b: GraphBuilder, value: Value, x: Value) -> Value:
    """What a left matrix has once, or for each row."""
    if value.type.elements == 1:
        return b.reshape(value, ())
    return b.unsqueeze(value, 1) if value.rank == 1 and x.rank > 1 else value


def _row_zero(c: Context, index: int, matrix: int) -> Value | None:
    return _as_column(c.b, c[index], c[matrix]) if c.has(index) else None


def _column_zero(c: Context, index: int) -> Value | None:
    return _scalar(c.b, c[index]) if c.has(index) else None


def conv_integer(c: Context) -> Value:
    """The i32 convolution of 8-bit tensors less their zero points."""
    return _exact_convolution(c, c[0], c[1], c.optional(2), c.optional(3))


def qlinear_conv(c: Context) -> Value:
    """The convolution of quantised tensors, with a bias in their scale, quantised."""
    b, x, w = c.b, c[0], c[3]
    whole = _exact_convolution(c, x, w, c[2], c[5])
    if c.has(8):
        whole = b.add(whole, _per_channel(b, c[8], whole))
    scale = b.div(b.mul(_scalar(b, c[1]), _per_channel(b, c[4], whole)), _scalar(b, c[6]))
    return _requantised(c, whole, scale, c[7])


def _per_channel(b: GraphBuilder, value: Value, x: Value) -> Value:
    """[C], so that it broadcasts to x [N, C, S...]; one number as it is."""
    if value.type.elements == 1:
        return b.reshape(value, ())
    return b.reshape(value, (value.dims[0], *(1,) * (x.rank - 2)))


def _exact_convolution(c: Context, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None) -> Value:
    """The machine convolves floats, which hold whole numbers up to 2**24: as many channels at once as stay below it."""
    b = c.b
    groups = kernels_fit(c, x, w, w.dims[1:2], x.dims[1:2])
    window = window_of(c, w.dims[2:], x.dims[2:])
    largest = _largest(x, x_zero) * _largest(w, w_zero)
    if x_zero is not None and x_zero.type.elements != 1:
        raise ModelError(f"a zero point {x_zero.type} of the input: one number is supported")
    last_x, last_w = channels_last(b, _centred(b, x, x_zero)), channels_last(b, _centred(b, w, w_zero))
    depth, taps = fixed_dim(w, 1), math.prod(window.kernel)
    step = min(depth, _EXACT // (largest * taps))
    if step < 1 or depth > _MOST_PARTS * step:
        raise ModelError(f"kernels of {taps} taps and {depth} channels: too large to be computed exactly")
    total: Value | None = None
    for start in range(0, depth, step):
        size = min(step, depth - start)
        part_x, part_w = _channels(b, last_x, groups, start, size), b.part(last_w, last_w.rank - 1, start, size)
        whole = b.cast(convolve(b, part_x, part_w, None, window, groups), DType.I32)
        total = whole if total is None else b.add(total, whole)
    assert total is not None, "there is at least one channel"
    return channels_first(b, total)


def _channels(b: GraphBuilder, x: Value, groups: int, start: int, size: int) -> Value:
    """Channels `start` to `start + size` of each group of x [N, S..., C]."""
    channels = fixed_dim(x, x.rank - 1)
    if size == channels // groups:
        return x
    grouped = b.reshape(x, (*x.dims[:-1], groups, channels // groups))
    return b.reshape(b.part(grouped, grouped.rank - 1, start, size), (*x.dims[:-1], groups * size))


def _centred(b: GraphBuilder, x: Value, zero: Value | None) -> Value:
    """Compute x - zero as f32; a zero point may be one for each of the first axis' elements."""
    wide = b.cast(x, DType.F32)
    if zero is None or _is_zero(zero):
        return wide
    shape: Sequence[Dim] = () if zero.type.elements == 1 else (zero.dims[0], *(1,) * (x.rank - 1))
    return b.sub(wide, b.cast(b.reshape(zero, shape), DType.F32))


def _largest(x: Value, zero: Value | None) -> int:
    """The largest magnitude that x - zero may have."""
    if x.dtype not in (DType.I8, DType.U8):
        raise ModelError(f"an integer convolution of {x.dtype.text}")
    limits = np.iinfo(x.dtype.numpy)
    if zero is None:
        return max(-int(limits.min), int(limits.max))
    if zero.constant is None:
        return 255
    return max(int(limits.max) - int(zero.constant.min()), int(zero.constant.max()) - int(limits.min))


RULES: dict[str, Callable[[Context], Any]] = {
    "ConvInteger": conv_integer,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "MatMulInteger": matmul_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    "QuantizeLinear": quantize_linear,
}
