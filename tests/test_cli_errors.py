"""The command line: one message and one exit code for everything that can go wrong."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from commandline import dla, files, process, write_programs

from dla.isa.container.layout import HASHED_FROM


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own, with the programs of commandline.py."""
    monkeypatch.chdir(tmp_path)
    write_programs()
    return tmp_path


def bad_inputs() -> dict[str, Callable[[], Result]]:
    """Name -> what is done wrong."""
    np.save("f64.npy", np.ones(3))
    np.save("long.npy", np.ones(5, np.float32))
    np.save("matrix.npy", np.ones((1, 3), np.float32))
    Path("empty").touch()
    Path("empty.dlab").touch()
    Path("noise.dla").write_bytes(bytes(range(256)))
    Path("notes.txt").write_text("Dear diary,\ntoday I wrote no assembly.\n")
    Path("notes.dlab").write_text("Dear diary,\n")
    dla("asm", "double.dla", "-o", "double.dlab")
    Path("cut.dlab").write_bytes(Path("double.dlab").read_bytes()[:-100])
    huge = ".program p\n.input x : f32[99999999999999999999]\n.output y : f32[1]\nmain:\n    HALT\n"
    vast = ".program p\n.output y : f32[1000000000000]\nmain:\n    FILL y, 1\n    HALT\n"
    deep = ".program p\n.output y : f32[" + "(" * 100_000 + "1" + ")" * 100_000 + "]\nmain:\n    FILL y, 1\n    HALT\n"
    return {
        "asm: empty file": lambda: dla("asm", "empty"),
        "asm: empty stdin": lambda: dla("asm", stdin=""),
        "asm: bytecode": lambda: dla("asm", "double.dlab"),
        "asm: binary": lambda: dla("asm", "noise.dla"),
        "asm: huge dims": lambda: dla("asm", stdin=huge),
        "asm: 100,000 parentheses": lambda: dla("asm", stdin=deep),
        "asm: missing file": lambda: dla("asm", "none.dla"),
        "asm: output under a file": lambda: dla("asm", "double.dla", "-o", "empty/out.dlab"),
        "asm: output in no folder": lambda: dla("asm", "double.dla", "-o", "none/out.dlab"),
        "dis: empty file": lambda: dla("dis", "empty.dlab"),
        "dis: truncated": lambda: dla("dis", "cut.dlab"),
        "run: huge tensors": lambda: dla("run", "-", stdin=vast),
        "run: text that is no program": lambda: dla("run", "notes.txt"),
        "run: text called .dlab": lambda: dla("run", "notes.dlab"),
        "run: missing input": lambda: dla("run", "double.dla"),
        "run: unknown input": lambda: dla("run", "double.dla", "-i", "z=x.npy"),
        "run: missing input file": lambda: dla("run", "double.dla", "-i", "x=none.npy"),
        "run: wrong dtype": lambda: dla("run", "double.dla", "-i", "x=f64.npy"),
        "run: wrong shape": lambda: dla("run", "double.dla", "-i", "x=long.npy"),
        "run: wrong rank": lambda: dla("run", "double.dla", "-i", "x=matrix.npy"),
        "run: unknown dim": lambda: dla("run", "double.dla", "-i", "x.npy", "--set", "m=3"),
        "run: dim too large": lambda: dla("run", "double.dla", "--random", "1", "--set", "n=5"),
        "run: dim of 30 digits": lambda: dla("run", "double.dla", "-i", "x.npy", "--set", "n=" + "9" * 30),
        "run: not a dim": lambda: dla("run", "double.dla", "-i", "x.npy", "--set", "n"),
        "run: dim twice": lambda: dla("run", "double.dla", "-i", "x.npy", "--set", "n=2", "--set", "n=3"),
        "run: output format": lambda: dla("run", "double.dla", "-i", "x.npy", "-o", "y.csv"),
        "run: output under a file": lambda: dla("run", "double.dla", "-i", "x.npy", "-o", "empty/y.npy"),
        "run: unknown state": lambda: dla("run", "double.dla", "-i", "x.npy", "--state-in", "x.npy"),
        "run: trap": lambda: dla("run", "trapping.dla", "--backend", "golden", "-o", "y.npz"),
        "run: timeout": lambda: dla("run", "long.dla", "--backend", "golden", "--timeout", "0.05", "-o", "y.npz"),
        "run: tune on golden": lambda: dla("run", "double.dla", "-i", "x.npy", "--tune", "--backend", "golden"),
        "run: trace on the gpu": lambda: dla("run", "double.dla", "-i", "x.npy", "--trace", "--backend", "gpu"),
        "run: unknown option": lambda: dla("run", "double.dla", "--colour"),
        "run: unknown backend": lambda: dla("run", "double.dla", "--backend", "tpu"),
        "isa: unknown instruction": lambda: dla("isa", "SOFTMX"),
        "dla: unknown command": lambda: dla("assemble"),
    }  # fmt: skip


EXPECTED = {
    "asm: empty file": (3, "empty:1:1: error: the program has no instructions"),
    "asm: empty stdin": (3, "<stdin>:1:1: error: the program has no instructions"),
    "asm: bytecode": (3, "double.dlab:1:1: error: this is bytecode, not text: it is assembled already"),
    "asm: binary": (3, "noise.dla:"),
    "asm: huge dims": (3, "<stdin>:2:"),
    "asm: 100,000 parentheses": (3, "<stdin>:2:"),
    "asm: missing file": (2, "error: cannot read 'none.dla': No such file or directory"),
    "asm: output under a file": (2, "error: cannot write 'empty/out.dlab': Not a directory"),
    "asm: output in no folder": (2, "error: cannot write 'none/out.dlab': No such file or directory"),
    "dis: empty file": (3, "error: "),
    "dis: truncated": (3, "error: "),
    "run: huge tensors": (3, "error[V-SEGMENT]: segment output has 4000000000000 bytes"),
    "run: text that is no program": (3, "notes.txt:1:1: error: "),
    "run: text called .dlab": (3, "error: "),
    "run: missing input": (2, "error: missing input 'x'"),
    "run: unknown input": (2, "error: the program has no input 'z'"),
    "run: missing input file": (2, "error: cannot read 'none.npy': No such file or directory"),
    "run: wrong dtype": (2, "error: input 'x' must be f32, not float64"),
    "run: wrong shape": (2, "error: input 'x' must have shape [n <= 4], not [5]"),
    "run: wrong rank": (2, "error: input 'x' must have shape [n <= 4], not [1, 3]"),
    "run: unknown dim": (2, "error: the program has no dim 'm'"),
    "run: dim too large": (2, "error: input 'x' must have shape [n <= 4], not [5]"),
    "run: dim of 30 digits": (2, "error: --set n=" + "9" * 30 + " does not set a dim"),
    "run: not a dim": (2, "error: --set n does not set a dim"),
    "run: dim twice": (2, "error: --set gives n twice: 2 and 3"),
    "run: output format": (2, "error: cannot tell the format of 'y.csv'"),
    "run: output under a file": (2, "error: cannot write 'empty/y.npy': there is no folder 'empty'"),
    "run: unknown state": (2, "error: 'x.npy' does not say which state it is for"),
    "run: trap": (4, "trap[assert] at instruction 2 (trapping.dla:6): assertion failed, code 0: on purpose"),
    "run: timeout": (5, "trap[timeout] at instruction "),
    "run: tune on golden": (2, "error: --tune measures on a GPU"),
    "run: trace on the gpu": (2, "error: --trace needs the golden machine"),
    "run: unknown option": (2, "Error: No such option"),
    "run: unknown backend": (2, "Error: Invalid value for '--backend'"),
    "isa: unknown instruction": (2, "error: there is no instruction SOFTMX"),
    "dla: unknown command": (2, "Error: No such command 'assemble'"),
}


def test_every_bad_input_is_listed() -> None:
    """The table below expects something of each bad input, and of nothing else."""
    assert bad_inputs().keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_bad_input_gets_its_exit_code_and_one_message(name: str) -> None:
    """Each mistake ends with its exit code, one clear message, no output and no file that was not there before."""
    commit = bad_inputs()[name]
    before = files()
    result = commit()
    code, message = EXPECTED[name]
    assert result.exit_code == code, result.output
    lines = [
        line for line in result.stderr.splitlines() if not line.startswith(("backend:", "Usage:", "Try ", "golden:"))
    ]
    assert any(line.startswith(message) for line in lines), result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert files() == before


def test_an_unknown_feature_bit_is_refused() -> None:
    """A file that needs what this version lacks says so, although its hash is right."""
    import hashlib

    dla("asm", "double.dla", "-o", "double.dlab")
    data = bytearray(Path("double.dlab").read_bytes())
    data[48 + 7] |= 0x80  # the highest bit of the required features
    data[8:HASHED_FROM] = hashlib.sha256(data[HASHED_FROM:]).digest()
    Path("future.dlab").write_bytes(data)
    result = dla("run", "future.dlab", "-i", "x.npy")
    assert result.exit_code == 3
    assert "feature" in result.stderr


def test_nan_weights_run_with_a_warning() -> None:
    """NaN is a number like any other to the machine; a person should know where it came out."""
    np.save("nan.npy", np.array([1, np.nan], np.float32))
    result = dla("run", "double.dla", "-i", "x=nan.npy", "--backend", "golden")
    assert result.exit_code == 0
    assert "warning: output 'y' has NaN elements" in result.stderr
    assert result.stdout == "y: f32[2] = [ 2., nan]\n"


def test_without_a_gpu_auto_falls_back_and_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--backend gpu` never runs on anything else."""
    monkeypatch.setattr("dla.emulator.api.gpu_missing", lambda: "there is no CUDA device")
    result = dla("run", "double.dla", "-i", "x.npy", "--backend", "gpu")
    assert (result.exit_code, result.stdout) == (6, "")
    assert result.stderr.startswith("error: no GPU: there is no CUDA device\n  help: ")
    result = dla("run", "double.dla", "-i", "x.npy")
    assert result.exit_code == 0
    assert "backend: golden" in result.stderr


def test_without_cupy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CuPy is exit code 6, with the command that gets it."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    result = dla("run", "double.dla", "-i", "x.npy", "--backend", "gpu")
    assert result.exit_code == 6
    assert "error: no GPU: CuPy is not installed\n  help: pip install" in result.stderr


def test_a_defect_is_reported_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception is exit code 70, with a traceback only where it was asked for."""
    monkeypatch.setattr("dla.report.summarise", lambda program: 1 / 0)
    result = dla("inspect", "double.dla")
    assert result.exit_code == 70
    assert result.stderr.startswith("internal error, please report: ZeroDivisionError: division by zero")
    assert "Traceback" not in result.stderr
    assert "Traceback" in dla("--debug", "inspect", "double.dla").stderr


def test_a_failed_run_leaves_the_old_output() -> None:
    """After a trap the output file is what it was before."""
    Path("y.npz").write_text("old")
    assert dla("run", "trapping.dla", "-o", "y.npz", "--backend", "golden").exit_code == 4
    assert Path("y.npz").read_text() == "old"


def test_a_full_disk_leaves_no_half_written_file() -> None:
    """Where the file would grow past a limit, as on a full disk, the old one stays and nothing else is left."""
    Path("big.dlab").write_text("old")
    before = files()
    limit = 500  # bytes; the bytecode is larger
    child = process("asm", "double.dla", "-o", "big.dlab",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))  # fmt: skip
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 2
    assert stderr.decode().startswith("error: cannot write 'big.dlab': File too large")
    assert Path("big.dlab").read_text() == "old"
    assert files() == before


@pytest.mark.parametrize("stream", ["1>&-", "2>&-"])
def test_a_closed_stream_takes_nothing_from_the_run(stream: str) -> None:
    """Where stdout or stderr is closed, what goes there is dropped and the outputs are written all the same."""
    code = "from dla.cli import main; main(prog_name='dla')"
    shell = f'exec "$0" -c "{code}" run double.dla -i x.npy -o y.npz {stream}'
    child = subprocess.run(["sh", "-c", shell, sys.executable], capture_output=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    assert Path("y.npz").exists()


@pytest.mark.parametrize("argument", ["isa", "--help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_stdout_is_one_message(argument: str, unbuffered: str) -> None:
    """/dev/full refuses what is printed; also where Python keeps it in a buffer, which it would write again at exit."""
    with Path("/dev/full").open("wb") as full:
        child = process(argument, stdout=full, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
        _, stderr = child.communicate(timeout=60)
    assert child.returncode == 2
    assert stderr == b"error: No space left on device\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_one_message(folder: Path) -> None:
    """A folder without the right to write is named, and why."""
    (folder / "locked").mkdir(mode=0o500)
    result = dla("run", "double.dla", "-i", "x.npy", "-o", "locked/y.npz")
    assert result.exit_code == 2
    assert "error: cannot write 'locked/y.npz': Permission denied" in result.stderr


def test_a_folder_that_takes_no_files_is_one_message() -> None:
    """Not even root may create a file in /proc."""
    result = dla("run", "double.dla", "-i", "x.npy", "-o", "/proc/y.npz")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error: cannot write '/proc/y.npz': " in result.stderr


def test_interrupting_ends_with_130_and_no_output() -> None:
    """Ctrl-C during a long run: one word, exit code 130, no file."""
    child = process("run", "long.dla", "--backend", "golden", "-o", "y.npz", stdin=subprocess.DEVNULL)
    assert child.stderr is not None
    assert child.stderr.readline() == b"backend: golden\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    try:
        _, stderr = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130
    assert stderr == b"interrupted\n"
    assert "y.npz" not in files()


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`dla isa | head -1` ends quietly."""
    child = process("isa", "--json")
    assert child.stdout is not None
    child.stdout.read(1)
    child.stdout.close()
    child.stdout = None  # so that communicate leaves it alone
    _, stderr = child.communicate(timeout=60)
    assert (child.returncode, stderr) == (0, b"")


def test_bytecode_is_not_printed_to_a_terminal() -> None:
    """`dla asm x.dla` in a terminal explains instead of printing binary."""
    import pty

    leader, follower = pty.openpty()
    child = process("asm", "double.dla", stdout=follower)
    _, stderr = child.communicate(timeout=60)
    os.close(follower)
    os.close(leader)
    assert child.returncode == 2
    assert stderr.decode() == (
        "error: this is binary data, and stdout is a terminal\n  help: write to a file: -o FILE\n"
    )
