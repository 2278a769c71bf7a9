"""Scratch memory over time, drawn as text (`dla inspect --memory`)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dla.isa.lifetimes import Lifetime, Usage, usage
from dla.report import quantity, table

if TYPE_CHECKING:
    from dla.isa.program import Program

ROWS = 16
_WIDTH = 68  # columns of the picture: with the addresses on its left, 80
_WIDEST = 4  # columns for one instruction of a short program
_SHADES = " ░▒▓█"
_BARS = " ▁▂▃▄▅▆▇█"
_LARGEST = 12  # tensors in the table


def view(program: Program) -> tuple[dict[str, Any], list[Table | str]]:
    """Scratch memory of a verified `program`, as facts and as text."""
    used = usage(program)
    return memory_facts(program, used), memory_parts(program, used)


def memory_facts(program: Program, usage: Usage) -> dict[str, Any]:
    """What the picture shows, as facts."""
    return {
        "name": program.name,
        "scratch_bytes": usage.size,
        "lower_bound": usage.lower_bound,
        "ratio": _ratio(usage),
        "peak_instruction": usage.peak if usage.size else None,
        "in_use": usage.in_use,
        "lifetimes": [asdict(lifetime) for lifetime in usage.lifetimes],
    }


def memory_parts(program: Program, usage: Usage) -> list[Table | str]:
    """The picture, and a table of what is large."""
    if not usage.size:
        return [f"program {program.name} uses no scratch memory"]
    peak = program.instructions[usage.peak].name
    head = (
        f"scratch memory of {program.name}: {usage.size:,} bytes; at most {usage.lower_bound:,} in use at once, "
        f"during instruction {usage.peak} ({peak})"
        + (f": {_ratio(usage):.3f} x the lower bound" if usage.lower_bound else "")
    )
    return [head, "", _picture(usage), _table(usage)]


def _ratio(usage: Usage) -> float | None:
    return usage.size / usage.lower_bound if usage.lower_bound else None


def _columns(count: int) -> list[tuple[int, int]]:
    """The range of instructions in each column of the picture."""
    if count * 2 <= _WIDTH:
        each = min(_WIDEST, _WIDTH // count)
        return [(i, i + 1) for i in range(count) for _ in range(each)]
    width = min(count, _WIDTH)
    return [(i * count // width, (i + 1) * count // width) for i in range(width)]


def _picture(usage: Usage) -> str:
    columns = _columns(len(usage.in_use))
    lines = []
    for row, shares in enumerate(usage.shares(ROWS, columns)):
        lines.append(f"{quantity(usage.size * row // ROWS, 'B'):>9} |{''.join(map(_shade, shares))}|")
    used = [max(usage.in_use[first:end]) for first, end in columns]
    bars = "".join(_BARS[-(-n * (len(_BARS) - 1) // usage.size)] for n in used)
    lines.append(f"{'in use':>9} |{bars}|")
    last = str(len(usage.in_use) - 1)
    lines.append(f"{'':>9}  0{last:>{len(columns) - 1}}  instruction")
    lines.append(f"{'':>9}  {_SHADES[1]}{_SHADES[2]}{_SHADES[3]}{_SHADES[4]}: in use, in part or whole")
    return "\n".join(lines)


def _shade(share: float) -> str:
    """Nothing only for what is not used at all, the full block only for what is used throughout."""
    if share >= 0.999:
        return _SHADES[-1]
    return _SHADES[0] if share <= 0 else _SHADES[1 + min(2, int(share * 3))]


def _table(usage: Usage) -> Table:
    found = table("largest", "bytes", "offset", "from", "to", "at the peak")
    large = sorted(usage.lifetimes, key=lambda life: (-life.nbytes, life.first))
    for life in large[:_LARGEST]:
        here = "yes" if life.first <= usage.peak <= life.last else ""
        found.add_row(_name(life), f"{life.nbytes:,}", f"{life.offset:,}", str(life.first), str(life.last), here)
    if len(large) > _LARGEST:
        found.add_row(f"and {len(large) - _LARGEST:,} more", f"{sum(life.nbytes for life in large[_LARGEST:]):,}")
    return found


def _name(life: Lifetime) -> str:
    return life.name or "(no name)"
