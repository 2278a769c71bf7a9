"""Measuring a program: one traced run for where the time goes, others for how long it takes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dla.assembler import assemble
from dla.emulator.backend import TracedSession
from dla.emulator.binding import bind
from dla.emulator.trace import Trace
from dla.isa.errors import BackendError, Trap
from dla.isa.program import Program
from dla.profiler.critical import critical_path
from dla.profiler.figures import NANOSECOND, at_run, figures
from dla.profiler.profile import Native, Profile, Whole
from dla.profiler.stand import Stand, stand_for

REPEAT = 20
"""Runs that are not traced, where nothing else is said."""
TRACED = 3
"""Runs that are traced; the first one does whatever is done only once."""
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
    sizes = bind(program, inputs, dims).dims
    progress("traced runs")
    session = stand.traced(program)
    ways = stand.ways(session)
    trace, trap = _traced(session, inputs, dims, state or {})
    del session  # the one that is timed may need its memory
    traced = trace.end * NANOSECOND
    runs: tuple[float, ...] = ()
    if trap is None:
        progress(f"{repeat} runs that are not traced")
        runs = times(stand, program, inputs, sizes, state or {}, repeat)
    progress("what the hardware can do")
    ceilings, overhead = stand.ceilings(), statistics.median(times(stand, EMPTY, {}, {}, {}, repeat))
    nothing = _traced(stand.traced(EMPTY), {}, {}, {})[0].end * NANOSECOND
    critical = critical_path(program, trace)
    found = Profile(
        program=program, machine=stand.name, device=stand.device(), dims=sizes,
        wall=statistics.median(runs) if runs else traced, traced=traced, runs=runs, overhead=overhead,
        launch=max(0.0, overhead - nothing),
        figures=figures(program, trace, critical, ceilings, sizes, ways), critical=critical,
        ceilings=ceilings, trace=trace, segments={s.text: size for s, size in program.segment_bytes.items()},
        trap=None if trap is None else str(trap),
    )  # fmt: skip
    return found, trap


def _traced(
    session: TracedSession, inputs: Mapping[str, Any], dims: Mapping[str, int] | None, state: Mapping[str, Any]
) -> tuple[Trace, Trap | None]:
    """The fastest of several runs, as the least disturbed one; or what ran before a trap, and the trap."""
    start = {**session.state, **state}
    fastest: Trace | None = None
    for _ in range(TRACED):
        session.set_state(start)
        result, trace = session.trace(inputs, dims)
        if isinstance(result, Trap):
            return trace, result
        fastest = trace if fastest is None or trace.end < fastest.end else fastest
    assert fastest is not None, "there is a run at least"
    return fastest, None


def times(
    stand: Stand, program: Program, inputs: Mapping[str, Any], dims: Mapping[str, int], state: Mapping[str, Any],
    repeat: int,
) -> tuple[float, ...]:  # fmt: skip
    """Seconds of `repeat` runs with cold caches, after one that nobody times."""
    timer = stand.timer(program, inputs, dims, state, cold=True)
    timer()
    return tuple(timer() for _ in range(repeat))


def with_natives(
    found: Profile, chosen: Callable[[int], bool] = lambda index: True, progress: Progress = _silent
) -> Profile:
    """`found` with native kernels beside the instructions that ran and are `chosen`.

    Raises BackendError without PyTorch.
    """
    require_torch("--native", found.machine)
    from dla.profiler.native.measure import natives  # imports PyTorch, which is slow

    ran = {f.index for f in found.figures if f.calls}
    sizes = at_run(found.program, found.dims)
    beside = natives(found.program, sizes, lambda index: index in ran and chosen(index), progress,
                     machine=found.machine)  # fmt: skip

    def one(native: Native | str | None) -> dict[str, Any]:
        return {} if native is None else {"why_no_native": native} if isinstance(native, str) else {"native": native}

    return replace(found, figures=tuple(replace(f, **one(beside.get(f.index))) for f in found.figures))


def with_wholes(found: Profile, wholes: Sequence[Whole]) -> Profile:
    """`found` with the same network elsewhere beside it."""
    return replace(found, wholes=(*found.wholes, *wholes))


def require_torch(option: str, machine: str) -> None:
    """Raise BackendError where there is no PyTorch for `option`: on the processor that `machine` is measured on."""
    try:
        import torch  # asked for only where it is needed
    except ImportError as error:
        raise BackendError(f"{option} needs PyTorch, which cannot be imported: {error}",
                           hint="pip install 'dla[native]'") from None  # fmt: skip
    if machine == "gpu" and not torch.cuda.is_available():
        raise BackendError(f"{option} needs a PyTorch that sees the GPU; this one ({torch.__version__}) does not",
                           hint="install PyTorch for CUDA: https://pytorch.org")  # fmt: skip


def only(found: Profile, index: int) -> Profile:
    """`found` with the figures of one instruction."""
    return replace(found, figures=(found.figures[index],))
