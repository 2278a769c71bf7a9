"""What a run gives back, the same from every backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dla.isa.dtypes import Array


@dataclass(frozen=True)
class Probe:
    """Statistics of a tensor, as PROBE takes them: minimum, maximum and mean leave out NaN and infinite elements.

    They are NaN where no finite element is left.
    """

    tag: int
    count: int
    minimum: float
    maximum: float
    mean: float
    nans: int
    infinities: int
    instruction: int | None = None
    message: str | None = None  # the text beside the PROBE, where the debug section has one


def statistics(
    values: Array, *, tag: int = 0, instruction: int | None = None, message: str | None = None
) -> Probe:  # fmt: skip
    """The statistics of `values` (any shape and dtype), computed in f64."""
    wide = np.asarray(values).astype(np.float64)
    finite = wide[np.isfinite(wide)]
    low, high, mean = (finite.min(), finite.max(), finite.mean()) if finite.size else (np.nan,) * 3
    return Probe(
        tag, wide.size, float(low), float(high), float(mean),
        int(np.isnan(wide).sum()), int(np.isinf(wide).sum()), instruction, message,
    )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A finished run.

    `outputs` and `state` are arrays by tensor name: outputs at the sizes that the dims had at HALT, state at its
    bounds. `probes` are by tag. `elapsed` is the machine's own time in seconds, without binding and copying.
    """

    outputs: Mapping[str, Array]
    state: Mapping[str, Array]
    probes: Mapping[int, Probe]
    backend: str  # "golden" or "gpu": which machine ran
    elapsed: float
    dims: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Array:
        """The output called `name`."""
        return self.outputs[name]
