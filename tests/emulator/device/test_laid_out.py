"""Constants that are transposed when a program is loaded: which ones, and that results stay right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device.laid_out import Matrix, laid_out, transpose
from dla.emulator.device.layout import PATH_STREAM
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.dtypes import DType
from dla.isa.verifier import verify
from dla.tests.emulator.device import cpu_machine, emulated_gpus
from dla.tests.emulator.device.cpu_machine import CpuSession

PRODUCT = """
.input x : {x}
.const w : {w} = 0
.output y : {y}
.scratch z : bf16[64, 48]
.input i : i32[1]
main:
    {code}
    HALT
"""


def product(x: str = "bf16[1, 64]", w: str = "bf16[64, 48]", y: str = "bf16[1, 48]", code: str = "GEMM y, x, w") -> str:
    """A program of one constant."""
    return PRODUCT.format(x=x, w=w, y=y, code=code)


@pytest.mark.parametrize(
    ("changes", "matrices"),
    [
        ({}, [Matrix(0, 64, 48)]),
        ({"x": "bf16[m <= 512, 64]", "y": "bf16[m, 48]"}, [Matrix(0, 64, 48)]),
        ({"x": "bf16[2, 3, 64]", "y": "bf16[2, 3, 48]"}, [Matrix(0, 64, 48)]),
        ({"w": "bf16[2, 64, 48]", "code": "GEMM y, x, w[1]"}, [Matrix(6144, 64, 48)]),
        ({"w": "bf16[2, 64, 48]", "code": "GEMM y, x, w[1:2]", "x": "bf16[1, 1, 64]", "y": "bf16[1, 1, 48]"},
         [Matrix(6144, 64, 48)]),
        ({"w": "bf16[2, 64, 48]", "code": "LOOP s0, 2\n    GEMM y, x, w[s0]\n    ENDLOOP"},
         [Matrix(0, 64, 48), Matrix(6144, 64, 48)]),
        ({"w": "bf16[2, 64, 48]", "code": "GEMM y, x, w[1]\n    LOOP s0, 2\n    GEMM y, x, w[s0]\n    ENDLOOP"},
         [Matrix(0, 64, 48), Matrix(6144, 64, 48)]),
        ({"w": "bf16[2, 64, 48]", "code": "GEMM y, x, w[1]\n    COPY z, w[0]"}, [Matrix(6144, 64, 48)]),
    ],
)  # fmt: skip
def test_what_products_of_few_rows_read_is_transposed(changes, matrices):
    """Also of so many rows as a dim says, one of several matrices, or whichever a register says."""
    found = laid_out(assemble(product(**changes)), hopper=True)
    assert found.matrices == tuple(matrices)
    assert found.nbytes == 6144 * len(matrices)
    for old, new in zip(assemble(product(**changes)).instructions, found.program.instructions, strict=True):
        if new.row.mnemonic == "GEMM":
            assert new.operand("b").strides[-2:] == (1, 64)
            assert (new.operand("b").dims, new.operand("b").offset) == (old.operand("b").dims, old.operand("b").offset)
        else:
            assert new == old
    verify(found.program)


@pytest.mark.parametrize(
    "changes",
    [
        {"x": "f32[1, 64]", "w": "f32[64, 48]", "y": "f32[1, 48]"},
        {"x": "bf16[17, 64]", "y": "bf16[17, 48]"},
        {"w": "bf16[48, 64]", "code": "GEMM y, x, w.T"},
        {"w": "bf16[60, 48]", "x": "bf16[1, 60]"},
        {"code": "GEMM y, x, w\n    COPY z, w"},
        {"code": "GEMM y, x, w\n    COPY z[0], w[63]"},
        {"w": "bf16[64, 56]", "code": "GEMM y, x, w[:, :48]"},
        {"w": "bf16[64, 64]", "y": "bf16[1, 64]", "code": "GEMM y, x, w\n    GEMM y, x, w.T"},
        {"w": "bf16[96, 48]", "code": "GEMM y, x, w[:64]\n    GEMM y, x, w[32:]"},
        {"w": "bf16[96, 48]", "code": "LOOP s0, 2\n    GEMM y, x, w[s0 : s0 + 64]\n    ENDLOOP"},
        {"w": "bf16[2, 64, 48]", "code": "GEMM y, x, w[0]\n    MOV s1, 1\n    COPY z, w[s1]"},
        {"w": "bf16[3, 64, 48]", "x": "bf16[3, 1, 64]", "y": "bf16[3, 1, 48]"},
        {"w": "bf16[64, 1]", "y": "bf16[1, 1]"},
        {"code": "COPY z, w\n    GEMM y, x, w"},
        {"code": "GATHER z[:1], w, i\n    GEMM y, x, w"},
        {"w": "bf16[64, 64]", "y": "bf16[1, 64]", "code": "GEMM y, x, w.T\n    GEMM y, x, w"},
        {"w": "bf16[2, 64, 48]", "code": "COPY z, w[0]\n    LOOP s0, 2\n    GEMM y, x, w[s0]\n    ENDLOOP"},
        {"w": "bf16[2, 64, 48]", "code": "LOOP s0, 2\n    COPY z, w[s0]\n    ENDLOOP\n    GEMM y, x, w[1]"},
    ],
)  # fmt: skip
def test_what_others_read_or_what_would_not_be_streamed_is_left(changes):
    """Whatever has a byte in common with the matrix counts, and what a register may reach."""
    program = assemble(product(**changes))
    found = laid_out(program, hopper=True)
    assert found.matrices == ()
    assert found.program is program


@pytest.mark.parametrize("segment", ["input", "state"])
def test_inputs_and_state_are_left(segment):
    """What others may write between runs or in them lies as it was declared."""
    text = product().replace(".const w : bf16[64, 48] = 0", f".{segment} w : bf16[64, 48]")
    assert laid_out(assemble(text), hopper=True).matrices == ()


def test_a_gpu_that_streams_nothing_has_all_as_it_was_written():
    """Only Hopper's paths gain."""
    program = assemble(product())
    assert laid_out(program, hopper=False).matrices == ()
    assert laid_out(program, hopper=False).program is program


def test_matrices_are_transposed_in_their_places():
    """And what is around them stays."""
    segment = np.arange(200, dtype=np.uint8)
    matrices = [Matrix(10, 3, 5), Matrix(40, 8, 8)]
    expected = segment.copy()
    for m in matrices:
        part = slice(m.offset, m.offset + 2 * m.depth * m.columns)
        expected[part] = segment[part].view(np.uint16).reshape(m.depth, m.columns).T.reshape(-1).view(np.uint8)
    transpose(segment, matrices)
    np.testing.assert_array_equal(segment, expected)


SEVERAL = """
.input  x : bf16[m <= 40, 64]
.const  w : bf16[2, 64, 48] = {w}
.const  v : bf16[48, 64] = {v}
.const  u : bf16[64, 64] = {u}
.state  t : bf16[64, 64]
.scratch h : bf16[m, 48]
.scratch g : bf16[m, 64]
.output y : bf16[m, 64]
.output z : bf16[m, 64]
main:
    COPY g, x
    LOOP s0, 2
    GEMM h, g, w[s0]   act=relu
    GEMM g, h, v       residual=x
    ENDLOOP
    GEMM h, g, w[1]
    GEMM y, h, v
    COPY t, u
    GEMM z, y, u
    HALT
"""


@pytest.mark.parametrize(
    "on_gpu",
    [
        pytest.param(False, marks=cpu_machine.needs_compiler, id="cpu"),
        pytest.param(True, marks=(pytest.mark.gpu, pytest.mark.hopper), id="gpu"),
    ],
)
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
def test_results_are_those_of_the_program_as_it_is_written(rows, on_gpu):
    """Streamed, and by runs with more rows; small whole numbers are exact whatever the order of sums."""
    rng = np.random.default_rng(rows)

    def numbers(*shape: int) -> list[Any]:
        return rng.integers(-1, 2, shape).tolist()

    program = assemble(SEVERAL.format(w=numbers(2, 64, 48), v=numbers(48, 64), u=numbers(64, 64)))
    assert len(laid_out(program, hopper=True).matrices) == 3
    x = (rng.integers(0, 16, (rows, 64)) == 0).astype(DType.BF16.numpy)
    session: Any = DeviceMachine().load(program) if on_gpu else CpuSession(program, hopper=True)
    found, expected = session.run({"x": x}), GoldenMachine().load(program).run({"x": x})
    paths = {schedule.path for schedule in session.plan.schedules}
    assert (PATH_STREAM in paths) == (rows < 17)
    for name in "yz":
        np.testing.assert_array_equal(found.outputs[name][:rows], expected.outputs[name])
    np.testing.assert_array_equal(found.state["t"], expected.state["t"])


@cpu_machine.needs_compiler
@pytest.mark.parametrize("transport", ["peer", "nccl"])
def test_each_rank_transposes_its_piece(monkeypatch, transport):
    """Of a constant that is cut by columns, and of one that all have."""
    emulated_gpus.install(monkeypatch, blocks=4, gpus=2, hopper=True)
    rng = np.random.default_rng(0)
    cut, whole = rng.integers(-1, 2, (64, 96)), rng.integers(-1, 2, (48, 64))
    program = assemble(f"""
.world 2
.input x : bf16[1, 64]
.const w : bf16[64, 48] = {cut.tolist()} shard axis=1
.const v : bf16[48, 64] = {whole.tolist()}
.scratch h : bf16[1, 48]
.scratch g : bf16[1, 64]
.output y : bf16[1, 64]
main:
    GEMM h, x, w
    GEMM g, h, v
    ALLREDUCE.sum y, g
    HALT
""")
    assert len(laid_out(program, hopper=True).matrices) == 2
    x = rng.integers(0, 2, (1, 64)).astype(DType.BF16.numpy)
    session = DeviceMachine(gpus=(0, 1), transport=transport).load(program)
    expected = GoldenMachine(ranks=2).load(program).run({"x": x}).outputs["y"]
    np.testing.assert_array_equal(session.run({"x": x}).outputs["y"], expected)
