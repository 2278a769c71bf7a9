"""Error bounds: how far a result may lie from the f64 reference. Tolerances live here and in rows, nowhere else.

After TOSA 1.0 ("Floating-point arithmetic errors"): moves and integers are exact; elementwise functions are bounded
in ULPs; sums of products by the number of terms times the sum of magnitudes.

Sums of n terms have (n + 4) * 2**-23 * (sum of magnitudes). The classic forward bound for any order of summation
(Higham, Accuracy and Stability of Numerical Algorithms, 4.2) has n * 2**-24; twice that leaves room for tensor cores,
which truncate where a scalar unit would round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.isa.dtypes import Array, DType, convert, ulp

F32_EPSILON = 2.0**-24
"""Largest relative error of one rounding to f32: the accumulator's unit roundoff."""
FLUSHED = 2.0**-126
"""What is lost where a machine flushes a subnormal f32 to zero, as every machine may."""


def storage_roundoff(values: Array) -> float:
    """Unit roundoff of the coarsest float type below f32 that holds `values` exactly, 0 if only f32 does.

    What a machine loses that rounds an intermediate result to the type in which `values` are stored.
    """
    finite = values[np.isfinite(values)]
    for dtype, roundoff in ((DType.BF16, 2.0**-8), (DType.F16, 2.0**-11)):
        if np.array_equal(convert(finite, dtype).astype(finite.dtype), finite):
            return roundoff
    return 0.0


@dataclass(frozen=True)
class ErrorBound:
    """A rule for one row.

    `slack(reference, operands, attributes)` gives the absolute error allowed *before* the rounding to the output
    type, as an f64 array that broadcasts to `reference`; `operands` and `attributes` are as `semantics` gets them.
    """

    text: str
    slack: Callable[[Array, dict[str, Any], dict[str, Any]], Array | float] | None  # None: bit-equal

    def tolerance(self, reference: Array, dtype: DType, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
        """Allowed |result - reference|, elementwise (f64), for a result stored as `dtype`.

        `reference` is the exact result in f64, before rounding. The tolerance is one ULP of `dtype`, the slack, and
        FLUSHED. Integer and bool outputs must be equal.
        """
        if self.slack is None or not dtype.is_float:
            return np.zeros(np.shape(reference))
        slack = np.asarray(self.slack(reference, operands, attributes), dtype=np.float64)
        return ulp(reference, dtype) + np.where(np.isfinite(slack), slack, 0.0) + FLUSHED


EXACT = ErrorBound("bit-equal", None)
