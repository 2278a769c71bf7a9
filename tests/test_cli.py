"""The command line: what each command does, and one message and one exit code for everything that can go wrong."""

from __future__ import annotations

import json
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
from click.testing import CliRunner, Result

from dla.cli import main
from dla.isa.container.layout import HASHED_FROM, MAGIC
from dla.isa.instructions import ROWS

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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty folder of its own, with the programs above and an input for `double`."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"double": DOUBLE, "long": LONG, "trapping": TRAPPING, "counting": COUNTING}.items():
        Path(f"{name}.dla").write_text(text)
    np.save("x.npy", np.array([1, 2, 3], np.float32))
    return tmp_path


def dla(*args: str, stdin: str | bytes | None = None) -> Result:
    """Run `dla args` in this process."""
    return CliRunner().invoke(main, list(args), input=stdin, prog_name="dla")


def process(*args: str, **options: object) -> subprocess.Popen[bytes]:
    """Start `dla args` as a process of its own."""
    command = [sys.executable, "-c", "from dla.cli import main; main(prog_name='dla')", *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(command, **pipes)  # type: ignore[call-overload, no-any-return]


def files() -> set[str]:
    """What is in the folder, hidden files included."""
    return {path.name for path in Path().iterdir()}


# -- what each command does


def test_text_becomes_bytecode_and_text_again() -> None:
    """asm, dis and asm again give the same bytes."""
    assert dla("asm", "double.dla", "-o", "double.dlab").exit_code == 0
    first = Path("double.dlab").read_bytes()
    assert first.startswith(MAGIC)
    text = dla("dis", "double.dlab").stdout
    assert dla("asm", "-", "-o", "again.dlab", stdin=text).exit_code == 0
    assert Path("again.dlab").read_bytes() == first


def test_everything_reads_stdin_and_writes_stdout() -> None:
    """Programs go through pipes: `dla asm - | dla dis -`."""
    bytecode = dla("asm", stdin=DOUBLE).stdout_bytes
    assert "EW.add y, x, x" in dla("dis", stdin=bytecode).stdout
    assert "y: f32[3] = [2., 4., 6.]" in dla("run", "-", "-i", "x.npy", stdin=bytecode).stdout


def test_run_prints_outputs_and_says_on_stderr_which_machine_ran() -> None:
    """Results are on stdout alone, so that they can be piped."""
    result = dla("run", "double.dla", "--input", "x=x.npy")
    assert result.exit_code == 0
    assert result.stdout == "y: f32[3] = [2., 4., 6.]\n"
    assert "backend: golden" in result.stderr or "backend: gpu" in result.stderr


@pytest.mark.parametrize("name", ["out.npz", "out.safetensors", "out.npy", "y=out.npy"])
def test_run_writes_outputs_to_files(name: str) -> None:
    """Every format takes the output, and nothing is printed then."""
    from dla.emulator.tensorfiles import contents

    result = dla("run", "double.dla", "-i", "x.npy", "-o", name, "--backend", "golden")
    assert (result.exit_code, result.stdout) == (0, "")
    (stored,) = contents(Path(name.rpartition("=")[2])).values()
    assert stored.read().tolist() == [2, 4, 6]


def test_state_goes_from_run_to_run_through_a_file() -> None:
    """--state-out of one run is --state-in of the next."""
    for expected in (1, 2, 3):
        given = ["--state-in", "s.npz"] if expected > 1 else []
        result = dla("run", "counting.dla", "--state-out", "s.npz", "--backend", "golden", *given)
        assert result.stdout == f"y: i64[] = {expected}\n"


def test_json_is_one_object_on_stdout() -> None:
    """`--json` gives programs what people get as text."""
    facts = json.loads(dla("run", "double.dla", "-i", "x.npy", "--backend", "golden", "--json").stdout)
    assert facts["outputs"] == {"y": {"dtype": "f32", "shape": [3], "values": [2, 4, 6]}}
    assert facts["backend"] == "golden"
    assert facts["dims"] == {"n": 3}
    facts = json.loads(dla("inspect", "double.dla", "--json").stdout)
    assert facts["mix"] == {"EW.add": 1, "HALT": 1}
    assert [t["name"] for t in facts["tensors"]] == ["x", "y"]
    assert len(json.loads(dla("isa", "--json").stdout)) == len(ROWS)
    assert json.loads(dla("verify", "double.dla", "--json").stdout) == {"ok": ["double.dla"]}
    assert {"subject": "golden machine", "value": "works everywhere", "level": "ok", "remedy": None} in json.loads(
        dla("doctor", "--json").stdout
    )


def test_json_reports_errors_too() -> None:
    """A program that reads stdout learns the kind and the place of an error."""
    result = dla("asm", "--json", stdin=".program p\nmain:\n    HALTT\n")
    assert result.exit_code == 3
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == "AssemblyError"
    assert error["diagnostics"][0]["line"] == 3


def test_trace_shows_each_instruction_with_what_it_wrote() -> None:
    """--trace prints instructions and statistics to stderr, or adds them to the JSON."""
    result = dla("run", "double.dla", "-i", "x.npy", "--trace")
    assert "EW.add" in result.stderr
    assert "min 2 mean 4 max 6" in result.stderr
    facts = json.loads(dla("run", "double.dla", "-i", "x.npy", "--trace", "--json").stdout)
    assert [executed["name"] for executed in facts["trace"]] == ["EW.add", "HALT"]


def test_compare_reports_the_error_of_each_output_against_its_bound() -> None:
    """The golden machine in f32 lies within the bounds of the rows; one line per output says how far."""
    result = dla("compare", "double.dla", "--random", "1", "--backends", "golden,golden-f32")
    assert result.exit_code == 0
    assert "within" in result.stdout
    facts = json.loads(dla("compare", "double.dla", "-i", "x.npy", "--backends", "golden,golden-f32", "--json").stdout)
    (output,) = facts["comparisons"]
    assert (output["backend"], output["name"], output["max_error"], output["ok"]) == ("golden-f32", "y", 0.0, True)


def test_compare_fails_with_1_where_a_machine_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result outside its bound is exit code 1, and the output is named."""
    from dla.emulator.golden.machine import GoldenSession

    right = GoldenSession.run

    def wrong(self: GoldenSession, *args: object) -> object:
        result = right(self, *args)  # type: ignore[arg-type]
        if self._machine.accumulate == "f32":
            result.outputs["y"][0] += 1
        return result

    monkeypatch.setattr(GoldenSession, "run", wrong)
    result = dla("compare", "double.dla", "-i", "x.npy", "--backends", "golden,golden-f32")
    assert result.exit_code == 1
    assert "WRONG" in result.stdout


def test_random_inputs_are_the_same_for_the_same_seed() -> None:
    """--random SEED is repeatable, and --set gives the size."""
    runs = [dla("run", "double.dla", "--random", seed, "--set", "n=2", "--shuffle", "5").stdout for seed in "112"]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0].startswith("y: f32[2] = ")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mnemonic)
def test_isa_explains_every_instruction(row: object) -> None:
    """`dla isa` prints a page for each row, whatever the case of its name."""
    result = dla("isa", row.mnemonic.lower())  # type: ignore[attr-defined]
    assert result.exit_code == 0
    assert row.mnemonic in result.stdout  # type: ignore[attr-defined]
    assert row.summary in dla("isa").stdout  # type: ignore[attr-defined]


def test_doctor_says_what_is_missing_and_how_to_get_it() -> None:
    """Every missing thing comes with a remedy; the exit code is 0 in any case."""
    result = dla("doctor")
    assert result.exit_code == 0
    assert "golden machine" in result.stdout
    findings = json.loads(dla("doctor", "--json").stdout)
    assert all(finding["remedy"] for finding in findings if finding["level"] == "missing")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    """The script names the variable through which click answers."""
    assert "_DLA_COMPLETE" in dla("completion", shell).stdout


@pytest.mark.parametrize("command", ["asm", "dis", "inspect", "verify", "run", "compare", "isa", "doctor"])
def test_every_command_has_help_and_json(command: str) -> None:
    """`--help` explains, and `--json` is there."""
    result = dla(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR even a forced terminal shows no colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[3" in dla("doctor").output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in dla("doctor").output


def test_help_is_there_at_once() -> None:
    """`dla --help` imports neither NumPy nor the parser, which is what keeps it quick."""
    code = "import sys; from dla.cli import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "Exit codes" in out
    assert not {"numpy", "lark", "rich", "safetensors", "cupy"} & set(out.split())


# -- what can go wrong


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
        "run: output format": lambda: dla("run", "double.dla", "-i", "x.npy", "-o", "y.csv"),
        "run: output under a file": lambda: dla("run", "double.dla", "-i", "x.npy", "-o", "empty/y.npy"),
        "run: unknown state": lambda: dla("run", "double.dla", "-i", "x.npy", "--state-in", "x.npy"),
        "run: trap": lambda: dla("run", "trapping.dla", "--backend", "golden", "-o", "y.npz"),
        "run: timeout": lambda: dla("run", "long.dla", "--backend", "golden", "--timeout", "0.05", "-o", "y.npz"),
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
    "run: output format": (2, "error: cannot tell the format of 'y.csv'"),
    "run: output under a file": (2, "error: cannot write 'empty/y.npy': Not a directory"),
    "run: unknown state": (2, "error: 'x.npy' does not say which state it is for"),
    "run: trap": (4, "trap[assert] at instruction 2 (trapping.dla:6): assertion failed, code 0: on purpose"),
    "run: timeout": (5, "trap[timeout] at instruction "),
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
    monkeypatch.setattr("dla.isa.summary.summarise", lambda program: 1 / 0)
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


def test_a_full_stdout_is_one_message() -> None:
    """/dev/full refuses what is printed."""
    with Path("/dev/full").open("wb") as full:
        child = process("isa", stdout=full)
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


def test_interrupting_ends_with_130_and_no_output() -> None:
    """Ctrl-C during a long run: one word, exit code 130, no file."""
    child = process("run", "long.dla", "--backend", "golden", "-o", "y.npz", stdin=subprocess.DEVNULL)
    assert child.stderr is not None
    assert child.stderr.readline() == b"backend: golden\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
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


# -- with a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*.dla")))
def test_every_program_compares_well_on_the_gpu(name: str) -> None:
    """`dla compare` finds the GPU within the bounds of the rows."""
    result = dla("compare", str(PROGRAMS / f"{name}.dla"), "--random", "1")
    assert result.exit_code == 0, result.output
    assert "backends: golden (reference), gpu" in result.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("options", [[], ["--checked"], ["--timeout", "5"]])
def test_the_gpu_runs_and_says_so(options: list[str]) -> None:
    """`--backend gpu` prints the same result and names itself."""
    result = dla("run", "double.dla", "-i", "x.npy", "--backend", "gpu", *options)
    assert result.stdout == "y: f32[3] = [2., 4., 6.]\n"
    assert "backend: gpu" in result.stderr


@pytest.mark.gpu
def test_interrupting_the_gpu_ends_with_130() -> None:
    """Ctrl-C reaches a kernel that would run for minutes."""
    assert dla("run", "double.dla", "-i", "x.npy", "--backend", "gpu").exit_code == 0  # compiled from here on
    child = process("run", "long.dla", "--backend", "gpu", "-o", "y.npz", stdin=subprocess.DEVNULL)
    time.sleep(5)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130
    assert stderr.endswith(b"interrupted\n")
    assert "y.npz" not in files()
