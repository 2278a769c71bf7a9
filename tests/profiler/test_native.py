"""Native kernels compute what the instructions mean: for every tensor row and sub-operation, at random shapes."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest
from generators import Drawer, random_pieces

import dla
from dla.isa.descriptor import Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC, ROWS
from dla.isa.program import Instruction
from dla.isa.table import Exec

torch = pytest.importorskip("torch", reason="PyTorch's kernels are tested beside NumPy's")

from dla.profiler.native import check  # noqa: E402
from dla.profiler.native.arrays import kernels as arrays  # noqa: E402
from dla.profiler.native.arrays.library import numpy_library  # noqa: E402
from dla.profiler.native.given import NoNativeError  # noqa: E402
from dla.profiler.native.library import Library  # noqa: E402
from dla.profiler.native.operands import made_up, settled  # noqa: E402
from dla.profiler.native.pytorch import library as pytorch  # noqa: E402

TORCH, NUMPY = pytorch.PyTorch("golden"), numpy_library("")
TENSOR = [row for row in ROWS if row.unit is Exec.TENSOR]
CASES = [(library, row.mnemonic, sub) for library in (TORCH, NUMPY) for row in TENSOR
         if row.mnemonic not in library.why_not for sub in ([s.name for s in row.subs] or [""])]  # fmt: skip
REFUSED = {("NumPy", "ACT.gelu"), ("NumPy", "ACT.erf")}
"""That a library takes in no case."""


def random_instruction(mnemonic: str, sub: str, seed: int) -> Instruction:
    """A settled instruction with constant dims. Where types are mixed there is no f16: it overflows on the way."""
    draw = Drawer(random.Random(seed), largest=9, zero=0.0)
    while True:
        pieces = random_pieces(BY_MNEMONIC[mnemonic], draw, sub=sub)
        floats = {dtype for dtype in pieces.dtypes.values() if dtype.is_float}
        if len(floats) <= 1 or DType.F16 not in floats:
            return settled(pieces.instruction(lambda o, shape, dtype: contiguous(Segment.SCRATCH, dtype, shape)), {})


def described(instruction: Instruction) -> str:
    """What failed, in a line."""
    operands = [d and f"{d.dtype.text}{list(d.bounds)}" for d in instruction.operands]
    return f"{instruction.name} {operands} {instruction.attributes}"


@pytest.mark.parametrize("library", [TORCH, NUMPY], ids=lambda library: library.name)
def test_every_tensor_row_has_a_native_or_a_reason(library: Library) -> None:
    """A new instruction without either fails here."""
    kernels = {"PyTorch": set(pytorch.KERNELS), "NumPy": set(arrays.KERNELS)}[library.name]
    assert kernels | set(library.why_not) == {row.mnemonic for row in TENSOR}
    assert not kernels & set(library.why_not)


def case(value: object) -> str:
    """What a case is called."""
    return value if isinstance(value, str) and value else getattr(value, "name", "-")


@pytest.mark.parametrize(("library", "mnemonic", "sub"), CASES, ids=case)
def test_natives_equal_the_instructions(library: Library, mnemonic: str, sub: str) -> None:
    """Within the bounds, or the library says that it does not take it; at least one random case is taken."""
    taken = 0
    for seed in range(12):
        instruction = random_instruction(mnemonic, sub, zlib.crc32(f"{mnemonic}{sub}{seed}".encode()))
        tensors = made_up(instruction, library)
        try:
            with library.asked(instruction):
                result = library.run(instruction, tensors)()
                assert library.kernel(instruction, tensors).startswith(("torch", "numpy"))
        except (NoNativeError, *library.refusals):
            continue
        agrees, error = check.judged(library, instruction, tensors, result)
        assert agrees, f"{described(instruction)}: {error}"
        taken += 1
    assert bool(taken) is ((library.name, instruction.name) not in REFUSED)


@pytest.mark.parametrize("library", [TORCH, NUMPY], ids=case)
@pytest.mark.parametrize("mnemonic", sorted(pytorch.KERNELS))
@pytest.mark.parametrize("seed", range(3))
def test_parts_of_large_instructions_are_judged_as_instructions(library: Library, mnemonic: str, seed: int) -> None:
    """The last rows of what a kernel computed are what the instruction with these rows alone computes."""
    if mnemonic in library.why_not:
        return
    subs = [sub for of, name, sub in CASES if (of, name) == (library, mnemonic)]
    instruction = random_instruction(mnemonic, subs[seed % len(subs)], 1000 + seed)
    tensors = made_up(instruction, library)
    try:
        with library.asked(instruction):
            result = library.run(instruction, tensors)()
    except (NoNativeError, *library.refusals):
        return
    assert check.judged(library, instruction, tensors, result, work=64)[0], described(instruction)


def program_of(declarations: str, instruction: str) -> Instruction:
    """One settled instruction."""
    return settled(
        dla.assemble(f".program p\n{declarations}\nmain:\n    {instruction}\n    HALT\n").instructions[0], {}
    )


PRODUCT = """
.input a : {0}[96, 80]
.input b : {0}[80, 64]
.input c : {0}[64]
.output y : {0}[96, 64]
"""
WRONG = {
    "a factor": lambda y: y * 1.1,
    "nothing at all": lambda y: y * 0,
    "one element": lambda y: changed(y, (95, 3), 9.0),
    "not a number": lambda y: changed(y, (95, 0), float("nan")),
    "rows in another order": lambda y: y[list(range(95, -1, -1))],
}


def changed(y: Any, place: tuple[int, int], value: float) -> Any:
    """`y` with another element."""
    y[place] = value
    return y


@pytest.mark.parametrize("library", [TORCH, NUMPY], ids=case)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("what", list(WRONG))
def test_wrong_kernels_are_found(library: Library, dtype: str, what: str) -> None:
    """Fast but wrong: the bound allows for roundings of several kernels, and for nothing else."""
    instruction = program_of(PRODUCT.format(dtype), "GEMM y, a, b bias=c act=gelu_tanh")
    tensors = made_up(instruction, library)
    run = library.run(instruction, tensors)
    agrees, error = check.judged(library, instruction, tensors, run())
    assert agrees
    assert error <= 1
    agrees, error = check.judged(library, instruction, tensors, WRONG[what](run()))
    assert not agrees
    assert error > 1


def test_a_product_of_half_the_terms_is_wrong() -> None:
    """As a kernel is that stops early: cheap, and far from the sum."""
    instruction = program_of(PRODUCT.format("bf16"), "GEMM y, a, b")
    tensors = made_up(instruction, TORCH)
    half = tensors["a"][:, :40] @ tensors["b"][:40]
    assert not check.judged(TORCH, instruction, tensors, half)[0]


def test_integers_must_be_equal_and_choices_as_good() -> None:
    """An index that is off by one is wrong; that of an equal element is not."""
    instruction = program_of(".input x : i32[2, 4]\n.output y : i32[2]", "REDUCE.argmax y, x axes=[1]")
    x = torch.tensor([[1, 7, 7, 0], [5, 2, 3, 4]], dtype=torch.int32)
    tensors = {"out": torch.zeros(2, dtype=torch.int32), "x": x}
    for indices, right in ([1, 0], True), ([2, 0], True), ([0, 0], False), ([1, 4], False), ([1, -4], False):
        result = torch.tensor(indices, dtype=torch.int32)
        assert check.judged(TORCH, instruction, tensors, result)[0] is right, indices
    added = program_of(".input x : i32[3]\n.output y : i32[3]", "EW.add y, x, x")
    values = {
        "out": torch.zeros(3, dtype=torch.int32),
        **dict.fromkeys("ab", torch.tensor([1, 2, 3], dtype=torch.int32)),
    }
    assert check.judged(TORCH, added, values, torch.tensor([2, 4, 6], dtype=torch.int32)) == (True, 0.0)
    assert check.judged(TORCH, added, values, torch.tensor([2, 4, 7], dtype=torch.int32)) == (False, float("inf"))


def test_operands_lie_as_the_program_has_them() -> None:
    """Transposed weights are transposed views, broadcast operands repeat, and scattered indices do not meet."""
    product = program_of(PRODUCT.format("f32").replace("[80, 64]", "[64, 80]"), "GEMM y, a, b.T bias=c")
    tensors = made_up(product, TORCH)
    assert tensors["b"].stride() == (1, 80)
    spread = program_of(".input x : f32[5]\n.output y : f32[4, 5]", "COPY y, x.broadcast(4, 5)")
    assert made_up(spread, TORCH)["x"].stride() == (0, 1)
    scatter = program_of(
        ".input i : i64[6]\n.input u : f32[6]\n.state x : f32[9]\n", "SCATTER.add x, x, i, u"
    )  # fmt: skip
    assert len(made_up(scatter, TORCH)["indices"].unique()) == 6


def test_registers_are_settled() -> None:
    """Dims become those of the run, moved views stand still, and what only a run knows is 1 or left out."""
    text = """
.program p
.input  q : f32[1, 2, s <= 8, 4]
.input  k : f32[1, 2, 8, 4]
.output y : f32[1, 2, s, 4]
main:
    ATTENTION y, q, k[:, :, 0:s5 <= 8], k[:, :, 0:s5 <= 8] position=s4 causal
    FILL y, s4
    HALT
"""
    attention, fill, _ = dla.assemble(text).instructions
    register = attention.operands[0].dims[2].register  # type: ignore[union-attr]
    made = settled(attention, {register: 3})
    assert [d.dims for d in made.operands if d is not None] == [(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 8, 4), (1, 2, 8, 4)]
    assert dict(made.attributes) == {"causal": True}
    assert settled(fill, {}).attributes["value"] == 1
