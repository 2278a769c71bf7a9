"""BERT (Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2018), with Hugging Face's names."""

from __future__ import annotations

from dataclasses import dataclass

from dla.compiler.dims import Dim
from dla.compiler.graph import Graph, Value
from dla.compiler.models.attention import Heads, self_attention
from dla.compiler.models.layers import Layers
from dla.compiler.models.weights import Weights
from dla.isa.dtypes import DType


@dataclass(frozen=True)
class EncoderConfig:
    """BERT-base by default. All tokens belong to the first segment."""

    vocabulary: int = 30522
    width: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 3072
    positions: int = 512
    segments: int = 2
    act: str = "gelu"
    eps: float = 1e-12
    batch: int = 16  # the largest
    dtype: DType = DType.F32


def encoder(config: EncoderConfig, weights: Weights) -> Graph:
    """Ids i32 and mask bool (true for tokens, false for padding) [batch, length].

    -> states [batch, length, width], and pooled [batch, width], made of the first token's.
    """
    m = Layers("encoder", weights, config.dtype)
    batch, length = m.symbol("batch", config.batch), m.symbol("length", config.positions)
    ids, mask = (m.input(name, dtype, (batch, length)) for name, dtype in (("ids", DType.I32), ("mask", DType.BOOL)))
    x = _embedded(m, config, ids, length)
    seen = m.unsqueeze(mask, 1, 2)
    heads = Heads(config.heads, config.width // config.heads, config.heads)
    for layer in range(config.layers):
        with m.scope(f"encoder.layer.{layer}"):
            names = [f"attention.{name}" for name in ("self.query", "self.key", "self.value", "output.dense")]
            y = self_attention(m, x, heads, names, mask=seen)
            x = m.layer_norm(m.add(x, y), "attention.output.LayerNorm", eps=config.eps)
            y = m.mlp(x, config.hidden, ("intermediate.dense", "output.dense"), act=config.act)
            x = m.layer_norm(m.add(x, y), "output.LayerNorm", eps=config.eps)
    m.output("states", x)
    first = m.reshape(m.part(x, 1, 0, 1), (batch, config.width))
    m.output("pooled", m.act("tanh", m.linear(first, config.width, "pooler.dense")))
    return m.finish()


def _embedded(m: Layers, config: EncoderConfig, ids: Value, length: Dim) -> Value:
    """The sum of a word's, a position's and a segment's vector, normalised."""
    with m.scope("embeddings"):
        words = m.embedding(ids, config.vocabulary, config.width, "word_embeddings")
        positions = m.table("position_embeddings", config.positions, config.width)
        segment = m.part(m.table("token_type_embeddings", config.segments, config.width), 0, 0, 1)
        x = m.add(words, m.part(m.add(positions, segment), 0, 0, length))
        return m.layer_norm(x, "LayerNorm", eps=config.eps)
