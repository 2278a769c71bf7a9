"""Llama-shaped decoders (Touvron et al. 2023) as Hugging Face's transformers spells them.

RMS norm, rotary positions, grouped queries (several heads share keys and values) and SwiGLU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks.attention import compared, eager, triangle
from networks.network import Network, padding_mask, randomise, token_ids

Cache = tuple[tuple[Tensor, Tensor], ...]  # of each layer the keys and values so far, [B, kv_heads, P, D]
Rotation = tuple[Tensor, Tensor]  # cosines and sines, [1, S, D]


@dataclass(frozen=True)
class Config:
    """Sizes; `attention` says how the causal mask and attention are spelled.

    "triangle": full, triu, masked_fill; softmax written out (old). "is_causal": left to
    scaled_dot_product_attention, padding not looked at. "gqa": likewise, and it shares the heads itself (recent; not
    for the older exporter). "compared": booleans for scaled_dot_product_attention.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    attention: str = "triangle"
    theta: float = 10000.0


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, hidden: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


class Rotary(nn.Module):
    """The angles by which each position turns the halves of queries and keys."""

    def __init__(self, width: int, theta: float) -> None:
        super().__init__()
        frequencies = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, positions: Tensor) -> Rotation:
        """i64 [B, S] -> f32 [B, S, D] each."""
        frequencies = self.frequencies[None, :, None].float().expand(positions.shape[0], -1, 1)
        angles = (frequencies.float() @ positions[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def rotate_half(x: Tensor) -> Tensor:
    """The halves (a, b) of the last axis -> (-b, a)."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """[B, H, S, D] turned by its positions' angles."""
    cosine, sine = (part.unsqueeze(1) for part in rotation)
    return (x * cosine) + (rotate_half(x) * sine)


def repeat_kv(x: Tensor, times: int) -> Tensor:
    """[B, H, S, D] -> [B, H * times, S, D], each head `times` times in a row."""
    batch, heads, length, width = x.shape
    if times == 1:
        return x
    x = x[:, :, None, :, :].expand(batch, heads, times, length, width)
    return x.reshape(batch, heads * times, length, width)


class Attention(nn.Module):
    """Causal self-attention with grouped queries; with a cache its keys and values come first."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.hidden // config.heads
        self.times = config.heads // config.kv_heads
        self.spelling = config.attention
        self.q_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(
        self, x: Tensor, rotation: Rotation, past: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[B, S, hidden] -> [B, S, hidden] and the longer cache."""
        shape = (*x.shape[:-1], -1, self.width)
        q = rotate(self.q_proj(x).view(shape).transpose(1, 2), rotation)
        k = rotate(self.k_proj(x).view(shape).transpose(1, 2), rotation)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=-2), torch.cat((past[1], v), dim=-2)
        present = (k, v)
        if self.spelling != "gqa":
            k, v = repeat_kv(k, self.times), repeat_kv(v, self.times)
        if self.spelling == "triangle":
            out = eager(q, k, v, mask)
        elif self.spelling == "gqa":
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            causal = self.spelling == "is_causal"
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        out = out.transpose(1, 2).contiguous().reshape(*x.shape[:-1], -1).contiguous()
        return self.o_proj(out), present


class Layer(nn.Module):
    """Norm, attention, shortcut; norm, SwiGLU, shortcut."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden)
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(
        self, x: Tensor, rotation: Rotation, past: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[B, S, hidden] -> [B, S, hidden] and the longer cache."""
        out, present = self.self_attn(self.input_layernorm(x), rotation, past, mask)
        x = x + out
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(h)) * self.up_proj(h)), present


class Llama(nn.Module):
    """The decoder with its head."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.spelling = config.attention
        self.embed_tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.rotary = Rotary(config.hidden // config.heads, config.theta)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden)
        self.lm_head = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(
        self, ids: Tensor, padding: Tensor | None = None, positions: Tensor | None = None, past: Cache | None = None
    ) -> tuple[Tensor, Cache] | Tensor:
        """Ids i64 [B, S] -> logits [B, S, vocabulary]; with a cache of P tokens also the longer cache.

        `padding` i64 [B, P + S] is 1 for tokens. `positions` i64 [B, S] turn queries and keys; without them a token's
        place is its position. The causal mask goes by places.
        """
        past_length = 0 if past is None else past[0][0].shape[-2]
        key_length = past_length + ids.shape[1]
        places = torch.arange(past_length, key_length)
        mask = None
        if self.spelling == "triangle":
            mask = triangle(places, key_length, padding)
        elif self.spelling == "compared":
            mask = compared(places, key_length, padding)
        x = self.embed_tokens(ids)
        rotation = self.rotary(places.unsqueeze(0) if positions is None else positions)
        presents = []
        for index, layer in enumerate(self.layers):
            x, present = layer(x, rotation, None if past is None else past[index], mask)
            presents.append(present)
        logits = self.lm_head(self.norm(x))
        return logits if past is None else (logits, tuple(presents))


def _llama(config: Config, batch: int, length: int, past_length: int | None) -> Network:
    model = randomise(Llama(config))
    ids = token_ids(batch, length, config.vocabulary)
    dynamic = {"input_ids": {0: "batch", 1: "sequence"}}
    if past_length is None and config.attention in ("is_causal", "gqa"):
        return Network(model, (ids,), ("input_ids",), ("logits",), dynamic)
    padding = padding_mask(batch, length + (past_length or 0))
    names = ("input_ids", "attention_mask")
    if past_length is None:
        dynamic["attention_mask"] = {0: "batch", 1: "sequence"}
        return Network(model, (ids, padding), names, ("logits",), dynamic)
    # Padding stands before the tokens where more of them are to follow, and is not counted as positions.
    padding = padding.flip(1)
    positions = (padding.cumsum(1) - 1).clamp(min=0)[:, past_length:].contiguous()
    dynamic |= {"attention_mask": {0: "batch", 1: "total_sequence"}, "position_ids": {0: "batch", 1: "sequence"}}
    generator = torch.Generator().manual_seed(4)
    shape = (batch, config.kv_heads, past_length, config.hidden // config.heads)
    past = tuple(
        (torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)) for _ in range(config.layers)
    )
    suffixes = [f"{layer}.{part}" for layer in range(config.layers) for part in ("key", "value")]
    pasts = tuple(f"past_key_values.{suffix}" for suffix in suffixes)
    dynamic |= {name: {0: "batch", 2: "past_sequence"} for name in pasts}
    outputs = ("logits", *(f"present.{suffix}" for suffix in suffixes))
    return Network(model, (ids, padding, positions, past), (*names, "position_ids", *pasts), outputs, dynamic)


def small(attention: str = "triangle", layers: int = 2) -> Network:
    """Layers of 32 channels, 4 heads for queries and 2 for keys and values; no cache."""
    return _llama(Config(layers, 32, 4, 2, 48, vocabulary=50, attention=attention), 2, 7, None)


def small_cache(attention: str = "compared", layers: int = 2, length: int = 3) -> Network:
    """`small` continued: `length` new tokens after 5 in the cache."""
    return _llama(Config(layers, 32, 4, 2, 48, vocabulary=50, attention=attention), 2, length, 5)


def full(attention: str = "triangle", layers: int = 22, batch: int = 1, length: int = 128) -> Network:
    """The shape of TinyLlama 1.1B: 4.4 GB of weights at 22 layers."""
    return _llama(Config(layers, 2048, 32, 4, 5632, vocabulary=32000, attention=attention), batch, length, None)


def full_cache(attention: str = "compared", layers: int = 22, batch: int = 1, past_length: int = 127) -> Network:
    """`full`, a token at a time."""
    return _llama(Config(layers, 2048, 32, 4, 5632, vocabulary=32000, attention=attention), batch, 1, past_length)
