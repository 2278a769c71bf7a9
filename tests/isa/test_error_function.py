"""The error function against C's, on all of its range, and how long it takes."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from dla.isa.activations import activate
from dla.isa.dtypes import Array
from dla.isa.error_function import erf


def arguments() -> Array:
    """A million numbers: normal, uniform over the range, of every magnitude, and close to where ranges meet."""
    random = np.random.default_rng(0)
    edges = np.array([0.84375, 1.25, 4.0, 6.0])
    near = (edges[:, None] * (1 + np.linspace(-1e-12, 1e-12, 1001))).reshape(-1)
    return np.concatenate([
        random.standard_normal(300_000), random.uniform(-7, 7, 400_000), 10.0 ** random.uniform(-320, 2, 300_000), near,
    ])  # fmt: skip


def test_f64_is_that_of_c_but_for_one_unit_in_the_last_place() -> None:
    """Both are off by less than one unit, so at most one lies between them."""
    x = arguments()
    expected = np.array([math.erf(v) for v in x.tolist()])
    found = erf(x)
    assert found.dtype == np.float64
    assert np.all(np.abs(found - expected) <= np.spacing(np.abs(expected)))


def test_f32_is_off_by_less_than_two_units_in_the_last_place() -> None:
    """Compared with f64, which is exact here."""
    x = arguments().astype(np.float32)
    x = x[np.abs(x) > 2.0**-126]
    found, expected = erf(x), erf(x.astype(np.float64))
    assert found.dtype == np.float32
    assert np.all(np.abs(found - expected) < 2 * np.spacing(np.abs(expected).astype(np.float32)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(dtype: type) -> None:
    """Signed zeros stay, infinities give 1 and -1, NaN stays; no warnings; no elements are no trouble."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, 100.0, -100.0], dtype)
    found = erf(x)
    assert found.tolist() == [0, 0, 1, -1, 1, -1]
    assert np.signbit(found).tolist() == np.signbit(x).tolist()
    assert np.isnan(erf(np.array([np.nan], dtype))).all()
    assert erf(np.empty((2, 0), dtype)).shape == (2, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_subnormal_numbers_keep_their_slope(dtype: type) -> None:
    """2 / sqrt(pi) down to the smallest numbers: nothing is lost to a square that vanishes."""
    x = np.array([np.finfo(dtype).tiny / 8, np.finfo(dtype).tiny * 3], dtype)
    np.testing.assert_allclose(erf(x), 2 / math.sqrt(math.pi) * x.astype(np.float64), rtol=2 * np.finfo(dtype).eps * 8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_large_tensor_has_the_values_of_its_pieces(dtype: type) -> None:
    """Activations are computed block by block, in any memory order, and the blocks fit together."""
    x = np.random.default_rng(1).standard_normal((3, 20_001)).astype(dtype)
    for view in (x, x.T, x[:, ::-2], np.broadcast_to(x[:1], (3, 20_001))):
        whole = activate("gelu", view, None)
        assert whole.shape == view.shape
        for index in ((0, 0), (-1, -1), (view.shape[0] // 2, view.shape[1] // 2)):
            assert whole[index] == pytest.approx(activate("gelu", view[index].reshape(1), None)[0], rel=1e-6)
    assert activate("isnan", x, None).dtype == np.bool_


def test_millions_of_elements_take_a_fraction_of_a_second() -> None:
    """The best of a few tries, with much room: other work shares the processor."""
    x = np.random.default_rng(2).standard_normal(5_000_000).astype(np.float32)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        activate("gelu", x, None)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.5
