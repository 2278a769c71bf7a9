"""Collectives: the semantics of each row against a loop that says the same in other words."""

from __future__ import annotations

import numpy as np
import pytest

from dla.isa.dtypes import Array, DType
from dla.isa.ranks import Member

RANKS, PLACE = 5, 3
HERE = Member(PLACE, RANKS, source=1)


def folded(sub: str, values: list[float]) -> float:
    """`values` from the left, one after the other."""
    result = values[0]
    for value in values[1:]:
        if sub in ("sum", "mean"):
            result += value
        elif sub == "prod":
            result *= value
        else:
            result = max(result, value) if sub == "max" else min(result, value)
    return result / len(values) if sub == "mean" else result


@pytest.fixture
def brought(random: np.random.Generator) -> Array:
    """What five ranks bring: [rank, rank, 2, 3], f64."""
    return random.standard_normal((RANKS, RANKS, 2, 3))


@pytest.mark.parametrize("sub", ["sum", "mean", "max", "min", "prod"])
def test_folds_go_from_the_left(evaluate, brought, sub):
    """Bit for bit, in ALLREDUCE and REDUCESCATTER alike."""
    expected = np.array([[folded(sub, [float(brought[q, PLACE, i, j]) for q in range(RANKS)]) for j in range(3)]
                         for i in range(2)])  # fmt: skip
    (all_of_it,) = evaluate(f"ALLREDUCE.{sub}", (2, 3), brought[:, PLACE], group=HERE)
    np.testing.assert_array_equal(all_of_it, expected)
    (part,) = evaluate(f"REDUCESCATTER.{sub}", (2, 3), brought, group=HERE)
    np.testing.assert_array_equal(part, expected)


def test_the_order_of_a_fold_shows_in_its_bits(evaluate):
    """1e16 + 1 - 1e16 is 0 from the left, and 1 in another order."""
    values = np.array([[1e16], [1.0], [-1e16]])
    assert evaluate("ALLREDUCE.sum", (1,), values, group=Member(0, 3))[0] == 0
    assert evaluate("ALLREDUCE.sum", (1,), values[[0, 2, 1]], group=Member(0, 3))[0] == 1


@pytest.mark.parametrize("sub", ["max", "min"])
def test_extremes_of_nan_are_nan(evaluate, sub):
    """Whichever rank brings it."""
    for rank in range(3):
        values = np.zeros((3, 1))
        values[rank] = np.nan
        assert np.isnan(evaluate(f"ALLREDUCE.{sub}", (1,), values, group=Member(0, 3))[0])


@pytest.mark.parametrize("sub", ["max", "min"])
def test_of_equal_numbers_the_first_counts(evaluate, sub):
    """0 and -0 are equal: bits follow from the order of ranks, on however many elements."""
    zeros = np.zeros((2, 37))
    for first in (0, 1):
        zeros[first], zeros[1 - first] = -0.0, 0.0
        (result,) = evaluate(f"ALLREDUCE.{sub}", (37,), zeros, group=Member(0, 2))
        assert np.all(np.signbit(result) == (first == 0))


def test_integers_wrap(evaluate):
    """i64 in, i64 out: the machine keeps the low bits."""
    values = np.array([[2**31 - 1], [1]])
    (result,) = evaluate("ALLREDUCE.sum", (1,), values, dtype=DType.I32, group=Member(0, 2))
    assert result == 2**31


def test_moves_between_ranks(evaluate, brought):
    """Each in its own type, nothing computed."""
    mine = brought[:, 0].astype(np.float16)
    np.testing.assert_array_equal(evaluate("ALLGATHER", (RANKS, 2, 3), mine, group=HERE)[0], mine, strict=True)
    (received,) = evaluate("ALLTOALL", (RANKS, 2, 3), brought, group=HERE)
    for sender in range(RANKS):
        np.testing.assert_array_equal(received[sender], brought[sender, PLACE])
    np.testing.assert_array_equal(evaluate("BROADCAST", (2, 3), mine, group=HERE, root=2)[0], mine[2], strict=True)
    np.testing.assert_array_equal(evaluate("PERMUTE", (2, 3), mine, pairs=HERE)[0], mine[1], strict=True)


def test_a_rank_that_nobody_sends_to_gets_zeros(evaluate, brought):
    """Of the tensor's own type."""
    (result,) = evaluate("PERMUTE", (2, 3), brought[:, 0].astype(np.float16), pairs=Member(0, RANKS))
    np.testing.assert_array_equal(result, np.zeros((2, 3), np.float16), strict=True)
