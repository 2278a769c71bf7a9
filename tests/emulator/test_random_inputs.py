"""Random inputs: accepted by the program they are made for, repeatable, in range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dla.assembler import assemble, assemble_file
from dla.emulator.api import Machine
from dla.emulator.random_inputs import LARGEST_DIM, random_inputs

PROGRAMS = sorted((Path(__file__).parents[2] / "programs").glob("*.dla"))
TYPES = ["f32", "f16", "bf16", "i8", "u8", "i32", "i64", "bool"]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_every_program_runs_on_random_inputs(path: Path) -> None:
    """No program of programs/ refuses them or traps."""
    program = assemble_file(path)
    dims = {symbol.name: min(symbol.bound, 3) for symbol in program.dims}
    result = Machine("golden").run(program, random_inputs(program, 1, dims), dims)
    assert result.outputs


@pytest.mark.parametrize("dtype", TYPES)
def test_a_seed_gives_the_same_values_of_the_declared_type(dtype: str) -> None:
    """Two calls agree, another seed does not, and dtype and shape are those of the declaration."""
    program = assemble(
        f".program p\n.input x : {dtype}[n <= 100, 9]\n.output y : {dtype}[n, 9]\nmain:\n    COPY y, x\n    HALT\n"
    )
    first, again, other = (random_inputs(program, seed)["x"] for seed in (1, 1, 2))
    assert first.dtype == program.by_name["x"].descriptor.dtype.numpy
    assert first.shape == (LARGEST_DIM, 9)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert random_inputs(program, 1, {"n": 0})["x"].shape == (0, 9)


@pytest.mark.parametrize(
    "instruction", ["GATHER y, table, x", "SCATTER.set t, table, x, u", "RESIZE y, table, x[:, None], w"]
)
def test_indices_stay_inside_what_they_pick_from(instruction: str) -> None:
    """An input that is used as indices has no larger numbers than the axis allows."""
    program = assemble(f"""
.program p
.const table : f32[3] = [1, 2, 3]
.input x : i64[64]
.const w : f32[64, 1] = 1
.const u : f32[64] = 1
.output t : f32[3]
.output y : f32[64]
main:
    {instruction}
    HALT
""")
    assert set(random_inputs(program, 0)["x"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("instructions", "largest"),
    [
        ("EW.mod i, x, 3; EW.max i, x, i; GATHER y, table, i", 2),  # how a compiler lets -1 be the last one
        ("COPY i, x; EW.add i, i, i; FILL i, 1; GATHER y, table, i", 9),  # overwritten: other integers
    ],
)
def test_indices_are_followed_through_arithmetic(instructions: str, largest: int) -> None:
    """An input that becomes indices on the way is as small as they must be."""
    lines = "\n".join(f"    {line}" for line in instructions.split("; "))
    program = assemble(f"""
.program p
.const table : f32[3] = [1, 2, 3]
.input x : i64[64]
.scratch i : i64[64]
.output y : f32[64]
main:
{lines}
    HALT
""")
    assert random_inputs(program, 0)["x"].max() == largest
