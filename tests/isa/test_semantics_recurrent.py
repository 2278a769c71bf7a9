"""What RNN means: against loops over single elements, torch's conventions, and programs that keep states in place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble, disassemble
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.dtypes import Array
from dla.isa.errors import DlaError
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.verifier import verify


def sigmoid(x: float) -> float:
    """The logistic function."""
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("state", [(3,), (2, 3), (2, 1, 4), (0, 3), (2, 0)])
def test_an_lstm_step_is_its_formula(evaluate: Any, random: np.random.Generator, state: tuple[int, ...]) -> None:
    """Gates i, f, g, o one after the other in each row."""
    width = state[-1]
    gates, c = random.standard_normal((*state[:-1], 4 * width)) * 2, random.standard_normal(state) * 2
    h_out, c_out = evaluate("RNN.lstm", state, gates, c)
    for *row, j in np.ndindex(state):
        i, f, g, o = (gates[(*row, k * width + j)] for k in range(4))
        new = sigmoid(f) * c[(*row, j)] + sigmoid(i) * math.tanh(g)
        assert c_out[(*row, j)] == pytest.approx(new, rel=1e-12)
        assert h_out[(*row, j)] == pytest.approx(sigmoid(o) * math.tanh(new), rel=1e-12)


@pytest.mark.parametrize("state", [(3,), (2, 3), (2, 1, 4), (0, 3), (2, 0)])
def test_a_gru_step_is_its_formula(evaluate: Any, random: np.random.Generator, state: tuple[int, ...]) -> None:
    """Gates r, z, n one after the other; r weighs the hidden state's share of n only."""
    width = state[-1]
    gates, rec = (random.standard_normal((*state[:-1], 3 * width)) * 2 for _ in range(2))
    h = random.standard_normal(state)
    (out,) = evaluate("RNN.gru", state, gates, None, rec, h)
    for *row, j in np.ndindex(state):
        xr, xz, xn = (gates[(*row, k * width + j)] for k in range(3))
        hr, hz, hn = (rec[(*row, k * width + j)] for k in range(3))
        r, z = sigmoid(xr + hr), sigmoid(xz + hz)
        expected = (1 - z) * math.tanh(xn + r * hn) + z * h[(*row, j)]
        assert out[(*row, j)] == pytest.approx(expected, rel=1e-11, abs=1e-13)


def test_saturated_gates_keep_or_replace_the_state(evaluate: Any) -> None:
    """Huge gates neither overflow nor give NaN: the state is kept exactly, or replaced."""
    huge = 1e4
    gates = np.array([-huge, -huge, huge, huge, 1.0, 1.0, huge, -huge])  # i, f, g, o of two elements
    h_out, c_out = evaluate("RNN.lstm", (2,), gates, np.array([3.0, -2.0]))
    assert c_out.tolist() == [3.0, -2.0]
    assert h_out.tolist() == [math.tanh(3.0), 0.0]
    zeros = np.zeros(6)
    (kept,) = evaluate("RNN.gru", (2,), np.array([0, 0, huge, -huge, huge, -huge]), None, zeros, np.array([3.0, 4.0]))
    assert kept.tolist() == [3.0, -1.0]


LSTM = """
.program lstm
.input gates : f32[batch <= 4, 12]
.state h : f32[4, 3]
.state c : f32[4, 3]
.output y : f32[batch, 3]
main:
    RNN.lstm h[:batch], c[:batch], gates, c[:batch]
    COPY y, h[:batch]
    HALT
"""
GRU = """
.program gru
.input gates : bf16[2, 9]
.input rec : bf16[2, 9]
.state h : f32[2, 3]
main:
    RNN.gru h, gates, rec, h
    HALT
"""


def steps(x: Array, c: Array) -> list[Array]:
    """The hidden states of an LSTM that sees the same gates again and again."""
    row = BY_MNEMONIC["RNN"]
    assert row.semantics is not None
    found = []
    for _ in range(3):
        h, c = row.semantics(None, gates=x, c=c, rec=None, h=None, sub="lstm")
        c = c.astype(np.float32)
        found.append(h.astype(np.float32))
    return found


def test_the_cell_state_is_updated_in_place(random: np.random.Generator) -> None:
    """c_out may be c: three runs of a program are three steps, with a batch below its bound."""
    program = assemble(LSTM)
    verify(program)
    session = GoldenMachine().load(program)
    gates = random.standard_normal((2, 12)).astype(np.float32)
    for expected in steps(gates.astype(np.float64), np.zeros((2, 3))):
        np.testing.assert_array_equal(session.run({"gates": gates})["y"], expected)
    assert not session.state["c"][2:].any()


def test_the_hidden_state_of_a_gru_is_updated_in_place(random: np.random.Generator) -> None:
    """Out may be h; its type need not be that of the gates."""
    program = assemble(GRU)
    verify(program)
    session = GoldenMachine().load(program)
    bf16 = program.by_name["gates"].descriptor.dtype.numpy
    x, u = (random.standard_normal((2, 9)).astype(bf16) for _ in range(2))
    session.run({"gates": x, "rec": u})
    once = session.state["h"].copy()
    assert once.any()
    session.run({"gates": x, "rec": u})
    assert not np.array_equal(session.state["h"], once)


@pytest.mark.parametrize("source", [LSTM, GRU], ids=["lstm", "gru"])
def test_both_cells_are_written_as_they_are_read(source: str) -> None:
    """Operands of one cell only are written by place, without the others' names."""
    program = assemble(source)
    text = disassemble(program)
    assert assemble(text).instructions == program.instructions
    assert "=" not in next(line for line in text.split("\n") if "RNN." in line)


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        ("RNN.gru h, x, x", "h is missing"),
        ("RNN.lstm h, h2, x, h c=h", "c is given twice"),
        ("RNN.lstm h, h2, x, h rec=x", "takes no operand rec"),
        ("RNN h, h2, x, h", "needs a sub-operation"),
    ],
)
def test_operands_of_the_other_cell_are_refused(instruction: str, reason: str) -> None:
    """The message names the operand."""
    with pytest.raises(DlaError, match=reason):
        assemble(f".state h : f32[2]\n.state h2 : f32[2]\n.input x : f32[6]\nmain:\n    {instruction}\n    HALT\n")
