"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError


def product(b: GraphBuilder, x: Value, y: Value) -> Value:
    """The product of x [..., M, K] and y [..., K, N]; of integers as sums of products, which wrap."""
    if x.dtype is not y.dtype:
        raise ModelError(f"a matrix product of {x.dtype.text} and {y.dtype.text}")
    if x.dtype.is_float:
        return b.matmul(x, y)
    terms = b.mul(b.unsqueeze(x, x.rank), b.unsqueeze(y, y.rank - 2))
    return b.reduce("sum", terms, [-2])


def matmul(c: Context) -> Value:
    """As numpy.matmul: a vector on the left is a row, one on the right a column, which the result does not have."""
    x, y = c[0], c[1]
    if x.rank == 0 or y.rank == 0:
        raise ModelError("a matrix product with a scalar")
    left = c.b.unsqueeze(x, 0) if x.rank == 1 else x
    right = c.b.unsqueeze(y, 1) if y.rank == 1 else y
    result = product(c.b, left, right)
    dropped = ([-2] if x.rank == 1 else []) + ([-1] if y.rank == 1 else [])
    return c.b.squeeze(result, *dropped) if dropped else result


def gemm(c: Context) -> Value:
    """Compute alpha * a @ b + beta * c; a term that is the same for every row is a bias."""
    x = c.b.swap(c[0]) if c.attribute("transA", 0) else c[0]
    y = c.b.swap(c[1]) if c.attribute("transB", 0) else c[1]
    term = c.optional(2)
    alpha, beta = float(c.attribute("alpha", 1.0)), float(c.attribute("beta", 1.0))
    if not x.dtype.is_float:
        return _integer_gemm(c.b, x, y, term, alpha, beta)
    if term is None or beta == 0:
        return c.b.matmul(x, y, alpha=alpha)
    same_rows = term.rank < 2 or term.dims[0] == 1
    if same_rows and term.constant is not None and beta != 1:
        term, beta = c.b.mul(term, beta), 1.0
    if same_rows and beta == 1:
        return c.b.matmul(x, y, bias=term, alpha=alpha)
    return c.b.matmul(x, y, c=term, alpha=alpha, beta=beta)


def _integer_gemm(b: GraphBuilder, x: Value, y: Value, term: Value | None, alpha: float, beta: float) -> Value:
    if not alpha.is_integer() or not beta.is_integer():
        raise ModelError(f"alpha = {alpha} and beta = {beta} for integers")
    result = product(b, x, y)
    result = result if alpha == 1 else b.mul(result, int(alpha))
    if term is None or beta == 0:
        return result
    return b.add(result, term if beta == 1 else b.mul(term, int(beta)))


def integer_product(b: GraphBuilder, x: Value, y: Value, x_zero: Value | None, y_zero: Value | None) -> Value:
    """(x - x_zero) @ (y - y_zero) as i32, exactly, of 8-bit integers; zero points broadcast to their matrices.

    The machine multiplies i8 by i8. Unsigned operands are moved by 128, and zero points are taken off the product:
    x @ y - x_zero * (sums of y's columns) - (sums of x's rows - K * x_zero) * y_zero.
    """
    if x_zero is None and y_zero is None and x.dtype is y.dtype:
        return b.matmul(x, y, dtype=DType.I32)
    (x, x_zero), (y, y_zero) = _signed(b, x, x_zero), _signed(b, y, y_zero)
    result = b.matmul(x, y, dtype=DType.I32)
    depth = x.dims[-1]
    rows = b.matmul(x, b.fill((depth, 1), 1, DType.I8), dtype=DType.I32) if y_zero is not None else None
    if x_zero is not None:
        columns = b.matmul(b.fill((1, depth), 1, DType.I8), y, dtype=DType.I32)
        result = b.sub(result, b.mul(x_zero, columns))
        if rows is not None:
            rows = b.sub(rows, b.mul(x_zero, b.fill((), depth, DType.I32)))
    if rows is not None and y_zero is not None:
        result = b.sub(result, b.mul(rows, y_zero))
    return result


def _signed(b: GraphBuilder, x: Value, zero: Value | None) -> tuple[Value, Value | None]:
    """Return x as i8, and the i32 zero point that then belongs to it (None for 0)."""
    if zero is not None and zero.dtype is not x.dtype:
        raise ModelError(f"a zero point of type {zero.dtype.text} for {x.dtype.text}")
    wide = None if zero is None else b.cast(zero, DType.I32)
    if x.dtype is DType.I8:
        return x, wide
    if x.dtype is not DType.U8:
        raise ModelError(f"an 8-bit product of {x.dtype.text}")
    moved = b.cast(b.ew("xor", x, 128), DType.I8)
    return moved, b.constant(-128, DType.I32) if wide is None else b.sub(wide, 128)


RULES: dict[str, Callable[[Context], Any]] = {"Gemm": gemm, "MatMul": matmul}
