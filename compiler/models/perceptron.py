"""A multi-layer perceptron."""

from __future__ import annotations

from dataclasses import dataclass

from dla.compiler.graph import Graph
from dla.compiler.models.layers import Layers
from dla.compiler.models.weights import Weights
from dla.isa.dtypes import DType


@dataclass(frozen=True)
class PerceptronConfig:
    """`widths` are those of the input, of each hidden layer, and of the output."""

    widths: tuple[int, ...]
    act: str = "relu"
    batch: int = 1024  # the largest
    dtype: DType = DType.F32


def perceptron(config: PerceptronConfig, weights: Weights) -> Graph:
    """X [batch, widths[0]] -> logits [batch, widths[-1]]; layers are called fc1, fc2, ... ."""
    m = Layers("perceptron", weights, config.dtype)
    x = m.input("x", config.dtype, (m.symbol("batch", config.batch), config.widths[0]))
    for number, width in enumerate(config.widths[1:], 1):
        x = m.linear(x, width, f"fc{number}")
        if number < len(config.widths) - 1:
            x = m.act(config.act, x)
    m.output("logits", x)
    return m.finish()
