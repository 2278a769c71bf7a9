"""tf32 as a mode of products: which bits are kept, and that the bound covers what machines may do instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dla.isa import math_mode
from dla.isa.dtypes import Array, DType
from dla.isa.instructions import BY_MNEMONIC

BIT = 2.0**-10
"""Of tf32: the distance of its neighbours at 1."""


@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (0.0, 0.0),
        (1 + 0.25 * BIT, 1.0),
        (1 + 0.5 * BIT, 1 + BIT),
        (-1 - 0.5 * BIT, -1 - BIT),
        (1 + 1.5 * BIT, 1 + 2 * BIT),
        (1 + 0.75 * BIT, 1 + BIT),
        (2 - 2.0**-23, 2.0),
        (float(np.finfo(np.float32).max), (2 - BIT) * 2.0**127),
        (-float(np.finfo(np.float32).max), -(2 - BIT) * 2.0**127),
        (np.inf, np.inf),
        (-np.inf, -np.inf),
        (np.nan, np.nan),
    ],
)
def test_operands_are_rounded_to_nearest_ties_away_from_zero(value: float, expected: float, wide: type[Any]) -> None:
    """To 10 explicit bits, whatever type the accumulator has; nothing finite becomes infinite."""
    rounded = math_mode.operand(np.array([value], wide), "tf32")
    assert rounded.dtype == wide
    np.testing.assert_array_equal(rounded, [expected])
    np.testing.assert_array_equal(math_mode.operand(np.array([value], wide), "exact"), np.array([value], wide))


def test_views_of_any_strides_are_rounded(random: np.random.Generator) -> None:
    """The semantics of rows see transposed and broadcast operands."""
    values = random.standard_normal((3, 4))
    np.testing.assert_array_equal(math_mode.operand(values.T, "tf32"), math_mode.operand(values, "tf32").T)
    wide = np.broadcast_to(values[:, None], (3, 2, 4))
    np.testing.assert_array_equal(math_mode.operand(wide, "tf32")[:, 1], math_mode.operand(values, "tf32"))


def truncated(values: Array) -> Array:
    """What a tensor core sees that ignores the low bits."""
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(values.dtype)


@pytest.mark.parametrize("terms", [1, 3, 64, 1000])
@pytest.mark.parametrize("machine", [truncated, lambda values: values], ids=["truncates", "computes exactly"])
def test_the_bound_covers_machines_that_do_not_round(
    evaluate: Any, random: np.random.Generator, terms: int, machine: Any
) -> None:
    """Whatever the operands; all of one sign, so that errors add up."""
    a, b = (np.abs(random.standard_normal(s)).astype(np.float32).astype(np.float64) for s in ((8, terms), (terms, 9)))
    (y,) = evaluate("GEMM", (8, 9), a, b, math="tf32")
    (other,) = evaluate("GEMM", (8, 9), machine(a), machine(b))
    row = BY_MNEMONIC["GEMM"]
    operands = dict.fromkeys(o.name for o in row.inputs) | {"a": a, "b": b}
    allowed = row.error.tolerance(y, DType.F32, operands, row.with_defaults({"math": "tf32"}) | {"sub": ""})
    assert np.all(np.abs(other - y) <= allowed)


def test_a_convolution_is_the_product_of_rounded_operands(evaluate: Any, random: np.random.Generator) -> None:
    """Both of them, and nothing else: bias is added as it is."""
    x, w, bias = (random.standard_normal(s).astype(np.float32) for s in ((2, 6, 5, 4), (6, 3, 2, 4), (6,)))
    steps = {"steps": ("bias",)}
    (y,) = evaluate("CONV", (2, 4, 4, 6), x, w, bias, math="tf32", **steps)
    (expected,) = evaluate("CONV", (2, 4, 4, 6), *(math_mode.operand(v, "tf32") for v in (x, w)), bias, **steps)
    np.testing.assert_array_equal(y, expected)
