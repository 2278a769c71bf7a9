"""What `dla inspect` draws of a program: its scratch memory, and the plan of a GPU for it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from commandline import dla, write_programs
from onnx_models import perceptron

from dla.assembler import assemble
from dla.emulator.device import gpu, tune, tuned
from dla.emulator.device.paths import Target

BOUND = ("--bound", "batch=8")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in a folder with model.onnx, and with a cache of its own, outside of it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("DLA_CACHE", str(tmp_path / "cache"))
    onnx.save(perceptron(), "model.onnx")


# -- dla inspect --memory


def test_memory_is_drawn_in_80_columns() -> None:
    """Addresses by instructions, without colour; then the largest tensors."""
    result = dla("inspect", "model.onnx", *BOUND, "--memory")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert "\x1b" not in result.stdout
    assert sum("|" in line and "█" in line for line in lines) >= 8
    assert "x the lower bound" in lines[0]


def test_memory_as_facts() -> None:
    """The hidden layer and the logits are alive together, and lie side by side."""
    facts = json.loads(dla("inspect", "model.onnx", *BOUND, "--memory", "--json").stdout)
    assert [(life["nbytes"], life["first"], life["last"]) for life in facts["lifetimes"]] == [(128, 0, 1), (160, 1, 2)]
    assert facts["in_use"] == [128, 288, 160, 0]
    assert (facts["lower_bound"], facts["peak_instruction"]) == (288, 1)
    assert facts["scratch_bytes"] >= 288


def test_a_program_without_scratch_memory_says_so() -> None:
    """There is nothing to draw."""
    write_programs()
    assert dla("inspect", "double.dla", "--memory").stdout == "program double uses no scratch memory\n"


# -- dla inspect --plan


def test_the_plan_says_how_each_instruction_is_executed() -> None:
    """One line for each instruction that touches memory: its path, what it waits for, where it starts."""
    result = dla("inspect", "model.onnx", *BOUND, "--plan")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("plan of ")
    assert " multiprocessors" in result.stdout
    facts = json.loads(dla("inspect", "model.onnx", *BOUND, "--plan", "--json").stdout)
    steps = facts["instructions"]
    assert [step["name"] for step in steps] == ["GEMM", "GEMM", "SOFTMAX.soft"]
    assert [step["waits_for"] for step in steps] == [[], [0], [1]]
    assert steps[0]["result"].startswith("f32[")


def test_the_plan_says_what_was_modelled_and_what_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of 16-bit floats has several ways; one entry of the file that --tune writes is for it."""
    monkeypatch.setattr(gpu, "present", lambda: gpu.H200)
    text = (
        ".input a : bf16[128, 512]\n.input b : bf16[512, 512]\n.scratch h : bf16[128, 512]\n"
        ".output y : bf16[128, 512]\nmain:\n    GEMM h, a, b\n    GEMM y, h, b\n    HALT\n"
    )
    Path("net.dla").write_text(text)
    plain = dla("inspect", "net.dla", "--plan")
    assert "NVIDIA H200 (132 multiprocessors, Hopper paths)" in plain.stdout
    assert plain.stdout.count("modelled") == 2
    store, timer = tuned.store(gpu.H200, pytest.fail), lambda trial: [7.3e-6] * len(trial.ways)
    tune.measure(assemble(text), Target(132, hopper=True), store, timer, lambda message: None)
    assert dla("inspect", "net.dla", "--plan").stdout.count("measured (7.3 us)") == 2
    steps = json.loads(dla("inspect", "net.dla", "--plan", "--json").stdout)["instructions"]
    assert [(step["measured_us"], step["modelled"]) for step in steps] == [(pytest.approx(7.3), False)] * 2


def test_the_plan_is_that_of_a_run_with_these_dims() -> None:
    """What serves a run at its largest dims leaves most blocks idle in a small one."""
    Path("net.dla").write_text(
        ".input x : bf16[n <= 4096, 1024]\n.input w : bf16[1024, 1024]\n.output y : bf16[n, 1024]\n"
        "main:\n    GEMM y, x, w\n    HALT\n"
    )
    for options, size, exact in ((), 4096, True), (("--set", "n=64"), 64, True), (("--set", "n=33"), 64, False):
        facts = json.loads(dla("inspect", "net.dla", "--plan", "--json", *options).stdout)
        assert (facts["dims"], facts["exact"]) == ({"n": size}, exact)
        assert facts["instructions"][0]["result"] == f"bf16[{size}, 1024]"
        shown = dla("inspect", "net.dla", "--plan", *options).stdout
        assert f", n {'=' if exact else '<='} {size}:" in shown
        assert ("128 x 256" in shown) == (size == 4096)
    done = dla("inspect", "net.dla", "--plan", "--set", "n=4097")
    assert done.exit_code == 2
    assert "dim 'n' must be from 0 to 4096, not 4097" in done.output


def test_the_plan_tells_which_constants_are_transposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In words and as a number; of a program that has none, the number is 0."""
    monkeypatch.setattr(gpu, "present", lambda: gpu.H200)
    text = (
        ".input x : bf16[1, 64]\n.const w : bf16[{w}] = 0\n.output y : bf16[1, 1024]\n"
        "main:\n    GEMM y, x, {v}\n    HALT\n"
    )
    for w, v, expected in (("64, 1024", "w", 131072), ("1024, 64", "w.T", 0)):
        Path("net.dla").write_text(text.format(w=w, v=v))
        facts = json.loads(dla("inspect", "net.dla", "--plan", "--json").stdout)
        assert facts["transposed_bytes"] == expected
        shown = dla("inspect", "net.dla", "--plan").stdout
        assert ("131 kB of constants are transposed when the program is loaded" in shown) == (expected > 0)
        assert "packed" in shown


@pytest.mark.parametrize(("options", "expected"), [
    ((), []),
    (("--ranks", "4"), ["generic", "generic"]),
    (("--ranks", "4", "--transport", "nccl"), ["host", "host"]),
    (("--ranks", "16"), ["host", "host"]),
])  # fmt: skip
def test_the_plan_says_what_carries_collectives(options: tuple[str, ...], expected: list[str]) -> None:
    """Memory that ranks reach, inside the kernel; NCCL, between launches, if asked for, or for many ranks."""
    Path("net.dla").write_text(
        ".input x : f32[8]\n.output y : f32[8]\nmain:\n    ALLREDUCE.sum y, x\n    ALLREDUCE.max y, y\n    HALT\n"
    )
    done = dla("inspect", "net.dla", "--plan", "--json", *options)
    assert done.exit_code == 0, done.output
    steps = json.loads(done.stdout)["instructions"]
    assert [step["path"] for step in steps] == (expected or ["generic"] * 2)
    between = "NCCL between launches, among "
    assert [step["how"].startswith(between) for step in steps] == [path == "host" for path in expected or ["", ""]]


def test_ranks_are_for_the_plan() -> None:
    """Nothing else that is shown depends on them; and a program for some ranks is for no others."""
    write_programs()
    done = dla("inspect", "double.dla", "--ranks", "2")
    assert done.exit_code == 2
    assert "--set, --ranks and --transport are for --plan" in done.output
    Path("two.dla").write_text(".world 2\n.output y : f32[1]\nmain:\n    FILL y, 1\n    HALT\n")
    done = dla("inspect", "two.dla", "--plan", "--ranks", "3")
    assert done.exit_code == 2
    assert "the program is for 2 ranks, not for 3" in done.output
    done = dla("inspect", "double.dla", "--plan", "--ranks", "9", "--transport", "peer")
    assert done.exit_code == 2
    assert "at most 8 ranks reach each other's memory, and these are 9" in done.output


def test_the_plan_and_the_memory_are_not_shown_at_once() -> None:
    """Neither is left out in silence."""
    result = dla("inspect", "model.onnx", *BOUND, "--plan", "--memory")
    assert result.exit_code == 2
    assert "give one of them" in result.output
