"""Source text: lines, comments, included files, and the places that diagnostics point at."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from lark import Token

from dla.assembler.syntax import SyntaxProblem
from dla.isa.container.layout import MAGIC
from dla.isa.errors import AssemblyError, Diagnostic
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.names import MAX_TEXT_BYTES, is_text

MAX_FILE_BYTES = 64 * 2**20
MAX_LINE_CHARACTERS = 2**20
MAX_NESTING = 32
"""Brackets inside brackets: more than any tensor's rank needs."""
MAX_DIAGNOSTICS = 200
"""Reading stops there; more would help nobody."""
_MAX_CANDIDATES = 2000  # names that a suggestion looks at: comparing takes time
_SHOWN_MESSAGE = 1000  # characters of a message
_SHOWN_LINE = 240  # characters of a source line that a diagnostic shows


@dataclass(frozen=True)
class SourceFile:
    """One text: its name for messages, its lines, and where it was included from."""

    name: str
    lines: list[str]
    folder: Path | None = None
    path: Path | None = None
    included_from: tuple[SourceFile, int] | None = None

    @property
    def chain(self) -> str:
        """Where an included file was included from, in brackets after a blank; else nothing."""
        text, place = "", self.included_from
        while place is not None:
            text += f" (included from {place[0].name}:{place[1]})"
            place = place[0].included_from
        return text


@dataclass(frozen=True)
class Place:
    """The statement that starts on line `line` of `file`; `logical` is the line that the debug section gets."""

    file: SourceFile
    line: int
    logical: int


class TooManyDiagnostics(Exception):
    """Ends reading."""


@dataclass
class Complaints:
    """Collects diagnostics, in any order."""

    found: list[tuple[int, Diagnostic]] = field(default_factory=list)
    _order: dict[int, int] = field(default_factory=dict)

    def add(self, place: Place, at: Token | tuple[int, int, int] | None, message: str, hint: str | None = None) -> None:
        """A complaint about token `at` (or line in statement, column, width) of the statement at `place`."""
        if isinstance(at, Token):
            line, column, width = at.line or 1, at.column or 1, len(at)
        else:
            line, column, width = at or (1, 1, 1)
        number = place.line + line - 1
        source = place.file.lines[number - 1][:_SHOWN_LINE] if number <= len(place.file.lines) else ""
        if column > len(source) + 1:
            source = ""  # a caret nobody could see
        width = max(1, min(width, len(source) - column + 1))
        shown = "".join(c if c.isprintable() or c == "\t" else "?" for c in source)
        if len(message) > _SHOWN_MESSAGE:  # it quotes a name as long as a file
            message = message[:_SHOWN_MESSAGE] + "..."
        diagnostic = Diagnostic(place.file.name, number, column, message + place.file.chain, shown, width, hint)
        order = self._order.setdefault(id(place.file), len(self._order))
        self.found.append((order, diagnostic))
        if len(self.found) >= MAX_DIAGNOSTICS:
            raise TooManyDiagnostics

    def syntax(self, place: Place, problem: SyntaxProblem) -> None:
        """A complaint about a statement that does not parse."""
        self.add(place, (problem.line, problem.column, problem.width), problem.message, problem.hint)

    def raise_any(self) -> None:
        """Raise AssemblyError with everything found, in source order, if there is anything."""
        if self.found:
            ordered = sorted(self.found, key=lambda f: (f[0], f[1].line, f[1].column))
            raise AssemblyError([d for _, d in ordered])


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """The question "did you mean ...?" for a word that is nearly one of `known`; else None."""
    candidates = list(islice(known, _MAX_CANDIDATES))
    near = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if not near:
        by_case = {c.lower(): c for c in candidates}
        near = [by_case[m] for m in difflib.get_close_matches(word.lower(), list(by_case), n=1, cutoff=0.6)]
    return f"did you mean {near[0]}?" if near else None


@dataclass(frozen=True)
class Logical:
    """One statement's text (comments gone, lines joined), where it starts, and the comments on its lines."""

    text: str
    line: int
    comments: tuple[tuple[bool, str], ...]  # (whether it stands beside code on the statement's last line, text)


_PIECES = re.compile(r'"(?:[^"\\]|\\.)*"?|;|[^";]+')
_VALUE_LINE = re.compile(r'\s*(?:[\[\]()",+-]|\d|\.\d|(?:true|false|inf|nan)\b|$)')

_ARGUMENT_LINE = re.compile(rf"\s*(?!(?:{'|'.join(BY_MNEMONIC)})\b|[A-Za-z_][A-Za-z0-9_]*\s*:(?!\S))[^\s.]")
"""Something that is no instruction, label or directive."""


def split_comment(line: str) -> tuple[str, str | None]:
    """The code and the comment (without `;`) of a line; a `;` inside a string starts no comment."""
    if ";" not in line:
        return line, None
    if '"' not in line:
        code, _, comment = line.partition(";")
        return code, comment
    for match in _PIECES.finditer(line):
        if match.group() == ";":
            return line[: match.start()], line[match.end() :]
    return line, None


def statements(file: SourceFile, complaints: Complaints) -> Iterator[Logical]:
    """The statements of `file`, blank lines and lines that hold only a comment included (with empty text).

    A declaration's value may go on over several lines while a bracket is open, and an instruction after a comma at the
    end of a line; everything else ends with its line, so that a mistake does not swallow what follows.
    """
    number = 0
    while number < len(file.lines):
        start = number
        code, comment = _split(file, number, complaints)
        number += 1
        comments = [] if comment is None else [(bool(code.strip()), comment)]
        parts = [code]
        is_directive = code.lstrip().startswith(".")
        depth = _depth(code) if "=" in code and is_directive else 0
        while number < len(file.lines):
            following = file.lines[number].partition(";")[0]
            is_value = depth > 0 and _VALUE_LINE.match(following)
            is_argument = not is_directive and code.rstrip().endswith(",") and _ARGUMENT_LINE.match(following)
            if not (is_value or is_argument):
                break
            code, comment = _split(file, number, complaints)
            number += 1
            depth += _depth(code)
            parts.append(code)
            if comment is not None:
                comments = [(False, text) for _, text in comments] + [(depth <= 0, comment)]
        text = "\n".join(parts)
        if _acceptable(file, start + 1, text, complaints):
            yield Logical(text if not text.isspace() else "", start + 1, tuple(comments))


def _split(file: SourceFile, number: int, complaints: Complaints) -> tuple[str, str | None]:
    """The code and the comment of line `number` (from 0), trailing blanks gone; complains about what is no text."""
    code, comment = split_comment(file.lines[number])
    if comment is None:
        return code, None
    comment = comment.rstrip().replace("\u00a0", " ")
    if not is_text(comment):
        place = Place(file, number + 1, number + 1)
        message = f"a comment is printable text of at most {MAX_TEXT_BYTES} bytes"
        complaints.add(place, (1, len(code) + 1, 1), message, "split it over several lines, without control characters")
        return code, None
    return code, comment


def _depth(code: str) -> int:
    if '"' in code:
        code = re.sub(r'"(?:[^"\\]|\\.)*"?', "", code)
    return sum(map(code.count, "[({")) - sum(map(code.count, "])}"))


def _acceptable(file: SourceFile, line: int, text: str, complaints: Complaints) -> bool:
    place = Place(file, line, line)
    if "\0" in text:
        before = text[: text.index("\0")]
        at = before.count("\n") + 1, len(before) - before.rfind("\n"), 1
        complaints.add(place, at, "this line holds a NUL byte: the file is not assembly text")
        return False
    if len(text) > MAX_LINE_CHARACTERS and any(len(part) > MAX_LINE_CHARACTERS for part in text.split("\n")):
        complaints.add(place, None, f"this line has more than {MAX_LINE_CHARACTERS} characters", "break it up")
        return False
    if text.count("[") + text.count("(") + text.count("{") > MAX_NESTING:
        deep = _deepest(text)
        if deep is not None:
            complaints.add(place, deep, f"brackets are nested more than {MAX_NESTING} deep")
            return False
    return True


def _deepest(text: str) -> tuple[int, int, int] | None:
    """(line, column, width) of the first bracket that is nested too deep."""
    depth = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"?|[\[({\])}]', text):
        if match.group() in "[({":
            depth += 1
        elif match.group() in "])}":
            depth -= 1
        if depth > MAX_NESTING:
            before = text[: match.start()]
            return before.count("\n") + 1, match.start() - before.rfind("\n"), 1
    return None


def decode_text(data: bytes | memoryview, name: str) -> str:
    """The text of a source file. Raises AssemblyError if it is too large or not UTF-8."""
    if len(data) > MAX_FILE_BYTES:
        message = f"the file has {len(data)} bytes; assembly text is at most {MAX_FILE_BYTES}"
        raise AssemblyError([Diagnostic(name, 1, 1, message, hint="put large constants in a .safetensors file")])
    try:
        return bytes(data).decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = bytes(data[: error.start]).count(b"\n") + 1
        message = f"byte {error.start} is not UTF-8 text: the file is not assembly text"
        hint = "a .dlab file is bytecode: print it with `dla dis`" if bytes(data[: len(MAGIC)]) == MAGIC else None
        raise AssemblyError([Diagnostic(name, line, 1, message, hint=hint)]) from None


def split_lines(text: str) -> list[str]:
    """The lines of a text, however they end."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
