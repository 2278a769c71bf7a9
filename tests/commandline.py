"""Running `dla` from tests, and the small programs that the tests of the command line run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from dla.cli import main

PROGRAMS = Path(__file__).parent.parent / "programs"
DOUBLE = """\
.program double
.input x : f32[n <= 4]
.output y : f32[n]
main:
    EW.add y, x, x
    HALT
"""
LONG = """\
.program long
.output y : i64[]
main:
    MOV     s1, 0
    LOOP    s0, 2000000000
    ALU.add s1, s1, 1
    ENDLOOP
    FILL    y, s1
    HALT
"""
TRAPPING = """\
.program trapping
.output y : i64[]
main:
    FILL   y, 1
    MOV    p0, 0
    ASSERT p0 "on purpose"
    HALT
"""
COUNTING = """\
.program counting
.state   n : i64[]
.output  y : i64[]
main:
    EW.add n, n, 1
    COPY   y, n
    HALT
"""


def write_programs() -> None:
    """Put the programs above into the current folder, and an input for `double`."""
    for name, text in {"double": DOUBLE, "long": LONG, "trapping": TRAPPING, "counting": COUNTING}.items():
        Path(f"{name}.dla").write_text(text)
    np.save("x.npy", np.array([1, 2, 3], np.float32))


def dla(*args: str, stdin: str | bytes | None = None) -> Result:
    """Run `dla args` in this process."""
    return CliRunner().invoke(main, list(args), input=stdin, prog_name="dla")


def process(*args: str, **options: object) -> subprocess.Popen[bytes]:
    """Start `dla args` as a process of its own."""
    # Ctrl-C must reach it even where the tests themselves run in the background, which ignores it.
    interruptible = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{interruptible}; from dla.cli import main; main(prog_name='dla')", *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(command, **pipes)  # type: ignore[call-overload, no-any-return]


def files() -> set[str]:
    """What is in the folder, hidden files included."""
    return {path.name for path in Path().iterdir()}
