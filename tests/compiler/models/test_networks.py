"""Networks of the layer library: with equal weights they give what PyTorch gives, in as few instructions as hoped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from model_weights import LLAMA, TINY, renamed

from dla.compiler.graph import Graph
from dla.compiler.models.classifier import ClassifierConfig, classifier
from dla.compiler.models.decoder import DecoderConfig, decoder, generator
from dla.compiler.models.encoder import EncoderConfig, encoder
from dla.compiler.models.perceptron import PerceptronConfig, perceptron
from dla.compiler.models.resnet import ResNetConfig, resnet
from dla.compiler.models.weights import Weights
from dla.compiler.pipeline import compile_graph
from dla.emulator.api import Machine
from dla.isa import container
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError
from dla.isa.program import Program

TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}
IDS = np.random.default_rng(0).integers(0, 50, (1, 8)).astype(np.int32)


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch, which the networks of `networks/` are of."""
    return pytest.importorskip("torch", reason="the reference is torch, which is not installed (extra `dev`)")


def program(graph: Graph) -> Program:
    """The compiled graph."""
    return compile_graph(graph).program


def tensor_instructions(found: Program) -> list[str]:
    """Names of the instructions that are no scalar code."""
    return [i.name for i in found.instructions if i.row.operands]


def test_perceptron() -> None:
    """One product for each layer."""
    kept: dict[str, np.ndarray] = {}
    found = program(perceptron(PerceptronConfig((6, 8, 8, 3), batch=4), Weights.random(0, kept)))
    assert tensor_instructions(found) == ["GEMM"] * 3
    x = h = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    for k in (1, 2, 3):
        h = h @ kept[f"fc{k}.weight"].T + kept[f"fc{k}.bias"]
        h = np.maximum(h, 0) if k < 3 else h
    np.testing.assert_allclose(Machine("golden").run(found, {"x": x})["logits"], h, **TOLERANCE)


@pytest.mark.parametrize("block", ["Bottleneck", "Basic"])
def test_resnet(torch: Any, block: str) -> None:
    """Every batch norm is in its convolution, every shortcut in the last convolution of its block."""
    from networks import resnet as reference

    network = reference.small(getattr(reference, block))
    weights = renamed(network.model, {r"stages\.(\d)": lambda m: f"layer{int(m[1]) + 1}"})
    bottleneck = block == "Bottleneck"
    found = program(resnet(ResNetConfig((2, 1, 1, 1), bottleneck, 8, classes=10, size=32), weights))
    (x,) = network.inputs
    with torch.no_grad():
        expected = network.model(x).numpy()
    got = Machine("golden").run(found, {"images": np.ascontiguousarray(x.numpy().transpose(0, 2, 3, 1))})["logits"]
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    convolutions = 1 + 5 * (3 if bottleneck else 2) + (4 if bottleneck else 3)
    assert sorted(tensor_instructions(found)) == ["CONV"] * convolutions + ["GEMM", "POOL.max", "REDUCE.mean"]


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_classifier(torch: Any, kind: str, bidirectional: bool) -> None:
    """Two layers over sequences of several lengths, one program."""
    layer = getattr(torch.nn, kind.upper())(5, 6, num_layers=2, batch_first=True, bidirectional=bidirectional)
    head = torch.nn.Linear(12 if bidirectional else 6, 3)
    weights = renamed(torch.nn.ModuleDict({"rnn": layer, "head": head}), {})
    config = ClassifierConfig(kind, 5, 6, 3, layers=2, bidirectional=bidirectional, batch=4, length=9)
    session = Machine("golden").load(program(classifier(config, weights)))
    for batch, length in ((1, 1), (4, 9), (2, 5)):
        x = torch.randn(batch, length, 5)
        with torch.no_grad():
            _, last = layer(x)
            h = last[0] if kind == "lstm" else last
            expected = head(torch.cat(list(h[-2:] if bidirectional else h[-1:]), 1)).numpy()
        np.testing.assert_allclose(session.run({"x": x.numpy()})["logits"], expected, **TOLERANCE)


def test_encoder(torch: Any) -> None:
    """BERT: 7 instructions for each layer."""
    from networks import bert

    network = bert.small()
    names = {
        r"embeddings\.(word|position|token_type)\.": r"embeddings.\1_embeddings.",
        r"embeddings\.norm": "embeddings.LayerNorm",
        r"layers\.(\d)\.attention\.(query|key|value)": r"encoder.layer.\1.attention.self.\2",
        r"layers\.(\d)\.attention\.dense": r"encoder.layer.\1.attention.output.dense",
        r"layers\.(\d)\.attention\.norm": r"encoder.layer.\1.attention.output.LayerNorm",
        r"layers\.(\d)\.intermediate": r"encoder.layer.\1.intermediate.dense",
        r"layers\.(\d)\.output": r"encoder.layer.\1.output.dense",
        r"layers\.(\d)\.norm": r"encoder.layer.\1.output.LayerNorm",
        r"^pooler": "pooler.dense",
    }
    config = EncoderConfig(50, 32, layers=2, heads=4, hidden=64, positions=32)
    found = program(encoder(config, renamed(network.model, names)))
    ids, mask, types = network.inputs
    with torch.no_grad():
        states, pooled = network.model(ids, mask, torch.zeros_like(types))
    got = Machine("golden").run(found, {"ids": ids.numpy().astype(np.int32), "mask": mask.numpy().astype(bool)})
    np.testing.assert_allclose(got["states"], states.numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got["pooled"], pooled.numpy(), rtol=1e-3, atol=1e-4)
    assert len(tensor_instructions(found)) == 3 + 2 * 7 + 1


def written(config: DecoderConfig, weights: Weights, pieces: list[int]) -> tuple[np.ndarray, list[int]]:
    """Logits of IDS read in pieces of these lengths, and the likeliest token after each."""
    session = Machine("golden").load(program(decoder(config, weights)))
    past, logits, following = 0, [], []
    for length in pieces:
        result = session.run({"ids": IDS[:, past : past + length]}, {"past": past})
        past += length
        logits.append(result["logits"])
        following += result["next"][0].tolist()
    return np.concatenate(logits, 1), following


@pytest.mark.parametrize("pieces", [[1] * 8, [5, 1, 1, 1], [3, 0, 5], [2, 4, 2]], ids=str)
def test_a_decoder_reads_alike_in_any_pieces(pieces: list[int]) -> None:
    """Token by token, with its cache, it gives what it gives for the whole text at once."""
    whole, expected = written(TINY, Weights.random(), [8])
    parts, following = written(TINY, Weights.random(), pieces)
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-6)
    assert following == expected == whole[0].argmax(-1).tolist()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_decoder(torch: Any, kv_heads: int) -> None:
    """Llama, with one, some and all heads of keys and values."""
    from networks import llama

    config = llama.Config(2, 32, 4, kv_heads, 48, vocabulary=50)
    model = llama.randomise(llama.Llama(config))
    ids = torch.tensor(IDS.astype(np.int64))
    with torch.no_grad():
        expected = model(ids, torch.ones_like(ids)).numpy()
    weights = renamed(model, LLAMA)
    sizes = DecoderConfig(50, 32, 2, 4, kv_heads, 48, context=32, chunk=8)
    got, _ = written(sizes, weights, [8])
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


LAYER = ["NORM.rms", "GEMM", "ROPE", "ATTENTION", "GEMM", "NORM.rms", "GEMM.glu", "GEMM"]
READING = [*LAYER[:3], "COPY", *LAYER[3:]]
"""A layer for one token, and for several: their keys and values are copied to the cache."""
HEAD = ["NORM.rms", "GEMM", "REDUCE.argmax"]


@pytest.mark.parametrize(("chunk", "layer"), [(1, LAYER), (8, READING)])
def test_a_layer_of_the_decoder_is_eight_instructions_or_nine(chunk: int, layer: list[str]) -> None:
    """One product for queries, keys and values, one rotation; for one token its row of the cache is where they lie."""
    found = tensor_instructions(program(decoder(replace(TINY, chunk=chunk), Weights.random())))
    assert found == ["GATHER", *layer, *layer, *HEAD]


def test_a_generator_is_a_reading_and_a_loop() -> None:
    """Nothing but the layers: tokens are written where they are read, and where they are wanted."""
    found = program(generator(TINY, Weights.random()))
    assert tensor_instructions(found) == ["GATHER", *READING, *READING, *HEAD, "GATHER", *LAYER, *LAYER, *HEAD]
    reader = program(decoder(TINY, Weights.random()))
    weights, same = ([t.name for t in p.tensors if t.segment is Segment.CONST] for p in (found, reader))
    assert weights == same  # each is there once, for reading and for writing


def test_a_tied_head_is_the_table_of_embeddings_and_there_once() -> None:
    """As small models have it."""
    kept: dict[str, np.ndarray] = {}
    sizes = DecoderConfig(50, 32, 1, 4, 2, 48, context=16, chunk=8, tied=True)
    logits, _ = written(sizes, Weights.random(0, kept), [8])
    assert "lm_head.weight" not in kept
    assert logits.shape == (1, 8, 50)


def test_a_decoder_in_another_float_type_keeps_its_cache_in_it() -> None:
    """Weights, activations and cache in bf16; near what f32 gives."""
    sizes = DecoderConfig(50, 32, 1, 4, 2, 48, context=16, chunk=8)
    half = DecoderConfig(50, 32, 1, 4, 2, 48, context=16, chunk=8, dtype=DType.BF16)
    exact, _ = written(sizes, Weights.random(), [8])
    rough, _ = written(half, Weights.random(), [3, 5])
    assert rough.dtype == DType.BF16.numpy
    np.testing.assert_allclose(rough.astype(np.float32), exact, atol=0.05 * np.abs(exact).max())


def test_two_compilations_give_equal_bytes() -> None:
    """Of every network."""
    configs: list[tuple[Any, Any]] = [
        (decoder, TINY),
        (encoder, EncoderConfig(50, 32, 1, 4, 64, 32)),
        (classifier, ClassifierConfig("lstm", 5, 6, 3)),
        (resnet, ResNetConfig((1, 1, 1, 1), width=4, classes=3, size=16)),
    ]
    for build, config in configs:
        first, second = (container.write_bytes(program(build(config, Weights.random()))) for _ in range(2))
        assert first == second


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: decoder(DecoderConfig(heads=4, kv_heads=3), Weights.random()), "4 heads cannot share 3 keys"),
        (lambda: classifier(ClassifierConfig("elman", 5, 6, 3), Weights.random()), "no recurrent layer 'elman'"),
        (lambda: perceptron(PerceptronConfig((4, 2)), Weights.of_arrays({})), r"holds no fc1\.weight \[2, 4\]"),
    ],
)
def test_configurations_that_do_not_work_are_refused(build: Any, message: str) -> None:
    """With what is wrong."""
    with pytest.raises(ModelError, match=message):
        build()
