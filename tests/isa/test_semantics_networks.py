"""What GEMM, NORM, SOFTMAX, ATTENTION and ROPE mean, against loops over single elements."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dla.isa.dtypes import Array, DType
from dla.isa.instructions.gemm import UNITS


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 1)), ((3, 0), (0, 2))]
)
def test_a_matrix_product_is_batched_and_scaled(
    evaluate: Any, random: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    """Alpha * a @ b + beta * c, element by element, with leading axes broadcast."""
    left, right = random.standard_normal(a), random.standard_normal(b)
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    out = (*batch, a[-2], b[-1])
    c = random.standard_normal(b[-1])
    (y,) = evaluate("GEMM", out, left, right, c, alpha=0.5, beta=-2.0)
    wide_left, wide_right = np.broadcast_to(left, (*batch, *a[-2:])), np.broadcast_to(right, (*batch, *b[-2:]))
    for *n, i, j in np.ndindex(out):
        total = sum(float(wide_left[(*n, i, k)] * wide_right[(*n, k, j)]) for k in range(a[-1]))
        assert y[(*n, i, j)] == pytest.approx(0.5 * total - 2 * c[j], rel=1e-10)


def test_an_integer_product_is_exact(evaluate: Any) -> None:
    """8-bit products accumulate in integers."""
    (y,) = evaluate("GEMM", (1, 1), np.full((1, 4), 127), np.full((4, 1), -128), dtype=DType.I32)
    assert y.item() == -4 * 127 * 128


UNIT: dict[str, Callable[[float], float]] = {
    "identity": lambda x: x,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
}


@pytest.mark.parametrize("unit", UNIT)
def test_a_gated_linear_unit_multiplies_neighbouring_columns(
    evaluate: Any, random: np.random.Generator, unit: str
) -> None:
    """Column 2 j, scaled by alpha and through the unit, times column 2 j + 1, scaled; then the epilogue."""
    assert set(UNIT) == set(UNITS)
    a, b = random.standard_normal((2, 1, 3, 4)), random.standard_normal((5, 4, 6))
    bias = random.standard_normal(3)
    (y,) = evaluate("GEMM.glu", (2, 5, 3, 3), a, b, None, bias, alpha=-0.5, unit=unit, steps=("bias",))
    for n, m, i, j in np.ndindex(2, 5, 3, 3):
        first, second = (-0.5 * float(a[n, 0, i] @ b[m, :, 2 * j + k]) for k in range(2))
        assert y[n, m, i, j] == pytest.approx(UNIT[unit](first) * second + bias[j], rel=1e-10, abs=1e-13)


def test_a_gated_linear_unit_without_depth_or_columns(evaluate: Any) -> None:
    """An empty sum is 0, and no columns give no columns."""
    (y,) = evaluate("GEMM.glu", (2, 3), np.empty((2, 0)), np.empty((0, 6)), unit="sigmoid")
    assert y.tolist() == np.zeros((2, 3)).tolist()
    assert evaluate("GEMM.glu", (2, 0), np.ones((2, 4)), np.empty((4, 0)))[0].shape == (2, 0)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (("bias", "act"), 3.0), (("act", "bias"), 3.0), (("gate",), 4.0), (("residual", "gate"), 14.0),
        (("gate", "residual"), 9.0), (("bias", "act", "residual", "gate"), 16.0), (("clamp",), 1.5),
        (("bias", "clamp", "residual"), 6.5),
    ],
)  # fmt: skip
def test_epilogue_steps_run_in_the_order_written(evaluate: Any, steps: tuple[str, ...], expected: float) -> None:
    """The accumulator 2 goes through bias + 1, relu, residual + 5, gate * 2, and the clamp to [-1, 1.5]."""
    bias, residual, gate = (
        np.array([v]) if s in steps else None for v, s in ((1.0, "bias"), (5.0, "residual"), (2.0, "gate"))
    )
    (y,) = evaluate("GEMM", (1, 1), np.array([[2.0]]), np.array([[1.0]]), None, bias, residual, gate, steps=steps,
                    act="relu" if "act" in steps else "identity", clamp_low=-1.0, clamp_high=1.5)  # fmt: skip
    assert y.item() == expected


@pytest.mark.parametrize(("alpha", "expected"), [(None, -0.02), (0.5, -1.0)])
def test_an_epilogue_activation_has_the_alpha_of_its_kind(evaluate: Any, alpha: float | None, expected: float) -> None:
    """leaky_relu without act_alpha has slope 0.01, as in ACT."""
    (y,) = evaluate(
        "GEMM", (1, 1), np.array([[-2.0]]), np.array([[1.0]]), steps=("act",), act="leaky_relu", act_alpha=alpha
    )
    assert y.item() == pytest.approx(expected)


def test_a_clamp_keeps_nan(evaluate: Any) -> None:
    """NaN stays NaN, in place of becoming a limit."""
    (y,) = evaluate(
        "GEMM", (1, 1), np.array([[np.nan]]), np.array([[1.0]]), steps=("clamp",), clamp_low=0.0, clamp_high=1.0
    )
    assert np.isnan(y.item())


def normalised(values: list[float], centred: bool, eps: float) -> list[float]:
    """One row by the textbook."""
    mean = math.fsum(values) / len(values) if centred else 0.0
    power = math.fsum((v - mean) ** 2 for v in values) / len(values)
    return [(v - mean) / math.sqrt(power + eps) for v in values]


@pytest.mark.parametrize("sub", ["layer", "rms"])
def test_row_norms_normalise_each_row(evaluate: Any, random: np.random.Generator, sub: str) -> None:
    """Each row by itself, then gain and bias per element of it."""
    x, gain, bias = random.standard_normal((3, 2, 5)) + 2, random.standard_normal(5), random.standard_normal(5)
    (y,) = evaluate(f"NORM.{sub}", x.shape, x, gain, bias, eps=0.1)
    for i, j in np.ndindex(3, 2):
        expected = np.array(normalised(x[i, j].tolist(), sub == "layer", float(np.float32(0.1)))) * gain + bias
        np.testing.assert_allclose(y[i, j], expected, rtol=1e-6)


def test_batch_norm_uses_the_given_statistics(evaluate: Any, random: np.random.Generator) -> None:
    """(x - mean) / sqrt(var + eps) * gain + bias, per channel."""
    x = random.standard_normal((2, 3, 4))
    gain, bias, mean = random.standard_normal((3, 4))
    var = random.random(4)
    (y,) = evaluate("NORM.batch", x.shape, x, gain, bias, mean, var, eps=0.0)
    for *n, c in np.ndindex(x.shape):
        assert y[(*n, c)] == pytest.approx((x[(*n, c)] - mean[c]) / math.sqrt(var[c]) * gain[c] + bias[c])


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", [(2, 3, 2, 6), (2, 5, 6), (2, 6)])
def test_group_norm_normalises_neighbouring_channels_over_positions(
    evaluate: Any, random: np.random.Generator, shape: tuple[int, ...], groups: int
) -> None:
    """Each sample and group of channels has one mean and variance."""
    x = random.standard_normal(shape)
    (y,) = evaluate("NORM.group", shape, x, groups=groups, eps=0.5)
    size = shape[-1] // groups
    for n, g in np.ndindex(shape[0], groups):
        part = x[n, ..., g * size : (g + 1) * size]
        expected = np.array(normalised(part.ravel().tolist(), True, 0.5)).reshape(part.shape)
        np.testing.assert_allclose(y[n, ..., g * size : (g + 1) * size], expected, rtol=1e-9)


@pytest.mark.parametrize("sub", ["layer", "rms", "group"])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4)])
def test_norms_of_nothing_are_nothing(evaluate: Any, sub: str, shape: tuple[int, ...]) -> None:
    """An empty tensor stays empty, without warnings."""
    (y,) = evaluate(f"NORM.{sub}", shape, np.ones(shape), groups=1 if sub == "group" else 0)
    assert y.size == 0


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_and_its_logarithm_run_along_the_axis(evaluate: Any, random: np.random.Generator, axis: int) -> None:
    """exp(x) / sum(exp(x)) for each line along the axis."""
    x = 3 * random.standard_normal((2, 3, 4))
    (soft,) = evaluate("SOFTMAX", x.shape, x, axis=axis)
    (log,) = evaluate("SOFTMAX.log", x.shape, x, axis=axis)
    for index in np.ndindex(x.shape):
        line = x[tuple(slice(None) if k == axis else i for k, i in enumerate(index))]
        expected = math.exp(x[index]) / math.fsum(math.exp(v) for v in line)
        assert soft[index] == pytest.approx(expected)
        assert log[index] == pytest.approx(math.log(expected))


def test_softmax_survives_large_logits_and_masks(evaluate: Any) -> None:
    """No overflow at 1e5; -infinity is probability 0; a fully masked row is 0, its logarithm -infinity."""
    inf = np.inf
    x = np.array([[1e5, 1e5, -inf], [-inf, -inf, -inf]])
    assert evaluate("SOFTMAX", (2, 3), x, axis=1)[0].tolist() == [[0.5, 0.5, 0], [0, 0, 0]]
    np.testing.assert_allclose(evaluate("SOFTMAX.log", (2, 3), x, axis=1)[0], [[-math.log(2)] * 2 + [-inf], [-inf] * 3])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_softmax_of_nan_or_infinity_is_nan(evaluate: Any, bad: float) -> None:
    """The row has no meaning; the other rows do."""
    (y,) = evaluate("SOFTMAX", (2, 2), np.array([[bad, 0], [0, 0]]), axis=1)
    assert np.isnan(y[0]).all()
    assert y[1].tolist() == [0.5, 0.5]


def attend(
    q: Array, k: Array, v: Array, *, mask: Array | None = None, scale: float = 0.0, causal: bool = False,
    position: int | None = None, window: int = 0, softcap: float = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """Attention by the definition in the row: one query, one key at a time."""
    batch, heads, queries, depth = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    position = keys - queries if position is None else position
    out, lse = np.zeros((batch, heads, queries, v.shape[-1])), np.full((batch, heads, queries), -np.inf)
    for b, h, i in np.ndindex(batch, heads, queries):
        logits = {}
        for t in range(keys):
            s = math.fsum((q[b, h, i] * k[b, h // group, t]).tolist()) * (scale or 1 / math.sqrt(depth))
            s = softcap * math.tanh(s / softcap) if softcap else s
            seen = not (causal and t > i + position) and not (window and t <= i + position - window)
            if mask is not None:
                m = np.broadcast_to(mask, (batch, heads, queries, keys))[b, h, i, t]
                seen, s = (seen and bool(m), s) if mask.dtype == bool else (seen, s + float(m))
            if seen:
                logits[t] = s
        total = math.fsum(math.exp(s) for s in logits.values())
        for t, s in logits.items():
            out[b, h, i] += math.exp(s) / total * v[b, h // group, t]
        if logits:
            lse[b, h, i] = math.log(total)
    return out, lse


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": 0.25},
    "causal": {"causal": True},
    "causal at the start": {"causal": True, "position": 0},
    "nothing seen": {"causal": True, "position": -2},
    "windowed": {"causal": True, "window": 2},
    "window without causal": {"window": 3, "position": 1},
    "capped": {"softcap": 0.5},
    "everything": {"scale": 2.0, "causal": True, "position": 1, "window": 2, "softcap": 3.0},
}


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=["multi-head", "grouped", "multi-query"])
@pytest.mark.parametrize("name", OPTIONS)
def test_attention_is_its_definition(
    evaluate: Any, random: np.random.Generator, name: str, heads: tuple[int, int]
) -> None:
    """Every option alone and together, for every way of sharing key heads."""
    q, k, v = (random.standard_normal(s) for s in ((2, heads[0], 3, 4), (2, heads[1], 5, 4), (2, heads[1], 5, 6)))
    y, lse = evaluate("ATTENTION", (2, heads[0], 3, 6), q, k, v, **OPTIONS[name])
    expected, logarithm = attend(q, k, v, **OPTIONS[name])
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lse, logarithm, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (3, 5), (2, 1, 1, 5), (1,)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_attention_masks_broadcast(
    evaluate: Any, random: np.random.Generator, kind: str, shape: tuple[int, ...]
) -> None:
    """A bool mask keeps where it is true; a float mask is added."""
    q, k, v = (random.standard_normal(s) for s in ((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6)))
    mask = random.random(shape) < 0.6 if kind == "bool" else random.standard_normal(shape)
    y, lse = evaluate("ATTENTION", (2, 4, 3, 6), q, k, v, mask, causal=True)
    expected, logarithm = attend(q, k, v, mask=mask, causal=True)
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lse, logarithm, rtol=1e-9, atol=1e-12)


def test_a_query_that_sees_nothing_gives_zero(evaluate: Any) -> None:
    """Masked by position, by mask, or because there are no keys: 0 and -infinity, never NaN."""
    q, v = np.ones((1, 1, 2, 3)), np.ones((1, 1, 4, 2))
    for operands, options in (
        ((q, np.ones((1, 1, 4, 3)), v), {"causal": True, "position": -2}),
        ((q, np.ones((1, 1, 4, 3)), v, np.zeros(4, bool)), {}),
        ((q, np.ones((1, 1, 0, 3)), v[:, :, :0]), {}),
    ):
        y, lse = evaluate("ATTENTION", (1, 1, 2, 2), *operands, **options)
        assert not y.any()
        assert np.isneginf(lse).all()


def test_attention_to_a_growing_cache_is_attention_to_its_filled_part(
    evaluate: Any, random: np.random.Generator
) -> None:
    """Decoding token by token gives the rows of one causal call."""
    q, k, v = (random.standard_normal((1, 2, 5, 4)) for _ in range(3))
    whole, _ = evaluate("ATTENTION", (1, 2, 5, 4), q, k, v, causal=True)
    for t in range(5):
        keys, values = k[:, :, : t + 1], v[:, :, : t + 1]
        one, _ = evaluate("ATTENTION", (1, 2, 1, 4), q[:, :, t : t + 1], keys, values, causal=True)
        np.testing.assert_allclose(one[:, :, 0], whole[:, :, t], rtol=1e-12)


def test_rope_turns_each_sample_by_its_own_table(evaluate: Any, random: np.random.Generator) -> None:
    """Tables have the leading axes of x, or fewer, or axes of size 1."""
    x, angle = random.standard_normal((2, 4, 3, 6)), random.standard_normal((2, 1, 3, 3))
    (y,) = evaluate("ROPE", x.shape, x, np.cos(angle), np.sin(angle))
    for sample in range(2):
        tables = (np.cos(angle[sample, 0]), np.sin(angle[sample, 0]))
        (one,) = evaluate("ROPE", x.shape[1:], x[sample], *tables)
        np.testing.assert_array_equal(y[sample], one)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [0, 1, 3])
def test_rope_rotates_pairs_as_complex_numbers(
    evaluate: Any, random: np.random.Generator, pairs: int, interleaved: bool
) -> None:
    """A + bi times e^(i angle), for halves and for neighbours; the rest is copied."""
    x, angle = random.standard_normal((2, 3, 7)), random.standard_normal((3, pairs))
    (y,) = evaluate("ROPE", x.shape, x, np.cos(angle), np.sin(angle), interleaved=interleaved)
    expected = x.copy()
    for b, s, i in np.ndindex(2, 3, pairs):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
        turned = complex(x[b, s, first], x[b, s, second]) * cmath.exp(1j * angle[s, i])
        expected[b, s, first], expected[b, s, second] = turned.real, turned.imag
    np.testing.assert_allclose(y, expected, rtol=1e-12)
