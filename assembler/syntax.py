"""Statements: the grammar's parse trees as small objects, each token with its place in the text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

_REMEMBERED_CHARACTERS = 200
GRAMMAR = Path(__file__).with_name("grammar.lark")


@dataclass(slots=True)
class Sum:
    """`scale * register + ... + constant [<= bound]`: an index, an extent or an address."""

    at: Token  # the first token, for messages
    constant: int
    names: tuple[tuple[Token, int], ...]  # (register or dim name, factor)
    bound: int | None = None

    @property
    def plain(self) -> Token | None:
        """The one name that this is, without a factor or a constant; else None."""
        return self.names[0][0] if len(self.names) == 1 and self.names[0][1] == 1 and not self.constant else None


@dataclass(slots=True)
class Slice:
    """`start:stop:step` in a subscript."""

    at: Token
    start: Sum | None
    stop: Sum | None
    step: Token | None


@dataclass(slots=True)
class Subscript:
    """`[index, ...]`: each item a Sum (`None` is a Sum by that name), a Slice, or an ELLIPSIS token."""

    items: tuple[Sum | Slice | Token, ...]


@dataclass(slots=True)
class Method:
    """`.T`, `.permute(0, 2, 1)`: a view made from a view; `arguments` is None without parentheses."""

    name: Token
    arguments: tuple[Sum, ...] | None


@dataclass(slots=True)
class View:
    """A named tensor and what is done to it, left to right."""

    name: Token
    suffixes: tuple[Subscript | Method, ...]


@dataclass(slots=True)
class Placed:
    """`segment@address : dtype[dims]{strides}`: a descriptor in full."""

    segment: Token
    address: Sum
    dtype: Token
    dims: tuple[Sum, ...]
    strides: tuple[Token, ...] | None


@dataclass(slots=True)
class ListValue:
    """`[1, 2]` as an attribute's value."""

    at: Token
    items: tuple[Any, ...]


Value = Token | View | Placed | ListValue


@dataclass(slots=True)
class Keyword:
    """`name=value` of an instruction; a bare word has no value."""

    name: Token  # without the "="
    value: Value | None


@dataclass(slots=True)
class InstructionStatement:
    """`MNEMONIC argument, argument keyword=value`."""

    mnemonic: Token
    arguments: tuple[Value | Keyword, ...]


@dataclass(slots=True)
class Literals:
    """`[1, [2]]` as a constant's value: items are NUMBER and NAME tokens, or Literals."""

    at: Token
    items: list[Any]


@dataclass(slots=True)
class Source:
    """Where a constant's bytes come from: kind "literal", "hex", "from" or "external"."""

    kind: str
    at: Token
    value: Any  # a NUMBER or NAME token, Literals, or STRING tokens


@dataclass(slots=True)
class Cut:
    """`shard axis=1 group=tp`: of a constant, each rank holds a piece."""

    at: Token
    keywords: tuple[Keyword, ...]


@dataclass(slots=True)
class DeclarationStatement:
    """`.segment name : dtype[dims] [@ address] [source] [shard]`."""

    directive: Token
    name: Token
    dtype: Token
    dims: tuple[Sum, ...]
    address: Token | None
    source: Source | None
    cut: Cut | None


@dataclass(slots=True)
class DirectiveStatement:
    """`.directive argument ...`, but for declarations."""

    directive: Token
    arguments: tuple[Token | Literals, ...]


@dataclass(slots=True)
class Statement:
    """One line: its labels, and what follows them."""

    labels: tuple[Token, ...]
    body: InstructionStatement | DeclarationStatement | DirectiveStatement | None


class SyntaxProblem(Exception):
    """A line that is no statement: message, line and column inside the text, width, hint."""

    def __init__(self, message: str, line: int, column: int, width: int = 1, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.line, self.column, self.width, self.hint = message, line, column, width, hint


def problem(at: Token | None, message: str, hint: str | None = None) -> SyntaxProblem:
    """The complaint `message` about token `at`."""
    if at is None:
        return SyntaxProblem(message, 1, 1, 1, hint)
    return SyntaxProblem(message, at.line or 1, at.column or 1, len(at), hint)


def name_of(token: Token) -> str:
    """The name that a NAME, QUOTED or LABEL token stands for."""
    return token[1:-1] if token.startswith("`") else str(token)


def unquote(token: Token) -> str:
    """The text of a STRING token."""
    try:
        text: str = json.loads(str(token), strict=False)
    except ValueError:
        hint = 'write \\" for a quote and \\\\ for a backslash'
        raise problem(token, "bad escape in this string", hint) from None
    return text


def integer(token: Token) -> int:
    """The value of a NUMBER token that must be an integer. Raises SyntaxProblem."""
    try:
        return int(token, 16) if "x" in token or "X" in token else int(token)
    except ValueError:
        shown = token if len(token) < 40 else "this"
        raise problem(token, f"an integer is needed here, not {shown}") from None


def clip(token: Token, end: int) -> Token:
    """The first `end` characters of a token, at its place in the text."""
    return Token(token.type, token[:end], line=token.line, column=token.column)


@v_args(inline=True)
class _Build(Transformer[Token, Any]):
    """Builds the objects above while the parser runs."""

    def start(self, *parts: Any) -> Statement:
        return Statement(tuple(clip(p, len(p[:-1].rstrip())) for p in parts[:-1]), parts[-1])

    def instruction(self, mnemonic: Token, arguments: Any) -> InstructionStatement:
        return InstructionStatement(mnemonic, tuple(arguments or ()))

    def first_argument(self, argument: Any) -> list[Any]:
        return [argument]

    def next_argument(self, arguments: list[Any], argument: Any) -> list[Any]:
        arguments.append(argument)
        return arguments

    def keyword(self, key: Token, value: Any) -> Keyword:
        return Keyword(clip(key, len(key[:-1].rstrip())), value)

    def flag(self, name: Token) -> Keyword:
        return Keyword(name, None)

    def list(self, at: Token, *items: Any) -> ListValue:
        return ListValue(at, tuple(i for i in items if i is not None))

    def view(self, name: Token, *suffixes: Any) -> View:
        return View(name, suffixes)

    def placed(self, segment: Token, address: Sum, dtype: Token, dims: Any, strides: Any) -> Placed:
        return Placed(segment, address, dtype, dims, strides)

    def strides(self, *items: Any) -> tuple[Any, ...]:
        return tuple(i for i in items if i is not None)

    def subscript(self, *items: Any) -> Subscript:
        return Subscript(items)

    def method(self, name: Token, *arguments: Any) -> Method:
        bare = len(arguments) == 1 and arguments[0] is None
        return Method(name, None if bare else arguments)

    def slice(self, *parts: Any) -> Slice:
        colon = next(i for i, p in enumerate(parts) if isinstance(p, Token) and p.type == "COLON")
        start, stop, step = parts[colon - 1], parts[colon + 1], parts[-1]
        return Slice(parts[colon], start, stop, step)

    def product(self, name: Token, factor: Token) -> tuple[Token, int]:
        return name, integer(factor)

    def sum(self, *parts: Any) -> Sum:
        constant, names, sign = 0, [], 1
        first = parts[0][0] if isinstance(parts[0], tuple) else parts[0]
        for part in parts[:-1]:
            if isinstance(part, tuple):
                names.append((part[0], sign * part[1]))
            elif part.type == "SIGN":
                sign = -1 if part == "-" else 1
                continue
            elif part.type == "NUMBER":
                constant += sign * integer(part)
            else:
                names.append((part, sign))
            sign = 1
        return Sum(first, constant, tuple(names), None if parts[-1] is None else integer(parts[-1]))

    def shape(self, *items: Any) -> tuple[Any, ...]:
        return tuple(i for i in items if i is not None)

    def declaration(
        self, directive: Token, name: Token, dtype: Token, dims: Any, address: Any, source: Any, cut: Any
    ) -> DeclarationStatement:
        return DeclarationStatement(directive, name, dtype, dims, address, source, cut)

    def shard(self, at: Token, *keywords: Keyword) -> Cut:
        return Cut(at, keywords)

    def from_file(self, keyword: Token, place: Token) -> Source:
        return Source("from", place, place)

    def external_file(self, keyword: Token, place: Token, digest: Token | None) -> Source:
        return Source("external", place, (place, digest))

    def literal_source(self, value: Any) -> Source:
        return Source("literal", value if isinstance(value, Token) else value.at, value)

    def hex_source(self, opening: Token, *strings: Token) -> Source:
        return Source("hex", opening, strings)

    def literals(self, at: Token, *items: Any) -> Literals:
        return Literals(at, [i for i in items if i is not None])

    def directive(self, directive: Token, *arguments: Token | Literals) -> DirectiveStatement:
        return DirectiveStatement(directive, arguments)


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(
        GRAMMAR.read_text(encoding="utf-8"), parser="lalr", maybe_placeholders=True, transformer=_Build(),
        propagate_positions=False,
    )  # fmt: skip


def parse(text: str) -> Statement:
    """Parse one statement (comments already taken away). Raises SyntaxProblem."""
    return _parse_again(text) if len(text) <= _REMEMBERED_CHARACTERS else _parse(text)


@lru_cache(maxsize=4096)
def _parse_again(text: str) -> Statement:
    """`_parse`, remembering the statements that programs repeat."""
    return _parse(text)


def _parse(text: str) -> Statement:
    try:
        statement: Statement = _parser().parse(text)  # type: ignore[assignment]
    except UnexpectedInput as error:
        raise _explain(error, text) from None
    return statement


_SPOKEN = {
    "COMMA": "`,`", "COLON": "`:`", "LSQB": "`[`", "RSQB": "`]`", "LPAR": "`(`", "RPAR": "`)`", "LBRACE": "`{`",
    "RBRACE": "`}`", "EQUAL": "`=`", "AT": "`@`", "STAR": "`*`", "NUMBER": "a number", "STRING": "a string",
    "NAME": "a name", "KEY": "`name=value`", "SIGN": "`+`", "MNEMONIC": "an instruction", "DIRECTIVE": "a directive",
    "FROM": "`from`", "HEX": "`hex(`", "METHOD": "`.T`", "$END": "the end of the line", "ELLIPSIS": "`...`",
    "EXTERNAL": "`external`", "SHARD": "`shard`", "LABEL": "a label", "QUOTED": "", "LESSEQUAL": "`<=`",
    "__ANON_0": "`<=`",
}  # fmt: skip


def _explain(error: UnexpectedInput, text: str) -> SyntaxProblem:
    if isinstance(error, UnexpectedToken):
        expected, token = error.accepts or error.expected, error.token
        if token.type == "$END":
            end = text.rstrip()
            line, column = end.count("\n") + 1, len(end) - (end.rfind("\n") + 1) + 1
            return SyntaxProblem(f"the line ends too early; expected {_spoken(expected)}", line, column)
        shown = token if len(token) < 40 else token[:37] + "..."
        return SyntaxProblem(
            f"unexpected `{shown}`; expected {_spoken(expected)}", token.line or 1, token.column or 1, len(token)
        )
    assert isinstance(error, UnexpectedCharacters)
    character = text[error.pos_in_stream or 0]
    if character == '"':
        return SyntaxProblem('this string has no closing `"`', error.line, error.column)
    shown = f"`{character}`" if character.isprintable() else f"\\x{ord(character):02x}"
    message = f"unexpected {shown}; expected {_spoken(error.allowed or set())}"
    hint = "a comment starts with ;" if character in "#/" else None
    return SyntaxProblem(message, error.line, error.column, 1, hint)


def _spoken(terminals: set[str]) -> str:
    names = sorted({_SPOKEN.get(t, t) for t in terminals} - {""})
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
