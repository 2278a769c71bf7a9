"""Every lesson in `programs/` against NumPy written without looking at the rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

PROGRAMS = Path(__file__).parents[2] / "programs"
RNG_SEED = 20261120


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers in every run."""
    return np.random.default_rng(RNG_SEED)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal f32 of the given shape."""
    return rng.standard_normal(shape).astype(np.float32)


def assert_close(result: np.ndarray, exact: np.ndarray, terms: int = 1) -> None:
    """`result` is f32 of the right shape, and `exact` (f64) up to some roundings to f32 of `terms` summands."""
    assert result.dtype == np.float32
    assert result.shape == exact.shape
    np.testing.assert_allclose(result, exact, rtol=1e-6 * terms, atol=1e-6 * terms)


@pytest.mark.parametrize("size", [0, 1, 1000, 65536])
def test_vector_add_adds_vectors_of_any_size_up_to_its_bound(run, rng, size):
    """One f32 addition rounds once, so the result is exactly NumPy's."""
    x, y = normal(rng, size), normal(rng, size)
    np.testing.assert_array_equal(run("vector_add", x=x, y=y)["z"], x + y)


@pytest.mark.parametrize("a", [0.0, 1.0, -2.5])
def test_saxpy_agrees_with_itself_and_numpy(run, rng, a):
    """By broadcasting and by registers, also where a = 0 skips the product."""
    x, y = normal(rng, 777), normal(rng, 777)
    out = run("saxpy", a=np.float32(a), x=x, y=y)
    np.testing.assert_array_equal(out["z"], np.float32(a) * x + y)
    np.testing.assert_array_equal(out["z2"], out["z"])


def test_matmul_by_tiles_is_the_whole_product(run, rng):
    """Both ways give a @ b."""
    a, b = normal(rng, 96, 128), normal(rng, 128, 64)
    out = run("matmul", a=a, b=b)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert_close(out["c"], exact, terms=16)
    assert_close(out["c2"], exact, terms=16)


def test_conv1d_smooths_and_differentiates(run, rng):
    """Against np.correlate on a padded signal."""
    signal = normal(rng, 4, 256, 1)
    out = run("conv1d", signal=signal)
    binomial = np.array([1, 4, 6, 4, 1]) / 16
    for i in range(4):
        calm = np.correlate(np.pad(signal[i, :, 0].astype(np.float64), 2), binomial)
        padded = np.pad(calm, 1)
        assert_close(out["every2"][i, :, 0], calm[::2])
        assert_close(out["change"][i, :, 0], (padded[2:] - padded[:-2]) / 2, terms=4)
        assert_close(out["change"][i, :, 1], padded[2:] - 2 * calm + padded[:-2], terms=4)


def luminance(image: np.ndarray) -> np.ndarray:
    """BT.601 brightness of u8[H, W, 3], f64, not rounded."""
    return image.astype(np.float64) @ np.array([0.299, 0.587, 0.114])


@pytest.fixture
def photograph() -> np.ndarray:
    """A real picture, u8[64, 96, 3]."""
    return np.load(PROGRAMS / "data" / "temple.npy")


def test_gray_weighs_the_colours_of_a_photograph(run, photograph):
    """The nearest integer to the exact brightness; f32 may fall on either side of a tie."""
    grey = run("gray", image=photograph)["grey"]
    assert grey.dtype == np.uint8
    assert grey.shape == (64, 96)
    assert np.abs(grey - luminance(photograph)).max() <= 0.5 + 1e-4
    assert grey.max() > 200, "a picture, not a flat area"
    assert grey.min() < 50, "a picture, not a flat area"


def test_gray_keeps_white_white(run):
    """The weights add up to one: 255 stays 255, and 0 stays 0."""
    ends = np.array([[[255] * 3, [0] * 3]], np.uint8)
    np.testing.assert_array_equal(run("gray", image=ends)["grey"], [[255, 0]])


def test_conv2d_finds_the_edges_of_a_photograph(run, photograph):
    """Sobel's gradient by differences of shifted pictures; truncated to u8, saturated at 255."""
    grey = np.rint(luminance(photograph)).astype(np.uint8)
    g = grey.astype(np.int64)
    down = g[:-2] + 2 * g[1:-1] + g[2:]
    right = g[:, :-2] + 2 * g[:, 1:-1] + g[:, 2:]
    strength = np.hypot(down[:, 2:] - down[:, :-2], right[2:] - right[:-2])
    edges = run("conv2d", grey=grey)["edges"]
    assert edges.dtype == np.uint8
    assert np.abs(edges - np.minimum(np.floor(strength + 1e-4), 255)).max() <= 1
    assert np.mean(edges == np.minimum(np.floor(strength + 1e-4), 255)) > 0.999


@pytest.mark.parametrize("rows", [1, 100])
def test_reduction_boils_a_table_down(run, rng, rows):
    """Each of the six, in f64."""
    x = normal(rng, rows, 32)
    out = run("reduction", x=x)
    wide = x.astype(np.float64)
    assert_close(out["total"], wide.sum(), terms=100)
    assert_close(out["mean"], wide.mean(axis=0), terms=4)
    np.testing.assert_array_equal(out["largest"], x.max(axis=1))
    np.testing.assert_array_equal(out["where"], x.argmax(axis=1))
    assert_close(out["length"], np.linalg.norm(wide, axis=1), terms=4)
    assert_close(out["growth"], np.log(np.exp(wide).sum(axis=1)), terms=4)


def test_prefix_sum_gives_the_same_both_ways(run, rng):
    """Integers, so both are exactly NumPy's."""
    x = rng.integers(-1000, 1000, 256, dtype=np.int32)
    out = run("prefix_sum", x=x)
    np.testing.assert_array_equal(out["y"], np.cumsum(x))
    np.testing.assert_array_equal(out["y2"], np.cumsum(x))


def test_softmax_gives_the_same_both_ways(run, rng):
    """Also for rows whose exp would overflow without subtracting the largest."""
    x = normal(rng, 33, 100) * np.float32(50)
    exact = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    out = run("softmax", x=x)
    assert_close(out["p"], exact, terms=8)
    assert_close(out["hand"], exact, terms=8)


def test_layernorm_gives_the_same_both_ways(run, rng):
    """On rows far from mean 0 and variance 1."""
    x = normal(rng, 20, 64) * np.float32(3) + np.float32(5)
    gain, bias = normal(rng, 64), normal(rng, 64)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    exact = centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5) * gain + bias
    out = run("layernorm", x=x, gain=gain, bias=bias)
    assert_close(out["y"], exact, terms=10)
    assert_close(out["y2"], exact, terms=10)
