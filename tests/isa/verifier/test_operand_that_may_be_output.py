"""Operands that an instruction reads only where it writes may be its output, even if the rest may not."""

from __future__ import annotations

import pytest

from dla.assembler import assemble
from dla.isa.errors import VerifyError
from dla.isa.verifier import verify

DECLARATIONS = """
.const a : f32[4, 4] = 1
.const b : f32[4, 4] = 2
.state y : f32[4, 4]
main:
"""


@pytest.mark.parametrize("operand", ["c=y", "residual=y", "gate=y", "bias=y", "act=relu residual=y c=y"])
def test_epilogue_operands_and_c_may_be_the_output(operand):
    """An accumulation in place is accepted."""
    verify(assemble(f"{DECLARATIONS}    GEMM y, a, b {operand}\n    HALT\n"))


@pytest.mark.parametrize(
    "instruction", ["GEMM y, y, b", "GEMM y, a, y", "GEMM y, a, b c=y.T", "GEMM y, a, b bias=y[0]"]
)
def test_matrices_and_other_views_of_the_output_may_not(instruction):
    """A factor, or the output in another order, would be read after it is overwritten."""
    with pytest.raises(VerifyError, match="V-ALIAS"):
        verify(assemble(f"{DECLARATIONS}    {instruction}\n    HALT\n"))
