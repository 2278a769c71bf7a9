"""A classifier of sequences: recurrent layers, and a linear layer on the last states. PyTorch's names."""

from __future__ import annotations

from dataclasses import dataclass

from dla.compiler.graph import Graph
from dla.compiler.models.layers import Layers
from dla.compiler.models.recurrent import recurrent_layer
from dla.compiler.models.weights import Weights
from dla.isa.dtypes import DType


@dataclass(frozen=True)
class ClassifierConfig:
    """`kind` is "rnn", "lstm" or "gru"; with `bidirectional` each layer also reads from the end."""

    kind: str
    inputs: int
    hidden: int
    classes: int
    layers: int = 1
    bidirectional: bool = False
    batch: int = 64  # the largest
    length: int = 512  # the largest
    dtype: DType = DType.F32


def classifier(config: ClassifierConfig, weights: Weights) -> Graph:
    """X [batch, length, inputs] -> logits [batch, classes]; the layers are called rnn, and the last one head."""
    m = Layers(f"{config.kind}_classifier", weights, config.dtype)
    batch, length = m.symbol("batch", config.batch), m.symbol("length", config.length)
    x = m.input("x", config.dtype, (batch, length, config.inputs))
    for layer in range(config.layers):
        directions = [
            recurrent_layer(m, config.kind, x, config.hidden, "rnn", suffix=f"_l{layer}{suffix}", reverse=reverse)
            for suffix, reverse in (("", False), ("_reverse", True))[: 2 if config.bidirectional else 1]
        ]
        x = m.concat([d.steps for d in directions], 2)
    m.output("logits", m.linear(m.concat([d.last for d in directions], 1), config.classes, "head"))
    return m.finish()
