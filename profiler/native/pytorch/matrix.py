"""GEMM, CONV and ATTENTION in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

from dla.isa import windows
from dla.profiler.native.given import Call, NoNativeError
from dla.profiler.native.pytorch import epilogue
from dla.profiler.native.pytorch.activations import FUNCTIONS
from dla.profiler.native.pytorch.given import Given

_FUSED = {"relu": False, "gelu_tanh": True}
"""Activations that a product with a bias takes along on a GPU (cublasLt's epilogues), and whether that is `use_gelu`.

On a CPU `use_gelu` means the other gelu, with erf."""


def gemm(given: Given) -> Call:
    """A product with what it can take along; the rest of the epilogue behind it."""
    a, b, c = given["a"], given["b"], given.get("c")
    alpha, beta, steps = (given.attributes[name] for name in ("alpha", "beta", "steps"))
    if not a.dtype.is_floating_point:
        return _integers(given)
    if given.sub == "glu":
        return _glu(given)
    bias = epilogue.row_bias(given, b.shape[-1]) if c is None else None
    flat = a.ndim == b.ndim == given.out.ndim == 2 and given.one_type
    if flat and bias is not None:
        if a.is_cuda and steps[1:2] == ("act",) and given.attributes["act"] in _FUSED and alpha == 1:
            gelu = _FUSED[given.attributes["act"]]
            return _behind(
                given, f"torch._addmm_activation (+ bias, {given.attributes['act']})", steps[2:],
                lambda: torch._addmm_activation(bias, a, b, use_gelu=gelu),
            )  # fmt: skip
        return _behind(given, "torch.addmm (+ bias)", steps[1:], lambda: torch.addmm(bias, a, b, alpha=alpha))
    if flat and c is not None:
        return _behind(given, "torch.addmm", steps, lambda: torch.addmm(c, a, b, beta=beta, alpha=alpha))

    def product() -> torch.Tensor:
        s = torch.matmul(a, b) if alpha == 1 else torch.matmul(a, b) * alpha
        return s if c is None else s + (c if beta == 1 else c * beta)

    added = "" if c is None else ", + c"
    return _behind(given, f"torch.{'mm' if flat else 'matmul'}{added}", steps, product)


def _behind(given: Given, kernel: str, steps: tuple[str, ...], product: Any) -> Call:
    return Call(
        kernel + epilogue.names(given, steps), lambda: given.typed(epilogue.apply(given, product(), steps))
    )  # fmt: skip


def _glu(given: Given) -> Call:
    a, b = given["a"], given["b"]
    alpha, unit, steps = (given.attributes[name] for name in ("alpha", "unit", "steps"))
    function = FUNCTIONS[unit]

    def product() -> torch.Tensor:
        s = torch.matmul(a, b) if alpha == 1 else torch.matmul(a, b) * alpha
        gate = s[..., 0::2] if unit == "identity" else function(s[..., 0::2], None)
        return gate * s[..., 1::2]

    return _behind(given, f"torch.matmul, {unit}, * gate", steps, product)


def _integers(given: Given) -> Call:
    a, b = given["a"], given["b"]
    if a.dtype is not torch.int8 or a.ndim != 2 or b.ndim != 2:
        raise NoNativeError("PyTorch multiplies 8-bit integers only if they are i8, and single matrices")
    return Call("torch._int_mm", lambda: given.typed(torch._int_mm(a, b)))


def conv(given: Given) -> Call:
    """A convolution, channels last as in the program; with gaps a transposed one."""
    x, w = (given[name].movedim(-1, 1) for name in "xw")
    shape = windows.geometry(given.attributes, x.ndim - 2, tuple(w.shape[2:]))
    groups, steps = given.attributes["groups"], given.attributes["steps"]
    bias = epilogue.row_bias(given, w.shape[0])
    one = bias is not None and given.one_type and not given.exact  # cuDNN rounds before it adds the bias
    rest = steps[1:] if one else steps
    added = bias if one else None
    if any(shape.gaps):
        kernel, run = _transposed(x, w, added, shape, groups)
    else:
        kernel, run = _convolution(x, w, added, shape, groups)
    return _behind(given, kernel + (" (+ bias)" if one else ""), rest, lambda: run().movedim(1, -1))


def _convolution(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, shape: windows.Geometry, groups: int
) -> tuple[str, Any]:
    rank = x.ndim - 2
    function = (F.conv1d, F.conv2d)[rank - 1]
    name = f"torch.nn.functional.conv{rank}d"
    if shape.low == shape.high:
        return name, lambda: function(x, w, bias, shape.strides, shape.low, shape.dilations, groups)
    pads = around(shape)
    return f"torch.nn.functional.pad, {name}", lambda: function(
        F.pad(x, pads), w, bias, shape.strides, 0, shape.dilations, groups
    )


def around(shape: windows.Geometry) -> list[int]:
    """The pads of `shape` as torch.nn.functional.pad wants them: the last axis first."""
    pairs = zip(reversed(shape.low), reversed(shape.high), strict=True)
    return [n for pair in pairs for n in pair]


def _transposed(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, shape: windows.Geometry, groups: int
) -> tuple[str, Any]:
    """PyTorch has the stride where the program has gaps, and kernels [C, O / groups, K...] turned around."""
    if any(s != 1 for s in shape.strides):
        raise NoNativeError("PyTorch has no convolution with both gaps and a stride")
    reach = [d * (k - 1) for d, k in zip(shape.dilations, shape.window, strict=True)]
    padding = [r - low for r, low in zip(reach, shape.low, strict=True)]
    extra = [high - low for low, high in zip(shape.low, shape.high, strict=True)]
    strides = [gap + 1 for gap in shape.gaps]
    limits = [max(s, d) for s, d in zip(strides, shape.dilations, strict=True)]
    if min(padding) < 0 or min(extra) < 0 or any(e >= m for e, m in zip(extra, limits, strict=True)):
        raise NoNativeError("PyTorch's transposed convolutions have no such padding")
    rank = x.ndim - 2
    parts = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).transpose(1, 2)  # [groups, C / groups, O / groups...]
    turned = parts.flip(tuple(range(3, 3 + rank))).flatten(0, 1).contiguous()
    function = (F.conv_transpose1d, F.conv_transpose2d)[rank - 1]
    return f"torch.nn.functional.conv_transpose{rank}d", lambda: function(
        x, turned, bias, strides, padding, extra, groups, shape.dilations
    )


def attention(given: Given) -> Call:
    """scaled_dot_product_attention; its parts one after the other where it lacks something."""
    q, k, v = (given[name] for name in "qkv")
    options = given.attributes
    scale = options["scale"] or None
    if options["softcap"] or given.get("lse") is not None:
        return _in_parts(given)
    grouped = q.shape[1] != k.shape[1]
    mask, causal = _mask(given)
    return Call(
        "torch.nn.functional.scaled_dot_product_attention" + (" with a mask" if mask is not None else ""),
        lambda: given.typed(
            F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped)
        ),
    )


def _mask(given: Given) -> tuple[Any, bool]:
    """What hides keys, as scaled_dot_product_attention takes it: (mask or None, whether it is its own causal one)."""
    seen, mask = _visible(given), given.get("mask")
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    if seen is None:
        return (mask if mask is None or mask.dtype is torch.bool else mask.to(given["q"].dtype)), False
    if mask is None:
        queries, keys = seen.shape
        position = given.attributes["position"]
        if not given.attributes["window"] and (keys - queries if position is None else position) == 0:
            return None, True
        return seen, False
    if mask.dtype is torch.bool:
        return mask & seen, False
    return mask.to(given["q"].dtype).masked_fill(~seen, float("-inf")), False


def _visible(given: Given) -> torch.Tensor | None:
    """Which keys each query may see by position, bool [S, T]; None where all."""
    options = given.attributes
    queries, keys = given["q"].shape[2], given["k"].shape[2]
    position = keys - queries if options["position"] is None else options["position"]
    if not options["window"] and (not options["causal"] or position >= keys - 1):
        return None
    device = given["q"].device
    last = torch.arange(queries, device=device)[:, None] + position
    t = torch.arange(keys, device=device)[None, :]
    seen = t <= last if options["causal"] else torch.ones(queries, keys, dtype=torch.bool, device=device)
    return seen & (t > last - options["window"]) if options["window"] else seen


def _in_parts(given: Given) -> Call:
    """Scores, soft cap, mask, softmax and mean by kernels of their own."""
    q, k, v, lse = given["q"], given["k"], given["v"], given.get("lse")
    cap = given.attributes["softcap"]
    scale = given.attributes["scale"] or (q.shape[-1] or 1) ** -0.5
    shared = q.shape[1] // k.shape[1]
    hidden = _visible(given)
    mask = given.get("mask")

    def run() -> tuple[torch.Tensor, ...]:
        keys, values = (x.repeat_interleave(shared, 1) if shared > 1 else x for x in (k, v))
        s = torch.matmul(q, keys.transpose(-1, -2)) * scale
        if cap:
            s = torch.tanh(s / cap) * cap
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else s + mask
        if hidden is not None:
            s = s.masked_fill(~hidden, float("-inf"))
        p = torch.softmax(s, -1).nan_to_num(0.0)  # a query that sees no key
        y = given.typed(torch.matmul(p.to(values.dtype), values))
        return (y,) if lse is None else (y, given.typed(torch.logsumexp(s, -1), "lse"))

    return Call("torch.matmul, softmax, matmul", run)
