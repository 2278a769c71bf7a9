"""The command line: what each command does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commandline import DOUBLE, PROGRAMS, dla, files, process, write_programs

from dla.isa.container.layout import MAGIC
from dla.isa.dtypes import FLOATS
from dla.isa.instructions import ROWS
from dla.isa.math_mode import MODES
from dla.options import COMPUTE_TYPES, MATH_MODES


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own, with the programs of commandline.py."""
    monkeypatch.chdir(tmp_path)
    write_programs()
    return tmp_path


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
    from dla.emulator.golden.session import GoldenSession

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


def test_types_to_compute_in_are_those_of_the_machine() -> None:
    """The command line has them written out."""
    assert tuple(dtype.text for dtype in FLOATS) == COMPUTE_TYPES
    assert tuple(MODES) == MATH_MODES


def test_help_is_there_at_once() -> None:
    """`dla --help` imports neither NumPy nor the parser, which is what keeps it quick."""
    code = "import sys; from dla.cli import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "Exit codes" in out
    assert not {"numpy", "lark", "rich", "safetensors", "cupy", "onnx"} & set(out.split())


# -- with a GPU


ON_ONE_RANK = sorted(path.stem for path in PROGRAMS.glob("*.dla") if "\n.world" not in path.read_text(encoding="utf-8"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_ONE_RANK)
def test_every_program_compares_well_on_the_gpu(name: str) -> None:
    """`dla compare` finds the GPU within the bounds of the rows, for all programs of one rank."""
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
