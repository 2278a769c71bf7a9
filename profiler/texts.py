"""How the reports write numbers and names. Names and texts may come from a hostile file."""

from __future__ import annotations

import math


def printable(text: object) -> str:
    """`text` in which no character moves a cursor or turns the direction of writing: such are escaped."""
    raw = str(text)
    if raw.isprintable():
        return raw
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in raw)


def machine(name: str) -> str:
    """What ran the program: NumPy's times are not those of a GPU."""
    return "golden (NumPy)" if name == "golden" else name


def duration(seconds: float | None) -> str:
    """`12.3 us`: three digits and the unit that suits them; nothing for None."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
        if abs(seconds) < 999.5 * scale:
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds)} s"


def amount(value: float | None, unit: str) -> str:
    """`12.3 MB`: three digits and a decimal prefix; nothing for None."""
    if value is None or not math.isfinite(value):
        return ""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            return f"{_three(value)} {prefix}{unit}"
        value /= 1000
    return f"{_three(value)} P{unit}"


def share(value: float | None) -> str:
    """`12.3%`; nothing for None."""
    return "" if value is None or not math.isfinite(value) else f"{value:.1%}"


def ratio(value: float | None) -> str:
    """`0.97`; nothing for None."""
    return "" if value is None or not math.isfinite(value) else f"{value:.2f}"


def _three(value: float) -> str:
    """Three digits, never as a power of ten: 0.5, 12.3, 123."""
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
