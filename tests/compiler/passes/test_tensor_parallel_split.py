"""What views make of tensors of which each rank has a part."""

from __future__ import annotations

import numpy as np
import pytest

from dla.compiler import dims
from dla.compiler.dims import Dim
from dla.compiler.lower.pieces import by_rank
from dla.compiler.passes.tensor_parallel.split import Split, Trace, cut, local, reshaped, written

N = dims.symbol("n", 9)


def of(axis: int, *segments: int, **more: object) -> Split:
    """A split without a past."""
    return Split(axis, segments, frozenset(), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("split", "old", "new", "expected"),
    [
        (of(2, 16), (2, N, 16), (2, N, 4, 4), of(2, 4)),
        (of(2, 16, 8), (2, N, 24), (2, N, 6, 4), of(2, 4, 2)),
        (of(2, 4), (2, N, 4, 4), (2, N, 16), of(2, 16)),
        (of(2, 8, 8, 8), (2, N, 24), (2, N, 3, 4, 2), of(3, 4)),
        (of(2, 24), (2, N, 24), (2, N, 4, 3, 2), of(2, 4)),
        (of(2, 24), (2, N, 24), (2, N, 3, 4, 2), None),  # three things: to be cut inside each
        (of(1, 4), (2, 4, N, 2), (2, 4, N * 2), of(1, 4)),
        (of(1, 4), (3, 4, 5), (3, 20), of(1, 20)),
        (of(2, 4, 4), (1, 5, 8), (1, 40), of(1, 4, 4)),
        (of(1, 4, 4), (1, 40), (1, 5, 8), of(2, 4, 4)),
        (of(0, 4), (4, N), (4 * N,), None),
        (of(1, 4), (N, 4), (4 * N,), of(0, 4)),
        (of(1, 4), (1, 4, 1, 3), (4, 3), of(0, 4)),
        (of(0, 2), (2, 9), (3, 6), None),
    ],
)
def test_reshapes(split: Split, old: tuple[Dim, ...], new: tuple[Dim, ...], expected: Split | None) -> None:
    """Heads, joint products of several heads, and axes that are joined, for two ranks."""
    assert reshaped(split, old, new, 2) == expected


def test_reshapes_of_arrays_are_the_reshapes_of_parts() -> None:
    """What a rank has of a reshape is the reshape of what it has."""
    for split, old, new in (
        (of(1, 16, 8), (3, 24), (3, 6, 4)),
        (of(1, 8, 8, 8), (3, 24), (3, 3, 4, 2)),
        (of(2, 4, 4), (1, 5, 8), (1, 40)),
        (of(1, 4, 4), (1, 40), (1, 5, 8)),
        (of(1, 4), (3, 4, 5), (3, 20)),
    ):
        x = np.arange(np.prod(old)).reshape(old)
        found = reshaped(split, old, new, 2)
        assert found is not None
        for rank in range(2):
            part = of_rank(x, split, rank)
            np.testing.assert_array_equal(part.reshape(local(new, found, 2)), of_rank(x.reshape(new), found, rank))


def of_rank(x: np.ndarray, split: Split, rank: int) -> np.ndarray:
    """What one of two ranks has."""
    segments = split.segments * (x.shape[split.axis] // split.period)
    return np.split(by_rank(x, split.axis, segments, 2), 2, split.axis)[rank]


def test_slices_are_whole_segments() -> None:
    """They keep what is known of where they come from."""
    traces = tuple((Trace(1, first, 1),) for first in (0, 8, 12))
    split = of(2, 8, 4, 4, traces=traces)
    assert cut(split, 8, 8) == of(2, 4, 4, traces=traces[1:])
    assert cut(split, 0, 8) == of(2, 8, traces=traces[:1])
    assert cut(split, 8, 2) is None
    assert cut(split, 2, 6) is None
    assert cut(split, N, 4) is None


def test_a_row_of_a_cache_is_written_with_queries_behind_it() -> None:
    """Which are read from there; as rows, only those up to the new one are known."""
    cache, row = of(1, 4, 4), of(1, 4, 4, 8)
    after = written(cache, row, N * 8, 80, 16)
    assert after == of(1, 4, 4, foreign=(N + 1) * 8, tail=(8,))
    assert after is not None
    assert cut(after, (N + 1) * 8, 8) == of(1, 8)
    assert cut(after, 0, 8) is None
    assert reshaped(after, (1, 80), (1, 10, 8), 2) == of(2, 4, 4, rows=N + 1)
    assert written(cache, of(1, 4, 4), N * 8, 80, 8) == cache
    assert written(cache, row, N * 8 + 4, 80, 16) is None  # not where a row begins
    assert written(cache, of(1, 8), N * 8, 80, 8) is None
    assert written(after, row, N * 8, 80, 16) is None


def test_pieces_of_segments() -> None:
    """Rank by rank a part of each."""
    x = np.arange(12)[None]
    np.testing.assert_array_equal(by_rank(x, 1, (12,), 2), x)
    np.testing.assert_array_equal(by_rank(x, 1, (4, 8), 2)[0], [0, 1, 4, 5, 6, 7, 2, 3, 8, 9, 10, 11])
