"""One step of an optimiser, of several tensors at once: inputs are R, T, all tensors, all gradients, all moments.

Formulas: https://onnx.ai/onnx/operators/, domain ai.onnx.preview.training. Losses have no rules: ONNX has their bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError


def _groups(c: Context, size: int) -> Iterator[list[Value]]:
    """By optimised tensor: it, its gradient, and its moments; `size` in all."""
    count, rest = divmod(c.count - 2, size)
    if rest or count < 1:
        raise ModelError(f"it has {c.count} inputs instead of 2, and {size} for each tensor")
    for k in range(count):
        yield [c[2 + k + group * count] for group in range(size)]


def _regularised(c: Context, x: Value, gradient: Value) -> Value:
    weight = float(c.attribute("norm_coefficient", 0.0))
    return c.b.add(c.b.mul(x, weight), gradient) if weight else gradient


def _ordered(made: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    """All tensors, then all first moments, ..."""
    return tuple(value for group in zip(*made, strict=True) for value in group)


def adagrad(c: Context) -> tuple[Value, ...]:
    """Scale by the root of the sum of squared gradients."""
    b, rate = c.b, c[0]
    decay, eps = float(c.attribute("decay_factor", 0.0)), float(c.attribute("epsilon", 1e-6))
    if decay:
        rate = b.div(rate, b.add(b.mul(b.cast(c[1], rate.dtype), decay), 1.0))
    made = []
    for x, gradient, squares in _groups(c, 3):
        g = _regularised(c, x, gradient)
        new = b.add(squares, b.mul(g, g))
        made.append((b.sub(x, b.div(b.mul(rate, g), b.add(b.act("sqrt", new), eps))), new))
    return _ordered(made)


def adam(c: Context) -> tuple[Value, ...]:
    """Running means of the gradient and of its square; their bias is corrected by the rate."""
    b, rate = c.b, c[0]
    alpha, beta = float(c.attribute("alpha", 0.9)), float(c.attribute("beta", 0.999))
    eps, after = float(c.attribute("epsilon", 1e-6)), 1 - float(c.attribute("norm_coefficient_post", 0.0))
    time = b.cast(c[1], DType.F32)
    rest = [b.sub(b.constant(1, DType.F32), b.ew("pow", b.constant(v, DType.F32), time)) for v in (beta, alpha)]
    corrected = b.div(b.mul(b.cast(rate, DType.F32), b.act("sqrt", rest[0])), rest[1])
    rate = b.select(b.ew("gt", time, 0), corrected, b.cast(rate, DType.F32))
    made = []
    for x, gradient, mean, square in _groups(c, 4):
        g = _regularised(c, x, gradient)
        new = b.add(b.mul(mean, alpha), b.mul(g, 1 - alpha))
        power = b.add(b.mul(square, beta), b.mul(b.mul(g, g), 1 - beta))
        step = b.mul(b.cast(rate, x.dtype), b.div(new, b.add(b.act("sqrt", power), eps)))
        made.append((b.mul(b.sub(x, step), after), new, power))
    return _ordered(made)


def momentum(c: Context) -> tuple[Value, ...]:
    """Gradient descent with a running sum of gradients, plain or Nesterov's."""
    b, rate, mode = c.b, c[0], str(c.required("mode"))
    if mode not in ("standard", "nesterov"):
        raise ModelError(f"mode = {mode!r}")
    alpha, beta = float(c.required("alpha")), float(c.required("beta"))
    first = b.select(b.ew("gt", c[1], 0), b.constant(beta, DType.F32), b.constant(1, DType.F32))
    made = []
    for x, gradient, velocity in _groups(c, 3):
        g = _regularised(c, x, gradient)
        new = b.add(b.mul(velocity, alpha), b.mul(g, b.cast(first, g.dtype)))
        step = new if mode == "standard" else b.add(g, b.mul(new, alpha))
        made.append((b.sub(x, b.mul(rate, step)), new))
    return _ordered(made)


RULES: dict[str, Callable[[Context], Any]] = {
    "ai.onnx.preview.training::Adagrad": adagrad,
    "ai.onnx.preview.training::Adam": adam,
    "ai.onnx.preview.training::Momentum": momentum,
}
