"""What a run gives back, the same from every backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

    After a run of several ranks, `ranks` has the result of each; `outputs` and `state` then have a leading axis of all
    ranks (an output whose size differs between ranks is there as `y.rank0`, `y.rank1`, ...), and `probes` are those of
    rank 0.
    """

    outputs: Mapping[str, Array]
    state: Mapping[str, Array]
    probes: Mapping[int, Probe]
    backend: str  # "golden" or "gpu": which machine ran
    elapsed: float
    dims: Mapping[str, int] = field(default_factory=dict)
    ranks: tuple[Result, ...] = ()

    @classmethod
    def of_ranks(cls, ranks: Sequence[Result]) -> Result:
        """The result of a run of several ranks, given that of each."""
        first = ranks[0]
        outputs, state = joined([one.outputs for one in ranks]), JoinedState([one.state for one in ranks])
        return cls(outputs, state, first.probes, first.backend, first.elapsed, first.dims, tuple(ranks))

    def __getitem__(self, name: str) -> Array:
        """The output called `name`."""
        return self.outputs[name]


class JoinedState(Mapping[str, Array]):
    """The state tensors of all ranks with a leading axis of ranks, each put together when it is first read.

    A GPU's are copied to the host then, and they may be large. Unlike outputs, they are of one shape on all ranks.
    """

    def __init__(self, ranks: Sequence[Mapping[str, Array]]) -> None:
        self._ranks = ranks
        self._found: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._found:
            self._found[name] = np.stack([one[name] for one in self._ranks])
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranks[0])

    def __len__(self) -> int:
        return len(self._ranks[0])


def joined(ranks: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The tensors of all ranks with a leading axis of ranks; those of different shapes as `y.rank0`, `y.rank1`, ..."""
    found: dict[str, Array] = {}
    for name in ranks[0]:
        arrays = [one[name] for one in ranks]
        if len({array.shape for array in arrays}) == 1:
            found[name] = np.stack(arrays)
        else:
            found |= {f"{name}.rank{rank}": array for rank, array in enumerate(arrays)}
    return found
