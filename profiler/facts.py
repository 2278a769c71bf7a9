"""A profile as facts for programs (`--json`): everything but the spans. Keys are stable, and name their units."""

from __future__ import annotations

from typing import Any

from dla.isa import cost
from dla.isa.program import Instruction
from dla.profiler.figures import at_run
from dla.profiler.measures import Kind, Measured, kinds, measured, utilisation
from dla.profiler.profile import Profile, Whole


def facts(profile: Profile) -> dict[str, Any]:
    """Everything that was measured; what is not known is None."""
    sizes = at_run(profile.program, profile.dims)
    return {
        "program": profile.program.name,
        "machine": profile.machine,
        "device": dict(profile.device),
        "dims": dict(profile.dims),
        "wall_us": profile.wall * 1e6,
        "runs_us": [run * 1e6 for run in profile.runs],
        "traced_us": profile.traced * 1e6,
        "overhead_us": profile.overhead * 1e6,
        "launch_us": profile.launch * 1e6,
        "roof_us": profile.roof * 1e6,
        "utilisation": utilisation(profile),
        "multiprocessors": len(set(profile.trace.multiprocessors)),
        "blocks": profile.trace.blocks,
        "spans": len(profile.trace.spans),
        "lost_spans": profile.trace.lost,
        "ceilings": {
            "bytes_per_s": profile.ceilings.bytes_per_second,
            "flops_per_s": dict(profile.ceilings.flops),
        },
        "natives": profile.natives or None,
        "instructions": [
            _instruction(m, cost.sized(profile.program.instructions[m.figures.index], sizes)) for m in measured(profile)
        ],
        "kinds": [_kind(kind) for kind in kinds(profile)],
        "critical_path": [
            {"begin_ns": s.begin, "end_ns": s.end, "instruction": s.instruction, "block": s.block, "order": s.order}
            for s in profile.critical
        ],
        "segments_bytes": dict(profile.segments),
        "wholes": [_whole(whole, profile.wall) for whole in profile.wholes],
        "trap": profile.trap,
    }


def _instruction(m: Measured, sized: Instruction) -> dict[str, Any]:
    """`sized` has the dims of the run."""
    f = m.figures
    operands = zip(sized.row.operands, sized.operands, strict=True)
    return {
        "index": f.index,
        "name": f.name,
        "text": f.text,
        "location": f.location,
        "operands": {
            spec.name: {"dtype": d.dtype.text, "shape": list(d.bounds), "strides": list(d.strides)}
            for spec, d in operands if d is not None
        },
        "attributes": {k: _plain(v) for k, v in sized.row.with_defaults(sized.attributes).items()},
        "way": f.way,
        "calls": f.calls,
        "time_us": f.time * 1e6,
        "share": m.share,
        "active_us": _us(m.active),
        **_work(m),
        "native": None if f.native is None else {
            "kernel": f.native.kernel,
            "cold_us": f.native.cold * 1e6,
            "warm_us": _us(f.native.warm),
            "of_native": m.of_native,
            "agrees": f.native.agrees,
            "error": f.native.error,
        },
        "why_no_native": f.why_no_native or None,
    }  # fmt: skip


def _work(m: Measured) -> dict[str, Any]:
    """What is told of an instruction and of a kind alike."""
    f = m.figures
    return {
        "spent_us": {
            name: seconds * 1e6 for name, seconds in zip(("total", "mean", "least", "most"), f.spent, strict=True)
        },
        "working_us": f.working * 1e6,
        "waiting_us": f.waiting * 1e6,
        "utilisation": m.utilisation,
        "flops": f.flops,
        "bytes": f.bytes,
        "flops_per_byte": m.intensity,
        "flops_per_s": m.flops_rate,
        "bytes_per_s": m.bytes_rate,
        "roof_us": f.roof * 1e6,
        "of_roof": m.of_roof,
    }


def _plain(value: Any) -> Any:
    """An attribute's value in JSON's types; a register by its name."""
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, str | int | float | None) else str(value)


def _kind(kind: Kind) -> dict[str, Any]:
    return {
        "name": kind.name,
        "written": kind.written,
        "calls": kind.calls,
        "time_us": kind.sums.figures.time * 1e6,
        "share": kind.sums.share,
        **_work(kind.sums),
    }


def _whole(whole: Whole, wall: float) -> dict[str, Any]:
    return {
        "name": whole.name,
        "time_us": _us(whole.time),
        "of_native": whole.time / wall if whole.time is not None and wall else None,
        "first_us": _us(whole.first),
        "agrees": whole.agrees,
        "note": whole.note or None,
    }


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6
