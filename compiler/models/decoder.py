"""Llama (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023), with Hugging Face's names.

One program reads a prompt and then writes token by token. It is run again and again: each run gets the next tokens and
how many came before them, and the keys and values of those are in its state:

    session = machine.load(program)
    session.run({"ids": prompt}, {"past": 0})                         # prompt i32 [batch, n]
    session.run({"ids": next[:, -1:]}, {"past": n})                   # i32 [batch, 1]
"""

from __future__ import annotations

from dataclasses import dataclass

from dla.compiler.graph import Graph
from dla.compiler.models.attention import Cache, Heads, rotation, self_attention
from dla.compiler.models.layers import Layers
from dla.compiler.models.weights import Weights
from dla.isa.dtypes import DType


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes of Llama-2-7B by default. A run reads at most `chunk` tokens, after less than `context` others."""

    vocabulary: int = 32000
    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 32
    hidden: int = 11008
    context: int = 4096
    chunk: int = 512
    theta: float = 10000.0
    eps: float = 1e-5
    tied: bool = False  # whether the head is the table of embeddings
    batch: int = 1
    dtype: DType = DType.F32


def decoder(config: DecoderConfig, weights: Weights) -> Graph:
    """Ids i32 [batch, length] -> logits [batch, length, vocabulary], and next i32 [batch, length], the likeliest."""
    m = Layers("decoder", weights, config.dtype)
    past, length = m.symbol("past", config.context - 1), m.symbol("length", config.chunk)
    rows = config.context - 1 + config.chunk
    heads = Heads(config.heads, config.width // config.heads, config.kv_heads)
    rotary = rotation(m, heads.width, rows, past, length, theta=config.theta)
    ids = m.input("ids", DType.I32, (config.batch, length))
    with m.scope("model"):
        x = m.embedding(ids, config.vocabulary, config.width, "embed_tokens")
        for layer in range(config.layers):
            with m.scope(f"layers.{layer}"):
                y = m.rms_norm(x, "input_layernorm", eps=config.eps)
                names = [f"self_attn.{name}_proj" for name in "qkvo"]
                cache = Cache(f"layers.{layer}", past, rows)
                x = m.add(x, self_attention(m, y, heads, names, bias=False, rotary=rotary, cache=cache, causal=True))
                y = m.rms_norm(x, "post_attention_layernorm", eps=config.eps)
                x = m.add(x, m.swiglu(y, config.hidden, [f"mlp.{name}_proj" for name in ("gate", "up", "down")]))
        x = m.rms_norm(x, "norm", eps=config.eps)
        tied = m.swap(m.table("embed_tokens", config.vocabulary, config.width)) if config.tied else None
    logits = m.linear(x, config.vocabulary, "lm_head", bias=False) if tied is None else m.matmul(x, tied)
    m.output("logits", logits)
    m.output("next", m.reduce("argmax", logits, (2,), dtype=DType.I32))
    return m.finish()
