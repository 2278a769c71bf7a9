"""ACT, EW, SELECT, REDUCE and SCAN in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dla.profiler.native.given import Call
from dla.profiler.native.pytorch.activations import FUNCTIONS
from dla.profiler.native.pytorch.given import Given

_BINARY: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "min": torch.minimum, "max": torch.maximum,
    "pow": torch.pow, "mod": torch.remainder, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le,
    "gt": torch.gt, "ge": torch.ge, "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
}  # fmt: skip


def act(given: Given) -> Call:
    """One kernel."""
    x, function, alpha = given["x"], FUNCTIONS[given.sub], given.attributes["alpha"]
    return Call(f"torch {given.sub}", lambda: given.typed(function(x, alpha)))


def ew(given: Given) -> Call:
    """One kernel; integer division truncates, as the program's does."""
    a, b = given["a"], given["b"]
    if given.sub == "div":
        mode = None if a.dtype.is_floating_point else "trunc"
        return Call("torch.div", lambda: given.typed(torch.div(a, b, rounding_mode=mode)))
    function = _BINARY[given.sub]
    return Call(f"torch.{function.__name__}", lambda: given.typed(function(a, b)))


def select(given: Given) -> Call:
    """One kernel."""
    cond, a, b = (given[name] for name in ("cond", "a", "b"))
    return Call("torch.where", lambda: given.typed(torch.where(cond, a, b)))


def reduce(given: Given) -> Call:
    """One kernel; a product over several axes takes one for each."""
    x, out = given["x"], given.out
    axes, keep = list(given.attributes["axes"]), given.attributes["keepdims"]
    wider = torch.promote_types(x.dtype, out.dtype) if out.dtype.is_floating_point else x.dtype

    def product() -> torch.Tensor:
        y = x
        for axis in reversed(axes):
            y = torch.prod(y, axis, keepdim=keep, dtype=wider)
        return y

    found: dict[str, tuple[str, Callable[[], torch.Tensor]]] = {
        "sum": ("torch.sum", lambda: torch.sum(x, axes, keep, dtype=wider)),
        "mean": ("torch.mean", lambda: torch.mean(x, axes, keep, dtype=wider)),
        "max": ("torch.amax", lambda: torch.amax(x, axes, keep)),
        "min": ("torch.amin", lambda: torch.amin(x, axes, keep)),
        "prod": ("torch.prod", product),
        "argmax": ("torch.argmax", lambda: torch.argmax(x, axes[0], keep)),
        "argmin": ("torch.argmin", lambda: torch.argmin(x, axes[0], keep)),
        "logsumexp": ("torch.logsumexp", lambda: torch.logsumexp(x, axes, keep)),
        "l2": ("torch.linalg.vector_norm", lambda: torch.linalg.vector_norm(x, 2, axes, keep, dtype=wider)),
    }
    kernel, run = found[given.sub]
    return Call(kernel, lambda: given.typed(run()))


def scan(given: Given) -> Call:
    """One kernel, between others that turn or move the axis where the scan is reverse or exclusive."""
    x, axis = given["x"], given.attributes["axis"]
    function: Callable[[torch.Tensor], torch.Tensor] = {
        "sum": lambda y: torch.cumsum(y, axis, dtype=y.dtype), "prod": lambda y: torch.cumprod(y, axis, dtype=y.dtype),
        "max": lambda y: torch.cummax(y, axis).values, "min": lambda y: torch.cummin(y, axis).values,
    }[given.sub]  # fmt: skip
    exclusive, reverse = given.attributes["exclusive"], given.attributes["reverse"]
    first = _identity(given) if exclusive and x.shape[axis] else None

    def run() -> torch.Tensor:
        y = x.flip(axis) if reverse else x
        if first is not None:
            y = torch.cat([first, y.narrow(axis, 0, y.shape[axis] - 1)], axis)
        y = function(y)
        return given.typed(y.flip(axis) if reverse else y)

    return Call(f"torch.cum{given.sub}" + (", flip" if reverse else "") + (", cat" if exclusive else ""), run)


def _identity(given: Given) -> torch.Tensor:
    """What an exclusive scan begins with, one slice of x."""
    x, sub = given["x"], given.sub
    if sub in ("sum", "prod"):
        value: float = 0 if sub == "sum" else 1
    elif x.dtype.is_floating_point:
        value = float("-inf" if sub == "max" else "inf")
    else:
        limits = torch.iinfo(x.dtype)
        value = limits.min if sub == "max" else limits.max
    return torch.full_like(x.narrow(given.attributes["axis"], 0, 1), value)
