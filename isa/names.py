"""Names and texts in programs: which are allowed, and how they are shown.

Everything here may come from a hostile file. Names are plain identifiers; free text (comments, messages, file names)
may hold no control characters, so that printing a program can never drive a terminal or forge a line of source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dla.isa.program import Debug  # the command line shows names before it needs programs, and NumPy

MAX_NAME_BYTES = 255
MAX_TEXT_BYTES = 4096
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_FOREIGN = re.compile(r"[^A-Za-z0-9_.]")
_SHOWN_CHARACTERS = 80


def is_identifier(name: object) -> bool:
    """Whether `name` may name a program, tensor, dim or label: `[A-Za-z_][A-Za-z0-9_.]*`, at most 255 bytes."""
    return isinstance(name, str) and len(name) <= MAX_NAME_BYTES and _IDENTIFIER.match(name) is not None


def identifier(name: str, prefix: str = "t_") -> str:
    """`name` with everything replaced that an identifier cannot have, and after `prefix` if that is not enough."""
    plain = _FOREIGN.sub("_", name)[:200]
    return plain if is_identifier(plain) else f"{prefix}{plain}"


def is_text(text: object) -> bool:
    """Whether `text` may be a comment or message: printable (or tab), valid UTF-8, at most 4096 bytes."""
    if not isinstance(text, str) or len(text) > MAX_TEXT_BYTES:
        return False
    if text.isascii() and text.isprintable():
        return True
    return all(c.isprintable() or c == "\t" for c in text) and len(text.encode("utf-8", "replace")) <= MAX_TEXT_BYTES


def shown(text: object) -> str:
    """`text` for a message: control and other unprintable characters escaped, the middle of more than 80 left out.

    Both ends stay: a path's file is at its end.
    """
    raw = str(text)
    half = _SHOWN_CHARACTERS // 2
    cut = raw if len(raw) <= _SHOWN_CHARACTERS else f"{raw[:half]}...{raw[-half:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in cut)


def debug_problems(debug: Debug, instructions: int) -> Iterator[str]:
    """What is wrong with the debug section of a program of so many instructions; nothing if it is sound."""
    if not is_text(debug.file):
        yield "its file name is not printable text"
    if len(debug.lines) not in (0, instructions):
        yield f"it has {len(debug.lines)} source lines for {instructions} instructions"
    if any(not 0 <= line < 2**31 for line in debug.lines):
        yield "a line number is out of range"
    if any(not is_identifier(name) for name, _ in debug.labels):
        yield "a label is not an identifier"
    if not all(is_text(place) and is_text(text) for place, _, text in debug.comments):
        yield "a comment is not printable text"
    if not all(is_text(text) for _, text in debug.messages):
        yield "a message is not printable text"
    indices = [i for _, i in debug.labels] + [i for i, _ in debug.messages]
    if any(not 0 <= i <= instructions for i in indices) or any(not 0 <= i < 2**32 for _, i, _ in debug.comments):
        yield "an index is outside the program"
