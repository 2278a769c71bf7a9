"""What follows from a profile."""

from __future__ import annotations

from dataclasses import replace

import made_profiles as made
import numpy as np
import pytest

from dla.emulator.trace import SPAN, Trace
from dla.profiler.measures import active_times, kinds, measured, rates, utilisation


def span(**fields: int) -> tuple[int, ...]:
    """A span; what is not given is 0."""
    return tuple(fields.get(name, 0) for name in SPAN.names or ())


def test_one_call_counts_from_when_its_first_block_could_begin() -> None:
    """Waiting for other instructions is not part of it, being later than others is; calls are averaged."""
    spans = np.array([
        span(order=0, began=0, ready=5_000, loaded=6_000, done=9_000, signalled=9_500, tiles=1),
        span(order=1, began=10_000, ready=0, loaded=11_000, done=12_000, signalled=12_000, tiles=1),
        span(order=0, block=1, began=7_000, ready=5_000, loaded=7_500, done=11_000, signalled=11_000, tiles=1),
    ], SPAN)  # fmt: skip
    assert active_times(Trace(spans, (0, 1), 12_000)) == {0: pytest.approx((6_000 + 2_000) / 2 * 1e-9)}


def test_rates_and_ratios_are_of_one_call() -> None:
    """The time of one call is what operations, bytes, roof and native kernel are divided by."""
    profile = made.chain()
    first = measured(profile)[0]
    figures = first.figures
    assert first.active is not None
    assert figures.native is not None
    assert first.flops_rate == pytest.approx(figures.flops / first.active)
    assert first.bytes_rate == pytest.approx(figures.bytes / first.active)
    assert first.of_roof == pytest.approx(figures.roof / first.active)
    assert first.of_native == pytest.approx(figures.native.cold / first.active)
    assert first.share == pytest.approx(figures.time / profile.traced)


def test_what_never_ran_has_no_rates() -> None:
    """HALT, and everything in a run that trapped at once."""
    found = [measured(made.chain())[-1], *measured(made.nothing())]
    assert {(m.active, m.flops_rate, m.bytes_rate, m.of_roof, m.of_native) for m in found} == {(None,) * 5}


def test_kinds_are_sums() -> None:
    """Calls, times and work of all instructions of a name; the longest first."""
    profile = made.loop(trips=5)
    found = {kind.name: kind for kind in kinds(profile)}
    assert [found[name].calls for name in ("GEMM", "EW.add", "COPY", "HALT")] == [5, 5, 2, 0]
    assert found["COPY"].written == 2
    product, copies = found["GEMM"].sums, [profile.figures[0], profile.figures[5]]
    assert product.figures.flops == 5 * profile.figures[2].flops
    alone = measured(profile)[2]
    for name in ("flops_rate", "bytes_rate", "of_roof", "intensity", "utilisation"):  # there is one product: no mixture
        assert getattr(product, name) == pytest.approx(getattr(alone, name))
    copied = found["COPY"].sums.figures
    for name in ("time", "working", "waiting"):
        assert getattr(copied, name) == pytest.approx(sum(getattr(one, name) for one in copies))
    totals, _, least, most = zip(*(one.spent for one in copies), strict=True)
    assert copied.spent == pytest.approx((sum(totals), sum(totals) / 2, min(least), max(most)))
    assert next(iter(found)) == "GEMM"


def test_utilisation_is_of_all_multiprocessors() -> None:
    """One of two works for half of the only call, the other for all of it; alone, there is nothing to share out."""
    profile = made.chain(2, 2)
    spans = profile.trace.spans[profile.trace.spans["order"] == 0].copy()
    for name, times in (("began", (0, 0)), ("ready", (0, 0)), ("loaded", (0, 0)), ("done", (500, 1000))):
        spans[name] = times
    first = replace(profile.figures[0], calls=1, working=750e-9)
    half = replace(profile, figures=(first,), trace=Trace(spans, (0, 1), 2000), traced=2e-6)
    assert measured(half)[0].utilisation == pytest.approx(0.75)
    assert utilisation(half) == pytest.approx(0.375)
    alone = replace(half, trace=Trace(spans[:1], (0,), 2000))
    assert (measured(alone)[0].utilisation, utilisation(alone)) == (None, None)
    assert measured(half)[0].intensity == pytest.approx(first.flops / first.bytes)


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_rates_over_time_hold_all_work(most: int) -> None:
    """Whatever the resolution, rates times durations are the operations and bytes of all calls."""
    profile = made.loop()
    found = rates(profile, most)
    seconds = np.diff(found.edges) * 1e-9
    assert len(found.flops) == most
    assert (found.flops * seconds).sum() == pytest.approx(sum(f.flops * f.calls for f in profile.figures))
    assert (found.bytes * seconds).sum() == pytest.approx(sum(f.bytes * f.calls for f in profile.figures))


def test_rates_are_where_the_work_is() -> None:
    """One block that works in the middle third of the time: nothing before it could begin, and all of it evenly."""
    profile = made.chain(2, 1)
    spans = profile.trace.spans[:1].copy()
    spans["began"], spans["ready"], spans["loaded"], spans["done"] = 0, 1_000, 1_000, 3_000
    idle = spans.copy()
    idle["order"], idle["instruction"], idle["began"], idle["ready"], idle["done"] = 1, 2, 0, 0, 4_000
    found = rates(replace(profile, trace=replace(profile.trace, spans=np.concatenate([spans, idle]))), 4)
    rate = profile.figures[0].flops / 2e-6
    assert found.edges.tolist() == [0, 1_000, 2_000, 3_000, 4_000]
    assert found.flops.tolist() == pytest.approx([0, rate, rate, 0])


def test_an_empty_trace_has_no_rates() -> None:
    """Nothing to divide by."""
    found = rates(made.nothing(), 10)
    assert (len(found.flops), len(found.bytes), len(found.edges)) == (0, 0, 1)
