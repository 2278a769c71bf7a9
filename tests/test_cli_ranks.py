"""The command line on several ranks: `dla run --ranks`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from commandline import PROGRAMS, dla
from safetensors.numpy import load_file, save_file

from dla import load
from dla.console import Driver, abort_with
from dla.emulator.random_inputs import random_inputs

SUM = """\
.program sum
.input x : f32[n <= 4]
.state runs : i32[]
.output y : f32[n]
main:
    PROBE x tag=5
    ALLREDUCE.sum y, x
    EW.add runs, runs, 1
    HALT
"""
FOR_TWO = f".world 2\n{SUM}"
UNEVEN = """\
.world 2
.output y : f32[s0 <= 4]
main:
    ALU.add s0, RANK, 1
    FILL y, 1
    HALT
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs, and inputs in every form."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("sum", SUM), ("two", FOR_TWO), ("uneven", UNEVEN)):
        Path(f"{name}.dla").write_text(text)
    np.save("both.npy", X)
    np.save("apart.rank0.npy", X[0])
    np.save("apart.rank1.npy", X[1])
    np.savez("named.npz", **{"x.rank0": X[0], "x.rank1": X[1]})
    np.savez("each.rank0.npz", x=X[0])
    np.savez("each.rank1.npz", x=X[1])
    return tmp_path


@pytest.mark.parametrize(
    "given", ["x=both.npy", "both.npy", "x=apart.npy", "named.npz", "each.npz", "x=each.npz#x", "x=named.npz"]
)
def test_inputs_of_ranks_come_in_one_file_or_in_one_each(given: str) -> None:
    """A leading axis, names with ranks, or files with ranks."""
    if given == "x=named.npz":  # which rank's x is it?
        assert dla("run", "two.dla", "-i", given).exit_code == 2
        return
    result = dla("run", "two.dla", "-i", given)
    assert result.exit_code == 0, result.stderr
    assert "y: f32[2, 3] = [[3., 5., 7.],\n [3., 5., 7.]]\n" in result.stdout
    assert "2 ranks" in result.stderr


def test_the_number_of_ranks_is_an_option_or_in_the_program() -> None:
    """--ranks for programs that run on any number; the declared number otherwise."""
    assert "y: f32[3, 2]" in dla("run", "sum.dla", "--ranks", "3", "--random", "1", "--set", "n=2").stdout
    assert "y: f32[2]" in dla("run", "sum.dla", "--random", "1", "--set", "n=2").stdout
    wrong = dla("run", "two.dla", "--ranks", "3", "--random", "1")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "the program is for 2 ranks, not for 3" in wrong.stderr


def test_random_inputs_differ_from_rank_to_rank() -> None:
    """And are the same the next time."""
    args = ("run", "two.dla", "--random", "1", "--set", "n=2")
    first = dla(*args).stdout
    lines = [line for line in first.splitlines() if "probe 5" in line]
    assert [line[:7] for line in lines] == ["rank 0:", "rank 1:"]
    assert lines[0][7:] != lines[1][7:]
    assert dla(*args).stdout == first


def test_outputs_and_state_are_written_with_an_axis_of_ranks() -> None:
    """And state is read so."""
    for run in (1, 2):
        more = ("--state-in", "state.npz") if run == 2 else ()
        result = dla("run", "two.dla", "-i", "both.npy", "-o", "out.safetensors", "--state-out", "state.npz", *more)
        assert result.exit_code == 0, result.stderr
        assert np.load("state.npz")["runs"].tolist() == [run, run]
    np.testing.assert_array_equal(load_file("out.safetensors")["y"], [X.sum(axis=0)] * 2)


def test_outputs_that_differ_in_size_are_written_apart() -> None:
    """By name in one file, or into a file each."""
    assert dla("run", "uneven.dla", "-o", "out.npz").exit_code == 0
    with np.load("out.npz") as written:
        assert {name: written[name].shape for name in written.files} == {"y.rank0": (1,), "y.rank1": (2,)}
    assert dla("run", "uneven.dla", "-o", "out.npy").exit_code == 0
    assert (np.load("out.rank0.npy").shape, np.load("out.rank1.npy").shape) == ((1,), (2,))


def test_json_says_how_many_ranks_and_which_one_probed() -> None:
    """Facts for programs."""
    facts = json.loads(dla("run", "two.dla", "-i", "both.npy", "--json").stdout)
    assert facts["ranks"] == 2
    assert [(probe["rank"], probe["mean"]) for probe in facts["probes"]] == [(0, 1), (1, 4)]
    assert facts["outputs"]["y"]["values"] == [[3, 5, 7], [3, 5, 7]]


def test_trace_tells_ranks_apart() -> None:
    """A line for each instruction of each rank."""
    told = dla("run", "two.dla", "-i", "both.npy", "--trace").stderr
    assert "rank 0     1 ALLREDUCE.sum" in told
    assert "rank 1     1 ALLREDUCE.sum" in told


@pytest.mark.gpu
def test_ranks_share_a_gpu() -> None:
    """The same outputs as on golden ranks."""
    done = dla("run", "two.dla", "-i", "both.npy", "--backend", "gpu", "-o", "y.npy")
    assert done.exit_code == 0, done.stderr
    assert "2 ranks" in done.stderr
    np.testing.assert_array_equal(np.load("y.npy"), [[3, 5, 7], [3, 5, 7]])


REFUSED = {
    "a GPU's name": (("--gpus", "0,a"), "write numbers of GPUs, as in 0,1"),
    "other ranks": (("--gpus", "0,1", "--ranks", "3"), "--ranks 3 and 2 GPUs contradict each other"),
    "another world": (("--gpus", "0,1,2"), "the program is for 2 ranks, not for 3"),
    "golden": (("--gpus", "0,1", "--backend", "golden"), "--gpus needs the GPU machine"),
    "trace": (("--gpus", "0,1", "--trace"), "--trace needs the golden machine"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_gpus_that_are_refused(case: str) -> None:
    """With exit code 2, and a word about what contradicts what."""
    options, said = REFUSED[case]
    refused = dla("run", "two.dla", "-i", "both.npy", *options)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in refused.stderr


def test_a_trap_names_its_rank() -> None:
    """Exit code 4, and no output."""
    Path("trap.dla").write_text(
        ".world 2\n.output y : i32[]\nmain:\n    FILL y, 1\n    CMP.eq p0, RANK, 0\n    ASSERT p0\n    HALT\n"
    )
    result = dla("run", "trap.dla", "-o", "y.npy")
    assert result.exit_code == 4
    assert "trap[assert] on rank 1 at instruction 2 (trap.dla:6)" in result.stderr
    assert not Path("y.npy").exists()


@pytest.mark.parametrize(
    ("given", "missing"),
    [("apart.npy", "apart.rank2.npy"), ("late.npy", "late.rank0.npy"), ("none.npy", "none.rank0.npy")],
)
def test_a_missing_file_of_a_rank_is_named(given: str, missing: str) -> None:
    """Whichever it is, and with what would do."""
    np.save("late.rank1.npy", X[1])
    result = dla("run", "sum.dla", "--ranks", "3", "-i", f"x={given}")
    assert result.exit_code == 2
    assert f"there is no file '{given}', nor '{missing}'" in result.stderr
    assert "one file for all ranks, or in one for each" in result.stderr


def test_only_what_is_not_given_is_made_up() -> None:
    """By rank, too: rank 1's x is random, rank 0's is the file's."""
    np.savez("first.npz", **{"x.rank0": X[0]})
    args = ("run", "two.dla", "--set", "n=3", "--random", "1")
    alone, mixed = dla(*args, "-o", "alone.npy"), dla(*args, "-i", "first.npz", "-o", "mixed.npy")
    assert (alone.exit_code, mixed.exit_code) == (0, 0), mixed.stderr
    made = random_inputs(load("two.dla"), (1, 1), {"n": 3})["x"]
    np.testing.assert_array_equal(np.load("mixed.npy"), [X[0] + made] * 2)


def test_outputs_of_ranks_are_not_called_as_others_are(tmp_path: Path) -> None:
    """Names in a result, and files: nothing is overwritten."""
    text = UNEVEN.replace("main:", ".output `y.rank1` : i32[]\nmain:\n    FILL `y.rank1`, 7")
    Path("alike.dla").write_text(text)
    result = dla("run", "alike.dla")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "that of rank 1 is then called 'y.rank1', as another tensor is" in result.stderr
    Path("files.dla").write_text(UNEVEN.replace("main:", ".output z : i32[]\nmain:\n    FILL z, 7"))
    result = dla("run", "files.dla", "-o", "y=out.npy", "-o", "z=out.rank0.npy")
    assert result.exit_code == 2
    assert "'out.rank0.npy' would be written twice" in result.stderr
    assert not list(tmp_path.glob("out*"))


def test_the_example_of_the_manual() -> None:
    """docs/ranks.md: a product whose columns are gathered from four ranks."""
    text = (PROGRAMS.parent / "docs" / "ranks.md").read_text(encoding="utf-8").split("```")[1]
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((64, 128)).astype(np.float32), rng.standard_normal((8, 64)).astype(np.float32)
    Path("columns.dla").write_text(text)
    save_file({"w": w}, "net.safetensors")
    np.save("x.npy", x)
    assert dla("run", "columns.dla", "-i", "x=x.npy", "-o", "all.npy").exit_code == 0
    np.testing.assert_allclose(np.load("all.npy"), np.stack([x @ w] * 4), rtol=1e-3, atol=1e-4)


def test_other_commands_know_ranks() -> None:
    """Inspect tells them; profile and compare refuse several; verify takes them; dis gives the text again."""
    assert "ISA 1.3, 2 ranks:" in dla("inspect", "two.dla").stdout
    assert json.loads(dla("inspect", "two.dla", "--json").stdout)["world"] == 2
    inspected = {
        name: dla("inspect", str(PROGRAMS / f"{name}.dla")).stdout for name in ("tensor_parallel_mlp", "pipeline")
    }
    assert re.search(r"w1 +1 +all ranks +32,768", inspected["tensor_parallel_mlp"])
    assert re.search(r"pairs next +0 to 1", inspected["pipeline"])
    assert dla("verify", "two.dla").exit_code == 0
    assert ".world 2" in dla("dis", "two.dla").stdout
    for command in ("profile", "compare"):
        result = dla(
            command, "two.dla", "--random", "1", *(("--backends", "golden,golden-f32") * (command == "compare"))
        )
        assert result.exit_code == 2, result.stderr
        assert "rank" in result.stderr
    assert dla("bench", "two.dla", "--random", "1", "--duration", "0.01").exit_code == 0


def test_one_file_for_all_ranks_and_one_for_each_are_too_many() -> None:
    """One of them may be left over from other runs, and nothing says which."""
    np.save("apart.npy", X)
    result = dla("run", "two.dla", "-i", "x=apart.npy")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "both 'apart.npy' and 'apart.rank0.npy' are there" in result.stderr


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError("no"), BrokenPipeError(), RuntimeError(), KeyboardInterrupt()]
)
def test_whoever_fails_ends_those_who_wait_for_it(error: BaseException) -> None:
    """Whatever it is."""
    codes: list[int] = []

    @click.group(cls=Driver)
    def main() -> None:
        """A command line."""

    @main.command()
    def go() -> None:
        abort_with(codes.append)
        raise error

    CliRunner().invoke(main, ["go"])
    assert len(codes) == 1
    assert codes[0] != 0


def test_a_transport_needs_the_gpu_machine() -> None:
    """There is nothing to choose on the other one."""
    done = dla("run", "two.dla", "-i", "both.npy", "--transport", "nccl", "--backend", "golden")
    assert done.exit_code == 2
    assert "--transport needs the GPU machine" in done.output
    done = dla("run", "two.dla", "-i", "both.npy", "--transport", "mail")
    assert done.exit_code == 2
    assert "'peer', 'nccl'" in done.output
