"""A generator writes in one run what a decoder writes token by token, and what PyTorch writes without a cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from model_weights import LLAMA, TINY, renamed

from dla.compiler.models.decoder import DecoderConfig, decoder, generator
from dla.compiler.models.weights import Weights
from dla.compiler.pipeline import compile_graph
from dla.emulator.api import Machine, Session
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError, Trap

PROMPT = np.array([[7, 3, 11, 40]], np.int32)


def loaded(config: DecoderConfig, weights: Weights, backend: str = "golden", **options: int) -> Session:
    """A generator on a machine, with an empty cache."""
    return Machine(backend).load(compile_graph(generator(config, weights, **options)).program)


def step_by_step(config: DecoderConfig, weights: Weights, prompt: np.ndarray, count: int) -> np.ndarray:
    """`count` tokens after `prompt` i32 [B, n] by a decoder, run for each."""
    session = Machine("golden").load(compile_graph(decoder(config, weights)).program)
    pieces = [prompt] if config.chunk > 1 else np.split(prompt, prompt.shape[1], axis=1)
    past, tokens = 0, np.zeros((len(prompt), 0), np.int32)
    while tokens.shape[1] < count:
        for piece in pieces:
            following = session.run({"ids": piece}, {"past": past})["next"][:, -1:]
            past += piece.shape[1]
        pieces = [following]
        tokens = np.concatenate([tokens, following], 1)
    return tokens


@pytest.mark.parametrize("backend", ["golden", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("chunk", [1, 8])
@pytest.mark.parametrize("heads", [(4, 2), (4, 4), (6, 1)], ids=str)
def test_one_run_writes_what_many_runs_write(backend: str, chunk: int, heads: tuple[int, int]) -> None:
    """With grouped queries, without, and with more queries than fit into one row behind the newest."""
    config = replace(TINY, chunk=chunk, width=8 * heads[0], heads=heads[0], kv_heads=heads[1])
    prompt = PROMPT[:, :chunk]
    expected = step_by_step(config, Weights.random(), prompt, 12)
    session = loaded(config, Weights.random(), backend, count=12)
    tokens = session.run({"ids": prompt}, {"past": 0, "count": 12})["tokens"]
    assert tokens.dtype == np.int32
    np.testing.assert_array_equal(tokens, expected)


@pytest.mark.parametrize("layers", [4, 16])
def test_a_token_is_eight_instructions_for_each_layer(layers: int) -> None:
    """At the real depth; no number depends on widths."""
    config = replace(TINY, layers=layers, tied=True)
    step = compile_graph(decoder(replace(config, chunk=1), Weights.random())).program
    assert len(step.instructions) == 8 * layers + 6  # a size, GATHER, NORM, GEMM, argmax and HALT
    whole = compile_graph(generator(config, Weights.random())).program
    names = [i.name for i in whole.instructions]
    loop = names[names.index("LOOP") : names.index("ENDLOOP") + 1]
    assert len(loop) == 8 * layers + 9
    assert len(names) == len(loop) + 9 * layers + 8


def test_it_goes_on_where_it_stopped() -> None:
    """The last token written is given first the next time, and is one of those that came before from then on."""
    whole = loaded(TINY, Weights.random(), count=12).run({"ids": PROMPT}, {"past": 0, "count": 12})["tokens"]
    session = loaded(TINY, Weights.random(), count=12)
    given, past, tokens = PROMPT, 0, np.zeros((1, 0), np.int32)
    for count in (5, 1, 2, 4):
        new = session.run({"ids": given}, {"past": past, "count": count})["tokens"]
        assert new.shape == (1, count)
        past, given = past + given.shape[1] + count - 1, new[:, -1:]
        tokens = np.concatenate([tokens, new], 1)
    np.testing.assert_array_equal(tokens, whole)


@pytest.mark.parametrize("tied", [False, True])
def test_several_texts_at_once(tied: bool) -> None:
    """Each goes its own way."""
    both = replace(TINY, batch=2, tied=tied)
    prompts = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    together = loaded(both, Weights.random(), count=6).run({"ids": prompts}, {"past": 0, "count": 6})["tokens"]
    for prompt, tokens in zip(prompts, together, strict=True):
        alone = step_by_step(replace(TINY, tied=tied), Weights.random(), prompt[None], 6)
        np.testing.assert_array_equal(tokens[None], alone)


def test_it_writes_what_pytorch_writes() -> None:
    """The likeliest token of a model that reads everything anew each time."""
    torch = pytest.importorskip("torch", reason="the reference is torch, which is not installed (extra `dev`)")
    from networks import llama

    model = llama.randomise(llama.Llama(llama.Config(2, 32, 4, 2, 48, vocabulary=50)))
    ids = torch.tensor(PROMPT.astype(np.int64))
    with torch.no_grad():
        for _ in range(10):
            logits = model(ids, torch.ones_like(ids))
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    tokens = loaded(TINY, renamed(model, LLAMA), count=10).run({"ids": PROMPT}, {"past": 0, "count": 10})["tokens"]
    np.testing.assert_array_equal(tokens, ids[:, PROMPT.shape[1] :].numpy())


def test_in_bf16_it_writes_what_the_decoder_writes() -> None:
    """With logits in f32, where the likeliest is not one of several that are equal by rounding."""
    config = replace(TINY, dtype=DType.BF16)
    session = loaded(config, Weights.random(), count=8)
    tokens = session.run({"ids": PROMPT}, {"past": 0, "count": 8})["tokens"]
    again = loaded(replace(config, chunk=4), Weights.random(), count=8).run(
        {"ids": PROMPT}, {"past": 0, "count": 8}
    )["tokens"]  # fmt: skip
    np.testing.assert_array_equal(tokens, again)


def drawn(logits: np.ndarray, top: int, number: float, temperature: float) -> int:
    """Top-k sampling as its paper has it, in f64."""
    best = np.argsort(-logits, kind="stable")[:top]
    shares = np.exp((logits[best] - logits[best[0]]) / temperature)
    return int(best[np.searchsorted(np.cumsum(shares / shares.sum())[:-1], number, side="right")])


@pytest.mark.parametrize("batch", [1, 2])
def test_tokens_are_drawn_from_the_likeliest(batch: int) -> None:
    """By the numbers given, at the temperature given; the first of the likeliest for 0, the last for nearly 1."""
    top, count, weights = 5, 9, Weights.random()
    config = replace(TINY, batch=batch)
    random = np.random.default_rng(2).random((batch, count)).astype(np.float32)
    random[0, 0], random[0, 1] = 0.0, np.float32(1 - 2**-24)
    prompt = np.array([[1, 2, 3], [4, 5, 6]], np.int32)[:batch]
    given = {"ids": prompt, "random": random, "temperature": np.float32([2.0])}
    session = loaded(config, weights, count=count, top=top)
    tokens = session.run(given, {"past": 0, "count": count})["tokens"]
    reader = Machine("golden").load(compile_graph(decoder(replace(config, chunk=16), weights)).program)
    for turn in range(count):
        text = np.concatenate([prompt, tokens[:, :turn]], 1)
        logits = reader.run({"ids": text}, {"past": 0})["logits"][:, -1].astype(np.float64)
        for sample in range(batch):
            assert tokens[sample, turn] == drawn(logits[sample], top, float(random[sample, turn]), 2.0)


def test_it_writes_at_least_one_token() -> None:
    """None at all is a trap, not a wrong answer."""
    session = loaded(TINY, Weights.random(), count=8)
    with pytest.raises(Trap):
        session.run({"ids": PROMPT}, {"past": 0, "count": 0})


def test_more_than_there_are_cannot_be_drawn() -> None:
    """As many as the vocabulary has, at most."""
    with pytest.raises(ModelError, match="one of the 51 likeliest of 50 tokens"):
        generator(TINY, Weights.random(), top=51)
