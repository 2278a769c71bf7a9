"""Two-layer bidirectional LSTM and GRU with a linear head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from networks.network import Network, randomise


class Recurrent(nn.Module):
    """A recurrent network over a sequence and a linear layer on each of its steps."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.rnn = kind(inputs, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S, inputs] -> [B, S, classes] and the last hidden states [4, B, hidden] (layer, direction)."""
        out, state = self.rnn(x)
        hidden = state[0] if isinstance(state, tuple) else state
        return self.head(out), hidden


def _recurrent(kind: type[nn.LSTM | nn.GRU], inputs: int, hidden: int, batch: int, length: int) -> Network:
    x = torch.randn(batch, length, inputs, generator=torch.Generator().manual_seed(2))
    model = randomise(Recurrent(kind, inputs, hidden, classes=10))
    return Network(model, (x,), ("x",), ("logits", "hidden"), {"x": {0: "batch", 1: "sequence"}})


def small() -> Network:
    """LSTM with 6 inputs and 8 hidden units."""
    return _recurrent(nn.LSTM, inputs=6, hidden=8, batch=2, length=5)


def small_gru() -> Network:
    """GRU with 6 inputs and 8 hidden units."""
    return _recurrent(nn.GRU, inputs=6, hidden=8, batch=2, length=5)


def full() -> Network:
    """LSTM with 256 inputs and 512 hidden units."""
    return _recurrent(nn.LSTM, inputs=256, hidden=512, batch=1, length=64)


def full_gru() -> Network:
    """GRU with 256 inputs and 512 hidden units."""
    return _recurrent(nn.GRU, inputs=256, hidden=512, batch=1, length=64)
