"""Llama (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023), with Hugging Face's names.

`decoder` reads: a run gets the next tokens and how many came before them, and the keys and values of those are in the
program's state. `generator` writes: a run gets a prompt, and one launch reads it and then writes token after token.

    session = machine.load(dla.compile_model(generator(config, weights)).program)
    session.run({"ids": prompt}, {"past": 0, "count": 20})["tokens"]      # prompt i32 [batch, n] -> i32 [batch, 20]

The last token written is not in the state yet. To go on, give it first: {"ids": it and what follows}, with n + 19 as
"past"; `programs/models/tiny_llama.py` keeps count of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dla.compiler.builder import GraphBuilder, Values
from dla.compiler.dims import Dim
from dla.compiler.graph import Graph, Value
from dla.compiler.models.attention import Cache, Heads, Rotation, cache_shape, cached_attention, rotation
from dla.compiler.models.layers import Layers
from dla.compiler.models.sampling import Chance, chosen
from dla.compiler.models.weights import Weights
from dla.isa.dtypes import DType


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes of Llama-2-7B by default. A run reads at most `chunk` tokens, after less than `context` others.

    If `chunk` is 1, a run reads one token, and the program is made for that: a layer is 8 instructions, else 9.
    """

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

    @property
    def of_heads(self) -> Heads:
        """Its heads of attention."""
        return Heads(self.heads, self.width // self.heads, self.kv_heads)


def decoder(config: DecoderConfig, weights: Weights) -> Graph:
    """Ids i32 [batch, length] -> logits [batch, length, vocabulary], and next i32 [batch, length], the likeliest."""
    m = Layers("decoder", weights, config.dtype)
    past, length = m.symbol("past", config.context - 1), _length(m, config)
    positions = config.context - 1 + config.chunk
    ids = m.input("ids", DType.I32, (config.batch, length))
    caches = _caches(m, config, positions)
    rotary = rotation(m, config.of_heads.width, positions, theta=config.theta)
    x, after = _read(m, config, ids, caches, past, rotary)
    _keep(m, after)
    logits = m.matmul(_normed(m, config, x), _head(m, config))
    m.output("logits", logits)
    m.output("next", m.reduce("argmax", logits, (2,), dtype=DType.I32))
    return m.finish()


def generator(config: DecoderConfig, weights: Weights, *, count: int = 128, top: int = 1) -> Graph:
    """Ids i32 [batch, length], of 1 token at least, and the size `count` -> tokens i32 [batch, count], which follow.

    A run writes from 1 to `count` tokens. `top` = 1 takes the likeliest one each time. Else one of the `top` likeliest
    is drawn, by `random` f32 [batch, count] (uniform, from 0 to below 1) at a `temperature` f32 [1] above 0.
    """
    m = Layers("generator", weights, config.dtype)
    past, length, number = m.symbol("past", config.context - 1), _length(m, config), m.symbol("count", count)
    positions = config.context - 1 + config.chunk + count - 1
    ids = m.input("ids", DType.I32, (config.batch, length))
    chance = Chance.of_inputs(m, top, config.batch, number) if top > 1 else None
    caches = _caches(m, config, positions)
    rotary = rotation(m, config.of_heads.width, positions, theta=config.theta)

    def next_token(m: Layers, x: Value, chance: Chance | None, turn: Dim) -> Value:
        """The token [batch, 1] after what has been read, of which x [batch, 1, width] is the last."""
        logits = m.matmul(_normed(m, config, x), _head(m, config), dtype=DType.F32)
        return chosen(m, m.reshape(logits, (config.batch, config.vocabulary)), chance, turn)

    def write(b: GraphBuilder, turn: Dim, held: Values, others: Values) -> tuple[Values, Values]:
        assert isinstance(b, Layers), "Layers make Layers for their steps"
        token, *given = held
        x, after = _read(b, config, token, given, past + length + turn, rotary)
        token = next_token(b, x, None if chance is None else Chance(top, *others), turn + 1)
        return [token, *after], [token]

    x, after = _read(m, config, ids, caches, past, rotary)
    first = next_token(m, m.part(x, 1, length - 1, 1), chance, 0)
    others = [] if chance is None else [chance.random, chance.temperature]
    (rest,), (_, *after) = m.repeat(write, number - 1, [first, *after], others)
    _keep(m, after)
    tokens = m.concat([m.reshape(first, (1, config.batch, 1)), rest], 0)
    m.output("tokens", m.swap(m.reshape(tokens, (number, config.batch))))
    return m.finish()


def _length(m: Layers, config: DecoderConfig) -> Dim:
    return m.symbol("length", config.chunk) if config.chunk > 1 else 1


def _caches(m: Layers, config: DecoderConfig, positions: int) -> list[Value]:
    """The state: keys and values of each layer."""
    shape = cache_shape(config.of_heads, config.batch, positions)
    return [m.state(_cache_name(layer), config.dtype, shape) for layer in range(config.layers)]


def _keep(m: Layers, caches: Sequence[Value]) -> None:
    for layer, rows in enumerate(caches):
        m.set_state(_cache_name(layer), rows)


def _cache_name(layer: int) -> str:
    return f"layers.{layer}.cache"


def _read(
    m: Layers, config: DecoderConfig, ids: Value, caches: Sequence[Value], past: Dim, rotary: Rotation
) -> tuple[Value, list[Value]]:  # fmt: skip
    """Ids [batch, S] through all layers: [batch, S, width], and the rows of their caches."""
    here, after = rotary.at(m, past, ids.dims[1]), []
    with m.scope("model"):
        x = m.embedding(ids, config.vocabulary, config.width, "embed_tokens")
        for layer, rows in enumerate(caches):
            with m.scope(f"layers.{layer}"):
                x, rows = block(m, config, x, Cache(rows, past), here)
                after.append(rows)
    return x, after


def block(m: Layers, config: DecoderConfig, x: Value, cache: Cache, here: Rotation) -> tuple[Value, Value]:
    """One layer: x [batch, S, width], at the positions that `here` turns to -> the same, and the rows of the cache."""
    y = m.rms_norm(x, "input_layernorm", eps=config.eps)
    names = [f"self_attn.{name}_proj" for name in "qkvo"]
    attended, rows = cached_attention(m, y, config.of_heads, cache, here, names)
    x = m.add(x, attended)
    y = m.rms_norm(x, "post_attention_layernorm", eps=config.eps)
    return m.add(x, m.swiglu(y, config.hidden, [f"mlp.{name}_proj" for name in ("gate", "up", "down")])), rows


def _normed(m: Layers, config: DecoderConfig, x: Value) -> Value:
    with m.scope("model"):
        return m.rms_norm(x, "norm", eps=config.eps)


def _head(m: Layers, config: DecoderConfig) -> Value:
    """The matrix [width, vocabulary] that gives logits."""
    if not config.tied:
        return m.matrix("lm_head", config.width, config.vocabulary)
    with m.scope("model"):
        return m.swap(m.table("embed_tokens", config.vocabulary, config.width))
