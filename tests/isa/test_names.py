"""Names and texts that may come from a hostile file."""

from __future__ import annotations

import pytest

from dla.isa.names import identifier, is_identifier, is_text, shown


@pytest.mark.parametrize("name", ["x", "_c0", "layer1.weight", "A" * 255])
def test_identifiers_are_names(name: str) -> None:
    """Letters, digits, underscores and dots, up to 255 of them, make a name."""
    assert is_identifier(name)


@pytest.mark.parametrize("name", ["", "1x", ".x", "a b", "a\n", "é", "A" * 256, "a\0", 7, None])
def test_anything_else_is_no_name(name: object) -> None:
    """Blanks, control characters, other scripts, 256 letters and other types make none."""
    assert not is_identifier(name)


@pytest.mark.parametrize(("text", "fits"), [
    ("plain", True), ("tab\there", True), ("größer → 2", True), ("", True), ("a" * 4096, True),
    ("a" * 4097, False), ("é" * 4000, False), ("line\nbreak", False), ("\x1b[2J", False), ("\u202eleft", False),
    ("\ud800", False), (b"bytes", False),
])  # fmt: skip
def test_texts_have_no_control_characters(text: object, fits: bool) -> None:
    """Comments may be in any script, but cannot drive a terminal, turn its direction or hold 4 KiB."""
    assert is_text(text) is fits


@pytest.mark.parametrize(
    ("name", "expected"), [("x:0", "x_0"), ("a.b", "a.b"), ("3x", "t_3x"), ("", "t_"), ("x" * 300, "x" * 200)]
)
def test_any_name_becomes_an_identifier(name: str, expected: str) -> None:
    """With as little change as there can be."""
    assert identifier(name) == expected
    assert is_identifier(identifier(name))


def test_shown_text_is_harmless() -> None:
    """What is shown in a message has its control characters escaped, and 80 characters from its two ends."""
    assert shown("a\x1b[2J\n\u202eb") == r"a\x1b[2J\n\u202eb"
    assert shown("\ud800") == r"\ud800"
    assert shown("x" * 50 + "y" * 50) == "x" * 40 + "..." + "y" * 40
