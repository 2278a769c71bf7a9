"""Results as tables for people and as facts for programs (`--json`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from dla.isa.descriptor import Dynamic
from dla.isa.summary import Summary, summarise

if TYPE_CHECKING:
    from dla.emulator.compare import OutputComparison
    from dla.emulator.doctor import Finding
    from dla.emulator.golden.execution import Executed
    from dla.emulator.result import Probe, Result
    from dla.emulator.topology import Link
    from dla.isa.dtypes import Array
    from dla.isa.program import Program
    from dla.isa.table import Row

SHOWN_ELEMENTS = 32
"""Larger tensors are shown by statistics."""
JSON_ELEMENTS = 4096
"""Larger tensors are statistics in JSON, too: `--output` writes all of them."""


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the one style that all tables have."""
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


# -- tensors


def dtype_name(array: Array) -> str:
    """`f32` and so on, or NumPy's name for a type that the machine lacks."""
    from dla.isa.dtypes import BY_NUMPY

    known = BY_NUMPY.get(array.dtype)
    return known.text if known else str(array.dtype)


def tensor_line(name: str, array: Array) -> str:
    """`y: f32[2, 3] = [[...]]`, or statistics where that would be long."""
    import numpy as np

    head = f"{name}: {dtype_name(array)}{list(array.shape)}"
    if array.size <= SHOWN_ELEMENTS:
        wide = array.astype(np.float32) if array.dtype.kind == "V" else array
        return f"{head} = {np.array2string(wide, separator=', ', max_line_width=100, precision=6)}"
    return f"{head}  {probe_text(_statistics(array))}"


def _statistics(array: Array) -> Probe:
    from dla.emulator.result import statistics

    return statistics(array)


def probe_text(probe: Probe) -> str:
    """`min -1 mean 0.2 max 3`, and how many elements are NaN or infinite if any are."""
    text = f"min {probe.minimum:.6g} mean {probe.mean:.6g} max {probe.maximum:.6g}"
    odd = [f"{count} {what}" for count, what in ((probe.nans, "NaN"), (probe.infinities, "infinite")) if count]
    return ", ".join([text, *odd])


def tensor_facts(array: Array) -> dict[str, Any]:
    """dtype, shape, and values (or statistics of a large tensor)."""
    facts: dict[str, Any] = {"dtype": dtype_name(array), "shape": list(array.shape)}
    if array.size <= JSON_ELEMENTS:
        return facts | {"values": array.tolist()}
    statistics = asdict(_statistics(array))
    return facts | {"statistics": {k: statistics[k] for k in ("minimum", "mean", "maximum", "nans", "infinities")}}


def run_facts(result: Result) -> dict[str, Any]:
    """A finished run."""
    return {
        "backend": result.backend,
        "elapsed_s": result.elapsed,
        "dims": dict(result.dims),
        "outputs": {name: tensor_facts(array) for name, array in result.outputs.items()},
        "probes": [asdict(probe) | rank for rank, probe in _probes(result)],
    } | ({"ranks": len(result.ranks)} if result.ranks else {})


def _probes(result: Result) -> list[tuple[dict[str, int], Probe]]:
    """The reports of all ranks, each with its rank if there are several."""
    if not result.ranks:
        return [({}, probe) for _, probe in sorted(result.probes.items())]
    return [({"rank": rank}, probe) for rank, one in enumerate(result.ranks) for _, probe in sorted(one.probes.items())]


def with_nans(result: Result) -> list[str]:
    """The names of the float outputs with NaN elements."""
    import numpy as np

    floats = {name: array for name, array in result.outputs.items() if array.dtype.kind in "fV"}
    return [name for name, array in floats.items() if np.isnan(array).any()]


def run_lines(result: Result, *, with_outputs: bool) -> list[str]:
    """A line for each PROBE's report, of all ranks, and for each output."""
    lines = []
    for rank, probe in _probes(result):
        text = f"probe {probe.tag}: count {probe.count} {probe_text(probe)}"
        where = f"rank {rank['rank']}: " if rank else ""
        lines.append(f"{where}{text}  {probe.message}" if probe.message else f"{where}{text}")
    return lines + [tensor_line(name, array) for name, array in result.outputs.items() if with_outputs]


def trace_line(executed: Executed) -> str:
    """One executed instruction: where, what, how long, and what it wrote."""
    where = "" if executed.rank is None else f"rank {executed.rank} "
    parts = [f"{where}{executed.index:5} {executed.name:<14} {executed.elapsed * 1e6:9.1f} us"]
    parts += [f"        {operand}" for operand in executed.operands]
    parts += [f"        -> {name}: {probe_text(probe)}" for name, probe in executed.outputs.items()]
    if executed.location:
        parts[0] += f"  {executed.location}"
    return "\n".join(parts)


# -- programs


def shape_text(program: Program, dims: Iterable[int | Dynamic]) -> str:
    """`[batch <= 64, 10]`: dims as they are declared."""
    names = {symbol.register: symbol.name for symbol in program.dims}

    def one(dim: int | Dynamic) -> str:
        return f"{names.get(dim.register, f's{dim.register}')} <= {dim.bound}" if isinstance(dim, Dynamic) else str(dim)

    return "[" + ", ".join(one(d) for d in dims) + "]"


def view(program: Program) -> tuple[dict[str, Any], list[Table | str]]:
    """What a verified `program` contains, as facts and as text."""
    summary = summarise(program)
    return program_facts(program, summary), program_tables(program, summary)


def program_facts(program: Program, summary: Summary) -> dict[str, Any]:
    """What `dla inspect` knows."""
    return {
        "name": program.name,
        "isa": ".".join(map(str, program.isa_version)),
        "world": program.world,
        "groups": {group.name: group.ranks for group in program.groups},
        "pairs": {pairs.name: pairs.pairs for pairs in program.pairs},
        "shards": [{"tensor": s.tensor, "axis": s.axis, "bytes": s.data.nbytes} for s in program.shards],
        "instructions": len(program.instructions),
        "mix": summary.mix,
        "work": {name: asdict(work) for name, work in summary.work.items()},
        "total": asdict(summary.total),
        "segments": {segment.text: size for segment, size in summary.segments.items()},
        "dims": [asdict(symbol) for symbol in program.dims],
        "tensors": [
            {
                "name": t.name,
                "segment": t.segment.text,
                "dtype": t.descriptor.dtype.text,
                "shape": list(t.descriptor.bounds),
                "offset": t.descriptor.offset,
                "bytes": t.descriptor.span,
            }
            for t in program.tensors
        ],
        "external": [asdict(e) for e in program.external],
    }


def program_tables(program: Program, summary: Summary) -> list[Table | str]:
    """`dla inspect` for people."""
    version = ".".join(map(str, program.isa_version))
    for_ranks = f", {program.world} ranks" if program.world else ""
    head = (
        f"program {program.name}, ISA {version}{for_ranks}: {len(program.instructions)} instructions; at most "
        f"{summary.total.executions:,} executed, {quantity(summary.total.flops, 'flop')}, "
        f"{quantity(summary.total.nbytes, 'B')} of operands"
    )
    tensors = table("tensor", "segment", "type", "offset", "bytes")
    for t in program.tensors:
        shape = t.descriptor.dtype.text + shape_text(program, t.descriptor.dims)
        tensors.add_row(t.name, t.segment.text, shape, str(t.descriptor.offset), f"{t.descriptor.span:,}")
    segments = table("segment", "bytes", "writable")
    for segment, size in summary.segments.items():
        segments.add_row(segment.text, f"{size:,}", "yes" if segment.writable else "no")
    mix = table("instruction", "written", "executed", "flops", "operand bytes")
    for name, count in summary.mix.items():
        work = summary.work[name]
        mix.add_row(
            name, str(count), f"{work.executions:,}", quantity(work.flops, "flop"), quantity(work.nbytes, "B")
        )  # fmt: skip
    external = table("constants at", "bytes", "stay in")
    for e in program.external:
        external.add_row(str(e.offset), f"{e.nbytes:,}", f"{e.file}#{e.key}")
    parts: list[Table | str] = [head, tensors, segments, mix]
    parts += [external] * bool(program.external) + [_rank_table(program)] * bool(program.groups or program.pairs)
    return parts + [_shard_table(program)] * bool(program.shards)


def _rank_table(program: Program) -> Table:
    """Groups of ranks, and pairs."""
    found = table("ranks", "lists")
    for group in program.groups:
        found.add_row(f"group {group.name}", " ".join(str(list(ranks)) for ranks in group.ranks))
    for pairs in program.pairs:
        found.add_row(f"pairs {pairs.name}", " ".join(f"{sender} to {receiver}" for sender, receiver in pairs.pairs))
    return found


def _shard_table(program: Program) -> Table:
    """Constants of which each rank holds a piece."""
    found = table("in pieces", "axis", "group", "bytes of all")
    for shard in program.shards:
        group = program.groups[shard.group - 1].name if shard.group else "all ranks"
        found.add_row(shard.tensor, str(shard.axis), group, f"{shard.data.nbytes:,}")
    return found


def quantity(value: float, unit: str) -> str:
    """`12.3 Mflop`: three digits and a decimal prefix."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 1000:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} P{unit}"


def comparison_table(rows: Iterable[tuple[str, OutputComparison]]) -> Table:
    """One line per backend and output: how far it is from the reference, and how far it may be."""
    found = table("backend", "output", "type", "elements", "largest error", "of its bound", "outside", "ties", "")
    for backend, c in rows:
        verdict = Text("within", "green") if c.ok else Text(f"WRONG {c.problem or ''}".strip(), "bold red")
        found.add_row(
            backend, c.name, c.dtype, f"{c.elements:,}", f"{c.max_error:.3g}", f"{c.max_ratio:.1%}", str(c.over),
            str(c.ties), verdict,
        )  # fmt: skip
    return found


def comparison_facts(rows: Iterable[tuple[str, OutputComparison]]) -> dict[str, Any]:
    """The same as facts."""
    facts = [{"backend": b} | asdict(c) | {"segment": c.segment.text, "ok": c.ok} for b, c in rows]
    return {"ok": all(fact["ok"] for fact in facts), "comparisons": facts}


# -- the instruction set and this computer


def isa_table(rows: Iterable[Row]) -> Table:
    """One line per instruction."""
    found = table("code", "instruction", "family", "what it does")
    for row in rows:
        subs = "." + "|".join(s.name for s in row.subs if s.name) if row.subs else ""
        if "" in row.sub_codes and not row.default_sub:
            subs = f"[{subs}]"  # the bare mnemonic is one of them
        if len(subs) > 40:
            subs = f".(one of {len(row.subs)})"
        found.add_row(f"{row.opcode:#04x}", row.mnemonic + subs, row.family, row.summary)
    return found


def row_facts(row: Row) -> dict[str, Any]:
    """One instruction."""
    return {
        "mnemonic": row.mnemonic,
        "opcode": row.opcode,
        "family": row.family,
        "since": row.since,
        "summary": row.summary,
        "subs": [asdict(sub) for sub in row.subs],
        "operands": [
            {
                "name": o.name,
                "role": o.role.value,
                "shape": o.shape,
                "dtypes": [d.text for d in row.operand_dtypes(o)],
                "optional": o.optional or o.step is not None,
            }
            for o in row.operands
        ],
        "attributes": [
            {
                "name": a.name,
                "default": None if a.default is None else str(a.default),
                "expects": a.expects,
                "doc": a.doc,
            }
            for a in row.all_attributes.values()
        ],
        "constraints": [{"name": c.name, "text": c.text} for c in row.constraints],
        "error": row.error.text,
        "flops": row.flops_text,
        "example": row.example.strip("\n"),
    }


_MARKS = {"ok": "green", "missing": "yellow", "info": ""}


def doctor_table(findings: Iterable[Finding]) -> Table:
    """What this computer offers; what is missing, and how to get it."""
    found = table("", "what", "found")
    for finding in findings:
        mark = Text(finding.level.value, _MARKS[finding.level.value])
        found.add_row(mark, finding.subject, finding.value)
        if finding.remedy:
            found.add_row("", "", Text(f"get it: {finding.remedy}", "yellow"))
    return found


def topology_table(links: Sequence[Link]) -> Table:
    """A row for each GPU, a column for where its bytes go."""
    gpus = sorted({link.source for link in links})
    title = "Copies between GPUs, and what carries collectives"
    found = table("GB/s", *(f"to GPU {gpu}" for gpu in gpus), title=title)
    for source in gpus:
        cells = []
        for link in (link for link in links if link.source == source):
            speed = "no memory" if link.bytes_per_second is None else f"{link.bytes_per_second / 1e9:.0f}"
            words = speed if link.source == link.target else f"{speed}, {link.transport}"
            cells.append(Text(words, "" if link.reaches else "yellow"))
        found.add_row(f"GPU {source}", *cells)
    return found


def doctor_facts(findings: Iterable[Finding], links: Sequence[Link] | None = None) -> Any:
    """The same as facts: a list, or with `links` an object that has both."""
    facts = [asdict(f) | {"level": f.level.value} for f in findings]
    return (
        facts
        if links is None
        else {"findings": facts, "links": [asdict(link) | {"transport": link.transport} for link in links]}
    )
