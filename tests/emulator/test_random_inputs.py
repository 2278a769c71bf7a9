"""Random inputs: accepted by the program they are made for, repeatable, in range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dla.assembler import assemble, assemble_file
from dla.emulator.api import Machine
from dla.emulator.random_inputs import LARGEST_DIM, made_up, random_inputs

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


def test_each_rank_makes_up_what_it_lacks_wherever_it_runs() -> None:
    """In one process or as one of many: the same numbers, and none for what is given for all, or for a rank."""
    program = assemble(".world 3\n.input x : f32[2]\n.input z : f32[2]\n.output y : f32[2]\nmain:\n"
                       "    EW.add y, x, z\n    HALT\n")  # fmt: skip
    own = [random_inputs(program, (1, rank)) for rank in range(3)]
    together = made_up(program, {"x.rank1"}, 1, None, 3)
    assert sorted(together) == ["x.rank0", "x.rank2", "z"]
    np.testing.assert_array_equal(together["x.rank2"], own[2]["x"])
    np.testing.assert_array_equal(together["z"], [one["z"] for one in own])
    apart = made_up(program, {"x.rank1"}, 1, None, 3, mine=2)
    assert sorted(apart) == ["x.rank0", "x.rank2", "z"]
    np.testing.assert_array_equal(apart["x.rank0"], own[0]["x"])
    np.testing.assert_array_equal(apart["z"], own[2]["z"])
    assert sorted(made_up(program, {"x"}, 1, None, 3, mine=1)) == ["z"]
    assert made_up(program, {"x", "z"}, 1, None, 3) == {}
