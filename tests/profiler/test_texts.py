"""How reports write numbers and names."""

from __future__ import annotations

import math

import pytest

from dla.profiler.texts import amount, duration, printable, ratio, share


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ns"), (1.5e-9, "1.5 ns"), (9.996e-7, "1 us"), (12.34e-6, "12.3 us"), (0.9996, "1 s"), (125.4, "125 s"),
     (None, ""), (math.nan, "")],
)  # fmt: skip
def test_a_duration_has_three_digits_and_its_unit(seconds: float | None, text: str) -> None:
    """The unit is the one in which the number is from 1 to 999."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (131072, "131 kB"),
        (4.1e12, "4.1 TB"),
        (7e18, "7000 PB"),
        (None, ""),
    ],
)
def test_an_amount_has_a_prefix(value: float, text: str) -> None:
    """Decimal ones."""
    assert amount(value, "B") == text


def test_what_is_not_known_is_empty() -> None:
    """Neither None nor a division by nothing shows as a number."""
    assert (amount(None, "B"), share(None), ratio(math.inf)) == ("", "", "")
    assert (share(0.123), ratio(0.966)) == ("12.3%", "0.97")


@pytest.mark.parametrize(
    ("raw", "text"),
    [("a\x1b[31mb", "a\\x1b[31mb"), ("\u202egnp.exe", "\\u202egnp.exe"), ("a\nb\0", "a\\nb\\x00"),
     ("\udc80", "\\udc80"), ("\u00fc <b>", "\u00fc <b>")],
)  # fmt: skip
def test_control_characters_are_escaped(raw: str, text: str) -> None:
    """Nothing moves the cursor, ends a line or turns the direction of writing."""
    assert printable(raw) == text
