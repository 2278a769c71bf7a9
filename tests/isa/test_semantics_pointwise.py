"""What ACT, EW, REDUCE and SCAN mean, against Python's own arithmetic and plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dla.isa.activations import ACTIVATIONS
from dla.isa.dtypes import INTS, DType, convert
from dla.isa.errors import Trap

SAMPLES = [-30.0, -3.5, -3.0, -1.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.5, 3.0, 4.0, 30.0]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


SCALAR: dict[str, Callable[[float, float], float]] = {
    "identity": lambda x, a: x,
    "relu": lambda x, a: max(x, 0.0),
    "leaky_relu": lambda x, a: x if x >= 0 else a * x,
    "sigmoid": lambda x, a: _sigmoid(x),
    "tanh": lambda x, a: math.tanh(x),
    "gelu": lambda x, a: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x, a: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x, a: x * _sigmoid(x),
    "mish": lambda x, a: x * math.tanh(math.log1p(math.exp(x))),
    "elu": lambda x, a: x if x >= 0 else a * (math.exp(x) - 1),
    "softplus": lambda x, a: math.log1p(math.exp(x)),
    "hard_swish": lambda x, a: x * min(max(x + 3, 0), 6) / 6,
    "exp": lambda x, a: math.exp(x),
    "log": lambda x, a: math.log(x),
    "sqrt": lambda x, a: math.sqrt(x),
    "rsqrt": lambda x, a: 1 / math.sqrt(x),
    "erf": lambda x, a: math.erf(x),
    "sin": lambda x, a: math.sin(x),
    "cos": lambda x, a: math.cos(x),
    "abs": lambda x, a: abs(x),
    "neg": lambda x, a: -x,
    "floor": lambda x, a: math.floor(x),
    "ceil": lambda x, a: math.ceil(x),
    "round": lambda x, a: round(x),
    "sign": lambda x, a: (x > 0) - (x < 0),
    "reciprocal": lambda x, a: 1 / x,
    "isnan": lambda x, a: x != x,
    "isinf": lambda x, a: math.isinf(x),
    "tan": lambda x, a: math.tan(x),
    "asin": lambda x, a: math.asin(x),
    "acos": lambda x, a: math.acos(x),
    "atan": lambda x, a: math.atan(x),
    "sinh": lambda x, a: math.sinh(x),
    "cosh": lambda x, a: math.cosh(x),
    "asinh": lambda x, a: math.asinh(x),
    "acosh": lambda x, a: math.acosh(x),
    "atanh": lambda x, a: math.atanh(x),
    "hard_sigmoid": lambda x, a: max(0.0, min(1.0, a * x + 0.5)),
    "selu": lambda x, a: 1.0507010221481323 * (x if x > 0 else 1.6732631921768188 * (math.exp(x) - 1)),
    "celu": lambda x, a: max(0.0, x) + min(0.0, a * (math.exp(x / a) - 1)),
    "softsign": lambda x, a: x / (1 + abs(x)),
    "thresholded_relu": lambda x, a: x if x > a else 0.0,
}
DOMAIN: dict[str, Callable[[float], bool]] = {
    "log": lambda x: x > 0, "rsqrt": lambda x: x > 0, "reciprocal": lambda x: x != 0, "sqrt": lambda x: x >= 0,
    "asin": lambda x: abs(x) <= 1, "acos": lambda x: abs(x) <= 1, "acosh": lambda x: x >= 1,
    "atanh": lambda x: abs(x) < 1,
}  # fmt: skip
"""Where Python's function has a value."""


@pytest.mark.parametrize("name", SCALAR)
def test_each_activation_is_its_formula(evaluate: Any, name: str) -> None:
    """Elementwise functions agree with Python's math wherever it is defined."""
    x = np.array([v for v in SAMPLES if name not in DOMAIN or DOMAIN[name](v)])
    (y,) = evaluate(f"ACT.{name}", x.shape, x)
    expected = [SCALAR[name](v, ACTIVATIONS[name].alpha) for v in x.tolist()]
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)


def test_every_activation_has_been_compared() -> None:
    """The table above leaves out none but `not`, which has a test of its own."""
    assert set(SCALAR) | {"not"} == set(ACTIVATIONS)


@pytest.mark.parametrize(("alpha", "expected"), [(None, -0.02), (0.0, 0.0), (0.5, -1.0)])
def test_leaky_relu_has_a_slope_of_its_own(evaluate: Any, alpha: float | None, expected: float) -> None:
    """Without alpha it is 0.01; a written 0 means 0."""
    (y,) = evaluate("ACT.leaky_relu", (1,), np.array([-2.0]), alpha=alpha)
    assert y.item() == pytest.approx(expected)


def test_elu_has_an_alpha_of_its_own(evaluate: Any) -> None:
    """Without alpha it is 1; with it, the limit at -infinity is -alpha."""
    (y,) = evaluate("ACT.elu", (1,), np.array([-np.inf]))
    assert y.item() == -1
    (y,) = evaluate("ACT.elu", (1,), np.array([-np.inf]), alpha=2.0)
    assert y.item() == -2


@pytest.mark.parametrize(
    ("name", "alpha", "x", "expected"),
    [
        ("hard_sigmoid", 0.2, [-3.0, -1.0, 4.0], [0, 0.3, 1]),
        ("celu", 2.0, [-np.inf, 3.0], [-2, 3]),
        ("celu", 2.0, [-2.0, -1.0], [2 * math.expm1(-1), 2 * math.expm1(-0.5)]),
        ("thresholded_relu", -1.0, [-2.0, -1.0, -0.5], [0, 0, -0.5]),
        ("thresholded_relu", 0.0, [-2.0, 0.0, 0.5], [0, 0, 0.5]),
    ],
)
def test_alpha_is_what_is_written(
    evaluate: Any, name: str, alpha: float, x: list[float], expected: list[float]
) -> None:
    """Not the function's own, even where it is 0."""
    (y,) = evaluate(f"ACT.{name}", (len(x),), np.array(x), alpha=alpha)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_selu_keeps_mean_and_variance(evaluate: Any, random: np.random.Generator) -> None:
    """The fixed point that its two numbers were made for: normal numbers stay of mean 0 and variance 1."""
    (y,) = evaluate("ACT.selu", (400_000,), random.standard_normal(400_000))
    assert abs(y.mean()) < 0.01
    assert abs(y.var() - 1) < 0.01


def test_questions_of_a_float_give_bools(evaluate: Any) -> None:
    """Whether it is NaN, whether it is infinite: of every kind of number."""
    x = np.array([np.nan, np.inf, -np.inf, 1e308, 0.0])
    assert evaluate("ACT.isnan", (5,), x, dtype=DType.BOOL)[0].tolist() == [True, False, False, False, False]
    assert evaluate("ACT.isinf", (5,), x, dtype=DType.BOOL)[0].tolist() == [False, True, True, False, False]


@pytest.mark.parametrize("name", [n for n in SCALAR if n not in ("isnan", "isinf", "thresholded_relu")])
def test_activations_pass_nan_on(evaluate: Any, name: str) -> None:
    """NaN in, NaN out; never a trap. Only thresholded_relu gives 0, as NaN is not above a threshold."""
    (y,) = evaluate(f"ACT.{name}", (1,), np.array([np.nan]))
    assert np.isnan(y).all()


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("log", -1.0, np.nan),
        ("log", 0.0, -np.inf),
        ("sqrt", -1.0, np.nan),
        ("reciprocal", 0.0, np.inf),
        ("rsqrt", 0.0, np.inf),
        ("asin", 1.5, np.nan),
        ("acosh", 0.5, np.nan),
        ("atanh", -1.0, -np.inf),
        ("atanh", 2.0, np.nan),
        ("tan", np.inf, np.nan),
    ],
)
def test_outside_their_domain_activations_follow_ieee(evaluate: Any, name: str, x: float, expected: float) -> None:
    """log(0) is -infinity and sqrt(-1) is NaN, without warnings."""
    (y,) = evaluate(f"ACT.{name}", (1,), np.array([x]))
    np.testing.assert_array_equal(y, [expected])


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "mish", "gelu", "silu"])
def test_smooth_activations_do_not_overflow(evaluate: Any, name: str) -> None:
    """Arguments of +-1000 give the limits."""
    (y,) = evaluate(f"ACT.{name}", (2,), np.array([-1000.0, 1000.0]))
    np.testing.assert_allclose(y, [0, 1 if name == "sigmoid" else 1000], atol=1e-300)


def test_not_is_logical_for_bools_and_bitwise_for_integers(evaluate: Any) -> None:
    """Both kinds of not."""
    assert evaluate("ACT.not", (2,), np.array([True, False]), dtype=DType.BOOL)[0].tolist() == [False, True]
    (y,) = evaluate("ACT.not", (2,), np.array([0, 5]), dtype=DType.U8)
    assert convert(y, DType.U8).tolist() == [255, 250]


PAIRS = [(7, 2), (-7, 2), (7, -2), (-7, -2), (0, 3), (5, 5)]


def _truncated(a: float, b: float) -> int:
    return math.trunc(a / b)


@pytest.mark.parametrize("pair", PAIRS)
def test_integer_division_truncates_and_modulo_follows_the_divisor(evaluate: Any, pair: tuple[int, int]) -> None:
    """-7 / 2 is -3 and -7 mod 2 is 1."""
    a, b = (np.array([v]) for v in pair)
    assert evaluate("EW.div", (1,), a, b, dtype=DType.I32)[0].item() == _truncated(*pair)
    assert evaluate("EW.mod", (1,), a, b, dtype=DType.I32)[0].item() == pair[0] % pair[1]


def test_the_smallest_integer_divided_by_minus_one_wraps(evaluate: Any) -> None:
    """-2**63 / -1 does not fit, and wraps as every integer operation does."""
    (y,) = evaluate("EW.div", (1,), np.array([-(2**63)]), np.array([-1]), dtype=DType.I64)
    assert y.tolist() == [-(2**63)]


@pytest.mark.parametrize("sub", ["div", "mod"])
def test_integer_division_by_zero_traps(evaluate: Any, sub: str) -> None:
    """One zero anywhere in b is enough."""
    with pytest.raises(Trap, match="by zero") as raised:
        evaluate(f"EW.{sub}", (2,), np.array([1, 2]), np.array([1, 0]), dtype=DType.I32)
    assert raised.value.category == "arithmetic"


def test_a_negative_integer_power_traps(evaluate: Any) -> None:
    """2 ** -1 is no integer."""
    with pytest.raises(Trap, match="negative exponent") as raised:
        evaluate("EW.pow", (1,), np.array([2]), np.array([-1]), dtype=DType.I32)
    assert raised.value.category == "arithmetic"


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "min": min, "max": max,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("sub", ARITHMETIC)
def test_binary_functions_broadcast(evaluate: Any, random: np.random.Generator, sub: str) -> None:
    """A column with a row gives every combination, for integers and floats."""
    for column, row in (
        (random.integers(-9, 9, (4, 1)), random.integers(-9, 9, 3)),
        (random.standard_normal((4, 1)), random.standard_normal(3)),
    ):
        dtype = DType.BOOL if sub in ("eq", "ne", "lt", "le", "gt", "ge") else DType.I64
        (y,) = evaluate(f"EW.{sub}", (4, 3), column, row, dtype=dtype)
        for i, j in np.ndindex(4, 3):
            assert y[i, j] == ARITHMETIC[sub](column[i, 0], row[j])


def test_float_division_and_power_follow_ieee(evaluate: Any) -> None:
    """1 / 0 is infinite, 0 / 0 NaN, and x ** 0 is 1."""
    a, b = np.array([1.0, 0.0, -8.0]), np.array([0.0, 0.0, 2.0])
    np.testing.assert_array_equal(evaluate("EW.div", (3,), a, b)[0], [np.inf, np.nan, -4])
    np.testing.assert_array_equal(evaluate("EW.pow", (3,), a, b)[0], [1, 1, 64])


@pytest.mark.parametrize("sub", ["min", "max"])
def test_min_and_max_pass_nan_on(evaluate: Any, sub: str) -> None:
    """NaN on either side gives NaN."""
    (y,) = evaluate(f"EW.{sub}", (2,), np.array([np.nan, 1.0]), np.array([1.0, np.nan]))
    assert np.isnan(y).all()


@pytest.mark.parametrize("dtype", [*INTS, DType.BOOL], ids=lambda d: d.text)
def test_logic_is_bitwise(evaluate: Any, dtype: DType) -> None:
    """and, or and xor on the type's own bits."""
    a, b = (convert(np.array(v), dtype) for v in ([0, 1, 5, 1], [0, 1, 3, 0]))
    wide = (a, b) if dtype is DType.BOOL else (a.astype(np.int64), b.astype(np.int64))
    for sub, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        assert convert(evaluate(f"EW.{sub}", (4,), *wide, dtype=dtype)[0], dtype).tolist() == function(a, b).tolist()


def fold(sub: str, values: list[float]) -> float:
    """A fold by the definition in the row."""
    if sub in ("argmax", "argmin"):
        target = max(values) if sub == "argmax" else min(values)
        return values.index(target)
    return {
        "sum": lambda: math.fsum(values), "mean": lambda: math.fsum(values) / len(values), "max": lambda: max(values),
        "min": lambda: min(values), "prod": lambda: math.prod(values),
        "logsumexp": lambda: math.log(math.fsum(math.exp(v) for v in values)),
        "l2": lambda: math.sqrt(math.fsum(v * v for v in values)),
    }[sub]()  # fmt: skip


FOLDS = ("sum", "mean", "max", "min", "prod", "argmax", "argmin", "logsumexp", "l2")


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("sub", FOLDS)
def test_reduce_folds_the_axes(
    evaluate: Any, random: np.random.Generator, sub: str, axes: tuple[int, ...], keepdims: bool
) -> None:
    """Each element of the result is the fold of the elements that differ along the axes only."""
    if sub.startswith("arg") and len(axes) > 1:
        axes = axes[:1]
    x = random.standard_normal((3, 4, 2))
    shape = tuple(1 if k in axes else n for k, n in enumerate(x.shape))
    out = shape if keepdims else tuple(n for k, n in enumerate(x.shape) if k not in axes)
    (y,) = evaluate(f"REDUCE.{sub}", out, x, axes=axes, keepdims=keepdims)
    for index in np.ndindex(shape):
        chosen = x[tuple(slice(None) if k in axes else i for k, i in enumerate(index))]
        assert y.reshape(shape)[index] == pytest.approx(fold(sub, chosen.ravel().tolist()), rel=1e-12)


def test_arg_folds_give_the_first_and_count_nan_as_extreme(evaluate: Any) -> None:
    """The first of equals wins, and the first NaN beats everything."""
    x = np.array([[1.0, 3, 3], [2, np.nan, np.nan], [0, 0, 5]])
    assert evaluate("REDUCE.argmax", (3,), x, axes=(1,), dtype=DType.I32)[0].tolist() == [1, 1, 2]
    assert evaluate("REDUCE.argmin", (3,), x, axes=(1,), dtype=DType.I32)[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize("sub", ["max", "min"])
def test_extremes_pass_nan_on(evaluate: Any, sub: str) -> None:
    """One NaN makes the extreme NaN."""
    assert np.isnan(evaluate(f"REDUCE.{sub}", (), np.array([1.0, np.nan, 2]), axes=(0,))[0])


@pytest.mark.parametrize(
    ("sub", "expected"), [("sum", 0), ("prod", 1), ("mean", np.nan), ("l2", 0), ("logsumexp", -np.inf)]
)
def test_folds_of_nothing_give_their_identity(evaluate: Any, sub: str, expected: float) -> None:
    """An empty axis is folded to the stated value."""
    np.testing.assert_array_equal(evaluate(f"REDUCE.{sub}", (2,), np.zeros((2, 0)), axes=(1,))[0], [expected] * 2)


@pytest.mark.parametrize("sub", ["max", "min", "argmax", "argmin"])
def test_extremes_of_nothing_trap(evaluate: Any, sub: str) -> None:
    """There is no largest element of none."""
    with pytest.raises(Trap, match="of no elements") as raised:
        evaluate(f"REDUCE.{sub}", (2,), np.zeros((2, 0)), axes=(1,))
    assert raised.value.category == "extent"


@pytest.mark.parametrize("value", [1000.0, -1000.0, np.inf, -np.inf])
def test_logsumexp_neither_overflows_nor_loses(evaluate: Any, value: float) -> None:
    """Two equal terms give the term plus log(2), infinities themselves."""
    (y,) = evaluate("REDUCE.logsumexp", (), np.array([value, value]), axes=(0,))
    assert y == pytest.approx(value + math.log(2))


@pytest.mark.parametrize("dtype", INTS, ids=lambda d: d.text)
def test_integer_folds_wrap(evaluate: Any, dtype: DType) -> None:
    """A sum beyond the type's range keeps the low bits."""
    limit = int(np.iinfo(dtype.numpy).max)
    (y,) = evaluate("REDUCE.sum", (), np.array([limit, 1]), axes=(0,), dtype=dtype)
    assert convert(y, dtype).item() == np.iinfo(dtype.numpy).min


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b, "prod": lambda a, b: a * b, "max": max, "min": min,
}  # fmt: skip
IDENTITIES = {"sum": 0, "prod": 1, "max": -math.inf, "min": math.inf}


def running(sub: str, values: list[Any], exclusive: bool, reverse: bool, identity: Any) -> list[Any]:
    """A scan, one element after the other."""
    values = values[::-1] if reverse else values
    total, out = identity, []
    for value in values:
        before, total = total, STEPS[sub](total, value)
        out.append(before if exclusive else total)
    return out[::-1] if reverse else out


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("sub", STEPS)
def test_scan_runs_along_its_axis(
    evaluate: Any, random: np.random.Generator, sub: str, exclusive: bool, reverse: bool
) -> None:
    """Each line along the axis is scanned by itself, from either end, with or without the element itself."""
    x = random.standard_normal((3, 5, 2))
    (y,) = evaluate(f"SCAN.{sub}", x.shape, x, axis=1, exclusive=exclusive, reverse=reverse)
    for i, j in np.ndindex(3, 2):
        expected = running(sub, x[i, :, j].tolist(), exclusive, reverse, IDENTITIES[sub])
        np.testing.assert_allclose(y[i, :, j], expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (1,)])
@pytest.mark.parametrize("exclusive", [False, True])
def test_scan_of_empty_and_single_lines(evaluate: Any, shape: tuple[int, ...], exclusive: bool) -> None:
    """Nothing gives nothing, one element itself or the identity."""
    (y,) = evaluate("SCAN.sum", shape, np.ones(shape), axis=0, exclusive=exclusive)
    assert np.all(y == (0 if exclusive else 1))


def test_an_exclusive_integer_maximum_begins_at_the_types_limit(evaluate: Any) -> None:
    """The identity of max over i8 is -128, of min over u8 255."""
    x = np.array([3, 5])
    assert evaluate("SCAN.max", (2,), x, axis=0, exclusive=True, dtype=DType.I8)[0].tolist() == [-128, 3]
    assert evaluate("SCAN.min", (2,), x, axis=0, exclusive=True, dtype=DType.U8)[0].tolist() == [255, 3]
