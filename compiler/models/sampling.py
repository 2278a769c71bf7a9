"""Choosing the next token: the likeliest one, or one of the likeliest by chance."""

from __future__ import annotations

from dataclasses import dataclass

from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.models.layers import Layers
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError


@dataclass(frozen=True)
class Chance:
    """Draw from the `top` likeliest: by numbers `random` f32 [batch, count], at a `temperature` f32 [1]."""

    top: int
    random: Value
    temperature: Value

    @staticmethod
    def of_inputs(m: Layers, top: int, batch: int, count: Dim) -> Chance:
        """With both as inputs of the program."""
        return Chance(top, m.input("random", DType.F32, (batch, count)), m.input("temperature", DType.F32, (1,)))


def chosen(m: Layers, logits: Value, chance: Chance | None, turn: Dim) -> Value:
    """Tokens i32 [batch, 1] by logits f32 [batch, vocabulary]; without `chance` the likeliest, the first of equals.

    Else by inversion of the distribution function: the first of the `top` likeliest tokens, in order, at which the sum
    of probabilities exceeds column `turn` of the random numbers (Fan et al. 2018: top-k sampling).
    """
    batch, vocabulary = logits.dims
    if chance is None:
        return m.reduce("argmax", logits, (1,), keepdims=True, dtype=DType.I32)
    if not isinstance(vocabulary, int) or not 1 < chance.top <= vocabulary:
        raise ModelError(f"one of the {chance.top} likeliest of {vocabulary} tokens cannot be drawn")
    best, tokens = m.node("TOPK", [logits], count=chance.top, smallest=False, dtype=DType.I32).outputs
    shares = m.softmax(m.div(best, chance.temperature))
    passed = m.ew("le", m.scan("sum", shares, 1), m.part(chance.random, 1, turn, 1))
    # The last one is never passed, whatever the sum of all has been rounded to.
    number = m.reduce("sum", m.cast(m.part(passed, 1, 0, chance.top - 1), DType.I32), (1,), keepdims=True)
    if batch != 1:
        number = m.add(number, m.iota((batch, 1), DType.I32, axis=0, step=chance.top))
    return m.gather(m.reshape(tokens, (batch * chance.top,)), number)
