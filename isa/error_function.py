"""The Gauss error function in NumPy: to the last place in f64, and fast in f32.

The ranges are those of fdlibm's `s_erf.c` (Sun Microsystems, 1993): |x| < 0.84375, where erf(x) = x + x P(x**2);
1.25 <= |x|, where erfc(x) is exp(-x**2) times a function that hardly changes (as in Shepherd and Laframboise,
"Chebyshev approximation of (1 + 2x) exp(x**2) erfc x", Math. Comp. 36, 1981); and what lies between. The polynomials
are our own: Chebyshev interpolants of each function on its range, computed with 60 digits.

In f32 the second range is 1 - exp(polynomial), from 0.84375 on (the form of N. Juffa's erff, which CUDA's resembles).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dla.isa.dtypes import Array

_MIDDLE_FROM, _LARGE_FROM = 0.84375, 1.25
_ONE_FROM = 6.0
"""Here erfc(x) is below half a unit in the last place of 1; in f32 so it is from 4 on."""
_ONE_FROM_F32 = 4.0
_CENTRE = 2.75
"""About the geometric mean of 1.25 and 6: t = (x - 2.75) / (x + 2.75) lies about 0 there."""
_NEAR_ERF_ONE = 0.845062911510467529296875  # exact in f32, so that what is added to it is small

_SMALL = (  # erf(x) / x - 1 by x**2
    -8.879702704985848e-10, 1.4205594850504056e-08, -1.630309508468887e-07, 1.6457914349746103e-06,
    -1.4925463570287675e-05, 0.00012055327421282683, -0.000854832691425112, 0.005223977624080742, -0.026866170645031,
    0.11283791670954745, -0.3761263890318375, 0.1283791670955126,
)  # fmt: skip
_MIDDLE = (  # erf(x) - _NEAR_ERF_ONE by x - 1
    3.1933346569686056e-05, -0.00020086312275290722, 8.461871552376003e-05, 0.0012264355237814905,
    -0.0018851667279788675, -0.004777035856883553, 0.015154717952365138, 0.004612305602586737, -0.06918458290289049,
    0.06918458290293396, 0.13836916580686642, -0.4151074974205935, 0.4151074974205947, -0.0023621185607526603,
)  # fmt: skip
_LARGE = (  # exp(x**2) erfc(x) by t
    -2.848079063684572e-06, -5.692730382849583e-06, 1.745037526081025e-05, 4.079889590501043e-05,
    -0.00013218397837760193, -0.00023001721599232876, 0.0013448701234229736, -0.00019182623697673978,
    -0.013682984890868896, 0.056833803091703466, -0.13973759846349623, 0.2498904312829617, -0.3478070065834918,
    0.19366209627906877,
)  # fmt: skip
_SMALL_F32 = (  # erf(x) / x - 1 by x**2
    8.889625e-05, -0.0008255121, 0.00521012, -0.026862768, 0.112837516, -0.37612638, 0.12837917,
)  # fmt: skip
_LARGE_F32 = (  # log(erfc(x)) by x
    1.6364879e-06, -4.6018835e-05, 0.0005962219, -0.0047555007, 0.026405085, -0.11004302, -0.63187593, -1.1301974,
    0.0003094477,
)  # fmt: skip


def erf(x: Array) -> Array:
    """Gauss error function of x (f32 or f64, any shape), in x's type: off by less than 1 ULP in f64, 2 in f32."""
    with np.errstate(invalid="ignore"):  # at infinity the range that is not taken is infinity - infinity
        return _erf_f32(x) if x.dtype == np.float32 else _erf_f64(x)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """The polynomial with `coefficients`, highest first, at x: Horner's rule, in x's type."""
    y = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        y *= x
        y += x.dtype.type(coefficient)
    return y


def _erf_f64(x: Array) -> Array:
    size = np.abs(x)
    y = np.empty_like(size)
    for chosen, function in (
        (size < _MIDDLE_FROM, _small),
        ((size >= _MIDDLE_FROM) & (size < _LARGE_FROM), _middle),
        (~(size < _LARGE_FROM), _large),  # NaN too
    ):
        if chosen.any():
            y[chosen] = function(size[chosen])
    return np.asarray(np.copysign(y, x))


def _small(x: Array) -> Array:
    return np.asarray(x + x * _polynomial(_SMALL, x * x))


def _middle(x: Array) -> Array:
    return np.asarray(_NEAR_ERF_ONE + _polynomial(_MIDDLE, x - 1))


def _large(x: Array) -> Array:
    x = np.minimum(x, _ONE_FROM)
    return np.asarray(1 - np.exp(-x * x) * _polynomial(_LARGE, (x - _CENTRE) / (x + _CENTRE)))


def _erf_f32(x: Array) -> Array:
    """Both ranges for every element: choosing elements takes longer."""
    size: Any = np.abs(x)
    near = _polynomial(_SMALL_F32, np.minimum(size * size, np.float32(1)))
    near *= x
    near += x
    far = _polynomial(_LARGE_F32, np.minimum(size, np.float32(_ONE_FROM_F32)))
    np.exp(far, out=far)
    np.subtract(np.float32(1), far, out=far)
    np.copysign(far, x, out=far)
    return np.asarray(np.where(size < np.float32(_MIDDLE_FROM), near, far))
