"""Groups of ranks: what makes one, and what looking at one costs."""

from __future__ import annotations

import time

import pytest

from dla.isa.ranks import MAX_WORLD, RankGroup, group_problem, list_with, lists_of, sizes_of

HALVES = RankGroup("halves", ((0, 1), (2, 3)))


@pytest.mark.parametrize(
    ("lists", "problem"),
    [
        (((0, 1), (2, 3)), None),
        (((0, 1), (2,)), "does not have each of the ranks 0 to 3 exactly once"),
        (((0, 1), (2, 2)), "does not have each of the ranks 0 to 3 exactly once"),
        (((0, 1), (2, 4)), "does not have each of the ranks 0 to 3 exactly once"),
        (((1, 0), (2, 3)), "has a list that is empty, or lists or ranks that do not ascend"),
        (((2, 3), (0, 1)), "has a list that is empty, or lists or ranks that do not ascend"),
        (((), (0, 1, 2, 3)), "has a list that is empty, or lists or ranks that do not ascend"),
    ],
)
def test_a_group_has_each_rank_once_in_order(lists: tuple[tuple[int, ...], ...], problem: str | None) -> None:
    """A partition."""
    assert group_problem(RankGroup("g", lists), 4) == problem


def test_lists_of_a_group_and_their_sizes() -> None:
    """0 is all ranks."""
    groups = (HALVES, RankGroup("odd", ((0,), (1, 2, 3))))
    assert [lists_of(groups, group, 4) for group in (0, 1)] == [((0, 1, 2, 3),), HALVES.ranks]
    assert [sorted(sizes_of(groups, group, 4)) for group in (0, 1, 2)] == [[4], [2], [1, 3]]
    assert list_with(HALVES.ranks, 2) == (2, 3)


def test_a_group_costs_what_it_lists_however_large_the_world_is() -> None:
    """A small file with thousands of groups of a large world is refused at once."""
    began = time.perf_counter()
    assert all(group_problem(RankGroup(f"g{k}", ((0, 1),)), MAX_WORLD) for k in range(20_000))
    assert all(sizes_of((), 0, MAX_WORLD) == {MAX_WORLD} for _ in range(20_000))
    assert lists_of((), 0, MAX_WORLD) is lists_of((), 0, MAX_WORLD)
    assert time.perf_counter() - began < 5  # 20,000 lists of the whole world take a minute
