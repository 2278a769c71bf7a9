"""One instruction against its row's bound."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dla
from dla.emulator.golden.machine import GoldenMachine
from dla.emulator.tolerance import check_instruction, close, same, within_bound
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction

GEMM = """
.program t
.input a : {dtype}[5, 300]
.input b : {dtype}[300, 7]
.input bias : {dtype}[7]
.output y : {dtype}[5, 7]
main:
    GEMM y, a, b bias=bias act=gelu
    HALT
"""


def gemm(dtype: str, seed: int = 0) -> tuple[Instruction, dict[str, np.ndarray], np.ndarray]:
    """A GEMM with an epilogue, its operands, and what the f32 golden machine makes of it."""
    program = dla.assemble(GEMM.format(dtype=dtype))
    generator = np.random.default_rng(seed)
    inputs = {
        t.name: generator.standard_normal(t.descriptor.bounds).astype(t.descriptor.dtype.numpy)
        for t in program.tensors
        if t.name != "y"
    }
    got = GoldenMachine(accumulate="f32").load(program).run(inputs)["y"]
    return program.instructions[0], inputs, got


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_results_of_f32_accumulation_are_within_the_bound(dtype: str) -> None:
    """What any correct machine does is allowed."""
    instruction, inputs, got = gemm(dtype)
    (check,) = check_instruction(instruction, inputs, {"out": got})
    assert check.violations == 0
    assert str(check) == "out: all 35 elements within the bound"


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_results_that_are_wrong_are_not(dtype: str) -> None:
    """One wrong element, a missing bias and a zero result are each found."""
    instruction, inputs, got = gemm(dtype)
    one = got.copy()
    one[3, 2] = one[3, 2] * 1.05 + 1
    (check,) = check_instruction(instruction, inputs, {"out": one})
    assert check.violations == 1
    assert "1 of 35 elements outside the bound; the first at [3, 2]" in str(check)
    (check,) = check_instruction(instruction, inputs, {"out": np.zeros_like(got)})
    assert check.violations > 20
    (check,) = check_instruction(instruction, inputs | {"bias": inputs["bias"] * 0}, {"out": got})
    assert check.violations > 20


def test_integers_and_moves_must_be_equal() -> None:
    """No tolerance where nothing is rounded."""
    row = BY_MNEMONIC["EW"]
    a, b = np.array([1, 2]), np.array([3, 4])
    attributes = {"sub": "add"}
    good = within_bound(row, DType.I32, a + b, np.array([4, 6], np.int32), {"a": a, "b": b}, attributes)
    bad = within_bound(row, DType.I32, a + b, np.array([4, 7], np.int32), {"a": a, "b": b}, attributes)
    assert good.tolist() == [True, True]
    assert bad.tolist() == [True, False]
    wrapped = within_bound(row, DType.I8, np.array([300]), np.array([44], np.int8), {"a": a, "b": b}, attributes)
    assert wrapped.tolist() == [True]


@pytest.mark.parametrize(
    ("reference", "got", "tolerance", "dtype", "allowed"),
    [
        (np.nan, np.nan, 0, DType.F32, True), (np.nan, 1, 9, DType.F32, False), (1, np.nan, 9, DType.F32, False),
        (np.inf, np.inf, 0, DType.F32, True), (np.inf, -np.inf, 9, DType.F32, False),
        (np.inf, 1, 9, DType.F32, False), (65519, np.inf, 0, DType.F16, True), (65519, -np.inf, 0, DType.F16, False),
        (65000, np.inf, 1000, DType.F16, True), (65000, np.inf, 1, DType.F16, False),
        (1e-40, 0, 0, DType.F32, True), (-1e-40, 0, 0, DType.F32, True), (1e-37, 0, 0, DType.F32, False),
        (1, 1.5, 0.5, DType.F32, True), (1, 1.5, 0.49, DType.F32, False), (3.4e38, np.inf, 1e37, DType.BF16, True),
        (1e38, np.inf, 1e37, DType.BF16, False), (0.0, -0.0, 0, DType.F32, True),
    ],
)  # fmt: skip
def test_special_values(reference: float, got: float, tolerance: float, dtype: DType, allowed: bool) -> None:
    """NaN, infinities, overflow at the edge, and flushed subnormals."""
    one: Any = np.array([reference], np.float64)
    assert close(one, np.array([got], dtype.numpy), np.array([tolerance]), dtype).tolist() == [allowed]


def test_same_takes_nan_for_nan_in_every_float_type() -> None:
    """bf16 included, whose NumPy kind is not "f"."""
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        x = np.array([np.nan, 1, np.inf], dtype)
        assert same(x, x.copy()).all()
        assert same(x, x[::-1].copy()).tolist() == [False, True, False]


def test_registers_in_attributes_are_looked_up() -> None:
    """An instruction whose attribute is a register is checked with the value it had."""
    program = dla.assemble(".program t\n.output y : i64[2]\nmain:\nMOV s0, 7\nFILL y, s0\nHALT\n")
    from dla.isa.registers import s

    for value, violations in ((7, 0), (8, 2)):
        got = {"out": np.array([7, 7])}
        (check,) = check_instruction(program.instructions[1], {}, got, {s(0): value})
        assert check.violations == violations
