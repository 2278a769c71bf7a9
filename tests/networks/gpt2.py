"""GPT-2 (Radford et al. 2019) as Hugging Face's transformers spells it, with and without a KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks.attention import LOWEST, compared
from networks.network import Network, randomise, token_ids

Cache = tuple[tuple[Tensor, Tensor], ...]  # of each layer the keys and values so far, [B, heads, P, D]


@dataclass(frozen=True)
class Config:
    """Sizes; `attention` says how the causal mask is spelled.

    "buffer": a slice of a triangle kept with the weights, and where (eager; old). "is_causal": left to
    scaled_dot_product_attention. "compared": places compared, booleans (scaled_dot_product_attention; recent).
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    positions: int = 1024
    attention: str = "buffer"


class Conv1D(nn.Module):
    """A linear layer whose weight is [inputs, outputs]; the original's word for it is a convolution."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        size = (*x.size()[:-1], self.outputs)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


def gelu_new(x: Tensor) -> Tensor:
    """GELU by its approximation with tanh, written out as in the original."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Attention(nn.Module):
    """Causal self-attention; with a cache its keys and values come first."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.hidden // config.heads
        self.hidden = config.hidden
        self.spelling = config.attention
        self.c_attn = Conv1D(3 * config.hidden, config.hidden)
        self.c_proj = Conv1D(config.hidden, config.hidden)
        triangle = torch.tril(torch.ones((config.positions, config.positions), dtype=torch.bool))
        self.register_buffer("triangle", triangle.view(1, 1, config.positions, config.positions), persistent=False)

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[B, S, hidden] -> [B, S, hidden] and the longer cache."""
        q, k, v = self.c_attn(x).split(self.hidden, dim=2)
        shape = (*x.shape[:-1], -1, self.width)
        q, k, v = (part.view(shape).transpose(1, 2) for part in (q, k, v))
        if past is not None:
            k, v = torch.cat((past[0], k), dim=-2), torch.cat((past[1], v), dim=-2)
        if self.spelling == "buffer":
            out = self._eager(q, k, v)
        else:
            causal = self.spelling == "is_causal"
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        out = out.transpose(1, 2).reshape(x.shape)
        return self.c_proj(out), (k, v)

    def _eager(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / torch.full([], v.size(-1) ** 0.5, dtype=scores.dtype)
        query_length, key_length = q.size(-2), k.size(-2)
        allowed = self.triangle[:, :, key_length - query_length : key_length, :key_length]
        scores = torch.where(allowed, scores, torch.full([], LOWEST, dtype=scores.dtype))
        return torch.matmul(functional.softmax(scores, dim=-1), v)


class Block(nn.Module):
    """Norm, attention, shortcut; norm, feed-forward network, shortcut."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden, eps=1e-5)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.hidden, eps=1e-5)
        self.c_fc = Conv1D(4 * config.hidden, config.hidden)
        self.c_proj = Conv1D(config.hidden, 4 * config.hidden)

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[B, S, hidden] -> [B, S, hidden] and the longer cache."""
        out, present = self.attn(self.ln_1(x), past, mask)
        x = out + x
        return x + self.c_proj(gelu_new(self.c_fc(self.ln_2(x)))), present


class GPT2(nn.Module):
    """The decoder with its head, which shares the embedding's weight."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.spelling = config.attention
        self.wte = nn.Embedding(config.vocabulary, config.hidden)
        self.wpe = nn.Embedding(config.positions, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.hidden, eps=1e-5)
        self.lm_head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor, past: Cache | None = None) -> tuple[Tensor, Cache] | Tensor:
        """i64 [B, S] (and a cache of P tokens) -> logits f32 [B, S, vocabulary] (and the cache of P + S)."""
        past_length = 0 if past is None else past[0][0].size(-2)
        length = ids.size(-1)
        positions = torch.arange(past_length, past_length + length, dtype=torch.int64)
        mask = compared(positions, past_length + length, None) if self.spelling == "compared" else None
        x = self.wte(ids) + self.wpe(positions.unsqueeze(0))
        presents = []
        for index, block in enumerate(self.blocks):
            x, present = block(x, None if past is None else past[index], mask)
            presents.append(present)
        logits = self.lm_head(self.ln_f(x))
        return logits if past is None else (logits, tuple(presents))


def _gpt2(config: Config, batch: int, length: int, past_length: int | None) -> Network:
    model = randomise(GPT2(config))
    ids = token_ids(batch, length, config.vocabulary)
    dynamic = {"input_ids": {0: "batch", 1: "sequence"}}
    if past_length is None:
        return Network(model, (ids,), ("input_ids",), ("logits",), dynamic)
    generator = torch.Generator().manual_seed(4)
    shape = (batch, config.heads, past_length, config.hidden // config.heads)
    past = tuple(
        (torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)) for _ in range(config.layers)
    )
    suffixes = [f"{layer}.{part}" for layer in range(config.layers) for part in ("key", "value")]
    names = tuple(f"past_key_values.{suffix}" for suffix in suffixes)
    dynamic |= {name: {0: "batch", 2: "past_sequence"} for name in names}
    outputs = ("logits", *(f"present.{suffix}" for suffix in suffixes))
    return Network(model, (ids, past), ("input_ids", *names), outputs, dynamic)


def small(attention: str = "buffer", layers: int = 2) -> Network:
    """Layers of 32 channels, no cache."""
    return _gpt2(Config(layers, 32, 4, vocabulary=50, positions=32, attention=attention), 2, 7, None)


def small_cache(attention: str = "buffer", layers: int = 2, length: int = 3) -> Network:
    """`small` continued: `length` new tokens after 5 in the cache."""
    return _gpt2(Config(layers, 32, 4, vocabulary=50, positions=32, attention=attention), 2, length, 5)


def full(attention: str = "buffer", batch: int = 1, length: int = 128) -> Network:
    """GPT-2 small, no cache."""
    return _gpt2(Config(12, 768, 12, vocabulary=50257, attention=attention), batch, length, None)


def full_cache(attention: str = "buffer", batch: int = 1, length: int = 1, past_length: int = 127) -> Network:
    """GPT-2 small, a token at a time."""
    return _gpt2(Config(12, 768, 12, vocabulary=50257, attention=attention), batch, length, past_length)
