"""Bit fields drawn as text, one line for every 32 bits, highest bit on the left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WORD = 32
"""Bits in one line of a picture."""
ZERO = "zero"
"""Label of bits that belong to no field."""
_CHARS = 2
"""Characters for one bit."""


@dataclass(frozen=True)
class Field:
    """`width` bits from bit `at` on, called `name`."""

    at: int
    width: int
    name: str


def draw(fields: Iterable[Field], bits: int) -> str:
    """A picture of `bits` bits. Bits that belong to no field are zero; lines that are all zero are drawn as one."""
    lines = [_header(), _border(_cells(fields := list(fields), 0))]
    zero_from: int | None = None
    for word in range(bits // WORD):
        cells = _cells(fields, word)
        if cells == [(WORD, ZERO)]:
            zero_from = word if zero_from is None else zero_from
            if word + 1 < bits // WORD and _cells(fields, word + 1) == cells:
                continue
            label = f"{zero_from}" if zero_from == word else f"{zero_from}..{word}"
            zero_from = None
        else:
            label = f"{word}"
        following = _cells(fields, word + 1) if word + 1 < bits // WORD else cells
        lines += [_line(label, cells), _border(cells, following)]
    return "\n".join(lines)


def _header() -> str:
    marks = [" "] * (WORD * _CHARS)
    for bit in (31, 24, 23, 16, 15, 8, 7, 0):
        text = str(bit)
        start = (WORD - bit) * _CHARS - 1 - len(text) if bit % 8 == 0 else (WORD - 1 - bit) * _CHARS
        marks[start : start + len(text)] = text
    return "   u32   " + "".join(marks).rstrip()


def _cells(fields: Iterable[Field], word: int) -> list[tuple[int, str]]:
    """(bits, label) from the highest bit of a word to its lowest."""
    first = word * WORD
    cells: list[tuple[int, str]] = []
    at = first
    inside = (f for f in fields if f.at < first + WORD and f.at + f.width > first)
    for field in sorted(inside, key=lambda f: f.at):
        low, high = max(field.at, first), min(field.at + field.width, first + WORD)
        if low > at:
            cells.append((low - at, ZERO))
        part = f"{field.name}[{high - field.at - 1}:{low - field.at}]"
        cells.append((high - low, field.name if high - low == field.width else part))
        at = high
    if at < first + WORD:
        cells.append((first + WORD - at, ZERO))
    return cells[::-1]


def _line(label: str, cells: list[tuple[int, str]]) -> str:
    text = ""
    for width, name in cells:
        room = width * _CHARS - 1
        shown = "0" if name == ZERO and len(name) > room else name[:room]
        text += "|" + shown.center(room)
    return f"{label:>7} {text}|"


def _border(*lines: list[tuple[int, str]]) -> str:
    marks = ["-"] * (WORD * _CHARS + 1)
    for cells in lines:
        at = 0
        for width, _ in [*cells, (0, "")]:
            marks[at] = "+"
            at += width * _CHARS
    return " " * 8 + "".join(marks)
