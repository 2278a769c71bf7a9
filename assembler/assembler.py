"""The assembler: text -> statements -> `Program`.

Declarations are read first, wherever they stand; then every instruction is matched against its row; then labels and
loops are resolved. Each statement is parsed by itself, so a bad one hides no other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from lark import Token

from dla.assembler import comments as places
from dla.assembler.constants import inside
from dla.assembler.control import Code, resolve
from dla.assembler.declarations import Declared
from dla.assembler.instructions import Checker, Lowered, lower, row_of
from dla.assembler.source import (
    Complaints,
    Logical,
    Place,
    SourceFile,
    TooManyDiagnostics,
    decode_text,
    split_lines,
    statements,
    suggestion,
)  # fmt: skip
from dla.assembler.syntax import (
    DeclarationStatement,
    DirectiveStatement,
    InstructionStatement,
    Literals,
    Statement,
    SyntaxProblem,
    integer,
    name_of,
    parse,
    problem,
    unquote,
)  # fmt: skip
from dla.assembler.views import SEGMENTS
from dla.assembler.worlds import declare_group, declare_pairs, declare_world
from dla.isa.errors import AssemblyError, Diagnostic, InputError
from dla.isa.files import map_file
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.names import is_identifier, is_text
from dla.isa.program import ISA_VERSION, MAX_INSTRUCTIONS, MAX_TENSORS, Debug, Program

MAX_INCLUDE_DEPTH = 16
MAX_INCLUDES = 1000
OTHER_DIRECTIVES = {
    ".isa": (("NUMBER",), ".isa 1.0"),
    ".program": (("NAME",), ".program name"),
    ".include": (("STRING",), '.include "file.dla"'),
    ".dim": (("NAME", "NAME", "NUMBER"), ".dim batch s31 64"),
    ".world": (("NUMBER",), ".world 4"),
    ".group": (("NAME", "LIST"), ".group tp [[0, 1], [2, 3]]"),
    ".pairs": (("NAME", "LIST"), ".pairs next [[0, 1], [1, 2]]"),
    ".segment": (("NAME", "NUMBER"), ".segment scratch 4096"),
    ".file": (("STRING",), '.file "name.dla"'),
    ".line": (("NUMBER",), ".line 10"),
}
"""Directives that declare no tensor: the tokens that follow them, and an example."""
_KINDS = {"NUMBER": "a number", "NAME": "a name", "STRING": "a quoted name of a file", "LIST": "a list of lists"}
_FIRST_WORD = re.compile(r"\s*(\.?[A-Za-z_][A-Za-z0-9_.]*)")
DIRECTIVES = (*(f".{s}" for s in SEGMENTS), *OTHER_DIRECTIVES)


def assemble(text: str, *, file: str = "<string>", folder: Path | None = None) -> Program:
    """The program that `text` is.

    `file` names the text in diagnostics; `folder` is where constants and included files are looked up. Raises
    AssemblyError with every diagnostic found, in source order.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise AssemblyError([Diagnostic(file, 1, 1, "the text holds half a surrogate pair: it is not UTF-8")]) from None
    return _Assembly(SourceFile(file, split_lines(decode_text(data, file)), folder)).run()


def assemble_file(path: str | Path) -> Program:
    """The program in the file at `path`. Raises AssemblyError, or InputError if the file cannot be read."""
    path = Path(path)
    text = decode_text(map_file(path), str(path))
    return _Assembly(SourceFile(str(path), split_lines(text), path.parent, path.resolve())).run()


@dataclass
class _Assembly:
    """The state of one run of the assembler."""

    main: SourceFile
    complaints: Complaints = field(default_factory=Complaints)
    declared: Declared = field(default_factory=Declared)
    code: Code = field(default_factory=Code)
    comments: list[tuple[str, int, str]] = field(default_factory=list)
    name: str | None = None
    isa_version: tuple[int, int] = ISA_VERSION
    debug_file: str | None = None
    segments: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pending: list[tuple[Place, InstructionStatement]] = []
        self._waiting: list[str] = []  # comments above whatever comes next
        self._above_label: list[str] = []
        self._labelled = False  # whether a label waits for its instruction
        self._shift = 0  # what `.line` adds to line numbers
        self._includes = 0
        self._label_places: dict[str, tuple[Place, Token]] = {}

    def run(self) -> Program:
        """Read everything, then finish. Raises AssemblyError."""
        try:
            self._read(self.main)
            self._lower()
            resolve(self.code, self.complaints)
            program = self._finish()
        except TooManyDiagnostics:
            pass
        self.complaints.raise_any()
        return program

    def _read(self, file: SourceFile, line_of_include: int | None = None) -> None:
        for logical in statements(file, self.complaints):
            line = logical.line + self._shift if line_of_include is None else line_of_include
            place = Place(file, logical.line, line)
            if not logical.text:
                self._waiting += [text for _, text in logical.comments]
                continue
            try:
                self._statement(place, logical, parse(logical.text))
            except SyntaxProblem as found:
                self.complaints.syntax(place, self._better(found, logical.text))
        if file is self.main:
            self.comments += [(places.END, 0, text) for text in self._waiting]

    def _better(self, found: SyntaxProblem, text: str) -> SyntaxProblem:
        """`found`, or what is wrong with the statement's first word if that explains more."""
        match = _FIRST_WORD.match(text)
        if (
            match is None
            or text[match.end() :].lstrip().startswith(":")
            or (found.line, found.column) <= (1, match.start(1) + 1)
        ):
            return found
        word = Token("MNEMONIC", match.group(1), line=1, column=match.start(1) + 1)
        if word[1:] in SEGMENTS:
            found.hint = found.hint or f"write {word} name : f32[2, 3]"
        elif word.startswith(".") and word not in DIRECTIVES:
            return _unknown_directive(word)
        elif not word.startswith("."):
            try:
                row_of(word)
            except SyntaxProblem as unknown:
                return unknown
        return found

    def _statement(self, place: Place, logical: Logical, statement: Statement) -> None:
        beside = [text for is_beside, text in logical.comments if is_beside]
        self._waiting += [text for is_beside, text in logical.comments if not is_beside]
        for label in statement.labels:
            self._label(place, label)
        body = statement.body
        if isinstance(body, InstructionStatement):
            self._instruction(place, body, beside)
        elif isinstance(body, DeclarationStatement):
            self._declaration(place, body, beside)
        elif isinstance(body, DirectiveStatement):
            self._waiting += beside
            self._directive(place, body)
        else:
            self._waiting += beside

    def _label(self, place: Place, label: Token) -> None:
        name = name_of(label)
        if not is_identifier(name):
            raise problem(label, f"{name} is no label", "a label is letters, digits, _ and .")
        if not self._labelled:
            self._above_label, self._waiting = self._waiting, []
            self._labelled = True
        if name in self.code.labels:
            first = self._label_places[name][0]
            raise problem(label, f"label {name} is defined twice", f"it is first on line {first.line}")
        self.code.labels[name] = len(self._pending)
        self._label_places[name] = (place, label)

    def _instruction(self, place: Place, body: InstructionStatement, beside: list[str]) -> None:
        index = len(self._pending)
        if index >= MAX_INSTRUCTIONS:
            raise problem(body.mnemonic, f"a program has at most {MAX_INSTRUCTIONS} instructions")
        self._keep_comments((places.ABOVE_LABEL, index, self._above_label), (places.ABOVE, index, self._waiting),
                            (places.BESIDE, index, beside))  # fmt: skip
        self._above_label, self._waiting, self._labelled = [], [], False
        self._pending.append((place, body))

    def _keep_comments(self, *groups: tuple[str, int, list[str]]) -> None:
        self.comments += [(place, index, text) for place, index, texts in groups for text in texts]

    def _declaration(self, place: Place, body: DeclarationStatement, beside: list[str]) -> None:
        if body.directive[1:] not in SEGMENTS:
            raise _unknown_directive(body.directive)
        index = len(self.declared.tensors)
        if index >= MAX_TENSORS:
            raise problem(body.name, f"a program has at most {MAX_TENSORS} tensors")
        self._keep_comments((places.ABOVE_TENSOR, index, self._waiting), (places.BESIDE_TENSOR, index, beside))
        self._waiting = []
        self.declared.declare(body, place.file.folder)

    def _directive(self, place: Place, body: DirectiveStatement) -> None:
        directive, arguments = body.directive, body.arguments
        if directive not in OTHER_DIRECTIVES:
            if directive[1:] in SEGMENTS:
                raise problem(directive, f"{directive} declares a tensor", f"write {directive} name : f32[2, 3]")
            raise _unknown_directive(directive)
        expected, example = OTHER_DIRECTIVES[directive]
        kinds = ["LIST" if isinstance(a, Literals) else "NAME" if a.type == "QUOTED" else a.type for a in arguments]
        for argument, kind, needed in zip(arguments, kinds, expected, strict=False):
            if kind != needed:
                at = argument.at if isinstance(argument, Literals) else argument
                raise problem(at, f"{directive} needs {_KINDS[needed]} here", f"write {example}")
        if len(kinds) != len(expected):
            raise problem(directive, f"{directive} is not written like this", f"write {example}")
        getattr(self, f"_directive_{directive[1:]}")(place, *arguments)

    def _directive_isa(self, place: Place, version: Token) -> None:
        major, _, minor = version.partition(".")
        given = (int(major[:9]), int(minor[:9])) if major.isdigit() and minor.isdigit() else None
        known = [(ISA_VERSION[0], step) for step in range(ISA_VERSION[1] + 1)]
        if given is None or given not in known:
            supported = f"{ISA_VERSION[0]}.0 to {ISA_VERSION[0]}.{ISA_VERSION[1]}"
            raise problem(version, f"ISA version {version} is not supported", f"this assembler knows {supported}")
        self.isa_version = given
        self._to_header()

    def _directive_program(self, place: Place, name: Token) -> None:
        text = name_of(name)
        if not is_identifier(text):
            raise problem(name, "a program's name is letters, digits, _ and .")
        if self.name is not None:
            raise problem(name, "the program has a name already", f"it is {self.name}")
        self.name = text
        self._to_header()

    def _to_header(self) -> None:
        self.comments += [(places.HEADER, 0, text) for text in self._waiting]
        self._waiting = []

    def _directive_file(self, place: Place, name: Token) -> None:
        text = unquote(name)
        if not is_text(text):
            raise problem(name, "a file name is printable text")
        self.debug_file = text

    def _directive_line(self, place: Place, number: Token) -> None:
        value = integer(number)
        if not 0 < value < 2**31:
            raise problem(number, f"a line number lies between 1 and {2**31 - 1}")
        if place.file is self.main:
            self._shift = value - place.line - 1

    def _directive_segment(self, place: Place, segment: Token, nbytes: Token) -> None:
        if segment not in SEGMENTS:
            hint = suggestion(segment, SEGMENTS) or "segments are " + ", ".join(SEGMENTS)
            raise problem(segment, f"unknown segment {segment}", hint)
        if not 0 <= integer(nbytes) <= 2**48:
            raise problem(nbytes, f"a segment has at most {2**48} bytes")
        self.segments[str(segment)] = integer(nbytes)

    def _directive_dim(self, place: Place, name: Token, register: Token, bound: Token) -> None:
        self.declared.declare_dim(name, register, bound)

    def _directive_world(self, place: Place, ranks: Token) -> None:
        declare_world(self.declared.scope, ranks)

    def _directive_group(self, place: Place, name: Token, lists: Literals) -> None:
        declare_group(self.declared.scope, name, lists)

    def _directive_pairs(self, place: Place, name: Token, lists: Literals) -> None:
        declare_pairs(self.declared.scope, name, lists)

    def _directive_include(self, place: Place, name: Token) -> None:
        text = unquote(name)
        path = inside(name, text, place.file.folder)
        chain, depth = place.file, 1
        while chain.included_from is not None:
            chain, depth = chain.included_from[0], depth + 1
        self._includes += 1
        if self._includes > MAX_INCLUDES or depth > MAX_INCLUDE_DEPTH:
            raise problem(name, f"too many included files: at most {MAX_INCLUDES}, {MAX_INCLUDE_DEPTH} deep")
        self._refuse_cycle(place.file, path, name)
        try:
            lines = split_lines(decode_text(map_file(path), text))
        except InputError as error:
            raise problem(name, error.message, "paths are relative to the folder of the source file") from None
        except AssemblyError as error:
            raise problem(name, f"{text}: {error.diagnostics[0].message}", error.diagnostics[0].hint) from None
        included = SourceFile(text, lines, place.file.folder, path, (place.file, place.line))
        self._read(included, place.logical)

    def _refuse_cycle(self, file: SourceFile, path: Path, name: Token) -> None:
        current: SourceFile | None = file
        while current is not None:
            if current.path == path:
                raise problem(name, f"{path.name} includes itself", "remove one of the .include lines")
            current = current.included_from[0] if current.included_from else None

    def _lower(self) -> None:
        checker = Checker()
        for place, body in self._pending:
            self.code.places.append(place)
            try:
                lowered = lower(self.declared, body)
            except SyntaxProblem as found:
                self.complaints.syntax(place, found)
                self.code.lowered.append(_bracket_only(body))
                continue
            self.code.lowered.append(lowered)
            for complaint in checker.complaints(lowered.build()):
                at = lowered.places.get(complaint.operand or "", body.mnemonic)
                self.complaints.add(place, at, f"{lowered.statement.mnemonic}: {complaint.message}")

    def _finish(self) -> Program:
        if not self._pending and not self.complaints.found:
            last = max(1, len(self.main.lines))
            self.complaints.add(Place(self.main, last, last), None, "the program has no instructions", "add a HALT")
        declared = self.declared
        sizes = dict(declared.segment_bytes)
        sizes |= {SEGMENTS[name]: nbytes for name, nbytes in self.segments.items()}
        finished = [lowered for lowered in self.code.lowered if lowered is not None]
        return Program(
            name=self.name or "program",
            instructions=() if self.complaints.found else tuple(lowered.build() for lowered in finished),
            tensors=tuple(declared.tensors),
            dims=tuple(declared.scope.dims.values()),
            segment_bytes=dict(sorted(sizes.items())),
            constants=tuple(sorted(declared.constants, key=lambda block: block.offset)),
            external=tuple(sorted(declared.external, key=lambda block: block.offset)),
            world=declared.scope.world,
            groups=tuple(declared.scope.groups.values()),
            pairs=tuple(declared.scope.pairs.values()),
            shards=tuple(declared.shards),
            debug=self._debug(finished),
            isa_version=self.isa_version,
            folder=self.main.folder,
        )

    def _debug(self, finished: list[Lowered]) -> Debug:
        labels = sorted(self.code.labels.items(), key=lambda label: (label[1], label[0]))
        return Debug(
            file=self.debug_file if self.debug_file is not None else self.main.name.replace("\\", "/").split("/")[-1],
            lines=tuple(place.logical for place in self.code.places),
            labels=tuple(labels),
            comments=tuple(self.comments),
            messages=tuple((i, lowered.message) for i, lowered in enumerate(finished) if lowered.message is not None),
        )


def _bracket_only(body: InstructionStatement) -> Lowered | None:
    """A loop bracket whose arguments were refused still opens or closes its loop: one complaint is enough."""
    row = BY_MNEMONIC.get(body.mnemonic)
    if row is None or not any(a.implicit and a.name in ("begin", "end") for a in row.attributes):
        return None
    return Lowered(row, "", [None] * len(row.operands), {}, body)


def _unknown_directive(directive: Token) -> SyntaxProblem:
    hint = suggestion(directive, DIRECTIVES) or "directives are " + ", ".join(DIRECTIVES)
    return problem(directive, f"unknown directive {directive}", hint)
