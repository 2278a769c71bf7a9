"""What instructions cost: operations and bytes at the bounds."""

from __future__ import annotations

import pytest

from dla.assembler import assemble
from dla.isa import cost
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction
from dla.isa.table import Exec


def one(declarations: str, instruction: str) -> Instruction:
    """The only instruction of a program."""
    text = f".program p\n{declarations}\nmain:\n    {instruction}\n    HALT\n"
    return assemble(text).instructions[0]


IMAGE = """
.input x : f32[2, 8, 8, 4]
.input w : f32[6, 3, 3, 2]
.output y : f32[2, 6, 6, 6]
.output p : f32[2, 4, 4, 4]
"""
MATRICES = ".input a : f16[5, n <= 7]\n.input b : f16[n, 3]\n.output c : f32[5, 3]"
PAIRS = ".input a : f16[5, n <= 7]\n.input b : f16[n, 6]\n.output c : f32[5, 3]"
TABLE = ".input t : f32[1000, 8]\n.input i : i32[3]\n.output y : f32[3, 8]"
HEADS = ".input q : f32[1, 4, 3, 8]\n.input k : f32[1, 2, 5, 8]\n.output y : f32[1, 4, 3, 8]"


@pytest.mark.parametrize(
    ("declarations", "instruction", "flops", "nbytes"),
    [
        (MATRICES, "GEMM c, a, b", 2 * 5 * 7 * 3, 2 * 35 + 2 * 21 + 4 * 15),
        (PAIRS, "GEMM.glu c, a, b unit=silu", 2 * 5 * 7 * 6, 2 * 35 + 2 * 42 + 4 * 15),
        (IMAGE, "CONV y, x, w groups=2", 2 * 2 * 6 * 6 * 6 * 3 * 3 * 2, 4 * (512 + 108 + 432)),
        (
            IMAGE,
            "CONV y, x[:, :3, :3], w groups=2 gaps=[2, 2] pads=[0, 0, 1, 1]",
            2 * 2 * 6 * 6 * 6 * 2,
            4 * (2 * 9 * 4 + 108 + 432),
        ),
        (IMAGE, "POOL.max p, x window=[2, 2] strides=[2, 2]", 128 * 4, 4 * (512 + 128)),
        (TABLE, "GATHER y, t, i", 0, 4 * (24 + 24 + 3)),
        (TABLE, "SCATTER.add y, y, i[:, None], y[:, :1]", 3, 4 * (24 + 24 + 3 + 3)),
        (HEADS, "ATTENTION y, q, k, k", 2 * 4 * 3 * 5 * 16, 4 * (96 + 96 + 80 + 80)),
        (".output y : f32[4, 5]\n.input x : f32[5]", "EW.mul y, x, 2", 20, 4 * (20 + 5 + 1)),
        (".output y : f32[4, 5]\n.input x : f32[5]", "COPY y, x.broadcast(4, 5)", 0, 4 * (20 + 5)),
        (".output y : f32[4]\n.input x : f32[4, 9]", "REDUCE.sum y, x axes=[1]", 36, 4 * (4 + 36)),
        (".output y : f32[0]\n.input x : f32[0]", "ACT.relu y, x", 0, 0),
    ],
)
def test_operations_and_bytes_follow_the_rows_formulas(
    declarations: str, instruction: str, flops: int, nbytes: int
) -> None:
    """Dynamic dims count at their bound, repeated elements once, and of a gathered table only what is picked."""
    found = one(declarations, instruction)
    assert cost.flops(found) == flops
    assert cost.bytes_moved(found) == nbytes


@pytest.mark.parametrize("mnemonic", [r.mnemonic for r in BY_MNEMONIC.values() if r.unit is Exec.TENSOR])
def test_every_example_has_a_cost(mnemonic: str) -> None:
    """The formulas use names that exist: each instruction of each example can be priced."""
    program = assemble(BY_MNEMONIC[mnemonic].example)
    for instruction in program.instructions:
        if instruction.row.unit is Exec.TENSOR:
            assert cost.flops(instruction) >= 0
            assert cost.bytes_moved(instruction) > 0


def test_dims_of_a_run_take_the_place_of_bounds() -> None:
    """Registers whose values are known count as they are, others at their bounds, and no size beyond a bound."""
    found = one(MATRICES, "GEMM c, a, b")
    register = found.operands[1].dims[1].register  # type: ignore[union-attr]
    assert cost.flops(cost.sized(found, {register: 2})) == 2 * 5 * 2 * 3
    assert cost.bytes_moved(cost.sized(found, {register: 2})) == 2 * 10 + 2 * 6 + 4 * 15
    assert cost.flops(cost.sized(found, {})) == cost.flops(cost.sized(found, {register: 99})) == cost.flops(found)
