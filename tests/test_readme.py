"""README.md: what it tells people to type works, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from onnx_models import perceptron, saved

from dla.assembler import assemble
from dla.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [re.split(r"\s+# ", line)[0] for line in README.splitlines() if line.startswith("dla ")]


def test_there_are_commands_to_try() -> None:
    """The pattern that finds commands finds them."""
    assert len(COMMANDS) >= 6


def test_the_commands_work_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `dla` command of the README runs; those that need a GPU say that there is none."""
    (tmp_path / "programs").symlink_to(ROOT / "programs")
    saved(perceptron(), tmp_path)
    monkeypatch.setenv("DLA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        result = CliRunner().invoke(main, command.split()[1:], prog_name="dla")
        assert result.exit_code == 0 or "no GPU" in result.stderr, f"{command}\n{result.output}"


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README))
def test_linked_files_exist(link: str) -> None:
    """No link leads nowhere."""
    assert (ROOT / link).exists()


def test_the_model_built_in_python_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the README tells people to write runs, given such weights."""
    import numpy as np
    from safetensors.numpy import save_file

    shapes = {"fc1.weight": (128, 64), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)}
    save_file({k: np.zeros(v, np.float32) for k, v in shapes.items()}, tmp_path / "perceptron.safetensors")
    monkeypatch.chdir(tmp_path)
    (text,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "dla.Layers" in block]
    exec(text, {})
    assert (tmp_path / "perceptron.dlab").exists()


def test_the_first_program_is_one(tmp_path: Path) -> None:
    """The program that the README shows assembles."""
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}, tmp_path / "weights.safetensors")
    (text,) = [block for block in re.findall(r"```\n(.*?)```", README, re.DOTALL) if block.startswith(".program")]
    assert len(assemble(text, folder=tmp_path).instructions) == 3
