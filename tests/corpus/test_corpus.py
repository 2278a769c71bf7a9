"""Programs of every release still load, pass the verifier and run to the outputs that they had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dla.emulator.golden.machine import GoldenMachine
from dla.isa.container import load
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array, DType, ulp
from dla.isa.instructions import ROWS
from dla.isa.program import Program
from dla.isa.verifier import verify

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("v*/*.dlab"))


def arrays_of(path: Path, program: Program, prefix: str) -> dict[str, Array]:
    """The frozen tensors of one kind, by name, in the types that the program declares."""
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as frozen:
        found = {name.removeprefix(prefix): frozen[name] for name in frozen.files if name.startswith(prefix)}
    dtypes = {t.name: t.descriptor.dtype for t in program.tensors}
    return {n: a.view(DType.BF16.numpy) if dtypes.get(n) is DType.BF16 else a for n, a in found.items()}


def assert_same(name: str, found: Array, frozen: Array, dtype: DType) -> None:
    """Integers equal; floats within two units in the last place, since NumPy's own sums and functions change."""
    assert found.shape == frozen.shape, name
    if not dtype.is_float:
        assert np.array_equal(found, frozen), name
        return
    exact, expected = found.astype(np.float64), frozen.astype(np.float64)
    # A sum near 0 is as uncertain as its terms, which are about 1 here.
    allowed = 2 * ulp(expected, dtype) + 2.0**-50
    assert np.all((exact == expected) | (np.abs(exact - expected) <= allowed)), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_frozen_program_runs_to_the_same_outputs(path: Path) -> None:
    """A file of an earlier release is accepted and computes what it computed then."""
    program = load(path)
    verify(program)
    dims = {name: int(value) for name, value in arrays_of(path, program, "dim.").items()}
    result = GoldenMachine().load(program).run(arrays_of(path, program, "in."), dims)
    outputs, states = arrays_of(path, program, "out."), arrays_of(path, program, "state.")
    assert set(outputs) == {t.name for t in program.in_segment(Segment.OUTPUT)}
    for frozen, found in ((outputs, result.outputs), (states, result.state)):
        assert set(frozen) == set(found)
        for name, array in frozen.items():
            assert_same(name, found[name], array, program.by_name[name].descriptor.dtype)


def test_corpus_v1_has_every_instruction_of_isa_1_0() -> None:
    """No instruction of the first version is without a frozen program."""
    used = {i.row.mnemonic for path in (HERE / "v1").glob("*.dlab") for i in load(path).instructions}
    assert {row.mnemonic for row in ROWS if row.since == "1.0"} <= used


def test_corpus_v1_has_external_weights() -> None:
    """One frozen program keeps its weights beside it."""
    assert load(HERE / "v1" / "external.dlab").external
