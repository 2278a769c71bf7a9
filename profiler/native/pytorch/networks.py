"""NORM, SOFTMAX, POOL, ROPE, RNN and TOPK in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

from dla.isa import windows
from dla.profiler.native.given import Call, NoNativeError
from dla.profiler.native.pytorch.given import Given, Tensors
from dla.profiler.native.pytorch.matrix import around


def norm(given: Given) -> Call:
    """One kernel; where types are mixed, in f32, with parameters that were converted beforehand."""
    x = given["x"]
    gain, bias, mean, var = (given.get(name) for name in ("gain", "bias", "mean", "var"))
    eps, sub = given.attributes["eps"], given.sub
    mixed = any(p is not None and p.dtype is not x.dtype for p in (gain, bias, mean, var))
    if mixed:
        gain, bias, mean, var = (None if p is None else p.float() for p in (gain, bias, mean, var))

    def computed(x: torch.Tensor) -> torch.Tensor:
        match sub:
            case "layer":
                return F.layer_norm(x, x.shape[-1:], gain, bias, eps)
            case "rms":
                y = F.rms_norm(x, x.shape[-1:], gain, eps)
                return y if bias is None else y + bias
            case "batch":
                return F.batch_norm(x.reshape(-1, x.shape[-1]), mean, var, gain, bias, eps=eps).reshape(x.shape)
            case _:
                groups = given.attributes["groups"]
                return F.group_norm(x.movedim(-1, 1), groups, gain, bias, eps).movedim(1, -1)

    kernel = f"torch.nn.functional.{sub}_norm" + (" in f32" if mixed else "")
    return Call(kernel, lambda: given.typed(computed(x.float() if mixed else x)))


def softmax(given: Given) -> Call:
    """One kernel."""
    x, axis, out = given["x"], given.attributes["axis"], given.out
    function = torch.log_softmax if given.sub == "log" else torch.softmax
    wider = out.dtype if out.dtype.itemsize > x.dtype.itemsize else None
    return Call(f"torch.{function.__name__}", lambda: given.typed(function(x, axis, dtype=wider)))


def pool(given: Given) -> Call:
    """One kernel, behind another that pads where that kernel cannot."""
    x, sub = given["x"].movedim(-1, 1), given.sub
    axes = tuple(range(2, x.ndim))
    if sub == "global_max":
        return Call("torch.amax", lambda: given.typed(torch.amax(x, axes, keepdim=True).movedim(1, -1)))
    if sub == "global_avg":
        return Call("torch.mean", lambda: given.typed(torch.mean(x, axes, keepdim=True).movedim(1, -1)))
    shape = windows.geometry(given.attributes, x.ndim - 2)
    own = shape.low == shape.high and all(2 * p <= k for p, k in zip(shape.low, shape.window, strict=True))
    return _max_pool(given, x, shape, own=own) if sub == "max" else _avg_pool(given, x, shape, own=own)


def _max_pool(given: Given, x: torch.Tensor, shape: windows.Geometry, *, own: bool) -> Call:
    rank, pads = x.ndim - 2, around(shape)
    function = (F.max_pool1d, F.max_pool2d)[rank - 1]
    lowest = float("-inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    padding = shape.low if own else (0,) * rank

    def run() -> torch.Tensor:
        y = x if own else F.pad(x, pads, value=lowest)
        return given.typed(function(y, shape.window, shape.strides, padding, shape.dilations).movedim(1, -1))

    return Call(f"torch.nn.functional.{'' if own else 'pad, '}max_pool{rank}d", run)


def _avg_pool(given: Given, x: torch.Tensor, shape: windows.Geometry, *, own: bool) -> Call:
    rank, counted = x.ndim - 2, given.attributes["count_include_pad"]
    if any(d != 1 for d in shape.dilations):
        raise NoNativeError("PyTorch has no mean of windows with holes (dilations)")
    if not own and not counted:
        raise NoNativeError("PyTorch leaves padding out of means only where it is the same on both sides, and at most "
                            "half a window")  # fmt: skip
    function, pads = (F.avg_pool1d, F.avg_pool2d)[rank - 1], around(shape)
    padding = shape.low if own else (0,) * rank

    def run() -> torch.Tensor:
        y = x if own else F.pad(x, pads)
        return given.typed(function(y, shape.window, shape.strides, padding, False, counted).movedim(1, -1))

    return Call(f"torch.nn.functional.{'' if own else 'pad, '}avg_pool{rank}d", run)


def rope(given: Given) -> Call:
    """Products, sums and a concatenation, as models have it: PyTorch has no kernel for it."""
    x, cos, sin = (given[name] for name in ("x", "cos", "sin"))
    pairs = cos.shape[-1]
    if given.attributes["interleaved"]:

        def run() -> torch.Tensor:
            a, b = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
            return given.typed(torch.cat((turned, x[..., 2 * pairs :]), -1) if 2 * pairs < x.shape[-1] else turned)
    else:

        def run() -> torch.Tensor:
            a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
            return given.typed(torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., 2 * pairs :]), -1))

    return Call("torch.mul, sub, add, cat", run)


def rnn(given: Given) -> Call:
    """On a GPU PyTorch's fused cells; elsewhere the functions one after the other."""
    gates = given["gates"]
    if gates.is_cuda and given.one_type:
        return _fused_cell(given)

    def lstm() -> Tensors:
        i, f, g, o = gates.chunk(4, -1)
        c = torch.sigmoid(f) * given["c"] + torch.sigmoid(i) * torch.tanh(g)
        return given.typed(torch.sigmoid(o) * torch.tanh(c)), given.typed(c, "c_out")

    def gru() -> Tensors:
        (xr, xz, xn), (hr, hz, hn) = gates.chunk(3, -1), given["rec"].chunk(3, -1)
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        return given.typed((1 - z) * torch.tanh(xn + r * hn) + z * given["h"])

    return Call("torch.sigmoid, tanh, mul, add", lstm if given.sub == "lstm" else gru)


def _fused_cell(given: Given) -> Call:
    """The kernels that torch.nn.LSTMCell and GRUCell end with; they add two shares of the gates."""
    gates = given["gates"].flatten(0, -2)
    if given.sub == "lstm":
        c, none = given["c"].flatten(0, -2), torch.zeros_like(gates)

        def lstm() -> Tensors:
            h, after, _ = torch.ops.aten._thnn_fused_lstm_cell(gates, none, c)
            return given.typed(h.reshape(given.out.shape)), given.typed(after.reshape(given.out.shape), "c_out")

        return Call("torch.ops.aten._thnn_fused_lstm_cell", lstm)
    rec, h = given["rec"].flatten(0, -2), given["h"].flatten(0, -2)

    def gru() -> Tensors:
        return given.typed(torch.ops.aten._thnn_fused_gru_cell(gates, rec, h)[0].reshape(given.out.shape))

    return Call("torch.ops.aten._thnn_fused_gru_cell", gru)


def topk(given: Given) -> Call:
    """One kernel; which of equal elements it takes, it does not say."""
    x, count, largest = given["x"], given.out.shape[-1], not given.attributes["smallest"]

    def run() -> Tensors:
        values, indices = torch.topk(x, count, -1, largest)
        if given.get("indices") is None:
            return given.typed(values)
        return given.typed(values), given.typed(indices, "indices")

    return Call("torch.topk", run)
