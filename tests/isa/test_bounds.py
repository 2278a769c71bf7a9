"""Error bounds: f32 arithmetic stays within them, gross errors do not, and the accumulator's type is respected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dla.isa.activations import ACTIVATIONS, QUESTIONS
from dla.isa.bounds import EXACT, storage_roundoff
from dla.isa.dtypes import FLOATS, Array, DType, convert, ulp
from dla.isa.instructions import BY_MNEMONIC, attention
from dla.isa.ranks import Member
from dla.isa.table import Out, result_arrays

Case = tuple[str, tuple[int, ...], tuple[tuple[int, ...] | None, ...], dict[str, Any]]
_IMAGE, _KERNEL = (2, 6, 5, 4), (6, 3, 2, 2)

CASES: list[Case] = [
    *((f"ACT.{name}", (50,), ((50,),), {}) for name in ACTIVATIONS if name not in ("not", *QUESTIONS)),
    *((f"EW.{name}", (9, 8), ((9, 1), (8,)), {}) for name in ("add", "sub", "mul", "div", "min", "max", "pow", "mod")),
    *((f"REDUCE.{name}", (7,), ((7, 40),), {"axes": (1,)})
      for name in ("sum", "mean", "max", "min", "prod", "logsumexp", "l2")),
    *((f"SCAN.{name}", (7, 40), ((7, 40),), {"axis": 1, "reverse": True}) for name in ("sum", "prod", "max", "min")),
    ("GEMM", (3, 5, 6), ((3, 5, 70), (70, 6), (6,)), {"alpha": 0.5, "beta": 3.0}),
    ("GEMM", (5, 6), ((5, 70), (70, 6), None, (6,), (5, 6), (1, 6)),
     {"steps": ("bias", "act", "residual", "gate"), "act": "gelu"}),
    ("GEMM", (5, 6), ((5, 70), (70, 6)), {"steps": ("act", "clamp"), "act": "exp", "clamp_high": 4.0}),
    ("GEMM.glu", (5, 6), ((5, 70), (70, 12)), {"alpha": 0.5}),
    ("GEMM.glu", (5, 6), ((5, 70), (70, 12), None, (6,), (5, 6)), {"unit": "silu", "steps": ("bias", "residual")}),
    ("GEMM", (5, 6), ((5, 70), (70, 6), (6,)), {"alpha": 0.5, "beta": 3.0, "math": "tf32"}),
    ("CONV", (2, 4, 6, 6), (_IMAGE, _KERNEL), {"groups": 2, "pads": (0, 1, 0, 1), "math": "tf32"}),
    ("CONV", (2, 4, 6, 6), (_IMAGE, _KERNEL), {"groups": 2, "pads": (0, 1, 0, 1)}),
    ("CONV", (2, 9, 12, 6), (_IMAGE, _KERNEL), {"groups": 2, "gaps": (1, 2)}),
    ("POOL.max", (2, 3, 2, 4), (_IMAGE,), {"window": (2, 2), "strides": (2, 2)}),
    ("POOL.avg", (2, 3, 2, 4), (_IMAGE,), {"window": (2, 2), "strides": (2, 2)}),
    ("POOL.global_avg", (2, 1, 1, 4), (_IMAGE,), {}),
    ("NORM.layer", (9, 33), ((9, 33), (33,), (33,)), {}),
    ("NORM.rms", (9, 33), ((9, 33), (33,)), {}),
    ("NORM.group", _IMAGE, (_IMAGE, (4,), (4,)), {"groups": 2}),
    ("SOFTMAX", (9, 33), ((9, 33),), {"axis": 1}),
    ("SOFTMAX.log", (9, 33), ((9, 33),), {"axis": 0}),
    ("ATTENTION", (1, 4, 6, 8), ((1, 4, 6, 16), (1, 2, 9, 16), (1, 2, 9, 8)), {"causal": True, "softcap": 5.0}),
    ("ATTENTION", (1, 4, 6, 8), ((1, 4, 6, 16), (1, 1, 9, 16), (1, 1, 9, 8), (6, 9)), {"window": 3}),
    ("ROPE", (2, 6, 9), ((2, 6, 9), (6, 4), (6, 4)), {"interleaved": True}),
    ("ROPE", (2, 6, 9), ((2, 6, 9), (6, 4), (6, 4)), {}),
    ("ROPE", (2, 6, 9), ((2, 6, 9), (2, 6, 4), (1, 6, 4)), {}),
    ("RNN.lstm", (9, 5), ((9, 20), (9, 5)), {}),
    ("RNN.gru", (9, 5), ((9, 15), None, (9, 15), (9, 5)), {}),
    *((f"SCATTER.{name}", (9, 8), ((9, 8), (70, 8), (70, 8)), {}) for name in ("add", "mul", "max")),
    ("RESIZE", (4, 7, 3), ((4, 9, 3), (7, 4), (7, 4)), {"axis": 1}),
    *((f"ALLREDUCE.{name}", (5, 6), ((8, 5, 6),), {"group": Member(1, 8)})
      for name in ("sum", "mean", "max", "min", "prod")),
    *((f"REDUCESCATTER.{name}", (5, 6), ((8, 8, 5, 6),), {"group": Member(1, 8)})
      for name in ("sum", "mean", "max", "min", "prod")),
]  # fmt: skip
WITH_CASES = pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])


def arguments(case: Case, random: np.random.Generator, wide: type[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random operands, exact in f32, as arrays of type `wide`; and all attributes."""
    name, _, shapes, given = case
    mnemonic, _, sub = name.partition(".")
    row = BY_MNEMONIC[mnemonic]
    operands: dict[str, Any] = dict.fromkeys(o.name for o in row.inputs)
    for operand, shape in zip(row.inputs, shapes, strict=False):
        if shape is not None:
            values = np.asarray(random.standard_normal(shape)).astype(np.float32)
            operands[operand.name] = np.abs(values).astype(wide) if sub in ("pow", "log") else values.astype(wide)
            if operand.name == "indices":
                operands[operand.name] = random.integers(0, 5, shape)
    attributes = row.with_defaults(given) | ({"sub": sub or row.default_sub} if row.subs else {})
    return operands, attributes


def evaluated(case: Case, wide: type[Any]) -> tuple[tuple[Array, ...], dict[str, Any], dict[str, Any]]:
    """Results of one case with accumulator `wide`, and its arguments."""
    operands, attributes = arguments(case, np.random.default_rng(3), wide)
    row = BY_MNEMONIC[case[0].partition(".")[0]]
    assert row.semantics is not None
    results = result_arrays(row, row.semantics(Out(case[1], DType.F32), **operands, **attributes))
    return tuple(r for r in results if r is not None), operands, attributes


def tolerance(case: Case, reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
    """The row's tolerance for an f32 result."""
    row = BY_MNEMONIC[case[0].partition(".")[0]]
    return np.broadcast_to(row.error.tolerance(reference, DType.F32, operands, attributes), reference.shape)


@WITH_CASES
def test_f32_arithmetic_stays_within_the_bound(case: Case) -> None:
    """The same semantics with an f32 accumulator differs from f64 by no more than the bound."""
    exact, operands, attributes = evaluated(case, np.float64)
    single, *_ = evaluated(case, np.float32)
    for reference, got in zip(exact, single, strict=True):
        allowed = tolerance(case, reference, operands, attributes)
        finite = np.isfinite(reference)
        assert np.all(np.abs(got.astype(np.float64) - reference)[finite] <= allowed[finite])


@WITH_CASES
def test_the_bound_catches_an_error_of_one_part_in_a_hundred(case: Case) -> None:
    """A result that is off by 1 % of the largest element is outside the bound somewhere."""
    exact, operands, attributes = evaluated(case, np.float64)
    for reference in exact:
        finite = reference[np.isfinite(reference)]
        allowed = tolerance(case, reference, operands, attributes)[np.isfinite(reference)]
        assert np.any(allowed < 0.01 * np.max(np.abs(finite)))


@WITH_CASES
def test_semantics_keep_the_accumulators_type(case: Case) -> None:
    """f32 in, f32 out: nothing is widened or narrowed on the way."""
    for wide in (np.float32, np.float64):
        assert [r.dtype for r in evaluated(case, wide)[0]] == [np.dtype(wide)] * len(evaluated(case, wide)[0])


@pytest.mark.parametrize(("stored", "allowed"), [(DType.BF16, True), (DType.F32, False)], ids=["bf16", "f32"])
def test_probabilities_may_be_rounded_to_the_type_of_the_values(stored: DType, allowed: bool) -> None:
    """A machine may feed bf16 tensor cores with bf16 probabilities, but not where v is f32."""
    case = ("ATTENTION", (1, 4, 6, 8), ((1, 4, 6, 16), (1, 4, 9, 16), (1, 4, 9, 8)), {})
    operands, attributes = arguments(case, np.random.default_rng(5), np.float64)
    operands = {n: None if x is None else convert(x, stored).astype(np.float64) for n, x in operands.items()}
    row = BY_MNEMONIC["ATTENTION"]
    assert row.semantics is not None
    exact = row.semantics(Out(case[1], DType.F32), **operands, **attributes)[0]
    options = attention.Options(1 / 4, False, None, 0, 0.0)
    p, _ = attention.probabilities(attention.scores(operands["q"], operands["k"], None, options))
    rounded = np.matmul(convert(p, DType.BF16).astype(np.float64), operands["v"])
    error = np.abs(rounded - exact)
    assert bool(np.all(error <= tolerance(case, exact, operands, attributes))) is allowed


@pytest.mark.parametrize("mnemonic", ["COPY", "FILL", "PAD", "GATHER", "SELECT", "TOPK"])
def test_moves_are_bit_equal(mnemonic: str) -> None:
    """Rows that only move values allow no error at all."""
    assert BY_MNEMONIC[mnemonic].error is EXACT
    assert not EXACT.tolerance(np.ones(3), DType.F32, {}, {}).any()


def test_integers_are_always_equal() -> None:
    """A row's bound says nothing about integer results."""
    row = BY_MNEMONIC["REDUCE"]
    operands, attributes = {"x": np.ones((2, 3))}, {"sub": "sum", "axes": (1,)}
    assert not row.error.tolerance(np.ones(2), DType.I32, operands, attributes).any()
    assert row.error.tolerance(np.ones(2), DType.F32, operands, attributes).all()


def test_a_bound_that_is_not_finite_allows_one_rounding_only() -> None:
    """An infinite operand does not excuse every finite result."""
    operands, attributes = {"x": np.array([[np.inf, 1.0]])}, {"sub": "sum", "axes": (1,)}
    allowed = BY_MNEMONIC["REDUCE"].error.tolerance(np.array([np.inf]), DType.F32, operands, attributes)
    assert np.isfinite(allowed).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.text)
@pytest.mark.parametrize("value", [1.0, 1.5, -2.0, 3e-3, 1e4])
def test_an_ulp_is_the_distance_to_the_next_number(dtype: DType, value: float) -> None:
    """Adding half of one rounds to a neighbour or back; adding one gives a neighbour."""
    x = np.float64(convert(np.asarray(value), dtype))
    step = float(ulp(np.asarray(x), dtype))
    up = np.float64(convert(np.asarray(x + step), dtype))
    assert up == x + step
    assert np.float64(convert(np.asarray(x + step / 4), dtype)) == x


def test_a_result_below_the_normal_numbers_may_be_flushed() -> None:
    """0 is within the tolerance of every subnormal f32, but not of the smallest normal one twice over."""
    row = BY_MNEMONIC["EW"]
    operands, attributes = {"a": np.ones(2), "b": np.ones(2)}, {"sub": "mul"}
    allowed = row.error.tolerance(np.array([2.0**-127, 2.0**-125]), DType.F32, operands, attributes)
    assert allowed[0] >= 2.0**-127
    assert allowed[1] < 2.0**-125


def test_below_the_normal_numbers_an_ulp_stays_that_of_the_smallest() -> None:
    """From the smallest normal number down to 0 the spacing of floats does not change."""
    assert ulp(np.asarray(0.0), DType.F32) == 2.0**-149
    assert ulp(np.asarray(1e-45), DType.F32) == ulp(np.asarray(2.0**-126), DType.F32)


def test_the_storage_roundoff_is_that_of_the_narrowest_type_that_fits() -> None:
    """bf16 before f16 before f32; NaN and infinity do not matter."""
    random = np.random.default_rng(0)
    x = random.standard_normal(100)
    assert storage_roundoff(convert(x, DType.BF16).astype(np.float64)) == 2.0**-8
    assert storage_roundoff(convert(x, DType.F16).astype(np.float64)) == 2.0**-11
    assert storage_roundoff(convert(x, DType.F32).astype(np.float64)) == 0.0
    assert storage_roundoff(np.array([1 + 2.0**-10, np.inf, np.nan])) == 2.0**-11
