"""The arrows of a timeline."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import made_profiles as made

from dla.profiler import flows as module
from dla.profiler.flows import flows
from dla.profiler.profile import Profile

Place = tuple[int, int]
"""(block, order) of a span."""


def places(profile: Profile) -> set[tuple[Place, Place]]:
    """The arrows, from place to place."""
    spans = profile.trace.spans
    at = [(int(span["block"]), int(span["order"])) for span in spans]
    return {(at[one], at[other]) for one, other in flows(profile).tolist()}


def test_arrows_follow_the_critical_path() -> None:
    """From the block that ended one step to the block of the next."""
    profile = made.chain(6, 8)
    steps = [(s.block, s.order) for s in profile.critical if s.instruction is not None]
    assert len(steps) == 6
    assert set(pairwise(steps)) <= places(profile)


def test_every_dependency_of_a_short_run_has_an_arrow() -> None:
    """EW.add y reads b, which is two instructions before it: an arrow that the critical path has not."""
    body = ["GEMM a, x, w", "GEMM b, x, w", "EW.add y, a, b"]
    profile = made.profile(made.program("fork", body), range(3), 2)
    assert {(one[1], other[1]) for one, other in places(profile)} == {(0, 1), (0, 2), (1, 2)}


def test_a_trip_of_a_loop_waits_for_the_one_before() -> None:
    """Dependencies are those of executions: GEMM of the second trip (order 3) waits for EW.add of the first (2)."""
    found = {(one[1], other[1]) for one, other in places(made.loop(trips=3))}
    assert {(0, 1), (1, 2), (2, 3), (4, 5)} <= found
    assert all(one < other for one, other in found)


def test_arrows_point_ahead_in_time() -> None:
    """Each span that is waited for began before the other could."""
    spans = (profile := made.resnet(40, 16)).trace.spans
    for one, other in flows(profile).tolist():
        assert spans[one]["began"] < max(spans[other]["began"], spans[other]["ready"])


def test_a_long_run_has_those_of_the_critical_path_alone() -> None:
    """With more executions than a picture can hold, its end is what counts."""
    profile = made.long(2 * module.FEW, 2)
    assert len(flows(profile)) <= len(profile.critical)


def test_lost_spans_have_no_arrows() -> None:
    """Steps of which the trace has no span are left out, and so is everything without any."""
    profile = made.chain(6, 8)
    early = profile.trace.spans[profile.trace.spans["order"] < 2]
    found = places(replace(profile, trace=replace(profile.trace, spans=early)))
    assert {(one[1], other[1]) for one, other in found} == {(0, 1)}
    assert len(flows(made.nothing())) == 0
    assert len(flows(replace(profile, trace=made.nothing().trace))) == 0
