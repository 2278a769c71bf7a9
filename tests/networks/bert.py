"""BERT (Devlin et al. 2018) and MiniLM sentence embeddings as Hugging Face's transformers spells them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks.attention import added_padding, allowed_padding, eager, filled_padding, merge_heads, split_heads
from networks.network import Network, padding_mask, randomise, token_ids


@dataclass(frozen=True)
class Config:
    """Sizes; `attention` is "eager", "sdpa" (a mask to add) or "sdpa_bool" (a mask of booleans)."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int = 512
    attention: str = "eager"


class Embeddings(nn.Module):
    """The sum of a word's, a position's and a segment's vector, normalised."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocabulary, config.hidden, padding_idx=0)
        self.position = nn.Embedding(config.positions, config.hidden)
        self.token_type = nn.Embedding(2, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("position_ids", torch.arange(config.positions).expand((1, -1)), persistent=False)
        zeros = torch.zeros((1, config.positions), dtype=torch.int64)
        self.register_buffer("token_type_ids", zeros, persistent=False)

    def forward(self, ids: Tensor, types: Tensor | None) -> Tensor:
        """i64 [B, S] -> f32 [B, S, hidden]."""
        batch, length = ids.size()
        if types is None:
            types = self.token_type_ids[:, :length].expand(batch, length)
        x = self.word(ids) + self.token_type(types)
        x += self.position(self.position_ids[:, :length])
        return self.dropout(self.norm(x))


class Attention(nn.Module):
    """Self-attention, its output projection, the shortcut and its norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.spelling = config.attention
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.dense = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, S, hidden] -> [B, S, hidden]."""
        q, k, v = (split_heads(project(x), self.heads) for project in (self.query, self.key, self.value))
        if self.spelling == "eager":
            out = merge_heads(eager(q, k, v, mask))
        else:
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            out = out.transpose(1, 2).reshape(x.size())
        return self.norm(self.dense(out) + x)


class Layer(nn.Module):
    """Attention and a feed-forward network, each followed by its shortcut and norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = nn.Linear(config.hidden, config.intermediate)
        self.output = nn.Linear(config.intermediate, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, S, hidden] -> [B, S, hidden]."""
        x = self.attention(x, mask)
        return self.norm(self.output(functional.gelu(self.intermediate(x))) + x)


class Bert(nn.Module):
    """The encoder: hidden states and, from the first token's, the pooled vector."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.spelling = config.attention
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.pooler = nn.Linear(config.hidden, config.hidden)

    def encode(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        """Ids, mask (1 for tokens) and segments, i64 [B, S] -> f32 [B, S, hidden]."""
        if self.spelling == "eager":
            extended = added_padding(mask)
        elif self.spelling == "sdpa":
            extended = filled_padding(mask, ids.size(1))
        else:
            extended = allowed_padding(mask, ids.size(1))
        x = self.embeddings(ids, types)
        for layer in self.layers:
            x = layer(x, extended)
        return x

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        """Ids, mask and segments, i64 [B, S] -> f32 [B, S, hidden] and the pooled [B, hidden]."""
        x = self.encode(ids, mask, types)
        return x, torch.tanh(self.pooler(x[:, 0]))


class MiniLM(nn.Module):
    """A sentence's embedding: the mean of its tokens' hidden states, scaled to length 1 (sentence-transformers)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.bert = Bert(config)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Ids and mask, i64 [B, S] -> f32 [B, hidden]."""
        x = self.bert.encode(ids, mask, None)
        expanded = mask.unsqueeze(-1).expand(x.size()).float()
        mean = torch.sum(x * expanded, 1) / torch.clamp(expanded.sum(1), min=1e-9)
        return functional.normalize(mean, p=2, dim=1)


def _bert(config: Config, batch: int, length: int) -> Network:
    ids, mask = token_ids(batch, length, config.vocabulary), padding_mask(batch, length)
    types = (torch.arange(length) >= length // 2).to(torch.int64).expand(batch, length).contiguous()
    names = ("input_ids", "attention_mask", "token_type_ids")
    dynamic = {name: {0: "batch", 1: "sequence"} for name in names}
    outputs = ("last_hidden_state", "pooler_output")
    return Network(randomise(Bert(config)), (ids, mask, types), names, outputs, dynamic)


def _minilm(config: Config, batch: int, length: int) -> Network:
    ids, mask = token_ids(batch, length, config.vocabulary), padding_mask(batch, length)
    names = ("input_ids", "attention_mask")
    dynamic = {name: {0: "batch", 1: "sequence"} for name in names}
    return Network(randomise(MiniLM(config)), (ids, mask), names, ("sentence_embedding",), dynamic)


def small(attention: str = "eager", layers: int = 2) -> Network:
    """BERT with layers of 32 channels."""
    return _bert(Config(layers, 32, 4, 64, vocabulary=50, positions=32, attention=attention), batch=2, length=12)


def small_minilm(attention: str = "sdpa", layers: int = 2) -> Network:
    """MiniLM with layers of 24 channels."""
    return _minilm(Config(layers, 24, 3, 48, vocabulary=50, positions=32, attention=attention), batch=2, length=12)


def full(attention: str = "eager", batch: int = 1, length: int = 128) -> Network:
    """BERT-base."""
    return _bert(Config(12, 768, 12, 3072, vocabulary=30522, attention=attention), batch, length)


def full_minilm(attention: str = "sdpa", batch: int = 1, length: int = 128) -> Network:
    """all-MiniLM-L6-v2."""
    return _minilm(Config(6, 384, 12, 1536, vocabulary=30522, attention=attention), batch, length)
