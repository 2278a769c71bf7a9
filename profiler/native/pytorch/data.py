"""COPY, FILL, IOTA, PAD, GATHER and SCATTER in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

from dla.profiler.native.given import Call, NoNativeError
from dla.profiler.native.pytorch.given import Given

_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def copy(given: Given) -> Call:
    """From one layout and type to the other, in one kernel."""
    out, x = given.out, given["x"]
    return Call("torch.Tensor.copy_", lambda: out.copy_(x))


def fill(given: Given) -> Call:
    """One kernel."""
    out, value = given.out, given.attributes["value"]
    return Call("torch.Tensor.fill_", lambda: out.fill_(value))


def iota(given: Given) -> Call:
    """The numbers, and a copy that repeats them along the other axes."""
    out, axis = given.out, given.attributes["axis"]
    start, step = given.attributes["start"], given.attributes["step"]
    integers = isinstance(start, int) and isinstance(step, int)
    size = out.shape[axis]
    shape = [size if k == axis else 1 for k in range(out.ndim)]
    dtype = torch.int64 if integers else torch.float64
    if not integers and not out.dtype.is_floating_point:
        limits = torch.iinfo(out.dtype)
        if not limits.min <= min(start, start + step * size) <= max(start, start + step * size) <= limits.max:
            raise NoNativeError("what PyTorch makes of floats beyond an integer type's limits is undefined")

    def run() -> torch.Tensor:
        index = torch.arange(size, dtype=dtype, device=out.device)
        return out.copy_((index * step + start).reshape(shape))

    return Call("torch.arange, torch.Tensor.copy_", run)


def pad(given: Given) -> Call:
    """One kernel for constants; other modes take one for each axis."""
    x, sub = given["x"], given.sub
    low, high = (given.attributes[name][: x.ndim] for name in ("low", "high"))
    widths = [n for pair in zip(reversed(low), reversed(high), strict=True) for n in pair]
    if sub == "constant":
        value = given.attributes["value"]
        return Call("torch.nn.functional.pad", lambda: given.typed(F.pad(x, widths, value=value)))
    mode = _MODES[sub]

    def run() -> torch.Tensor:
        y = x
        for axis, (before, after) in enumerate(zip(low, high, strict=True)):
            if before or after:
                last = y.movedim(axis, -1)
                flat = last.reshape(1, -1, last.shape[-1])
                made = F.pad(flat, (before, after), mode=mode)
                y = made.reshape(*last.shape[:-1], made.shape[-1]).movedim(-1, axis)
        return given.typed(y.contiguous())

    return Call(f"torch.nn.functional.pad ({mode})", run)


def gather(given: Given) -> Call:
    """An embedding, or slices along another axis."""
    x, indices, axis = given["x"], given["indices"], given.attributes["axis"]
    if axis == 0 and x.ndim == 2:
        return Call("torch.nn.functional.embedding", lambda: given.typed(F.embedding(indices, x)))
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return Call(
        "torch.index_select", lambda: given.typed(torch.index_select(x, axis, indices.reshape(-1)).reshape(shape))
    )  # fmt: skip


def scatter(given: Given) -> Call:
    """One kernel; PyTorch wants i64 indices, which are made beforehand."""
    x, updates, axis, sub = given["x"], given["updates"], given.attributes["axis"], given.sub
    indices = given["indices"].long()
    if sub == "set":
        return Call("torch.scatter", lambda: given.typed(torch.scatter(x, axis, indices, updates)))
    if sub == "add":
        return Call("torch.scatter_add", lambda: given.typed(torch.scatter_add(x, axis, indices, updates)))
    how = {"mul": "prod", "max": "amax", "min": "amin"}[sub]
    return Call(
        f"torch.scatter_reduce ({how})", lambda: given.typed(torch.scatter_reduce(x, axis, indices, updates, how))
    )  # fmt: skip
