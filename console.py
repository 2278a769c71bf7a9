"""What every command shares: exit codes, messages on stderr, results on stdout, a spinner for what takes long.

Exit codes: 0 ok, 1 comparison failed, 2 usage or input, 3 rejected by parser or verifier, 4 trap, 5 timeout,
6 backend absent, 70 internal error, 130 interrupted. Each `DlaError` knows its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from dla.isa.errors import AssemblyError, DlaError, InputError, Trap, VerifyError

COMPARISON_FAILED = 1
INTERNAL_ERROR = 70
INTERRUPTED = 130
_JSON = "dla.json"  # key of click's meta: whether --json was given
_ABORT = "dla.abort"  # what ends the processes that run a program with this one, where they would wait for it
_DEBUG = "dla.debug"

Command = TypeVar("Command", bound=Callable[..., Any])


class Driver(click.Group):
    """The `dla` command: runs a sub-command and turns every error into one message and one exit code."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run `dla`. A closed stdout or stderr (`>&-`) takes what is printed, and drops it."""
        sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115  # as long as the process
        sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
        try:
            return super().main(*args, **options)
        except OSError as error:  # from printing help; `invoke` knows the others
            click.echo(f"error: {error.strerror or error}", err=True)
            _drop_what_cannot_be_printed()
            sys.exit(InputError.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the sub-command; the only place where exceptions become exit codes."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except DlaError as error:
            _report(ctx, error)
            if not error.everywhere:
                _abort_others(ctx, error.exit_code)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            _abort_others(ctx, INTERRUPTED)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _drop_what_cannot_be_printed()  # the reader of our output has seen enough (`dla dis x.dlab | head`)
            _abort_others(ctx, InputError.exit_code)
            ctx.exit(0)
        except OSError as error:
            _report(ctx, InputError(f"{error.strerror or error}" + (f": '{error.filename}'" if error.filename else "")))
            _drop_what_cannot_be_printed()
            _abort_others(ctx, InputError.exit_code)
            ctx.exit(InputError.exit_code)
        except MemoryError:
            _report(ctx, InputError("there is not enough memory for this", hint="lower the dims with --set"))
            _abort_others(ctx, InputError.exit_code)
            ctx.exit(InputError.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001  # the last line of defence: a defect in dla, reported as one
            _report_defect(ctx, error)
            _abort_others(ctx, INTERNAL_ERROR)
            ctx.exit(INTERNAL_ERROR)
        return result


def abort_with(abort: Callable[[int], None] | None) -> None:
    """What ends other processes if this one fails, given the exit code; None once they no longer wait for it."""
    click.get_current_context().meta[_ABORT] = abort


def _abort_others(ctx: click.Context, code: int) -> None:
    abort = ctx.meta.get(_ABORT)
    if abort is not None:
        sys.stderr.flush()
        abort(code)


def _drop_what_cannot_be_printed() -> None:
    """Python would try again at exit, complain, and give an exit code of its own (120)."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(ctx: click.Context, error: DlaError) -> None:
    """`error` on stderr for people and, with --json, on stdout for programs."""
    lines = str(error)
    prefix = "" if isinstance(error, AssemblyError | VerifyError | Trap) else "error: "
    click.echo(prefix + lines, err=True)
    if ctx.meta.get(_DEBUG):
        traceback.print_exc()
    if ctx.meta.get(_JSON):
        with contextlib.suppress(OSError):
            print_json({"error": error_facts(error)})


def error_facts(error: DlaError) -> dict[str, Any]:
    """`error` as JSON-able facts: kind, message, exit code, and whatever places it names."""
    facts: dict[str, Any] = {"kind": type(error).__name__, "exit_code": error.exit_code, "message": error.message}
    if error.hint is not None:
        facts["hint"] = error.hint
    if isinstance(error, AssemblyError):
        facts["diagnostics"] = [vars(diagnostic) for diagnostic in error.diagnostics]
    if isinstance(error, VerifyError):
        facts["rejections"] = [vars(rejection) for rejection in error.rejections]
    if isinstance(error, Trap):
        facts |= {"category": error.category, "instruction": error.instruction, "location": error.location}
        facts |= {} if error.rank is None else {"rank": error.rank}
    return facts


def _report_defect(ctx: click.Context, error: Exception) -> None:
    if ctx.meta.get(_DEBUG):
        traceback.print_exc()
    click.echo(f"internal error, please report: {type(error).__name__}: {error}", err=True)
    if not ctx.meta.get(_DEBUG):
        click.echo("  help: run again as `dla --debug ...` and add the traceback to the report", err=True)


def debug_option(command: Command) -> Command:
    """`--debug` (or DLA_DEBUG=1): tracebacks with every error."""
    return click.option(
        "--debug", is_flag=True, envvar="DLA_DEBUG", expose_value=False, help="Show a traceback with every error.",
        callback=lambda ctx, option, value: ctx.meta.update({_DEBUG: value}),
    )(command)  # fmt: skip


def json_option(command: Command) -> Command:
    """`--json`: the command's result, or its error, as one JSON object on stdout."""

    def remember(ctx: click.Context, option: click.Parameter, value: bool) -> bool:
        ctx.meta[_JSON] = value
        return value

    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=remember, help="Print JSON instead, on stdout."
    )(command)


def json_or_file_option(command: Command) -> Command:
    """`--json`, or `--json FILE.json`: "-" where the result is to be printed as JSON, else the file to write it to."""

    def remember(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
        if value not in (None, "-") and not value.endswith(".json"):  # a PROGRAM is not to be overwritten
            raise InputError(f"--json '{value}': a JSON file's name ends in .json", hint="write --json behind PROGRAM")
        ctx.meta[_JSON] = value == "-"
        return value

    return click.option(
        "--json", "json_file", is_flag=False, flag_value="-", is_eager=True, callback=remember, metavar="[FILE.json]",
        help="Print JSON instead, on stdout; or write it to this file, too.",
    )(command)  # fmt: skip


def print_json(facts: Any) -> None:
    """`facts` as JSON on stdout; NaN and infinities as strings, because JSON has no numbers for them."""
    click.echo(json.dumps(jsonable(facts), ensure_ascii=False))


def jsonable(value: Any) -> Any:
    """`value` with what JSON has: keys and unknown objects as strings, NaN and infinities, too."""
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def note(text: str) -> None:
    """A remark on stderr, which leaves stdout to the result."""
    click.echo(text, err=True)


def show(*parts: Any, on_stderr: bool = False) -> None:
    """Tables (rich) and texts on stdout (or stderr); plain where that is no terminal or NO_COLOR is set."""
    from rich.console import Console

    # Piped output keeps its columns: 200 are enough for every table here. Names and shapes such as [batch] are text,
    # not rich's markup. Printed by click, because rich ends the process itself where a pipe is closed.
    stream = sys.stderr if on_stderr else sys.stdout
    console = Console(file=stream, highlight=False, markup=False, width=None if stream.isatty() else 200)
    for part in parts:
        with console.capture() as captured:
            console.print(part)
        click.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")), color=True,
                   err=on_stderr)  # fmt: skip


@contextlib.contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """While the body runs: a spinner on stderr with `what`, from the first second on, where stderr is a terminal.

    Gives a function that tells the step which the body is at.
    """
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.text import Text  # `what` may name a file, which is no markup

    status = Console(stderr=True).status(Text(what))
    timer = threading.Timer(1.0, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda step: status.update(Text(f"{what}: {step}"))
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def read_source(path: str) -> bytes:
    """The bytes of the file `path`, or of stdin for "-". Raises InputError."""
    if path == "-":
        if sys.stdin.isatty():
            note("reading from the terminal; Ctrl-D ends the text")
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from error


def write_result(data: bytes, output: str, *, binary: bool) -> None:
    """`data` to the file `output`, whole or not at all, or to stdout for "-". Raises InputError.

    Refuses to write binary data to a terminal.
    """
    if output == "-":
        if binary and sys.stdout.isatty():
            raise InputError("this is binary data, and stdout is a terminal", hint="write to a file: -o FILE")
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise InputError(f"cannot write to stdout: {error.strerror or error}") from error
        return
    from dla.isa.atomic import replacing

    with replacing(Path(output)) as (file,):
        file.write(data)
