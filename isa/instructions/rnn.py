"""RNN: one time step of a recurrent layer, element by element, after the matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.activations import activate
from dla.isa.bounds import FLUSHED, ErrorBound
from dla.isa.dtypes import FLOATS, Array
from dla.isa.table import Alias, Constraint, Operand, Out, Role, Row, Sub

GATES = {"lstm": 4, "gru": 3}
"""Gates of each cell: a row of `gates` holds them one after the other, H elements each."""
_FUNCTION = 2.0**-20
"""Relative error of sigmoid and tanh: 8 ULP of f32, as ACT allows."""


def lstm(gates: Array, c: Array) -> tuple[Array, Array]:
    """The new h and c [B..., H] of gates [B..., 4 H] and c [B..., H]."""
    i, f, g, o = np.split(gates, 4, axis=-1)
    kept, added = activate("sigmoid", f, None) * c, activate("sigmoid", i, None) * np.tanh(g)
    new = kept + added
    return np.asarray(activate("sigmoid", o, None) * np.tanh(new)), np.asarray(new)


def gru(gates: Array, rec: Array, h: Array) -> Array:
    """The new h [B..., H] of gates and rec [B..., 3 H] and h [B..., H]."""
    (xr, xz, xn), (hr, hz, hn) = np.split(gates, 3, axis=-1), np.split(rec, 3, axis=-1)
    r, z = activate("sigmoid", xr + hr, None), activate("sigmoid", xz + hz, None)
    return np.asarray((1 - z) * np.tanh(xn + r * hn) + z * h)


def semantics(
    out: Out, gates: Array, c: Array | None, rec: Array | None, h: Array | None, *, sub: str
) -> tuple[Array, Array | None]:
    """The next hidden state, and for lstm the next cell state, in the accumulator type."""
    with np.errstate(all="ignore"):
        if c is not None:
            return lstm(gates, c)
        assert rec is not None and h is not None  # noqa: PT018
        return gru(gates, rec, h), None


def _tanh_slack(argument: Array, error: Array) -> Array:
    """How far tanh may be off where its argument is off by `error`."""
    value = np.tanh(argument)
    moved = [np.abs(np.tanh(argument + step) - value) for step in (error, -error)]
    return np.asarray(np.fmax(*moved) + _FUNCTION * np.abs(value))


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
    with np.errstate(all="ignore"):
        if attributes["sub"] == "gru":
            return _gru_slack(operands["gates"], operands["rec"], operands["h"])
        return _lstm_slack(reference, operands["gates"], operands["c"])


def _lstm_slack(reference: Array, gates: Array, c: Array) -> Array:
    i, f, g, o = np.split(gates, 4, axis=-1)
    h, new = lstm(gates, c)
    kept, added = activate("sigmoid", f, None) * np.abs(c), activate("sigmoid", i, None) * np.abs(np.tanh(g))
    for_c = 2 * _FUNCTION * (kept + added) + FLUSHED * np.abs(c)
    for_h = activate("sigmoid", o, None) * _tanh_slack(new, for_c) + _FUNCTION * 2 * np.abs(h)
    # Which of the two outputs this is, its values tell; where both are equal, either bound must hold.
    return np.asarray(np.where(reference == h, np.where(h == new, np.fmax(for_c, for_h), for_h), for_c))


def _gate_slack(argument: Array, gate: Array) -> Array:
    """How far a gate may be off whose argument, a sum, was rounded: the slope of a sigmoid is at most the sigmoid."""
    seen = np.minimum(np.abs(argument), 128)  # beyond that a sigmoid is 1, or below FLUSHED
    return np.asarray(gate * (_FUNCTION + 2.0**-23 * seen) + FLUSHED)


def _gru_slack(gates: Array, rec: Array, h: Array) -> Array:
    (xr, xz, xn), (hr, hz, hn) = np.split(gates, 3, axis=-1), np.split(rec, 3, axis=-1)
    r, z = activate("sigmoid", xr + hr, None), activate("sigmoid", xz + hz, None)
    for_r, for_z = _gate_slack(xr + hr, r), _gate_slack(xz + hz, z)
    argument = xn + r * hn
    n = np.tanh(argument)
    for_n = _tanh_slack(argument, for_r * np.abs(hn) + 2.0**-22 * (np.abs(xn) + np.abs(r * hn)))
    rounding = 2.0**-22 * (np.abs((1 - z) * n) + np.abs(z * h)) + 2.0**-23 * np.abs(n)
    return np.asarray((1 - z) * for_n + for_z * (np.abs(n) + np.abs(h)) + rounding)


ROW = Row(
    "RNN", 0x50, "recurrent", "a step of a recurrent layer",
    "What a recurrent layer does in one time step after its matrix products, element by element. lstm: a row of gates "
    "is i, f, g, o, H elements each; c_out = sigmoid(f) * c + sigmoid(i) * tanh(g) and out = sigmoid(o) * tanh(c_out), "
    "where c_out is not rounded first. gru: a row of gates is r, z, n, the input's share with its biases, and rec "
    "likewise the hidden state's share with its own: r = sigmoid(gates.r + rec.r), z = sigmoid(gates.z + rec.z), n = "
    "tanh(gates.n + r * rec.n), out = (1 - z) * n + z * h.",
    since="1.1",
    subs=(Sub("lstm", 0, "long short-term memory"), Sub("gru", 1, "gated recurrent unit")),
    types={"O": FLOATS, "T": FLOATS},
    operands=(
        Operand("out", Role.OUT, "[B..., H]", "O", "the hidden state after the step"),
        Operand("c_out", Role.OUT, "[B..., H]", FLOATS, "the cell state after the step", subs=("lstm",)),
        Operand("gates", Role.IN, "[B..., G]", "T", "the gates, before their functions"),
        Operand("c", Role.IN, "[B..., H]", FLOATS, "the cell state before the step", subs=("lstm",)),
        Operand("rec", Role.IN, "[B..., G]", "T", "the hidden state's share of the gates", subs=("gru",)),
        Operand("h", Role.IN, "[B..., H]", FLOATS, "the hidden state before the step", subs=("gru",)),
    ),
    static=("H", "G"),
    constraints=(
        Constraint(1, "G = 4 * H for lstm, 3 * H for gru", lambda site: site["G"] == GATES[site.sub] * site["H"]),
    ),
    alias=Alias.SAME,
    semantics=semantics,
    error=ErrorBound("with 8 ULP for each sigmoid and tanh: c_out 2**-19 * (|sigmoid(f) c| + |sigmoid(i) tanh(g)|); "
                     "out that, carried through tanh, + 2**-19 * |out|; gru likewise the errors of r, z and n carried "
                     "through the formula; then one rounding", _slack),
    flops=lambda dims, attributes: 9 * dims["out"],
    flops_text="9 * elements of out",
    example="""
.program rnn
.const gates : f32[1, 8] = [[99, -99, 99, 99, 1, 5, 99, 99]]
.const c     : f32[1, 2] = [[0, 7]]
.const x     : f32[1, 6] = [[0, 99, -99, 99, 5, 5]]
.const u     : f32[1, 6] = [[0, 0, 0, 0, 9, 9]]
.const h     : f32[1, 2] = [[3, 4]]
.output y  : f32[1, 2]
.output c1 : f32[1, 2]
.output z  : f32[1, 2]
main:
    RNN.lstm y, c1, gates, c    ;! y = [[0.642015, 0.9999983]]
    RNN.gru  z, x, u, h         ;! c1 = [[0.7615942, 7]]
    HALT                        ;! z = [[1, 4]]
""",
)  # fmt: skip
