"""How the weights of products lie."""

from __future__ import annotations

import numpy as np
import pytest

from dla.compiler.builder import GraphBuilder
from dla.compiler.pipeline import compile_graph
from dla.emulator.api import Machine
from dla.isa.dtypes import DType
from dla.isa.program import Program

WEIGHTS = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)


def product(dtype: DType, array: np.ndarray, *, read_otherwise: bool = False, math: str = "exact") -> Program:
    """X @ w for a constant w; `read_otherwise` adds a reader that is no product."""
    b = GraphBuilder()
    w = b.constant(array, dtype, name="w")
    b.output("y", b.matmul(b.input("x", dtype, (4, 6)), w))
    if read_otherwise:
        b.output("z", b.gather(w, b.input("rows", DType.I32, (2,))))
    return compile_graph(b.graph, math=math).program


def strides(program: Program) -> tuple[int, ...]:
    """Those of the product's right matrix."""
    (gemm,) = (i for i in program.instructions if i.row.mnemonic == "GEMM")
    view = gemm.operands[2]
    assert view is not None
    return view.strides


@pytest.mark.parametrize(
    ("dtype", "math", "expected"),
    [
        (DType.BF16, "exact", (1, 6)),
        (DType.F16, "exact", (1, 6)),
        (DType.F32, "exact", (10, 1)),
        (DType.F32, "tf32", (1, 6)),
    ],
)
def test_weights_for_tensor_cores_lie_column_by_column(dtype: DType, math: str, expected: tuple[int, ...]) -> None:
    """And the product is what it was."""
    program = product(dtype, WEIGHTS, math=math)
    assert strides(program) == expected
    x = np.random.default_rng(1).standard_normal((4, 6)).astype(dtype.numpy)
    found = Machine("golden").run(program, {"x": x})["y"].astype(np.float32)
    np.testing.assert_allclose(found, x.astype(np.float32) @ WEIGHTS.astype(dtype.numpy).astype(np.float32),
                               rtol=1e-2, atol=2e-2)  # fmt: skip


def test_a_batch_of_weights_is_a_batch_of_columns() -> None:
    """Each matrix by itself."""
    assert strides(product(DType.BF16, np.stack([WEIGHTS, -WEIGHTS]))) == (60, 1, 6)


def test_what_others_read_stays_as_it_is() -> None:
    """There is one copy of it."""
    assert strides(product(DType.BF16, WEIGHTS, read_otherwise=True)) == (10, 1)
