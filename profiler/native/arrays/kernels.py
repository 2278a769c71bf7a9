"""Tensor instructions in the functions that NumPy and CuPy share. Each gives what computes the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dla.profiler.native.arrays.functions import SEVERAL, unary
from dla.profiler.native.arrays.given import HALVES, Given, is_float
from dla.profiler.native.given import Action, NoNativeError

_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "min": "minimum", "max": "maximum",
    "pow": "power", "mod": "remainder", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
    "gt": "greater", "ge": "greater_equal", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip


# -- moving


def _put(given: Given, value: Any) -> Any:
    given.xp.copyto(given.out, value, casting="unsafe")
    return given.out


def copy(given: Given) -> Action:
    """From one layout and type to the other."""
    x = given["x"]
    return lambda: _put(given, x)


def fill(given: Given) -> Action:
    """One call."""
    value = given.attributes["value"]
    _check_limits(given, value)
    return lambda: _put(given, value)


def _check_limits(given: Given, *ends: float) -> None:
    """Raise NoNativeError for floats that an integer output cannot hold."""
    out = given.out
    if is_float(out) or out.dtype == np.bool_ or all(isinstance(end, int) for end in ends):
        return
    limits = np.iinfo(out.dtype)
    if not all(limits.min <= end <= limits.max for end in ends):
        raise NoNativeError(f"what {given.xp.library} makes of floats beyond an integer type's limits is undefined")


def iota(given: Given) -> Action:
    """The numbers, and a copy that repeats them along the other axes."""
    xp, out, axis = given.xp, given.out, given.attributes["axis"]
    start, step = given.attributes["start"], given.attributes["step"]
    integers = isinstance(start, int) and isinstance(step, int)
    size = out.shape[axis]
    shape = [size if k == axis else 1 for k in range(out.ndim)]
    _check_limits(given, start, start + step * size)
    dtype = np.int64 if integers else np.float64
    return lambda: _put(given, xp.add(xp.multiply(xp.arange(size, dtype=dtype), step), start).reshape(shape))


def pad(given: Given) -> Action:
    """One call."""
    xp, x = given.xp, given["x"]
    widths = list(zip(*(given.attributes[name][: x.ndim] for name in ("low", "high")), strict=True))
    values = {"constant_values": given.attributes["value"]} if given.sub == "constant" else {}
    return lambda: given.typed(xp.pad(x, widths, mode=given.sub, **values))


def gather(given: Given) -> Action:
    """One call."""
    x, indices, axis = given["x"], given["indices"], given.attributes["axis"]
    return lambda: given.typed(given.xp.take(x, indices, axis=axis))


# -- element by element, and along axes


def act(given: Given) -> Action:
    """One call, or what the formula says."""
    x, alpha = given["x"], given.attributes["alpha"]
    if given.sub in SEVERAL and given.sub != "relu":
        return lambda: given.typed(unary(given, given.sub, given.single(x), alpha))
    return lambda: given.typed(unary(given, given.sub, x, alpha))


def ew(given: Given) -> Action:
    """One call."""
    a, b = given["a"], given["b"]
    name = _BINARY[given.sub]
    if given.sub == "div" and not is_float(a):
        if a.dtype.kind != "u":
            raise NoNativeError(f"{given.xp.library} divides integers downward, and the instruction toward zero")
        name = "floor_divide"
    return lambda: given.typed(getattr(given.xp, name)(a, b))


def select(given: Given) -> Action:
    """One call."""
    cond, a, b = (given[name] for name in ("cond", "a", "b"))
    return lambda: given.typed(given.xp.where(cond, a, b))


def _sum_type(x: Any) -> Any:
    """The type to add up or multiply in: halves in f32, as BLAS does."""
    return np.float32 if x.dtype in HALVES else x.dtype if is_float(x) else np.int64


def reduce(given: Given) -> Action:
    """One call; logsumexp and l2 take several."""
    xp, x, sub = given.xp, given["x"], given.sub
    axes, keep, wide = given.attributes["axes"], given.attributes["keepdims"], _sum_type(x)
    if sub in ("sum", "mean", "prod"):
        return lambda: given.typed(getattr(xp, sub)(x, axis=axes, dtype=wide, keepdims=keep))
    if sub in ("max", "min"):
        return lambda: given.typed(getattr(xp, sub)(x, axis=axes, keepdims=keep))
    if sub in ("argmax", "argmin"):
        return lambda: given.typed(getattr(xp, sub)(x, axis=axes[0], keepdims=keep))

    def logsumexp() -> Any:
        y = given.single(x)
        top = xp.max(y, axis=axes, keepdims=True)
        found = xp.add(xp.log(xp.sum(xp.exp(xp.subtract(y, top)), axis=axes, keepdims=True)), top)
        return given.typed(found if keep else found.squeeze(axes))

    def l2() -> Any:
        y = given.single(x)
        return given.typed(xp.sqrt(xp.sum(xp.square(y), axis=axes, keepdims=keep)))

    return logsumexp if sub == "logsumexp" else l2


def scan(given: Given) -> Action:
    """One call, between others that turn or move the axis where the scan is reverse or exclusive."""
    xp, x, sub, axis = given.xp, given["x"], given.sub, given.attributes["axis"]
    exclusive, reverse = given.attributes["exclusive"], given.attributes["reverse"]
    before, last = ((slice(None),) * axis + (part,) for part in (slice(1), slice(-1)))

    def run() -> Any:
        y = xp.flip(x, axis) if reverse else x
        if exclusive:
            y = xp.concatenate([xp.full_like(y[before], _identity(x, sub)), y[last]], axis=axis)
        if sub in ("sum", "prod"):
            y = getattr(xp, f"cum{sub}")(y, axis=axis, dtype=_sum_type(x))
        else:
            y = getattr(xp, f"{sub}imum.accumulate")(y, axis=axis)
        return given.typed(xp.flip(y, axis) if reverse else y)

    return run


def _identity(x: Any, sub: str) -> Any:
    """What an exclusive scan begins with."""
    if sub in ("sum", "prod"):
        return int(sub == "prod")
    if is_float(x):
        return float("-inf" if sub == "max" else "inf")
    limits = np.iinfo(x.dtype)
    return limits.min if sub == "max" else limits.max


def topk(given: Given) -> Action:
    """Rows are sorted whole: partitions would have to be sorted, too."""
    xp, x, count = given.xp, given["x"], given.out.shape[-1]

    def run() -> Any:
        order = xp.argsort(x, axis=-1)
        chosen = (order if given.attributes["smallest"] else order[..., ::-1])[..., :count]
        values = given.typed(xp.take_along_axis(x, chosen, axis=-1))
        return values if given.get("indices") is None else (values, given.typed(chosen, "indices"))

    return run


# -- products and networks


def gemm(given: Given) -> Action:
    """A product, and its epilogue behind it."""
    xp, a, b, c = given.xp, given["a"], given["b"], given.get("c")
    alpha, beta, unit = (given.attributes[name] for name in ("alpha", "beta", "unit"))
    if given.attributes["math"] == "tf32" and not given.on_host and not given.exact:
        raise NoNativeError(f"{xp.library} multiplies in f32 here, not in tf32")
    wide = _product_type(given, a, b)

    def run() -> Any:
        s = xp.matmul(xp.astype(a, wide), xp.astype(b, wide)) if wide else xp.matmul(a, b)
        s = s if alpha == 1 else xp.multiply(s, alpha)
        if given.sub == "glu":
            s = xp.multiply(unary(given, unit, s[..., 0::2], None), s[..., 1::2])
        if c is not None:
            s = xp.add(s, c if beta == 1 else xp.multiply(c, beta))
        for step in given.attributes["steps"]:
            s = _step(given, s, step)
        return given.typed(s)

    return run


def _product_type(given: Given, a: Any, b: Any) -> Any:
    """What to convert factors to: NumPy's BLAS has f32 and f64 alone, and f64 holds sums of 8-bit integers exactly."""
    if not is_float(a):
        return np.float64
    if a.dtype == b.dtype and (a.dtype not in HALVES or not given.on_host):
        return None
    return np.float64 if given.exact else np.float32


def _step(given: Given, x: Any, step: str) -> Any:
    """One step of an epilogue."""
    xp, attributes = given.xp, given.attributes
    match step:
        case "act":
            return unary(given, attributes["act"], x, attributes["act_alpha"])
        case "clamp":
            return xp.clip(x, attributes["clamp_low"], attributes["clamp_high"])
        case "gate":
            return xp.multiply(x, given["gate"])
        case _:  # bias, residual
            return xp.add(x, given[step])


def softmax(given: Given) -> Action:
    """What the formula says."""
    xp, x, axis = given.xp, given["x"], given.attributes["axis"]

    def run() -> Any:
        y = given.single(x)
        y = xp.subtract(y, xp.max(y, axis=axis, keepdims=True))
        e = xp.exp(y)
        total = xp.sum(e, axis=axis, keepdims=True)
        return given.typed(xp.subtract(y, xp.log(total)) if given.sub == "log" else xp.divide(e, total))

    return run


def norm(given: Given) -> Action:
    """What the formula says."""
    xp, x, sub = given.xp, given["x"], given.sub
    gain, bias, eps = given.get("gain"), given.get("bias"), given.attributes["eps"]

    def run() -> Any:
        y = given.single(x)
        if sub == "batch":
            y = xp.divide(xp.subtract(y, given["mean"]), xp.sqrt(xp.add(given["var"], eps)))
        else:
            axes: tuple[int, ...] = (-1,)
            if sub == "group":
                groups = given.attributes["groups"]
                y = y.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
                axes = (*range(1, x.ndim - 1), x.ndim)
            if sub != "rms":
                y = xp.subtract(y, xp.mean(y, axis=axes, keepdims=True))
            power = xp.mean(xp.square(y), axis=axes, keepdims=True)
            y = xp.divide(y, xp.sqrt(xp.add(power, eps))).reshape(x.shape)
        y = y if gain is None else xp.multiply(y, gain)
        return given.typed(y if bias is None else xp.add(y, bias))

    return run


def rope(given: Given) -> Action:
    """Products, sums and a concatenation."""
    xp, x, cos, sin = given.xp, given["x"], given["cos"], given["sin"]
    pairs = cos.shape[-1]
    between = given.attributes["interleaved"]

    def run() -> Any:
        a = x[..., 0 : 2 * pairs : 2] if between else x[..., :pairs]
        b = x[..., 1 : 2 * pairs : 2] if between else x[..., pairs : 2 * pairs]
        first = xp.subtract(xp.multiply(a, cos), xp.multiply(b, sin))
        second = xp.add(xp.multiply(b, cos), xp.multiply(a, sin))
        rest = x[..., 2 * pairs :]
        if between:
            turned = xp.stack((first, second), axis=-1).reshape(*first.shape[:-1], 2 * pairs)
            return given.typed(xp.concatenate((turned, rest), axis=-1))
        return given.typed(xp.concatenate((first, second, rest), axis=-1))

    return run


KERNELS: dict[str, Callable[[Given], Action]] = {
    "COPY": copy, "FILL": fill, "IOTA": iota, "PAD": pad, "GATHER": gather, "ACT": act, "EW": ew, "SELECT": select,
    "REDUCE": reduce, "SCAN": scan, "GEMM": gemm, "NORM": norm, "SOFTMAX": softmax, "ROPE": rope, "TOPK": topk,
}  # fmt: skip
LACKS = {
    "CONV": "convolution of channels", "POOL": "pooling", "ATTENTION": "attention", "RNN": "recurrent cell",
    "SCATTER": "scatter of whole slices", "RESIZE": "resampling",
}  # fmt: skip
"""What array libraries have not. RESIZE has no counterpart anywhere."""
