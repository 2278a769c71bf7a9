"""Measuring a program: one traced run for where the time goes, others for how long it takes."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dla.assembler import assemble
from dla.emulator.backend import TracedSession
from dla.emulator.binding import bind
from dla.emulator.trace import Trace
from dla.isa.errors import InputError, Trap
from dla.isa.program import Program
from dla.profiler.bench import Limits, latencies
from dla.profiler.critical import critical_path
from dla.profiler.figures import NANOSECOND, at_run, figures
from dla.profiler.native.library import Library, library_for
from dla.profiler.native.measure import natives
from dla.profiler.profile import Native, Profile, Whole
from dla.profiler.stand import Stand, stand_for

REPEAT = 20
"""Runs that are not traced, where nothing else is said."""
TRACED, FEWEST, PATIENCE = 20, 3, 2.0
"""Runs that are traced, at most, and at least once so many seconds are over."""
CLOSE = 0.005
"""How far a traced run may be from those that are not to be the last one."""
EMPTY = assemble(".program empty\nmain:\n    HALT\n")

Progress = Callable[[str], None]


def _silent(step: str) -> None:
    """Progress that nobody watches."""


def profile(
    program: Program, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None,
    state: Mapping[str, Any] | None = None, *, backend: str = "auto", repeat: int = REPEAT,
    progress: Progress = _silent,
) -> Profile:  # fmt: skip
    """Measure `program` on these inputs, named dims and initial state.

    A program that traps has the profile of what ran before: `Profile.trap` says how it ended. Raises what
    `Machine.load` and `Session.run` raise before a run.
    """
    return measured(stand_for(backend, progress), program, inputs, dims, state, repeat=repeat, progress=progress)[0]


def measured(
    stand: Stand, program: Program, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None,
    state: Mapping[str, Any] | None = None, *, repeat: int = REPEAT, progress: Progress = _silent,
) -> tuple[Profile, Trap | None]:  # fmt: skip
    """What `profile` does, on `stand`; and the trap that the run ended in."""
    if program.world > 1:
        raise InputError(f"this program runs on {program.world} ranks, and only one can be profiled",
                         hint="`dla run --trace` prints what each rank executes")  # fmt: skip
    sizes, start = bind(program, inputs, dims).dims, state or {}
    progress(f"{repeat} runs that are not traced")
    overhead = statistics.median(times(stand, EMPTY, {}, {}, {}, repeat))
    launch = max(0.0, overhead - _traced(stand.traced(EMPTY), {}, {}, {}, 0.0)[0].end * NANOSECOND)
    runs: tuple[float, ...] = ()
    with contextlib.suppress(Trap):  # the traced run tells of it
        runs = times(stand, program, inputs, sizes, start, repeat)
    gc.collect()  # a session of the GPU and its launch hold each other: the next one may need their memory
    progress("traced runs")
    session = stand.traced(program)
    trace, trap = _traced(session, inputs, dims, start, statistics.median(runs) - launch if runs else 0.0)
    traced, ways = trace.end * NANOSECOND, stand.ways(session)
    del session  # what comes next may need its memory
    if trap is not None:
        runs = ()
    progress("what the hardware can do")  # last: an allocator that had large arrays is faster from then on
    ceilings = stand.ceilings()
    critical = critical_path(program, trace)
    found = Profile(
        program=program, machine=stand.name, device=stand.device(), dims=sizes,
        wall=statistics.median(runs) if runs else traced, traced=traced, runs=runs, overhead=overhead,
        launch=launch,
        figures=figures(program, trace, critical, ceilings, sizes, ways), critical=critical,
        ceilings=ceilings, trace=trace, segments={s.text: size for s, size in program.segment_bytes.items()},
        trap=None if trap is None else str(trap),
    )  # fmt: skip
    return found, trap


def _traced(
    session: TracedSession, inputs: Mapping[str, Any], dims: Mapping[str, int] | None, state: Mapping[str, Any],
    usual: float,
) -> tuple[Trace, Trap | None]:  # fmt: skip
    """Of several runs, the one that took most nearly the `usual` seconds; or what ran before a trap, and the trap.

    The first runs touch memory that no run touched before, and any may be disturbed.
    """
    start = {**session.state, **state}
    nearest, least, until = None, math.inf, time.perf_counter() + PATIENCE
    for tried in range(1, TRACED + 1):
        session.set_state(start)
        result, trace = session.trace(inputs, dims)
        if isinstance(result, Trap):
            return trace, result
        off = abs(trace.end * NANOSECOND - usual)
        if off < least:
            nearest, least = trace, off
        if least <= CLOSE * usual or (tried >= FEWEST and time.perf_counter() > until):
            break
    assert nearest is not None, "there is a run at least"
    return nearest, None


def times(
    stand: Stand, program: Program, inputs: Mapping[str, Any], dims: Mapping[str, int], state: Mapping[str, Any],
    repeat: int,
) -> tuple[float, ...]:  # fmt: skip
    """Seconds of `repeat` runs with cold caches, after one that nobody times."""
    return latencies(stand.timer(program, inputs, dims, state, cold=True), Limits(0.0, 0.0, repeat))[0]


def with_natives(
    found: Profile, chosen: Callable[[int], bool] = lambda index: True, progress: Progress = _silent,
    library: Library | None = None,
) -> Profile:  # fmt: skip
    """`found` with native kernels beside the instructions that ran and are `chosen`; of `library`, or what is there."""
    library = library or library_for(found.machine)
    ran = {f.index for f in found.figures if f.calls}
    sizes = at_run(found.program, found.dims)
    beside = natives(found.program, sizes, lambda index: index in ran and chosen(index), progress,
                     library=library)  # fmt: skip

    def one(native: Native | str | None) -> dict[str, Any]:
        return {} if native is None else {"why_no_native": native} if isinstance(native, str) else {"native": native}

    compared = tuple(replace(f, **one(beside.get(f.index))) for f in found.figures)
    return replace(found, figures=compared, natives=library.name)


def with_wholes(found: Profile, wholes: Sequence[Whole]) -> Profile:
    """`found` with the same network elsewhere beside it."""
    return replace(found, wholes=(*found.wholes, *wholes))


def only(found: Profile, index: int) -> Profile:
    """`found`, of which one instruction is shown."""
    return replace(found, chosen=index)
