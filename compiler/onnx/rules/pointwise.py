"""Operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.isa.activations import SELU_ALPHA, SELU_GAMMA
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError


def _act(kind: str) -> Callable[[Context], Value]:
    return lambda c: c.b.act(kind, c[0])


def _act_alpha(kind: str, default: float) -> Callable[[Context], Value]:
    return lambda c: c.b.act(kind, c[0], c.attribute("alpha", default))


def _ew(kind: str) -> Callable[[Context], Value]:
    return lambda c: c.b.ew(kind, c[0], _aligned(c))


def _aligned(c: Context) -> Value:
    """The second operand. Before operator set 7 `axis` said which axis of the first one its first axis belongs to."""
    a, b = c[0], c[1]
    if c.opset < 7 and c.attribute("broadcast", 0) and "axis" in c.attributes:
        axis = c.axis(int(c.attributes["axis"]), a.rank)
        return c.b.reshape(b, [*b.dims, *[1] * max(0, a.rank - axis - b.rank)])
    return b


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
    """Limits are attributes before operator set 11, and inputs since; where they cross, max counts."""
    x = c[0]
    for index, kind, name in ((1, "max", "min"), (2, "min", "max")):
        limit = c.optional(index) if c.has(index) else c.attribute(name)
        if isinstance(limit, Value):
            limit = c.b.reshape(limit, [])
        if limit is not None:
            x = c.b.ew(kind, x, limit)
    return x


def gelu(c: Context) -> Value:
    """Exact, or by tanh."""
    return c.b.act("gelu_tanh" if c.attribute("approximate", "none") == "tanh" else "gelu", c[0])


def selu(c: Context) -> Value:
    """Elu times gamma, with the published numbers one function."""
    alpha, gamma = c.attribute("alpha", SELU_ALPHA), c.attribute("gamma", SELU_GAMMA)
    if np.float32(alpha) == np.float32(SELU_ALPHA) and np.float32(gamma) == np.float32(SELU_GAMMA):
        return c.b.act("selu", c[0])
    return c.b.mul(c.b.act("elu", c[0], alpha), gamma)


def hard_sigmoid(c: Context) -> Value:
    """clip(alpha * x + beta, 0, 1); the machine's has beta 0.5."""
    alpha, beta = c.attribute("alpha", 0.2), c.attribute("beta", 0.5)
    if beta == 0.5:
        return c.b.act("hard_sigmoid", c[0], alpha)
    return c.b.ew("min", c.b.ew("max", c.b.add(c.b.mul(c[0], alpha), beta), 0.0), 1.0)


def swish(c: Context) -> Value:
    """The product x * sigmoid(alpha * x)."""
    return swished(c, c[0])


def swished(c: Context, x: Value) -> Value:
    """`x` times its sigmoid at x * alpha, an attribute of the node."""
    alpha = float(c.attribute("alpha", 1.0))
    return c.b.act("silu", x) if alpha == 1 else c.b.mul(x, c.b.act("sigmoid", c.b.mul(x, alpha)))


def shrink(c: Context) -> Value:
    """The argument x moved toward 0 by bias where |x| > lambd, else 0."""
    x, bias, limit = c[0], c.attribute("bias", 0.0), c.attribute("lambd", 0.5)
    given = x if x.dtype.is_float else c.b.cast(x, DType.F32)
    above = c.b.select(c.b.ew("gt", given, limit), c.b.sub(given, bias), 0.0)
    return c.b.cast(c.b.select(c.b.ew("lt", given, -limit), c.b.add(given, bias), above), x.dtype)


def is_inf(c: Context) -> Value:
    """Infinities of either sign or of one."""
    up, down = c.attribute("detect_positive", 1), c.attribute("detect_negative", 1)
    if up and down:
        return c.b.act("isinf", c[0])
    if not up and not down:
        return c.b.fill(c[0].dims, False, DType.BOOL)
    return c.b.ew("eq", c[0], math.inf if up else -math.inf)


def prelu(c: Context) -> Value:
    """The argument x where x >= 0, else slope * x; the slope broadcasts to x, before operator set 7 along axis 1."""
    x, slope = c[0], c[1]
    if slope.constant is not None and slope.constant.size == 1 and x.dtype.is_float and slope.rank <= x.rank:
        return c.b.act("leaky_relu", x, float(slope.constant.reshape(-1)[0]))
    if c.opset < 7 and slope.rank == 1 and x.rank > 2:
        slope = c.b.reshape(slope, [*slope.dims, *[1] * (x.rank - 2)])
    return c.b.select(c.b.ew("ge", x, 0), x, c.b.mul(x, slope))


def power(c: Context) -> Value:
    """Base and exponent may be of different types: the result has the base's."""
    x, y = c[0], _aligned(c)
    if x.dtype is y.dtype:
        return c.b.ew("pow", x, y)
    if x.dtype.is_float or not y.dtype.is_float:
        return c.b.ew("pow", x, c.b.cast(y, x.dtype))
    return c.b.cast(c.b.ew("pow", c.b.cast(x, DType.F32), c.b.cast(y, DType.F32)), x.dtype)


def modulo(c: Context) -> Value:
    """With the divisor's sign, as EW.mod; with fmod, with the dividend's."""
    a, b = c[0], c[1]
    if not c.attribute("fmod", 0) or a.dtype is DType.U8:
        return c.b.ew("mod", a, b)
    size = c.b.ew("mod", c.b.act("abs", a), c.b.act("abs", b))
    return c.b.select(c.b.ew("lt", a, 0), c.b.act("neg", size), size)


def bit_shift(c: Context) -> Value:
    """Products with powers of 2, or quotients rounded down, in i64; negative amounts count as too large ones."""
    x, y, direction = c[0], c[1], c.required("direction")
    if direction not in ("LEFT", "RIGHT") or x.dtype.is_float:
        raise ModelError(f"a shift of {x.dtype.text} in direction '{direction}'")
    given, amount = c.b.cast(x, DType.I64), c.b.cast(y, DType.I64)
    amount = c.b.ew("min", c.b.select(c.b.ew("lt", amount, 0), 64, amount), 64)
    two = c.b.constant(2, DType.I64)
    if direction == "LEFT":
        return c.b.cast(c.b.mul(given, c.b.ew("pow", two, amount)), x.dtype)
    # 2**62 is the largest power that i64 has. What is left of a number of 64 bits then falls to its sign.
    factor = c.b.ew("pow", two, c.b.ew("min", amount, 62))
    shifted = c.b.div(c.b.sub(given, c.b.ew("mod", given, factor)), factor)
    if x.dtype is DType.I64:
        shifted = c.b.select(c.b.ew("gt", amount, 62), c.b.ew("max", c.b.ew("min", given, 0), -1), shifted)
    return c.b.cast(shifted, x.dtype)


def cast(c: Context) -> Value:
    """Conversion, as COPY does it."""
    return c.b.cast(c[0], c.element_type(c.required("to")))


def bit_cast(c: Context) -> Value:
    """The same bits as another type of the same size, where that is the same as a conversion, or known."""
    x, dtype = c[0], c.element_type(c.required("to"))
    held = onnx.helper.tensor_dtype_to_np_dtype(c.required("to"))
    if dtype.numpy != held or dtype.itemsize != x.dtype.itemsize:
        raise ModelError(f"the bits of {x.dtype.text} as {held}, which the machine has not in as many bits")
    if x.constant is not None:
        return c.b.constant(x.constant.view(dtype.numpy))
    if x.dtype.is_float is not dtype.is_float or (x.dtype.is_float and x.dtype is not dtype):
        raise ModelError(f"the machine has no instruction that takes the bits of {x.dtype.text} for {dtype.text}")
    return c.b.cast(x, dtype)


def bitwise(kind: str, *, bools: bool) -> Callable[[Context], Value]:
    """And, or, xor of bools, or of integers bit by bit."""

    def rule(c: Context) -> Value:
        if c[0].dtype.is_float or (c[0].dtype is DType.BOOL) is not bools:
            raise ModelError(f"logic on {c[0].dtype.text}")
        return c.b.ew(kind, c[0], _aligned(c))

    return rule


def bitwise_not(c: Context) -> Value:
    """Every bit inverted. Of a narrower type than the one that holds it, upper bits would show: that is refused."""
    x = c[0]
    if x.dtype in c.substitutes:
        raise ModelError(f"bits of {x.dtype.text}, which also holds integers of a type that the machine lacks")
    return c.b.act("not", x)


def dropout(c: Context) -> tuple[Value, ...]:
    """Nothing is dropped when a model runs: x, and a mask that keeps everything."""
    x = c[0]
    if c.has(2) and bool(c.scalar(2, "training mode")) and (not c.has(1) or c.scalar(1, "ratio") != 0):
        raise ModelError("dropout in training mode is random", hint="export the model for inference")
    if not c.wants(1):
        return (x,)
    return x, c.b.fill(x.dims, True, DType.BOOL if c.opset >= 10 else x.dtype)


RULES: dict[str, Callable[[Context], Any]] = {
    "Abs": _act("abs"),
    "Acos": _act("acos"),
    "Acosh": _act("acosh"),
    "Add": _ew("add"),
    "And": bitwise("and", bools=True),
    "Asin": _act("asin"),
    "Asinh": _act("asinh"),
    "Atan": _act("atan"),
    "Atanh": _act("atanh"),
    "BitCast": bit_cast,
    "BitShift": bit_shift,
    "BitwiseAnd": bitwise("and", bools=False),
    "BitwiseNot": bitwise_not,
    "BitwiseOr": bitwise("or", bools=False),
    "BitwiseXor": bitwise("xor", bools=False),
    "Cast": cast,
    "CastLike": lambda c: c.b.cast(c[0], c[1].dtype),
    "Ceil": _act("ceil"),
    "Celu": _act_alpha("celu", 1.0),
    "Clip": clip,
    "Cos": _act("cos"),
    "Cosh": _act("cosh"),
    "Div": _ew("div"),
    "Dropout": dropout,
    "Elu": _act_alpha("elu", 1.0),
    "Equal": _ew("eq"),
    "Erf": _act("erf"),
    "Exp": _act("exp"),
    "Floor": _act("floor"),
    "Gelu": gelu,
    "Greater": _ew("gt"),
    "GreaterOrEqual": _ew("ge"),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": _act("hard_swish"),
    "IsInf": is_inf,
    "IsNaN": _act("isnan"),
    "LeakyRelu": _act_alpha("leaky_relu", 0.01),
    "Less": _ew("lt"),
    "LessOrEqual": _ew("le"),
    "Log": _act("log"),
    "Max": _fold("max"),
    "Mean": mean,
    "Min": _fold("min"),
    "Mish": _act("mish"),
    "Mod": modulo,
    "Mul": _ew("mul"),
    "Neg": _act("neg"),
    "Not": _act("not"),
    "Or": bitwise("or", bools=True),
    "PRelu": prelu,
    "Pow": power,
    "Reciprocal": _act("reciprocal"),
    "Relu": _act("relu"),
    "Round": _act("round"),
    "Selu": selu,
    "Shrink": shrink,
    "Sigmoid": _act("sigmoid"),
    "Sign": _act("sign"),
    "Sin": _act("sin"),
    "Sinh": _act("sinh"),
    "Softplus": _act("softplus"),
    "Softsign": _act("softsign"),
    "Sqrt": _act("sqrt"),
    "Sub": _ew("sub"),
    "Sum": _fold("add"),
    "Swish": swish,
    "Tan": _act("tan"),
    "Tanh": _act("tanh"),
    "ThresholdedRelu": _act_alpha("thresholded_relu", 1.0),
    "Where": lambda c: c.b.select(c[0], c[1], c[2]),
    "Xor": bitwise("xor", bools=True),
    "ai.onnx.ml::Binarizer": lambda c: c.b.cast(c.b.ew("gt", c[0], c.attribute("threshold", 0.0)), c[0].dtype),
}
