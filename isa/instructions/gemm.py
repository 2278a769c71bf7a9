"""GEMM: matrix products, batched, with an epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dla.isa import epilogue, math_mode, shapes
from dla.isa.activations import ACTIVATION_CODES, activate
from dla.isa.attributes import F32, Enum
from dla.isa.bounds import F32_EPSILON, ErrorBound
from dla.isa.dtypes import FLOATS, Array, DType
from dla.isa.records import EPILOGUE
from dla.isa.table import Alias, Constraint, Operand, Out, Role, Row, Site, Sub

INTEGER_INPUTS = (DType.I8, DType.U8)
UNITS = {n: ACTIVATION_CODES[n] for n in ("identity", "sigmoid", "silu", "gelu", "gelu_tanh", "relu")}
"""Functions of glu, with the codes that they have in ACT."""


def semantics(
    out: Out, a: Array, b: Array, c: Array | None, *, sub: str, alpha: float, beta: float, unit: str, math: str,
    **rest: Any,
) -> Array:  # fmt: skip
    """epilogue(alpha * a @ b + beta * c), or with s = alpha * a @ b epilogue(unit(s[2 j]) * s[2 j + 1]) for glu.

    Accumulated in the machine's accumulator type; a [~B..., M, K], b [~B..., K, N] ([~B..., K, 2 N] for glu), c and
    epilogue operands broadcast to out [B..., M, N].
    """
    with np.errstate(all="ignore"):
        accumulator = np.matmul(math_mode.operand(a, math), math_mode.operand(b, math))
        if accumulator.dtype.kind == "i":
            return np.asarray(np.broadcast_to(accumulator, out.shape))
        accumulator = alpha * accumulator
        if sub == "glu":
            accumulator = activate(unit, accumulator[..., 0::2], None) * accumulator[..., 1::2]
        accumulator = np.broadcast_to(accumulator, out.shape)
        if c is not None:
            accumulator = accumulator + beta * c
        return epilogue.apply(accumulator, **rest)


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
    a, b, c = operands["a"], operands["b"], operands["c"]
    alpha, beta, math = (attributes[name] for name in ("alpha", "beta", "math"))
    terms = a.shape[-1]
    value = alpha * np.matmul(math_mode.operand(a, math), math_mode.operand(b, math))
    magnitude = abs(alpha) * np.matmul(np.abs(a), np.abs(b))
    error = ((terms + 4) * 2 * F32_EPSILON + math_mode.error(math)) * magnitude
    if c is not None:
        value, error = value + beta * c, error + (terms + 4) * 2 * F32_EPSILON * np.abs(beta * c)
    if attributes["sub"] == "glu":
        value, error = _glu_slack(attributes["unit"], value, error)
    steps = {name: operands[name] for name in ("bias", "residual", "gate")}
    steps |= {name: attributes[name] for name in ("steps", "act", "act_alpha", "clamp_low", "clamp_high")}
    return epilogue.slack(error, value, **steps)


def _glu_slack(unit: str, value: Array, error: Array) -> tuple[Array, Array]:
    """Value and error of unit(s[2 j]) * s[2 j + 1] for s = value [..., 2 N], each of which may be off by `error`."""
    (x, y), (x_error, y_error) = ((array[..., 0::2], array[..., 1::2]) for array in (value, error))
    if unit != "identity":
        x, x_error = epilogue.act_slack(unit, None, x, x_error)
    return x * y, np.abs(x) * y_error + np.abs(y) * x_error + x_error * y_error + 2 * F32_EPSILON * np.abs(x * y)


def _columns_fit(site: Site) -> bool:
    n, columns = site.dims.dims["N"], site.dims.dims["N2"]
    if site.sub != "glu":
        return columns == n
    return shapes.is_static(n) and columns == 2 * site["N"]


def _glu_fits(site: Site) -> bool:
    if site.sub == "glu":
        return site.operands["c"] is None and site.types["T"].is_float
    return bool(site.attributes["unit"] == "identity")


def _types_fit(site: Site) -> bool:
    if site.types["T"].is_float:
        return site.types["O"].is_float
    plain = site.attributes["alpha"] == 1.0 and site.operands["c"] is None and not site.attributes["steps"]
    return site.types["O"] is DType.I32 and plain


def _flops(dims: Mapping[str, int], attributes: Mapping[str, Any]) -> int:
    return 2 * dims["out"] * dims["K"] * (dims["N2"] // max(1, dims["N"]))


ROW = Row(
    "GEMM", 0x30, "matrix", "matrix product",
    "Multiplies matrices, batched over leading dims, which broadcast. Transposes are views (`w.T`). The product is "
    "accumulated in f32 (i32 for 8-bit integers), scaled by alpha, added to beta * c, taken through the epilogue in "
    "the order written, and rounded once. glu is a gated linear unit: b has two columns for each of out, and the "
    "product s, scaled by alpha, becomes unit(s[2 j]) * s[2 j + 1] before the epilogue. " + math_mode.DESCRIPTION,
    subs=(
        Sub("", 0, "alpha * a @ b + beta * c"),
        Sub("glu", 1, "unit(s[2 j]) * s[2 j + 1] with s = alpha * a @ b; since ISA 1.1"),
    ),
    operands=(
        Operand("out", Role.OUT, "[B..., M, N]", "O", "the result"),
        Operand("a", Role.IN, "[~B..., M, K]", "T", "left matrix"),
        Operand("b", Role.IN, "[~B..., K, N2]", "T", "right matrix"),
        Operand("c", Role.IN, "~[B..., M, N]", FLOATS, "matrix added, times beta", optional=True, may_be_output=True),
        *epilogue.operands("[B..., M, N]"),
    ),
    types={"T": FLOATS + INTEGER_INPUTS, "O": (*FLOATS, DType.I32)},
    attributes=(
        F32("alpha", 384, "factor of the product", default=1.0),
        F32("beta", 416, "factor of c", default=1.0),
        Enum("unit", 16, "function of a glu's even columns; since ISA 1.1", choices=UNITS, default="identity"),
        math_mode.attribute(24),
    ),
    records=(EPILOGUE,),
    constraints=(
        Constraint(1, "floats give a float type; 8-bit integers give i32, with alpha = 1, no c and no epilogue",
                   _types_fit),
        epilogue.constraint(2),
        Constraint(3, "beta is 1 where there is no c",
                   lambda site: site.operands["c"] is not None or site.attributes["beta"] == 1.0),
        Constraint(4, "b has as many columns as out; for glu twice as many, and constantly many", _columns_fit, "b"),
        Constraint(5, "glu multiplies floats and has no c, and unit is for glu only", _glu_fits),
        math_mode.constraint(6),
    ),
    alias=Alias.NONE,
    semantics=semantics,
    error=ErrorBound("(K + 4) * 2**-23 * (|alpha| |a| @ |b| + |beta c|), carried through the epilogue, then one "
                     "rounding; integers equal; glu carries it through its unit and product likewise; with math=tf32 "
                     f"({math_mode.TF32_TEXT}) * |alpha| |a| @ |b| more", _slack),
    flops=_flops,
    flops_text="2 * elements of out * K, for glu twice that",
    example="""
.program gemm
.const a : f32[2, 3] = [[1, 2, 3], [4, 5, 6]]
.const b : f32[3, 2] = [[1, 0], [0, 1], [1, 1]]
.const bias : f32[2] = [-10, 10]
.output y : f32[2, 2]
.output z : f32[2, 2]
.output u : f32[2, 1]
main:
    GEMM y, a, b                            ;! y = [[4, 5], [10, 11]]
    GEMM z, b.T, a.T bias=bias act=relu     ;! z = [[0, 20], [0, 21]]
    GEMM.glu u, a, b unit=relu              ;! u = [[20], [110]]
    HALT
""",
)  # fmt: skip
