"""Models built in Python beside the programs written by hand: the same answers, in no more instructions."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import load_file

from dla.compiler.models.decoder import decoder
from dla.compiler.models.weights import Weights
from dla.compiler.pipeline import Compiled, compile_graph
from dla.emulator.api import Machine
from dla.emulator.compare import reference
from dla.isa import container
from dla.isa.program import Program
from dla.isa.verifier import verify

PROGRAMS = Path(__file__).parents[2] / "programs"
NAMES = sorted(path.stem for path in (PROGRAMS / "models").glob("*.py"))
BY_HAND = [name for name in NAMES if (PROGRAMS / f"{name}.dla").exists()]
REQUIRED = {"digits_mlp": 449, "digits_cnn": 448, "digits_transformer": 445, "digits_lstm": 446}
"""Held-out digits of 450 that each network reads right, as programs/README.md says."""


@cache
def script(name: str) -> ModuleType:
    """`programs/models/<name>.py`."""
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / "models" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def compiled(name: str) -> Compiled:
    """What becomes of that model."""
    return compile_graph(script(name).build())


@pytest.fixture(scope="module")
def digits() -> dict[str, np.ndarray]:
    """Images u8[n, 8, 8] and labels i32[n] of both splits."""
    return load_file(PROGRAMS / "data" / "digits.safetensors")


def kinds(program: Program) -> Counter[str]:
    """Tensor instructions by mnemonic."""
    return Counter(i.row.mnemonic for i in program.instructions if i.row.operands)


def test_each_network_by_hand_is_there_as_a_model() -> None:
    """The three digit networks; beside them an LSTM and a language model."""
    assert BY_HAND == ["digits_cnn", "digits_mlp", "digits_transformer"]
    assert set(NAMES) == {*BY_HAND, "digits_lstm", "tiny_llama"}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_compiles_to_a_valid_program_and_always_to_the_same_bytes(name: str) -> None:
    """Two compilations are byte-identical."""
    program = compiled(name).program
    verify(program)
    assert container.write_bytes(compile_graph(script(name).build()).program) == container.write_bytes(program)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_model_has_the_interface_of_the_program_by_hand(name: str, program) -> None:
    """Names, types and bounds, so that one stands in for the other."""
    mine, theirs = ([(t.name, t.descriptor.dtype, t.descriptor.bounds) for t in p.tensors
                     if t.segment.text in ("input", "output")]
                    for p in (compiled(name).program, program(name)))  # fmt: skip
    assert mine == theirs


@pytest.mark.parametrize("name", BY_HAND)
def test_a_model_needs_no_more_instructions_than_a_person(name: str, program) -> None:
    """Of tensors. Besides, sizes such as batch * 16 may be computed once by scalar code.

    The compiler has fewer: it folds the batch norm that digits_cnn.dla keeps to show NORM.batch.
    """
    mine, theirs = kinds(compiled(name).program), kinds(program(name))
    assert mine <= theirs
    assert theirs - mine == (Counter(NORM=1, ACT=1) if name == "digits_cnn" else Counter())


@pytest.mark.parametrize("name", BY_HAND)
def test_a_model_gives_what_the_program_by_hand_gives(name: str, program, digits) -> None:
    """Within the bounds that follow from the instructions of the program by hand."""
    inputs = {"images": digits["test_images"][:20]}
    result = Machine("golden").run(compiled(name).program, inputs)
    for found in reference(program(name), inputs).compare(result):
        assert found.ok, found


@pytest.mark.parametrize("backend", ["golden", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", REQUIRED)
def test_held_out_digits_are_read_as_well_as_by_hand(name: str, backend: str, digits) -> None:
    """As many right as the program by hand has."""
    result = Machine(backend).run(compiled(name).program, {"images": digits["test_images"]})
    assert np.sum(result["digit"] == digits["test_labels"]) == REQUIRED[name]


@pytest.mark.parametrize("backend", ["golden", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_the_language_model_writes_in_one_run_what_it_writes_in_many(backend: str) -> None:
    """Each token is the likeliest after all before it, as a decoder of the same weights says, which reads all anew."""
    model, machine = script("tiny_llama"), Machine(backend)
    conversation = model.Conversation(machine.load(compiled("tiny_llama").program))
    first = conversation.write([1, 2, 3], 6)
    second = conversation.write([4, 5], 3)
    reader = compile_graph(decoder(model.CONFIG, Weights.random(seed=0))).program
    text = [1, 2, 3, *first, 4, 5, *second]
    following = machine.run(reader, {"ids": np.array([text], np.int32)}, {"past": 0})["next"][0]
    assert following[2:8].tolist() == first
    assert following[10:13].tolist() == second


@pytest.mark.parametrize("name", ["digits_mlp", "tiny_llama"])
def test_a_model_is_a_script_that_writes_a_program(name: str, tmp_path: Path) -> None:
    """It takes the path of the .dlab file, and says what it wrote."""
    path = tmp_path / "out.dlab"
    done = subprocess.run([sys.executable, PROGRAMS / "models" / f"{name}.py", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "instructions" in done.stdout
    help_wanted = subprocess.run([sys.executable, PROGRAMS / "models" / f"{name}.py", "--help"], capture_output=True)
    assert help_wanted.returncode == 1
    assert f"{name}.py {name}.dlab".encode() in help_wanted.stderr
    assert container.write_bytes(container.load(path)) == container.write_bytes(compiled(name).program)
