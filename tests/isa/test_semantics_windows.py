"""What CONV, POOL and RESIZE mean, against loops over every position, tap and channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dla.isa.dtypes import Array, DType
from dla.isa.errors import Trap
from dla.isa.windows import Geometry, slide

# spatial sizes, kernel, strides, dilations, pads [top, left, bottom, right], C, O, groups
CASES = {
    "plain": ((5, 6), (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 3, 4, 1),
    "same": ((5, 6), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 2, 3, 1),
    "asymmetric": ((5, 4), (2, 3), (1, 1), (1, 1), (0, 2, 1, 0), 2, 2, 1),
    "strided": ((7, 8), (3, 2), (2, 3), (1, 1), (1, 0, 0, 1), 2, 3, 1),
    "dilated": ((9, 7), (3, 2), (1, 2), (2, 3), (1, 1, 1, 1), 2, 3, 1),
    "grouped": ((4, 4), (2, 2), (1, 1), (1, 1), (0, 0, 0, 0), 4, 6, 2),
    "depthwise": ((4, 4), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 4, 8, 4),
    "pointwise": ((3, 2), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 5, 2, 1),
    "row": ((9,), (3,), (1, 2), (1, 2), (0, 1, 0, 2), 4, 4, 2),
    "single": ((1,), (1,), (1, 1), (1, 1), (0, 0, 0, 0), 1, 1, 1),
}


def places(case: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    """Strides, dilations, low pads and output size for each spatial axis of a case."""
    sizes, kernel, strides, dilations, pads = case[:5]
    rank = len(sizes)
    strides, dilations, low, high = strides[-rank:], dilations[-rank:], pads[:2][-rank:], pads[2:][-rank:]
    out = tuple(
        (n + a + b - (d * (k - 1) + 1)) // s + 1
        for n, k, s, d, a, b in zip(sizes, kernel, strides, dilations, low, high, strict=True)
    )
    return strides, dilations, low, out


def taps(x: Array, sample: int, position: tuple[int, ...], case: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """(tap, channels there or None in the padding) for each tap of the window at `position`."""
    strides, dilations, low, _ = places(case)
    found = []
    for tap in np.ndindex(case[1]):
        at = tuple(p * s + t * d - a for p, s, t, d, a in zip(position, strides, tap, dilations, low, strict=True))
        inside = all(0 <= i < n for i, n in zip(at, x.shape[1:-1], strict=True))
        found.append((tap, x[(sample, *at)] if inside else None))
    return found


@pytest.mark.parametrize("name", CASES)
def test_convolution_is_the_sum_over_taps_and_channels(evaluate: Any, random: np.random.Generator, name: str) -> None:
    """Each output is the product of its window with its kernel, within its group of channels."""
    case = CASES[name]
    sizes, kernel, strides, dilations, pads, channels, outputs, groups = case
    x = random.standard_normal((2, *sizes, channels))
    w = random.standard_normal((outputs, *kernel, channels // groups))
    size = places(case)[3]
    (y,) = evaluate(
        "CONV", (2, *size, outputs), x, w, strides=strides, dilations=dilations, pads=pads, groups=groups
    )  # fmt: skip
    for sample, *position, o in np.ndindex(2, *size, outputs):
        first = o // (outputs // groups) * (channels // groups)
        total = sum(
            float(there[first + g] * w[(o, *tap, g)])
            for tap, there in taps(x, sample, tuple(position), case)
            if there is not None
            for g in range(channels // groups)
        )
        assert y[(sample, *position, o)] == pytest.approx(total, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(
    ("sizes", "gaps"), [((4, 3), (1, 2)), ((4, 3), (0, 3)), ((5,), (0, 2)), ((1, 1), (7, 7)), ((0, 3), (1, 1))]
)
def test_gaps_are_zeros_between_neighbours(
    evaluate: Any, random: np.random.Generator, sizes: tuple[int, ...], gaps: tuple[int, int]
) -> None:
    """The result is that of an x in which the zeros are written out."""
    rank, between = len(sizes), gaps[2 - len(sizes) :]
    x, w = random.standard_normal((2, *sizes, 4)), random.standard_normal((6, *(2,) * rank, 2))
    wide = np.zeros((2, *((n - 1) * (gap + 1) + 1 if n else 0 for n, gap in zip(sizes, between, strict=True)), 4))
    for sample, *place in np.ndindex(2, *sizes):
        wide[(sample, *(p * (gap + 1) for p, gap in zip(place, between, strict=True)))] = x[(sample, *place)]
    pads = (0, 1, 0, 2) if rank == 1 else (2, 1, 0, 2)
    out = (
        2,
        *(n + a + b - 1 for n, a, b in zip(wide.shape[1:-1], pads[2 - rank : 2], pads[4 - rank :], strict=True)),
        6,
    )
    (y,) = evaluate("CONV", out, x, w, gaps=gaps, pads=pads, groups=2)
    (expected,) = evaluate("CONV", out, wide, w, pads=pads, groups=2)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_gaps_and_a_kernel_turned_around_are_the_transposed_convolution(
    evaluate: Any, random: np.random.Generator, stride: int
) -> None:
    """Each element of x adds its multiple of the kernel to out, `stride` apart."""
    x, w = random.standard_normal((1, 4, 1)), random.standard_normal(3)
    expected = np.zeros(3 * stride + 3)
    for i, t in np.ndindex(4, 3):
        expected[i * stride + t] += x[0, i, 0] * w[t]
    (y,) = evaluate(
        "CONV", (1, len(expected), 1), x, w[::-1].reshape(1, 3, 1), gaps=(0, stride - 1), pads=(0, 2, 0, 2)
    )  # fmt: skip
    np.testing.assert_allclose(y.ravel(), expected, rtol=1e-12)


def test_the_epilogue_follows_the_convolution_in_the_order_written(evaluate: Any) -> None:
    """Bias before the activation and residual after it, or the other way round."""
    x, w = np.array([[[1.0], [-2.0]]]), np.array([[[1.0]]])
    bias, residual = np.array([1.0]), np.array([10.0])
    (y,) = evaluate("CONV", (1, 2, 1), x, w, bias, residual, steps=("bias", "act", "residual"), act="relu")
    assert y.ravel().tolist() == [12, 10]
    (y,) = evaluate("CONV", (1, 2, 1), x, w, bias, residual, steps=("residual", "act", "bias"), act="relu")
    assert y.ravel().tolist() == [12, 9]


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("channels", [0, 2])
def test_convolution_of_no_samples_or_no_channels(evaluate: Any, batch: int, channels: int) -> None:
    """No samples give no output; no channels give zeros."""
    x, w = np.ones((batch, 3, 3, channels)), np.ones((4, 2, 2, channels))
    (y,) = evaluate("CONV", (batch, 2, 2, 4), x, w)
    assert np.all(y == 4 * channels)


POOLS = {
    name: case for name, case in CASES.items() if name not in ("grouped", "depthwise", "pointwise", "single")
}  # fmt: skip


@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("sub", ["max", "avg"])
@pytest.mark.parametrize("name", POOLS)
def test_pooling_sees_the_elements_of_each_window(
    evaluate: Any, random: np.random.Generator, name: str, sub: str, count_include_pad: bool
) -> None:
    """The largest element, or the mean with or without the padding as zeros."""
    case = CASES[name]
    sizes, kernel, strides, dilations, pads, channels = case[:6]
    x = random.standard_normal((2, *sizes, channels)) - 3  # negative, so that zeros would be seen
    size = places(case)[3]
    window = (1, 1, *kernel)[-2:]
    (y,) = evaluate(
        f"POOL.{sub}", (2, *size, channels), x, window=window, strides=strides, dilations=dilations, pads=pads,
        count_include_pad=count_include_pad,
    )  # fmt: skip
    for sample, *position, c in np.ndindex(2, *size, channels):
        window_taps = taps(x, sample, tuple(position), case)
        inside = [float(there[c]) for _, there in window_taps if there is not None]
        count = len(window_taps) if count_include_pad else len(inside)
        expected = max(inside) if sub == "max" else sum(inside) / count
        assert y[(sample, *position, c)] == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.I32])
def test_integer_pooling_pads_with_the_types_lowest_value(evaluate: Any, dtype: DType) -> None:
    """Padding never wins, and a window of padding only gives the lowest value."""
    x = np.full((1, 1, 1), 1)
    (y,) = evaluate("POOL.max", (1, 3, 1), x, window=(1, 2), pads=(0, 2, 0, 1), dtype=dtype)
    assert y.ravel().tolist() == [np.iinfo(dtype.numpy).min, 1, 1]


def test_a_float_window_of_padding_only_gives_minus_infinity_or_nan(evaluate: Any) -> None:
    """There is nothing to take the maximum or the mean of."""
    x = np.ones((1, 1, 1))
    assert evaluate("POOL.max", (1, 2, 1), x, window=(1, 1), pads=(0, 1, 0, 0))[0].ravel().tolist() == [-np.inf, 1]
    np.testing.assert_array_equal(
        evaluate("POOL.avg", (1, 2, 1), x, window=(1, 1), pads=(0, 1, 0, 0))[0].ravel(), [np.nan, 1]
    )


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 7, 3), (0, 3, 3, 2), (1, 1, 1, 1)])
def test_global_pooling_sees_every_position(evaluate: Any, random: np.random.Generator, shape: tuple[int, ...]) -> None:
    """One value per sample and channel; spatial axes stay as 1."""
    x = random.standard_normal(shape)
    out = (shape[0], *(1,) * (len(shape) - 2), shape[-1])
    flat = x.reshape(shape[0], int(np.prod(shape[1:-1])), shape[-1])
    (largest,) = evaluate("POOL.global_max", out, x)
    (mean,) = evaluate("POOL.global_avg", out, x)
    for n, c in np.ndindex(shape[0], shape[-1]):
        assert largest.reshape(shape[0], -1)[n, c] == max(flat[n, :, c].tolist())
        assert mean.reshape(shape[0], -1)[n, c] == pytest.approx(sum(flat[n, :, c].tolist()) / flat.shape[1])


def test_windows_are_views_with_channels_innermost() -> None:
    """Nothing is copied where nothing is padded; position, then tap, then channel."""
    x = np.arange(2 * 5 * 7 * 3.0).reshape(2, 5, 7, 3)
    shape = Geometry(window=(2, 3), strides=(2, 1), dilations=(1, 2), low=(0, 0), high=(0, 0), gaps=(0, 0))
    windows = slide(x, shape, 0.0)
    assert windows.shape == (2, 2, 3, 2, 3, 3)
    assert np.shares_memory(windows, x)
    for n, py, px, ky, kx, c in np.ndindex(*windows.shape):
        assert windows[n, py, px, ky, kx, c] == x[n, 2 * py + ky, px + 2 * kx, c]


def test_pooling_passes_nan_on(evaluate: Any) -> None:
    """A NaN in the window is the result."""
    x = np.array([[[1.0], [np.nan], [2.0], [3.0]]])
    for sub in ("max", "avg"):
        (y,) = evaluate(f"POOL.{sub}", (1, 2, 1), x, window=(1, 2), strides=(1, 2))
        assert np.isnan(y[0, 0, 0])
        assert not np.isnan(y[0, 1, 0])


@pytest.mark.parametrize("terms", [0, 1, 4])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_resizing_sums_the_terms_of_the_table(
    evaluate: Any, random: np.random.Generator, axis: int, terms: int
) -> None:
    """out[a, p, b] is the sum of weights[p, k] * x[a, indices[p, k], b]."""
    x, weights = random.standard_normal((3, 4, 2)), random.standard_normal((5, terms))
    indices = random.integers(0, x.shape[axis], (5, terms))
    out = (*x.shape[:axis], 5, *x.shape[axis + 1 :])
    (y,) = evaluate("RESIZE", out, x, indices, weights, axis=axis)
    for place in np.ndindex(out):
        p = place[axis]
        total = sum(
            weights[p, k] * x[(*place[:axis], indices[p, k], *place[axis + 1 :])] for k in range(terms)
        )  # fmt: skip
        assert y[place] == pytest.approx(total, rel=1e-12, abs=1e-12)


def test_a_weight_of_zero_leaves_its_term_out(evaluate: Any) -> None:
    """Padding of the table does not pass an infinite element on; a term that counts does."""
    x, indices = np.array([np.inf, 2.0]), np.array([[1, 0], [0, 1]])
    (y,) = evaluate("RESIZE", (2,), x, indices, np.array([[3.0, 0.0], [1.0, 0.0]]))
    assert y.tolist() == [6, np.inf]


@pytest.mark.parametrize("index", [-1, 2])
def test_resizing_traps_on_an_index_outside(evaluate: Any, index: int) -> None:
    """Even if its weight is 0, unless out has no elements."""
    indices, weights = np.array([[0, index]]), np.array([[1.0, 0.0]])
    with pytest.raises(Trap, match=f"RESIZE: index {index} is not from 0 to 1") as raised:
        evaluate("RESIZE", (1,), np.ones(2), indices, weights)
    assert raised.value.category == "index"
    assert evaluate("RESIZE", (1, 0), np.ones((2, 0)), indices, weights)[0].shape == (1, 0)
