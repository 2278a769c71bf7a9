"""Normalisations and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Value
from dla.compiler.onnx.channels import channels_first, channels_last
from dla.compiler.onnx.context import Context
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError


def _statistics(b: GraphBuilder, x: Value, axes: Sequence[int], *, keepdims: bool = True) -> tuple[Value, Value]:
    """Mean and variance (of the population) over `axes`, in f32."""
    wide = b.cast(x, DType.F32)
    mean = b.reduce("mean", wide, axes, keepdims=True)
    deviation = b.sub(wide, mean)
    var = b.reduce("mean", b.mul(deviation, deviation), axes, keepdims=keepdims)
    return (mean if keepdims else b.squeeze(mean, *axes)), var


def batch_normalization(c: Context) -> Any:
    """By given statistics, or in training by those of the batch, which then move the running ones."""
    x, gain, bias, mean, var = (c[k] for k in range(5))
    eps = float(c.attribute("epsilon", 1e-5))
    if not c.attribute("training_mode", 0):
        return channels_first(c.b, c.b.norm("batch", channels_last(c.b, x), gain, bias, eps=eps, mean=mean, var=var))
    momentum = float(c.attribute("momentum", 0.9))
    axes = [k for k in range(x.rank) if k != 1]
    new = _statistics(c.b, x, axes, keepdims=False)
    y = c.b.norm("batch", channels_last(c.b, x), gain, bias, eps=eps, mean=new[0], var=new[1])
    moved = [
        c.b.add(c.b.mul(old, momentum), c.b.mul(c.b.cast(seen, old.dtype), 1 - momentum))
        for old, seen in zip((mean, var), new, strict=True)
    ]
    return (channels_first(c.b, y), *moved)


def instance_normalization(c: Context) -> Value:
    """Each channel of each sample by itself."""
    x, gain, bias = c[0], c[1], c[2]
    channels = _channels(x)
    y = c.b.norm("group", channels_last(c.b, x), gain, bias, eps=_eps(c), groups=channels)
    return channels_first(c.b, y)


def group_normalization(c: Context) -> Value:
    """Groups of channels; gain and bias are per group before operator set 21, per channel since."""
    x, gain, bias = c[0], c[1], c[2]
    groups, channels = int(c.required("num_groups")), _channels(x)
    if groups < 1 or channels % groups:
        raise ModelError(f"{channels} channels do not fall into {groups} groups")
    if c.opset < 21:
        gain, bias = (
            c.b.reshape(c.b.expand(c.b.unsqueeze(v, 1), (groups, channels // groups)), (channels,))
            for v in (gain, bias)
        )
    return channels_first(c.b, c.b.norm("group", channels_last(c.b, x), gain, bias, eps=_eps(c), groups=groups))


def layer_normalization(c: Context) -> Any:
    """Over the axes from `axis` on. Mean and 1 / sqrt(variance + eps), where they are asked for, are computed apart."""
    y = _over_last(c, "layer")
    if not (c.wants(1) or c.wants(2)):
        return y
    axis = c.axis(int(c.attribute("axis", -1)), c[0].rank)
    mean, var = _statistics(c.b, c[0], range(axis, c[0].rank))
    inverse = c.b.act("rsqrt", c.b.add(var, _eps(c)))
    stash = c.element_type(int(c.attribute("stash_type", 1)))
    return y, c.b.cast(mean, stash), c.b.cast(inverse, stash)


def rms_normalization(c: Context) -> Value:
    """Over the axes from `axis` on, without a mean."""
    return _over_last(c, "rms")


def _over_last(c: Context, kind: str) -> Value:
    """NORM over the axes from `axis` on, seen as one; the gain (and bias) broadcast to them."""
    x = c[0]
    axis = c.axis(int(c.attribute("axis", -1)), x.rank)
    inner = x.dims[axis:]
    gain, bias = c[1], c.optional(2) if kind == "layer" else None
    rest = [v for v in (gain, bias) if v is not None]
    flat = x if len(inner) == 1 else c.b.reshape(x, (*x.dims[:axis], dims.product(inner)))
    if any(v.rank > len(inner) for v in rest):  # they differ along outer axes: no operand of NORM
        y = c.b.reshape(c.b.norm(kind, flat, eps=_eps(c)), x.dims)
        y = c.b.mul(y, gain)
        return y if bias is None else c.b.add(y, bias)
    rows = [None if v is None else c.b.reshape(c.b.expand(v, inner), (dims.product(inner),)) for v in (gain, bias)]
    return c.b.reshape(c.b.norm(kind, flat, *rows, eps=_eps(c)), x.dims)


def _eps(c: Context) -> float:
    return float(c.attribute("epsilon", 1e-5))


def _channels(x: Value) -> int:
    if x.rank < 3 or not isinstance(x.dims[1], int):
        raise ModelError(f"{x.type}: a constant number of channels and at least one position axis are needed")
    return x.dims[1]


def softmax(*, log: bool) -> Callable[[Context], Value]:
    """Softmax along an axis; before operator set 13 over all axes from `axis` on."""

    def rule(c: Context) -> Value:
        x = c[0]
        if x.rank == 0:
            return c.b.reshape(c.b.softmax(c.b.reshape(x, (1,)), log=log), ())
        if c.opset >= 13:
            return c.b.softmax(x, c.axis(int(c.attribute("axis", -1)), x.rank), log=log)
        axis = c.axis(int(c.attribute("axis", 1)), x.rank) if x.rank > 1 else 0
        if axis == x.rank - 1:
            return c.b.softmax(x, axis, log=log)
        flat = c.b.reshape(x, (*x.dims[:axis], dims.product(x.dims[axis:])))
        return c.b.reshape(c.b.softmax(flat, log=log), x.dims)

    return rule


def lrn(c: Context) -> Value:
    """Divide x by (bias + alpha * mean of squares over neighbouring channels, zeros beyond the ends) ** beta."""
    x, size = c[0], int(c.required("size"))
    alpha, beta = float(c.attribute("alpha", 1e-4)), float(c.attribute("beta", 0.75))
    squares = c.b.mul(x, x)
    flat = c.b.reshape(squares, (*x.dims[:2], dims.product(x.dims[2:])))
    low = (size - 1) // 2
    means = c.b.pool("avg", flat, window=(1, size), pads=(0, low, 0, size - 1 - low), count_include_pad=True)
    base = c.b.add(c.b.mul(c.b.reshape(means, x.dims), alpha), float(c.attribute("bias", 1.0)))
    return c.b.mul(x, c.b.ew("pow", base, -beta))


def mean_variance_normalization(c: Context) -> Value:
    """(x - mean) / (standard deviation + 1e-9) over `axes`."""
    axes = c.attribute("axes", [0, 2, 3])
    mean, var = _statistics(c.b, c[0], axes)
    y = c.b.div(c.b.sub(c.b.cast(c[0], DType.F32), mean), c.b.add(c.b.act("sqrt", var), 1e-9))
    return c.b.cast(y, c[0].dtype)


RULES: dict[str, Callable[[Context], Any]] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": softmax(log=True),
    "MeanVarianceNormalization": mean_variance_normalization,
    "RMSNormalization": rms_normalization,
    "Softmax": softmax(log=False),
}
