"""PAD: surround a tensor with a number or with its own elements."""

from __future__ import annotations

import numpy as np

from dla.isa import dtypes
from dla.isa.dtypes import ALL, Array
from dla.isa.records import PADS
from dla.isa.scalar_attributes import ScalarValue
from dla.isa.table import Constraint, Operand, Out, Role, Row, Site, Sub, only_for


def semantics(
    out: Out, x: Array, *, sub: str, low: tuple[int, ...], high: tuple[int, ...], value: int | float | bool
) -> Array:
    """Surround x (its own type) by low[k] elements before and high[k] after it along each axis k."""
    widths = list(zip(low[: x.ndim], high[: x.ndim], strict=True))
    if sub == "constant":
        return np.pad(x, widths, constant_values=dtypes.convert(np.asarray(value), out.dtype).item())
    for axis, width in enumerate(widths):  # one axis at a time, so that empty axes without padding do not matter
        if any(width):
            only = [width if k == axis else (0, 0) for k in range(x.ndim)]
            x = np.pad(x, only, mode=sub)  # type: ignore[call-overload]  # the mode is one of three that it knows
    return x


def _sizes_fit(site: Site) -> bool:
    low, high = site.attributes["low"], site.attributes["high"]
    out, x = site.dims.prefixes["O"], site.dims.prefixes["X"]
    if len(out) != len(x) or any(low[len(x) :]) or any(high[len(x) :]):
        return False
    return all(o == d if before == after == 0 else isinstance(o, int) and isinstance(d, int) and o == d + before + after
               for o, d, before, after in zip(out, x, low, high, strict=False))  # fmt: skip


def _source_suffices(site: Site) -> bool:
    added = [max(pair) for pair in zip(site.attributes["low"], site.attributes["high"], strict=True)]
    needed = {"constant": [0] * len(added), "reflect": [n + 1 for n in added], "wrap": added, "edge": [1] * len(added)}
    sizes = site.dims.sizes("X")
    return all(n == 0 or size >= need for size, n, need in zip(sizes, added, needed[site.sub], strict=False))


ROW = Row(
    "PAD", 0x13, "data", "surround a tensor",
    "Writes x with low[k] elements before and high[k] elements after it along each axis k. `constant` adds `value` "
    "(converted to the tensor's type as COPY converts), `reflect` mirrors x about its first and last element, `edge` "
    "repeats them, `wrap` continues periodically.",
    subs=(
        Sub("constant", 0, "add `value`"),
        Sub("reflect", 1, "mirror: c b | a b c | b a"),
        Sub("edge", 2, "repeat: a a | a b c | c c"),
        Sub("wrap", 3, "continue: b c | a b c | a b"),
    ),
    types={"T": ALL},
    operands=(
        Operand("out", Role.OUT, "[O...]", "T", "the padded tensor"),
        Operand("x", Role.IN, "[X...]", "T", "the tensor inside"),
    ),
    attributes=(ScalarValue("value", 16, "number added by PAD.constant", value_at=384, classes="sfp"),),
    records=(PADS,),
    constraints=(
        Constraint(1, "out and x have equal rank; out's dims are x's plus low plus high, equal where nothing is added "
                      "and constant where something is; low and high are zero beyond the rank", _sizes_fit),
        Constraint(2, "along each padded axis x has more elements than are added on either side for reflect, as many "
                      "for wrap, and one for edge", _source_suffices),
        Constraint(3, "value is written for PAD.constant only", only_for("value", "constant")),
    ),
    raw=True,
    semantics=semantics,
    example="""
.program pad
.const x : f32[3] = [1, 2, 3]
.output c : f32[6]
.output r : f32[7]
.output e : f32[5]
.output w : f32[5]
main:
    PAD.constant c, x low=[1, 0, 0, 0, 0, 0] high=[2, 0, 0, 0, 0, 0] value=9    ;! c = [9, 1, 2, 3, 9, 9]
    PAD.reflect  r, x low=[2, 0, 0, 0, 0, 0] high=[2, 0, 0, 0, 0, 0]            ;! r = [3, 2, 1, 2, 3, 2, 1]
    PAD.edge     e, x low=[1, 0, 0, 0, 0, 0] high=[1, 0, 0, 0, 0, 0]            ;! e = [1, 1, 2, 3, 3]
    PAD.wrap     w, x low=[1, 0, 0, 0, 0, 0] high=[1, 0, 0, 0, 0, 0]            ;! w = [3, 1, 2, 3, 1]
    HALT
""",
)  # fmt: skip
