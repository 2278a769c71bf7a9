"""Comparison of whole runs: per output, the error against a bound that follows from the rows' bounds.

A program's rounding errors grow as they pass through later instructions; how much depends on the data. So the bound
is measured, by Monte Carlo arithmetic (Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point
arithmetic", UCLA CSD-970002, 1997): beside the f64 oracle, the golden machine runs the program a few more times, and
moves every float result within the tolerance of its row before it is stored. How far the outputs then spread is how
far a correct machine's outputs may lie apart:

    bound = tolerance of the instruction that wrote the element + 3 * spread

The spread is the largest distance from the oracle over the samples, elementwise, but at least the output's median,
since four samples may all miss by chance. Two samples move results independently at random; one moves all of them
away from zero and one toward zero, as hardware that rounds in one direction would: such errors add up where random
ones average out. Elements that are neither moved nor computed from moved ones (integers, copies of inputs) have
bound 0.

An integer or bool element must be equal, but for ties: where some sample also differs from the oracle, the element
hangs on a comparison of floats (argmax, topk, a branch) that the tolerances leave open. Before an element is called
wrong, more samples are drawn: each shows a tie with a chance of about one half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dla.emulator.binding import to_host
from dla.emulator.golden.machine import GoldenMachine
from dla.emulator.golden.memory import Resolved
from dla.emulator.result import Result
from dla.emulator.tolerance import close, same
from dla.isa.descriptor import Segment
from dla.isa.dtypes import BY_NUMPY, Array
from dla.isa.errors import InputError, Trap
from dla.isa.program import Program

SAFETY = 3.0
"""Factor on the measured spread: the samples see typical moves, a machine may do the worst everywhere."""

TIE_SAMPLES = 16
"""Samples that are drawn, at most, to explain unequal integers."""


@dataclass(frozen=True)
class OutputComparison:
    """One output or state tensor of a run beside the oracle's."""

    name: str
    segment: Segment
    dtype: str
    elements: int
    max_error: float  # largest |got - oracle| of finite elements
    max_ratio: float  # largest error / bound where the bound is not 0
    over: int  # elements outside the bound
    ties: int  # unequal integers, NaN or infinities where samples differ too
    problem: str | None = None  # what makes the tensors incomparable

    @property
    def ok(self) -> bool:
        """Whether the output is one that a correct machine may give."""
        return self.over == 0 and self.problem is None


_Direction = Callable[[Array], Array]
"""Result -> factors from -1 to 1, by which each element is moved within its tolerance."""


@dataclass
class _Mover:
    """Moves float results within their tolerance, and remembers the tolerance of each stored byte's last writer."""

    direction: _Direction | None  # None moves nothing
    tolerances: dict[Segment, Array] = field(default_factory=dict)

    def __call__(self, result: Array, tolerance: Array, place: Resolved) -> Array:
        if place.descriptor.segment in self.tolerances and place.nbytes:
            shadow = self.tolerances[place.descriptor.segment]
            strides = tuple(s * shadow.itemsize for s in place.byte_strides)
            np.ndarray(place.shape, shadow.dtype, shadow.data, place.offset * shadow.itemsize, strides)[...] = tolerance
        if self.direction is None:
            return result
        with np.errstate(invalid="ignore"):
            return np.asarray(result + self.direction(result) * tolerance)


@dataclass(frozen=True)
class Reference:
    """The oracle's run of a program, and how far a correct machine may be from it."""

    program: Program
    oracle: Result
    samples: tuple[Result, ...]
    tolerances: Mapping[Segment, Array]  # f64 per byte: the last writer's tolerance, at the first byte of its elements
    draw: Callable[[int], Result | None]  # another random sample, by number; None where it trapped
    _drawn: dict[int, Result | None] = field(default_factory=dict)

    def compare(self, result: Result) -> list[OutputComparison]:
        """Every output and state tensor of `result` beside the oracle's, in declaration order."""
        return [
            self._tensor(name, segment, to_host(pick(result)[name]), pick)
            for segment, pick in ((Segment.OUTPUT, _outputs), (Segment.STATE, _state))
            for name in pick(self.oracle)
        ]

    def _tensor(self, name: str, segment: Segment, got: Array, pick: Any) -> OutputComparison:
        oracle: Array = pick(self.oracle)[name]
        blank = OutputComparison(name, segment, BY_NUMPY[oracle.dtype].text, oracle.size, 0.0, 0.0, 0, 0)
        if got.shape != oracle.shape or got.dtype != oracle.dtype:
            return replace(blank, problem=f"it is {_typed(got)}, the oracle's {_typed(oracle)}")
        if not BY_NUMPY[oracle.dtype].is_float:
            return self._integers(blank, oracle, got, lambda sample: pick(sample)[name])
        samples = [s for s in (pick(sample)[name] for sample in self.samples) if s.shape == oracle.shape]
        unsure = np.zeros(oracle.shape, np.bool_)
        for sample in samples:
            unsure |= np.isfinite(sample) != np.isfinite(oracle)
        bound = self._bound(name, segment, oracle, samples)
        right = close(oracle.astype(np.float64), got, bound, BY_NUMPY[oracle.dtype])
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.where(same(oracle, got), 0.0, np.abs(got.astype(np.float64) - oracle.astype(np.float64)))
            ratio = np.where(bound > 0, error / bound, 0.0)
        return replace(
            blank, max_error=_largest_of(error), max_ratio=_largest_of(ratio), over=int((~right & ~unsure).sum()),
            ties=int((~right & unsure).sum()),
        )  # fmt: skip

    def _integers(
        self, blank: OutputComparison, oracle: Array, got: Array, pick: Callable[[Result], Array]
    ) -> OutputComparison:
        """The comparison of integers or bools: equal, or tied."""
        wrong = got != oracle
        unsure = np.zeros(oracle.shape, np.bool_)
        for sample in self._more_samples():
            if not (wrong & ~unsure).any():
                break
            if pick(sample).shape == oracle.shape:
                unsure |= pick(sample) != oracle
        error = np.abs(got.astype(np.float64) - oracle)
        over, ties = int((wrong & ~unsure).sum()), int((wrong & unsure).sum())
        return replace(blank, max_error=_largest_of(error), over=over, ties=ties)

    def _more_samples(self) -> Iterator[Result]:
        """The samples, then others drawn when asked for."""
        yield from self.samples
        for number in range(len(self.samples), len(self.samples) + TIE_SAMPLES):
            if number not in self._drawn:
                self._drawn[number] = self.draw(number)
            sample = self._drawn[number]
            if sample is not None:
                yield sample

    def _bound(self, name: str, segment: Segment, oracle: Array, samples: list[Array]) -> Array:
        """Allowed |got - oracle|, elementwise."""
        spread = np.zeros(oracle.shape)
        for sample in samples:
            with np.errstate(invalid="ignore"):
                distance = np.abs(sample.astype(np.float64) - oracle.astype(np.float64))
            spread = np.fmax(spread, np.where(np.isfinite(distance), distance, 0.0))
        if oracle.size:
            spread = np.maximum(spread, np.median(spread))
        return np.asarray(self._local(name, segment, oracle) + SAFETY * spread)

    def _local(self, name: str, segment: Segment, oracle: Array) -> Array:
        """Tolerance of the instruction that wrote each element."""
        if not oracle.size:
            return np.zeros(oracle.shape)
        d, shadow = self.program.by_name[name].descriptor, self.tolerances[segment]
        strides = tuple(s * d.dtype.itemsize * shadow.itemsize for s in d.strides)
        return np.ndarray(oracle.shape, shadow.dtype, shadow.data, d.offset * shadow.itemsize, strides)


def reference(
    program: Program,
    inputs: Mapping[str, Any],
    dims: Mapping[str, int] | None = None,
    state: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
) -> Reference:
    """Run the oracle and the moved samples of `program` (verified). Raises InputError, or Trap from the oracle."""
    if program.world > 1:
        raise InputError(f"machines are compared on one rank, and this program is for {program.world}")

    def run(mover: _Mover) -> Result:
        session = GoldenMachine(perturb=mover).load(program)
        session.set_state(state or {})
        return session.run(inputs, dims)

    def sample(direction: _Direction) -> Result | None:
        try:
            return run(_Mover(direction))
        except Trap:
            return None  # an ASSERT on floats may fail only where they are moved: such a sample says nothing

    def draw(number: int) -> Result | None:
        generator = np.random.default_rng((seed, number))
        return sample(lambda result: generator.uniform(-1.0, 1.0, np.shape(result)))

    tolerances = {
        segment: np.zeros(program.segment_bytes.get(segment, 0)) for segment in (Segment.OUTPUT, Segment.STATE)
    }  # fmt: skip
    oracle = run(_Mover(None, tolerances))
    samples = (draw(0), draw(1), sample(np.sign), sample(lambda result: -np.sign(result)))
    return Reference(program, oracle, tuple(s for s in samples if s is not None), tolerances, draw)


def compare(
    program: Program,
    inputs: Mapping[str, Any],
    result: Result,
    dims: Mapping[str, int] | None = None,
    state: Mapping[str, Any] | None = None,
) -> list[OutputComparison]:
    """Compare `result`, from any machine, with the oracle's run on the same inputs, dims and state before the run."""
    return reference(program, inputs, dims, state).compare(result)


def _outputs(result: Result) -> Mapping[str, Array]:
    return result.outputs


def _state(result: Result) -> Mapping[str, Array]:
    return result.state


def _typed(array: Array) -> str:
    dtype = BY_NUMPY.get(array.dtype)
    return f"{dtype.text if dtype else array.dtype}{list(array.shape)}"


def _largest_of(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 0.0
