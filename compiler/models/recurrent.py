"""Recurrent layers: one product for the inputs of all steps, then a loop over what depends on the step before.

Weights are as in PyTorch: `weight_ih` [G * H, C], `weight_hh` [G * H, H], `bias_ih` and `bias_hh` [G * H], with the
gates of an LSTM in the order i, f, g, o and those of a GRU in the order r, z, n.
"""

from __future__ import annotations

from dataclasses import dataclass

from dla.compiler.builder import GraphBuilder, Values
from dla.compiler.graph import Value
from dla.compiler.models.layers import Layers
from dla.isa.errors import ModelError

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
"""How many gates each kind of cell has: Elman 1990, Hochreiter and Schmidhuber 1997, Cho et al. 2014."""


@dataclass(frozen=True)
class Sequence:
    """What a recurrent layer gives: the hidden state after every step [B, T, H], and after the last one [B, H]."""

    steps: Value
    last: Value


def recurrent_layer(
    m: Layers, kind: str, x: Value, hidden: int, name: str, *, suffix: str = "_l0", reverse: bool = False
) -> Sequence:
    """One direction of a layer over x [B, T, C]; `suffix` ends the names of its weights."""
    if kind not in GATES:
        raise ModelError(f"there is no recurrent layer {kind!r}", hint=f"there are {', '.join(GATES)}")
    wide = GATES[kind] * hidden
    own, before = (m.part_of(name, f"bias_{part}{suffix}", (wide,)) for part in ("ih", "hh"))
    weights = [m.matrix(name, size, wide, f"weight_{part}{suffix}")
               for part, size in (("ih", x.dims[2]), ("hh", hidden))]  # fmt: skip
    inside = kind == "gru"  # its reset gate is on the state's share with its bias; elsewhere biases just add up
    gates = m.matmul(m.swap(x, 0, 1), weights[0], bias=own if inside else m.add(own, before))
    start = m.fill((x.dims[0], hidden), 0, m.dtype)
    states = [start, start] if kind == "lstm" else [start]

    def step(b: GraphBuilder, slices: Values, held: Values, others: Values) -> tuple[Values, Values]:
        after = _cell(b, kind, slices[0], held, others)
        return after, after[:1]

    (every,), final = m.recurrent(step, [gates], states, [weights[1], *([before] if inside else [])], reverse=reverse)
    return Sequence(m.swap(every, 0, 1), final[0])


def _cell(b: GraphBuilder, kind: str, gates: Value, states: Values, others: Values) -> Values:
    """The states after one step; `gates` [B, G * H] is the input's share."""
    h, weight = states[0], others[0]
    if kind == "gru":
        return [b.emit("RNN", [gates, None, b.matmul(h, weight, bias=others[1]), h], sub="gru")]
    if kind == "rnn":
        return [b.emit("GEMM", [h, weight, gates, None, None, None], steps=("act",), act="tanh")]
    return b.node("RNN", [b.matmul(h, weight, c=gates), states[1], None, None], sub="lstm").outputs
