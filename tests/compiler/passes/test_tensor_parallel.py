"""Weights cut for ranks: every rank gets what one machine gets, with one ALLREDUCE for each block."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import dla
from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Value
from dla.compiler.models.attention import Heads, merge_heads, self_attention, split_heads
from dla.compiler.models.decoder import DecoderConfig, decoder, generator
from dla.compiler.models.encoder import EncoderConfig, encoder
from dla.compiler.models.layers import Layers
from dla.compiler.models.perceptron import PerceptronConfig, perceptron
from dla.compiler.models.weights import Weights
from dla.compiler.pipeline import Compiled
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array, DType
from dla.isa.errors import InputError, ModelError
from dla.isa.program import Program

WEIGHTS = Weights.random(1)
ENCODER = EncoderConfig(vocabulary=50, width=32, layers=2, heads=4, hidden=64, positions=16, batch=2)
DECODER = DecoderConfig(vocabulary=50, width=32, layers=2, heads=8, kv_heads=4, hidden=64, context=16, chunk=4)
IDS = np.array([[3, 7, 9, 41]], np.int32)


def gpt2() -> Graph:
    """Two layers: learned positions, norms in front, one product for queries, keys and values, biases everywhere."""
    m = Layers("gpt2", WEIGHTS)
    ids = m.input("ids", DType.I32, (m.symbol("batch", 2), 4))
    x = m.add(m.embedding(ids, 50, 32, "wte"), m.part(m.table("wpe", 16, 32), 0, 0, 4))
    for layer in range(2):
        with m.scope(f"h.{layer}"):
            joint = m.linear(m.layer_norm(x, "ln_1"), 96, "attn.c_attn")
            q, k, v = (split_heads(m, m.part(joint, 2, at, 32), 4, 8) for at in (0, 32, 64))
            attended = merge_heads(m, m.attention(q, k, v, causal=True))
            x = m.add(x, m.linear(attended, 32, "attn.c_proj"))
            x = m.add(x, m.mlp(m.layer_norm(x, "ln_2"), 128, ("mlp.c_fc", "mlp.c_proj"), act="gelu_tanh"))
    m.output("logits", m.matmul(m.layer_norm(x, "ln_f"), m.swap(m.table("wte", 50, 32))))
    return m.finish()


def count(program: Program, name: str = "ALLREDUCE.sum") -> int:
    """How many instructions have that name."""
    return Counter(instruction.name for instruction in program.instructions)[name]


def on_all_ranks(program: Program, *runs: tuple[Mapping[str, Array], Mapping[str, int]]) -> list[dict[str, Array]]:
    """The outputs of runs one after the other, which all ranks have alike, to the bit."""
    session = dla.Machine("golden").load(program)
    found = []
    for inputs, sizes in runs:
        result = session.run(inputs, sizes)
        first, *others = [rank.outputs for rank in result.ranks] or [result.outputs]
        for other in others:
            assert all(other[name].tobytes() == array.tobytes() for name, array in first.items())
        found.append(dict(first))
    return found


def near(found: list[dict[str, Array]], expected: list[dict[str, Array]]) -> None:
    """Sums in another order: a few roundings of f32 apart, carried through the layers."""
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, array in other.items():
            scale = float(np.abs(array).max()) if array.dtype.kind == "f" else 0.0
            np.testing.assert_allclose(one[name], array, rtol=0, atol=1e-5 * scale, err_msg=name)


MODELS: dict[str, tuple[Callable[[], Graph], list[tuple[dict[str, Any], dict[str, int]]], int]] = {
    "perceptron": (
        lambda: perceptron(PerceptronConfig((16, 32, 32, 64, 8)), WEIGHTS),
        [({"x": np.linspace(-1, 1, 48, dtype=np.float32).reshape(3, 16)}, {})],
        2,  # of four products
    ),
    "minilm": (
        lambda: encoder(ENCODER, WEIGHTS),
        [({"ids": IDS.repeat(2, 0), "mask": np.array([[True] * 4, [True] * 2 + [False] * 2])}, {})],
        4,
    ),
    "gpt2": (gpt2, [({"ids": IDS}, {}), ({"ids": IDS.repeat(2, 0)}, {})], 4),
    "llama": (
        lambda: decoder(DECODER, WEIGHTS),
        [({"ids": IDS}, {"past": 0}), ({"ids": IDS[:, :2]}, {"past": 4})],
        4,
    ),
    "llama, a token each time": (
        lambda: decoder(DecoderConfig(**{**vars(DECODER), "chunk": 1}), WEIGHTS),
        [({"ids": IDS[:, k : k + 1]}, {"past": k}) for k in range(4)],
        4,
    ),
    "llama that writes": (
        lambda: generator(DECODER, WEIGHTS, count=6),
        [({"ids": IDS}, {"past": 0, "count": 6}), ({"ids": IDS[:, :1]}, {"past": 9, "count": 3})],
        8,  # for the prompt, and in the loop
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_ranks_get_what_one_machine_gets(name: str) -> None:
    """With one ALLREDUCE for each attention and each MLP, and a cache of which each rank has its heads."""
    make, runs, blocks = MODELS[name]
    whole = dla.compile_model(make()).program
    expected = on_all_ranks(whole, *runs)
    for ranks in (1, 2, 4):
        program = dla.compile_model(make(), tensor_parallel=ranks).program
        assert (program.world, count(program)) == ((ranks, blocks) if ranks > 1 else (0, 0))
        near(on_all_ranks(program, *runs), expected)
        sizes = [(t.descriptor.elements, whole.by_name[t.name].descriptor.elements)
                 for t in program.tensors if t.segment.text == "state"]  # fmt: skip
        assert all(part * ranks == all_of_it for part, all_of_it in sizes)


def test_a_shuffled_run_gives_the_same_bits() -> None:
    """Whatever order each rank takes between its collectives, those stay in order."""
    program = dla.compile_model(gpt2(), tensor_parallel=2).program
    expected = dla.Machine("golden").run(program, {"ids": IDS})
    for seed in range(3):
        found = dla.Machine("golden", shuffle=seed).run(program, {"ids": IDS})
        assert found["logits"].tobytes() == expected["logits"].tobytes()


@pytest.mark.parametrize("make", [decoder, generator])
def test_what_a_rank_holds_is_its_share(make: Callable[[DecoderConfig, Weights], Graph]) -> None:
    """Of the layers' weights, in loops, too; embeddings and norms are whole. There is nothing else."""
    whole, part = (dla.compile_model(make(DECODER, WEIGHTS), tensor_parallel=n).program for n in (1, 4))
    assert len(part.in_segment(Segment.CONST)) == len(whole.in_segment(Segment.CONST))
    cut = {shard.tensor for shard in part.shards}
    assert len(cut) == 2 * 4
    for tensor in part.tensors:
        same = whole.by_name.get(tensor.name)
        if same is not None and tensor.segment.text == "const":
            assert tensor.descriptor.elements * (4 if tensor.name in cut else 1) == same.descriptor.elements


def test_the_pieces_of_a_joint_product_are_those_of_its_heads() -> None:
    """Queries, keys and values are cut each by itself, so that rank 1 has its heads of all three."""
    b = GraphBuilder("fused")
    x = b.input("x", DType.F32, (1, 2, 4))
    w = np.arange(4 * 12, dtype=np.float32).reshape(4, 12)
    joint = b.matmul(x, b.constant(w, name="qkv"))
    q, k, v = (b.transpose(b.reshape(b.part(joint, 2, 4 * n, 4), (1, 2, 2, 2)), (0, 2, 1, 3)) for n in range(3))
    y = b.reshape(b.transpose(b.attention(q, k, v), (0, 2, 1, 3)), (1, 2, 4))
    b.output("y", b.matmul(y, b.constant(np.eye(4, dtype=np.float32), name="out")))
    program = dla.compile_model(b, tensor_parallel=2).program
    pieces = {shard.tensor: (shard.axis, shard.data.view(np.float32)) for shard in program.shards}
    axis, data = pieces["qkv"]
    assert axis == 1
    np.testing.assert_array_equal(data.reshape(4, 2, 6)[:, 1], w[:, [2, 3, 6, 7, 10, 11]])
    assert pieces["out"][0] == 0


@pytest.mark.parametrize("axes", [(3, 2, 4), (2, 3, 4)], ids=["of three, heads", "of heads, three"])
def test_queries_keys_and_values_may_lie_in_any_order(axes: tuple[int, int, int]) -> None:
    """[B, S, 3, H, D], as ViT has them, or [B, S, H, 3, D], as GPT-NeoX has them."""
    rng = np.random.default_rng(1)

    def model() -> Graph:
        b = GraphBuilder("fused")
        x = b.input("x", DType.F32, (1, 5, 6))
        w, o = (np.random.default_rng(n).standard_normal(s).astype(np.float32) for n, s in ((2, (6, 24)), (3, (8, 6))))
        joint = b.reshape(b.matmul(x, b.constant(w)), (1, 5, *axes))
        three = axes.index(3) + 2
        q, k, v = (b.transpose(b.squeeze(b.part(joint, three, n, 1), three), (0, 2, 1, 3)) for n in range(3))
        y = b.reshape(b.transpose(b.attention(q, k, v), (0, 2, 1, 3)), (1, 5, 8))
        b.output("y", b.matmul(y, b.constant(o)))
        return b.graph

    run = {"x": rng.standard_normal((1, 5, 6)).astype(np.float32)}, {}
    program = dla.compile_model(model(), tensor_parallel=2).program
    assert (count(program), count(program, "ATTENTION")) == (1, 1)
    near(on_all_ranks(program, run), on_all_ranks(dla.compile_model(model()).program, run))


def block(b: GraphBuilder, x: Value, *, hidden: int = 8, **more: Any) -> Value:
    """Two products of [.., 4], with a function between them; each has a bias."""
    ones = lambda *shape: b.constant(np.ones(shape, np.float32))  # noqa: E731
    h = b.act("relu", b.matmul(x, ones(4, hidden), bias=ones(hidden)))
    return b.matmul(h, ones(hidden, 4), bias=b.constant(np.full(4, 100, np.float32)), **more)


def test_biases_residuals_and_whatever_follows_are_added_once() -> None:
    """After the ALLREDUCE: the epilogue of the product that is cut by rows."""
    b = GraphBuilder("once")
    x = b.input("x", DType.F32, (2, 4))
    c = b.constant(np.full(4, 1000, np.float32))
    y = b.act("relu", b.add(block(b, x, c=c, beta=2.0, alpha=0.5), x))
    b.output("y", b.ew("min", b.ew("max", b.mul(y, x), -1e6), 1e6))
    program = dla.compile_model(b, tensor_parallel=4).program
    x_ = np.ones((2, 4), np.float32)
    # relu(4 + 1) by 8 columns, half of it, and then: + 2000 + 100 + 1
    (found,) = on_all_ranks(program, ({"x": x_}, {}))
    np.testing.assert_array_equal(found["y"], np.full((2, 4), 0.5 * 8 * 5 + 2000 + 100 + 1))
    assert count(program) == 1


def test_a_gated_linear_unit_is_cut_in_pairs_of_columns() -> None:
    """Column 2 j and 2 j + 1 stay together."""
    rng = np.random.default_rng(1)
    shapes = ((4, 8), (4, 8), (8, 4))
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def model() -> Graph:
        b = GraphBuilder("glu")
        x = b.input("x", DType.F32, (3, 4))
        gate, up, down = (b.constant(w) for w in weights)
        b.output("y", b.matmul(b.mul(b.act("silu", b.matmul(x, gate)), b.matmul(x, up)), down))
        return b.graph

    run = {"x": rng.standard_normal((3, 4)).astype(np.float32)}, {}
    program = dla.compile_model(model(), tensor_parallel=4).program
    assert (count(program, "GEMM.glu"), count(program)) == (1, 1)
    near(on_all_ranks(program, run), on_all_ranks(dla.compile_model(model()).program, run))


@pytest.mark.parametrize("options", [{"dtype": "bf16"}, {"dtype": "f16"}, {"math": "tf32"}])
def test_weights_of_tensor_cores_are_cut_as_they_lie(options: dict[str, str]) -> None:
    """Column by column: [N, K], read as its transpose."""
    _, runs, blocks = MODELS["minilm"]
    whole, part = (dla.compile_model(encoder(ENCODER, WEIGHTS), tensor_parallel=n, **options).program for n in (1, 2))
    assert count(part) == blocks
    names = [t.name for t in part.tensors if t.name in {s.tensor for s in part.shards} and t.descriptor.rank == 2]
    assert len(names) == 8
    (found,), (expected,) = on_all_ranks(part, *runs), on_all_ranks(whole, *runs)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=0.03 * np.abs(array).max())


def explained(model: Graph | GraphBuilder, ranks: int) -> tuple[Compiled, str]:
    """The compiled model, and what is said of the pass."""
    texts: dict[str, str] = {}
    compiled = dla.compile_model(model, tensor_parallel=ranks, explain=lambda name, g: texts.update({name: str(g)}))
    return compiled, texts["tensor_parallel"]


def test_what_cannot_be_cut_is_whole_and_said() -> None:
    """Two heads of keys and values for four ranks: attention stays whole, the MLPs are cut."""
    config = DecoderConfig(**{**vars(DECODER), "kv_heads": 2})
    compiled, text = explained(decoder(config, WEIGHTS), 4)
    assert count(compiled.program) == 2
    assert text.startswith("graph decoder, one of 4 ranks\n")
    assert re.search(r"; model\.layers\.1\.self_attn\.v_proj.*whole: .*2 heads of keys and values do not divide by 4",
                     text)  # fmt: skip
    assert "; lm_head is whole: its 50 columns do not divide by 4" in text
    assert all(t.descriptor.elements == w.descriptor.elements for t, w in zip(
        compiled.program.in_segment(dla.isa.descriptor.Segment.STATE),
        dla.compile_model(decoder(config, WEIGHTS)).program.in_segment(dla.isa.descriptor.Segment.STATE), strict=True,
    ))  # fmt: skip
    runs = MODELS["llama"][1]
    near(
        on_all_ranks(compiled.program, *runs), on_all_ranks(dla.compile_model(decoder(config, WEIGHTS)).program, *runs)
    )


def test_caches_that_are_cut_are_said() -> None:
    """With their axis."""
    _, text = explained(decoder(DECODER, WEIGHTS), 2)
    assert "; layers.0.cache: a part for each rank, along axis 2\n" in text


def test_a_cache_that_comes_in_and_goes_out_is_cut_where_it_is() -> None:
    """Exported decoders get the past's keys and give them back with the new ones: each rank those of its heads."""

    def model() -> Graph:
        m = Layers("step", WEIGHTS)
        x = m.input("x", DType.F32, (1, 2, 8))
        past = [m.input(f"past_{n}", DType.F32, (1, 4, m.symbol("past", 3), 2)) for n in "kv"]
        q, k, v = (split_heads(m, m.linear(x, 8, name), 4, 2) for name in "qkv")
        k, v = (m.concat([old, new], 2) for old, new in zip(past, (k, v), strict=True))
        m.output("y", m.linear(merge_heads(m, m.attention(q, k, v, causal=True)), 8, "o"))
        m.output("present_k", k)
        m.output("present_v", v)
        return m.finish()

    rng = np.random.default_rng(1)
    whole = {name: rng.standard_normal(shape).astype(np.float32)
             for name, shape in (("x", (1, 2, 8)), ("past_k", (1, 4, 3, 2)), ("past_v", (1, 4, 3, 2)))}  # fmt: skip
    expected = dla.Machine("golden").run(dla.compile_model(model()).program, whole)
    program = dla.compile_model(model(), tensor_parallel=2).program
    given = {n: np.stack(np.split(a, 2, 1)) if n != "x" else a for n, a in whole.items()}
    found = dla.Machine("golden").run(program, given)
    for rank in (0, 1):
        np.testing.assert_allclose(found["y"][rank], expected["y"], atol=1e-5)
        np.testing.assert_allclose(
            found["present_k"][rank], expected["present_k"][:, 2 * rank : 2 * rank + 2], atol=1e-6
        )


def test_a_mask_for_each_head_is_cut_if_it_is_constant() -> None:
    """Biases by distance (ALiBi); another rank has another one."""
    distances = np.arange(4, dtype=np.float32)[:, None, None] * -np.abs(np.arange(3)[:, None] - np.arange(3))

    def model(given: bool) -> Graph:
        m = Layers("alibi", WEIGHTS)
        x = m.input("x", DType.F32, (1, 3, 8))
        shape = (1, *distances.shape)
        mask = m.input("mask", DType.F32, shape) if given else m.constant(distances.astype(np.float32).reshape(shape))
        m.output("y", self_attention(m, x, Heads(4, 2, 4), mask=mask))
        return m.finish()

    run = {"x": np.linspace(-2, 2, 24, dtype=np.float32).reshape(1, 3, 8)}, {}
    program = dla.compile_model(model(given=False), tensor_parallel=4).program
    assert count(program) == 1
    near(on_all_ranks(program, run), on_all_ranks(dla.compile_model(model(given=False)).program, run))
    with pytest.raises(ModelError, match="its mask is another one for each head"):
        dla.compile_model(model(given=True), tensor_parallel=4)


def test_nothing_to_cut_is_an_error_that_says_why() -> None:
    """One product alone, sizes that do not divide, and what works along the axis."""
    b = GraphBuilder("one")
    x = b.input("x", DType.F32, (2, 4))
    b.output("y", b.matmul(x, b.constant(np.ones((4, 8), np.float32))))
    with pytest.raises(ModelError, match="nothing of the model can be cut for 2 ranks") as caught:
        dla.compile_model(b, tensor_parallel=2)
    assert "the output 'y' would be cut" in str(caught.value)
    b = GraphBuilder("six")
    b.output("y", block(b, b.input("x", DType.F32, (2, 4)), hidden=6))
    with pytest.raises(ModelError, match="its 6 columns do not divide by 4"):
        dla.compile_model(b, tensor_parallel=4)
    b = GraphBuilder("softmax")
    h = b.softmax(b.matmul(b.input("x", DType.F32, (2, 4)), b.constant(np.ones((4, 8), np.float32))))
    b.output("y", b.matmul(h, b.constant(np.ones((8, 3), np.float32))))
    with pytest.raises(ModelError, match=r"SOFTMAX\.soft.*it works along the axis that is cut"):
        dla.compile_model(b, tensor_parallel=2)


@pytest.mark.parametrize("ranks", [0, -1, True, 2**16, "2"])
def test_the_number_of_ranks_is_one(ranks: Any) -> None:
    """From 1 to as many as a world has."""
    b = GraphBuilder("p")
    b.output("y", block(b, b.input("x", DType.F32, (2, 4))))
    with pytest.raises(InputError, match="weights are cut for 1 to 65535 ranks"):
        dla.compile_model(b, tensor_parallel=ranks)


def test_the_program_is_the_same_each_time_and_in_a_file(tmp_path: Any) -> None:
    """Pieces and all."""
    first, second = (dla.compile_model(gpt2(), tensor_parallel=2).program for _ in range(2))
    for name, program in (("a", first), ("b", second)):
        dla.save(program, tmp_path / f"{name}.dlab")
    assert (tmp_path / "a.dlab").read_bytes() == (tmp_path / "b.dlab").read_bytes()
    runs = MODELS["gpt2"][1]
    near(on_all_ranks(dla.load(tmp_path / "a.dlab"), *runs), on_all_ranks(first, *runs))
