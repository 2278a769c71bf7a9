"""Every error that dla raises on purpose, and the exit code each one ends the command line with."""

from __future__ import annotations

from dataclasses import dataclass


class DlaError(Exception):
    """Base of all errors caused by input, environment or a program; never by a defect in dla itself."""

    exit_code = 2
    everywhere = False
    """Whether all ranks of a run in several processes raise it, so that nobody waits for this one."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  help: {self.hint}"


class InputError(DlaError):
    """A tensor, option or file that the caller passed does not fit the program."""


class ContainerError(DlaError):
    """A `.dlab` file (or a weights file beside it) is damaged, hostile, or from another version."""

    exit_code = 3


class ModelError(DlaError):
    """A model (an ONNX file, or a graph that is being built) is damaged, hostile, or beyond what dla compiles."""

    exit_code = 3


@dataclass(frozen=True)
class Diagnostic:
    """One complaint about source text: where it is, what is wrong, and what to do about it."""

    file: str
    line: int  # 1-based
    column: int  # 1-based
    message: str
    source: str = ""  # the offending line, without its newline
    width: int = 1  # characters to underline
    hint: str | None = None

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}:{self.column}: error: {self.message}"
        if self.source:
            # Tabs stay tabs in the margin so that the caret lines up in any terminal.
            margin = "".join("\t" if c == "\t" else " " for c in self.source[: self.column - 1])
            text += f"\n    {self.source}\n    {margin}{'^' * max(1, self.width)}"
        if self.hint:
            text += f"\n  help: {self.hint}"
        return text


class AssemblyError(DlaError):
    """The source text is not a program; carries every diagnostic found, in source order."""

    exit_code = 3

    shown = 20  # diagnostics in the message; all are in `diagnostics`

    def __init__(self, diagnostics: list[Diagnostic]) -> None:
        more = len(diagnostics) - self.shown
        texts = [str(d) for d in diagnostics[: self.shown]] + ([f"and {more} more errors"] if more > 0 else [])
        super().__init__("\n".join(texts))
        self.diagnostics = diagnostics


@dataclass(frozen=True)
class Rejection:
    """One rule of the verifier that a program breaks."""

    rule: str  # e.g. "V-EXTENT" or "GEMM.C2"
    message: str
    instruction: int | None = None  # index into Program.instructions
    location: str | None = None  # "file:line" where the debug section knows it
    hint: str | None = None

    def __str__(self) -> str:
        where = "" if self.instruction is None else f" at instruction {self.instruction}"
        where += "" if self.location is None else f" ({self.location})"
        text = f"error[{self.rule}]{where}: {self.message}"
        return text if self.hint is None else f"{text}\n  help: {self.hint}"


class VerifyError(DlaError):
    """The program is well-formed but the verifier refuses it; carries every rejection found."""

    exit_code = 3

    def __init__(self, rejections: list[Rejection]) -> None:
        super().__init__("\n".join(str(r) for r in rejections))
        self.rejections = rejections


TRAP_CATEGORIES = {
    "index": "GATHER: an index is negative, or not less than the size of its axis",
    "arithmetic": "integer division or modulo by zero, or a negative integer power",
    "loop": "LOOP: the count in the register is negative or larger than max",
    "assert": "ASSERT: the predicate is clear",
    "extent": "a dim is negative or beyond its bound, an address is outside its segment, there are too few elements, "
    "or a collective lacks a part for a rank",
    "bounds": "checked build of the device machine: an access outside its operand",
    "timeout": "a bounded wait of the machine ran out",
    "uninitialised": "golden machine: bytes are read that were never written",
    "internal": "a defect of the machine; please report it",
}
"""What a trap may be about, and what each category means."""


class Trap(DlaError):
    """A program stopped itself: a machine never continues after one and never writes partial outputs.

    Raised by a row's semantics with `category` and `message` only; the machine that runs the row
    fills in `instruction` (index) and `location` ("file:line"), and `rank` in a run of several ranks.
    """

    exit_code = 4

    def __init__(
        self,
        category: str,
        message: str,
        *,
        instruction: int | None = None,
        location: str | None = None,
        rank: int | None = None,
        hint: str | None = None,
    ) -> None:
        where = "" if rank is None else f" on rank {rank}"
        where += "" if instruction is None else f" at instruction {instruction}"
        where += "" if location is None else f" ({location})"
        super().__init__(f"trap[{category}]{where}: {message}", hint=hint)
        self.category = category
        self.detail = message
        self.instruction = instruction
        self.location = location
        self.rank = rank

    def at(self, *, instruction: int | None = None, location: str | None = None, rank: int | None = None) -> Trap:
        """The same trap, with what is given of where it happened added to what is known."""
        return type(self)(
            self.category,
            self.detail,
            instruction=self.instruction if instruction is None else instruction,
            location=self.location if location is None else location,
            rank=self.rank if rank is None else rank,
            hint=self.hint,
        )


LONGER = "if what it waited for takes so long without hanging, allow more: --timeout SECONDS, or timeout=SECONDS"
"""The hint of a TimeoutTrap."""


class TimeoutTrap(Trap):
    """A bounded wait ran out: the run was ended instead of hanging."""

    exit_code = 5


class BackendError(DlaError):
    """The asked-for machine is not there (no GPU, no CuPy, no driver)."""

    exit_code = 6
