"""A profile as tables for people (`dla profile`), as wide as the terminal is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dla.profiler.figures import outside
from dla.profiler.measures import Kind, Measured, kinds, measured, utilisation
from dla.profiler.profile import Profile
from dla.profiler.texts import amount, duration, machine, printable, ratio, share

SHOWN = 40
"""Instructions in the table, those that take longest; all are in the other reports."""
_GAP = 2  # columns between two cells


@dataclass(frozen=True)
class Column:
    """A column: those of low `rank` are the last that a narrow terminal does without."""

    head: str
    rank: int
    right: bool = True
    least: int | None = None  # cells that a long text may be cut to; None: it is not cut


class Fitting:
    """A table that leaves out columns which do not fit, and says which."""

    def __init__(self, *columns: Column) -> None:
        self._columns = columns
        self._rows: list[tuple[str | Text, ...]] = []

    def add(self, *cells: str | Text) -> None:
        """A row."""
        self._rows.append(cells)

    def __bool__(self) -> bool:
        """Whether there is a row."""
        return bool(self._rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        used = [i for i, _ in enumerate(self._columns) if any(str(row[i]) for row in self._rows)]
        widths = self._widths(used, options.max_width)
        found = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for i, width in widths.items():
            column = self._columns[i]
            justify: Literal["right", "left"] = "right" if column.right else "left"
            found.add_column(Text(column.head), justify=justify, no_wrap=True, overflow="ellipsis", width=width)
        for row in self._rows:
            found.add_row(*(cell if isinstance(cell := row[i], Text) else Text(cell) for i in widths))
        yield found
        left = [self._columns[i].head for i in used if i not in widths]
        if left:
            yield Text(f"left out, as the terminal is narrow: {', '.join(left)}", "dim")

    def _widths(self, used: Iterable[int], room: int) -> dict[int, int]:
        """The width of each column that is shown, in order: those of low rank first take what they want."""
        widths: dict[int, int] = {}
        room += _GAP
        for i in sorted(used, key=lambda i: self._columns[i].rank):
            wanted = max([cell_len(self._columns[i].head), *(cell_len(str(row[i])) for row in self._rows)])
            width = min(wanted, self._columns[i].least or wanted)
            if width + _GAP <= room:
                widths[i] = width
                room -= width + _GAP
        for i in sorted(widths, key=lambda i: self._columns[i].rank):  # what is left goes to texts that were cut
            wanted = max(cell_len(str(row[i])) for row in self._rows)
            more = min(room, max(0, wanted - widths[i]))
            widths[i] += more
            room -= more
        return dict(sorted(widths.items()))


def parts(profile: Profile) -> list[Text | Fitting]:
    """Everything that a terminal shows: the run, instructions, kinds, the same elsewhere, memory, the device."""
    found: list[Text | Fitting] = [*_head(profile)]
    tables = [_instructions(profile), _kinds(kinds(profile)), *([_wholes(profile)] if profile.wholes else [])]
    for table in filter(None, [*tables, _segments(profile)]):
        found += [Text(), table]
    details = [f"{printable(key)} {printable(value)}" for key, value in profile.device.items() if key != "name"]
    device = printable(profile.device.get("name", f"the {profile.machine} machine"))
    return [*found, Text(), Text("measured on " + ", ".join([device, *details]), "dim")]


def _head(profile: Profile) -> list[Text]:
    dims = "".join(f", {printable(name)}={size}" for name, size in profile.dims.items())
    runs = f", the median of {len(profile.runs)} runs" if len(profile.runs) > 1 else ""
    lines = [Text(f"profile of {printable(profile.program.name)} on {machine(profile.machine)}{dims}")]
    if profile.trap is not None:
        lines.append(Text(f"it trapped, so this is of the time before: {printable(profile.trap)}", "bold red"))
    lines.append(Text(f"{duration(profile.wall)}{runs}; an empty program takes {duration(profile.overhead)}"))
    if profile.traced:
        around = outside(profile.critical) / profile.traced
        lines.append(Text(
            f"critical path of the traced run, {duration(profile.traced)}: {share(1 - around)} in instructions, "
            f"{share(around)} around them{' or not recorded' if profile.trace.lost else ''}"
            f"{f'; launching takes another {duration(profile.launch)}' if profile.launch else ''}"
        ))  # fmt: skip
        busy = utilisation(profile)
        lines.append(Text(
            f"at the ceilings it would take {duration(profile.roof)}, {share(profile.roof / profile.wall)} of a run"
            f"{f'; multiprocessors work {share(busy)} of the time' if busy is not None else ''}"
        ))  # fmt: skip
    if profile.natives:
        lines.append(Text(f"native kernels are {printable(profile.natives)}'s"))
    if profile.trace.lost:
        lines.append(Text(f"{profile.trace.lost:,} spans were lost for want of room: see the beginning only", "yellow"))
    return lines


def _instructions(profile: Profile) -> Fitting:
    found = Fitting(
        Column("", 0), Column("instruction", 0, right=False, least=20), Column("time", 1), Column("share", 2),
        Column("calls", 7), Column("one call", 8), Column("working", 9), Column("waiting", 5), Column("busy", 10),
        Column("TFLOP/s", 6), Column("GB/s", 6), Column("flop/B", 11), Column("of roof", 3), Column("native / dla", 4),
        Column("native kernel", 12, right=False, least=24), Column("at", 13, right=False, least=12),
        Column("how", 14, right=False, least=16),
    )  # fmt: skip
    executed = [m for m in measured(profile) if m.figures.calls]
    longest = sorted(executed, key=lambda m: (-m.figures.time, m.figures.index))
    for m in longest[:SHOWN]:
        found.add(*_row(m))
    rest = longest[SHOWN:]
    if rest:
        time = sum(m.figures.time for m in rest)
        part = share(time / profile.traced) if profile.traced else ""
        found.add("", f"and {len(rest):,} more", duration(time), part, *[""] * 13)
    return found


def _row(m: Measured) -> list[str | Text]:
    f = m.figures
    return [
        str(f.index), printable(f.name), duration(f.time), share(m.share), f"{f.calls:,}", duration(m.active),
        duration(f.working), duration(f.waiting), share(m.utilisation), _rate(m.flops_rate, 1e12),
        _rate(m.bytes_rate, 1e9), _rate(m.intensity, 1), share(m.of_roof), _against(m), _kernel(m),
        printable(f.location or ""), printable(f.way),
    ]  # fmt: skip


def _rate(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:.3g}" if value < 999.5 * unit else f"{value / unit:,.0f}"


def _against(m: Measured) -> Text:
    native = m.figures.native
    if native is None:
        return Text()
    if not native.agrees:
        return Text(f"{ratio(m.of_native)} WRONG".strip(), "bold red")
    return Text(ratio(m.of_native), "green" if (m.of_native or 0) >= 1 else "")


def _kernel(m: Measured) -> str:
    native = m.figures.native
    return printable(native.kernel if native else m.figures.why_no_native)


def _kinds(found: Iterable[Kind]) -> Fitting:
    table = Fitting(
        Column("kind", 0, right=False, least=20), Column("written", 4), Column("calls", 3), Column("time", 1),
        Column("share", 2), Column("mean", 10), Column("least", 11), Column("most", 11), Column("working", 13),
        Column("waiting", 9), Column("busy", 12), Column("operations", 5), Column("bytes", 6), Column("TFLOP/s", 7),
        Column("GB/s", 7), Column("flop/B", 14), Column("of roof", 8),
    )  # fmt: skip
    for kind in found:
        if kind.calls:
            m, f = kind.sums, kind.sums.figures
            table.add(
                printable(kind.name), f"{kind.written:,}", f"{kind.calls:,}", duration(f.time), share(m.share),
                *map(duration, f.spent[1:]), duration(f.working), duration(f.waiting), share(m.utilisation),
                amount(f.flops or None, "flop"), amount(f.bytes or None, "B"), _rate(m.flops_rate, 1e12),
                _rate(m.bytes_rate, 1e9), _rate(m.intensity, 1), share(m.of_roof),
            )  # fmt: skip
    return table


def _wholes(profile: Profile) -> Fitting:
    table = Fitting(
        Column("whole program", 0, right=False, least=20), Column("time", 1), Column("native / dla", 2),
        Column("first result", 4), Column("result", 3, right=False), Column("note", 5, right=False, least=12),
    )  # fmt: skip
    table.add("dla", duration(profile.wall), "", "", "", "")
    for whole in profile.wholes:
        against = ratio(whole.time / profile.wall) if whole.time is not None and profile.wall else ""
        verdict = Text() if whole.agrees is None else Text("agrees") if whole.agrees else Text("WRONG", "bold red")
        table.add(printable(whole.name), duration(whole.time), against, duration(whole.first), verdict,
                  printable(whole.note))  # fmt: skip
    return table


def _segments(profile: Profile) -> Fitting:
    table = Fitting(Column("memory", 0, right=False, least=20), Column("bytes", 0))
    for name, size in profile.segments.items():
        table.add(printable(name), f"{size:,}")
    return table
