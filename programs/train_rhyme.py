"""Train the network of generate.dla, which recites a rhyme: a Llama of one layer, in PyTorch on the CPU.

python programs/train_rhyme.py     # writes programs/generate.safetensors, in half a minute

It learns by heart: windows of the rhyme, written in a circle, of which each letter is to be told from those before it.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

RHYME = (
    "Twinkle, twinkle, little star,\nHow I wonder what you are!\n"
    "Up above the world so high,\nLike a diamond in the sky.\n"
)
"""Jane Taylor, The Star (1806)."""
VOCABULARY, WIDTH, HEADS, SHARED, HIDDEN, HEAD = 256, 64, 4, 2, 128, 16
WINDOW, BATCH, STEPS = 224, 8, 300
UNSEEN = 8
"""Letters at the beginning of a window that nobody can tell."""


class Rhyme(nn.Module):
    """Token numbers [B, S] -> logits [B, S, VOCABULARY]; parameters as the program's instructions read them."""

    def __init__(self) -> None:
        super().__init__()
        own, asked = SHARED * HEAD, HEADS * HEAD

        def matrix(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns) / math.sqrt(rows))

        self.table = nn.Parameter(torch.randn(VOCABULARY, WIDTH) / math.sqrt(WIDTH))
        self.gain1, self.gain2, self.gain3 = (nn.Parameter(torch.ones(WIDTH)) for _ in range(3))
        self.vkq = matrix(WIDTH, 2 * own + asked)  # columns of values, then keys, then queries
        self.o = matrix(asked, WIDTH)
        self.gate_up = matrix(WIDTH, 2 * HIDDEN)  # a column of each in turn
        self.down = matrix(HIDDEN, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        """Llama, with one layer and the table as its head."""
        batch, length = ids.shape
        x = self.table[ids]
        made = functional.rms_norm(x, (WIDTH,), self.gain1, 1e-5) @ self.vkq
        heads = made.view(batch, length, 2 * SHARED + HEADS, HEAD).transpose(1, 2)
        v, k, q = heads.split([SHARED, SHARED, HEADS], 1)
        k, q = turned(k), turned(q)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + attended.transpose(1, 2).reshape(batch, length, HEADS * HEAD) @ self.o
        gate_up = functional.rms_norm(x, (WIDTH,), self.gain2, 1e-5) @ self.gate_up
        x = x + (functional.silu(gate_up[..., 0::2]) * gate_up[..., 1::2]) @ self.down
        return functional.rms_norm(x, (WIDTH,), self.gain3, 1e-5) @ self.table.T


def turned(x: Tensor) -> Tensor:
    """Rotary positions of x [B, H, S, D], pairs (i, i + D / 2)."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def train() -> Rhyme:
    """A network that knows the rhyme."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, text = Rhyme(), torch.tensor(list(RHYME.encode()))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for _ in range(STEPS):
        starts = torch.randint(len(text), (BATCH, 1))
        windows = text[(starts + torch.arange(WINDOW + 1)) % len(text)]
        logits = model(windows[:, :-1])[:, UNSEEN:]
        loss = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1 + UNSEEN :].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    print(f"loss {loss.item():.5f}")
    return model


if __name__ == "__main__":
    parameters = {name: p.detach().contiguous() for name, p in train().named_parameters()}
    save_file(parameters, Path(__file__).with_name("generate.safetensors"))
