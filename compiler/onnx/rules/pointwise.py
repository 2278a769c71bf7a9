"""Operators that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError


def _act(kind: str) -> Callable[[Context], Value]:
    return lambda c: c.b.act(kind, c[0])


def _act_alpha(kind: str, default: float) -> Callable[[Context], Value]:
    return lambda c: c.b.act(kind, c[0], c.attribute("alpha", default))


def _ew(kind: str) -> Callable[[Context], Value]:
    return lambda c: c.b.ew(kind, c[0], c[1])


def _fold(kind: str) -> Callable[[Context], Value]:
    """An operator of one or more inputs, folded from the left."""

    def rule(c: Context) -> Value:
        total, *rest = c.values()
        for value in rest:
            total = c.b.ew(kind, total, value)
        return total

    return rule


def mean(c: Context) -> Value:
    """The mean of all inputs."""
    return c.b.mul(_fold("add")(c), 1.0 / c.count)


def clip(c: Context) -> Value:
    """min and max are attributes before operator set 11, and inputs since."""
    x = c[0]
    for index, kind, name in ((1, "max", "min"), (2, "min", "max")):
        limit = c.optional(index) if c.has(index) else c.attribute(name)
        if limit is not None:
            x = c.b.ew(kind, x, limit)
    return x


def gelu(c: Context) -> Value:
    """Exact, or by tanh."""
    return c.b.act("gelu_tanh" if c.attribute("approximate", "none") == "tanh" else "gelu", c[0])


def prelu(c: Context) -> Value:
    """x where x >= 0, else slope * x."""
    x, slope = c[0], c[1]
    return c.b.select(c.b.ew("ge", x, 0), x, c.b.mul(x, slope))


def power(c: Context) -> Value:
    """Base and exponent may be of different types: the result has the base's."""
    x, y = c[0], c[1]
    if x.dtype is y.dtype:
        return c.b.ew("pow", x, y)
    if x.dtype.is_float:
        return c.b.ew("pow", x, c.b.cast(y, x.dtype))
    return c.b.cast(c.b.ew("pow", c.b.cast(x, DType.F32), c.b.cast(y, DType.F32)), x.dtype)


def cast(c: Context) -> Value:
    """Conversion, as COPY does it."""
    return c.b.cast(c[0], c.element_type(c.required("to")))


def logical(kind: str) -> Callable[[Context], Any]:
    """and, or, xor of bools."""

    def rule(c: Context) -> Value:
        if c[0].dtype is not DType.BOOL:
            raise ModelError(f"logic on {c[0].dtype.text}")
        return c.b.ew(kind, c[0], c[1])

    return rule


RULES: dict[str, Callable[[Context], Any]] = {
    "Abs": _act("abs"),
    "Add": _ew("add"),
    "And": logical("and"),
    "Cast": cast,
    "CastLike": lambda c: c.b.cast(c[0], c[1].dtype),
    "Ceil": _act("ceil"),
    "Clip": clip,
    "Cos": _act("cos"),
    "Div": _ew("div"),
    "Dropout": lambda c: c[0],
    "Elu": _act_alpha("elu", 1.0),
    "Equal": _ew("eq"),
    "Erf": _act("erf"),
    "Exp": _act("exp"),
    "Floor": _act("floor"),
    "Gelu": gelu,
    "Greater": _ew("gt"),
    "GreaterOrEqual": _ew("ge"),
    "Identity": lambda c: c.inputs[0],
    "IsNaN": _act("isnan"),
    "LeakyRelu": _act_alpha("leaky_relu", 0.01),
    "Less": _ew("lt"),
    "LessOrEqual": _ew("le"),
    "Log": _act("log"),
    "Max": _fold("max"),
    "Mean": mean,
    "Min": _fold("min"),
    "Mish": _act("mish"),
    "Mul": _ew("mul"),
    "Neg": _act("neg"),
    "Not": _act("not"),
    "Or": logical("or"),
    "PRelu": prelu,
    "Pow": power,
    "Reciprocal": _act("reciprocal"),
    "Relu": _act("relu"),
    "Round": _act("round"),
    "Sigmoid": _act("sigmoid"),
    "Sign": _act("sign"),
    "Sin": _act("sin"),
    "Softplus": _act("softplus"),
    "Sqrt": _act("sqrt"),
    "Sub": _ew("sub"),
    "Sum": _fold("add"),
    "Tanh": _act("tanh"),
    "Where": lambda c: c.b.select(c[0], c[1], c[2]),
    "Xor": logical("xor"),
}
