"""Programs of several ranks: against the same work on one rank, and against NumPy. On the golden machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dla.assembler import assemble
from dla.emulator.api import Machine
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array

PROGRAMS = Path(__file__).parents[2] / "programs"


@pytest.fixture(scope="module")
def digits() -> dict[str, Array]:
    """Images u8[n, 8, 8] and labels i32[n] of both splits."""
    return load_file(PROGRAMS / "data" / "digits.safetensors")


def assert_alike(ranks: Array) -> None:
    """All ranks have the same bits."""
    for one in ranks[1:]:
        assert one.tobytes() == ranks[0].tobytes()


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_tensor_parallel_networks_read_digits_like_those_on_one_rank(program, digits, name):
    """450 held-out images: the same digits, the same probabilities but for rounding, the same bits on every rank."""
    images = digits["test_images"]
    alone = Machine("golden").run(program(f"digits_{name}"), {"images": images})
    together = Machine("golden").run(program(f"tensor_parallel_{name}"), {"images": images})
    assert_alike(together["p"])
    np.testing.assert_allclose(together["p"][0], alone["p"], rtol=2e-5, atol=1e-7)
    np.testing.assert_array_equal(together["digit"], [alone["digit"]] * 4)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_a_rank_of_a_tensor_parallel_network_holds_a_part_of_its_weights(program, name):
    """A quarter of what is cut: less than half of all."""
    alone, together = program(f"digits_{name}"), program(f"tensor_parallel_{name}")
    assert together.segment_bytes[Segment.CONST] < 0.5 * alone.segment_bytes[Segment.CONST]


def perceptron_step(weights: Array, images: Array, labels: Array, rate: float) -> tuple[Array, float]:
    """One step of gradient descent on the whole batch, in f64: new parameters, and the loss before."""
    w1, b1 = weights[:2048].reshape(64, 32), weights[2048:2080]
    w2, b2 = weights[2080:2400].reshape(32, 10), weights[2400:]
    x = images.reshape(-1, 64) / 16.0
    h = np.maximum(x @ w1 + b1, 0)
    logits = h @ w2 + b2
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    count = np.arange(len(x))
    error = p.copy()
    error[count, labels] -= 1
    error /= len(x)
    inner = (error @ w2.T) * (h > 0)
    gradient = np.concatenate([(x.T @ inner).ravel(), inner.sum(axis=0), (h.T @ error).ravel(), error.sum(axis=0)])
    return weights - rate * gradient, float(-np.log(p[count, labels]).mean())


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_data_parallel_steps_are_those_of_the_whole_batch(program, digits, world):
    """Ten steps: the parameters of all ranks stay the same bits, and near those of one rank that has all images."""
    images, labels = digits["train_images"][:256], digits["train_labels"][:256].astype(np.int32)
    weights = np.random.default_rng(3).normal(0, 0.1, 2410).astype(np.float32)
    session = Machine("golden", ranks=world).load(program("data_parallel"))
    session.set_state({"weights": weights})
    parts = (lambda a: a.reshape(world, -1, *a.shape[1:])) if world > 1 else (lambda a: a)
    exact, losses = weights.astype(np.float64), []
    for _ in range(10):
        result = session.run({"images": parts(images), "labels": parts(labels)})
        exact, loss = perceptron_step(exact, images, labels, 0.5)
        losses.append(loss)
        np.testing.assert_allclose(result["loss"], loss, rtol=1e-5)
    state = session.state["weights"].reshape(world, -1)
    assert_alike(state)
    np.testing.assert_allclose(state[0], exact, rtol=1e-4, atol=1e-6)
    assert losses[-1] < 0.85 * losses[0]


def test_a_pipeline_gives_what_both_layers_give(program):
    """Every micro-batch goes through both, in order."""
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((4, 8, 16)).astype(np.float32), rng.standard_normal((2, 16, 16)).astype(np.float32)
    result = Machine("golden").run(program("pipeline"), {"x": x, "w": w})
    middle = np.maximum(x.astype(np.float64) @ w[0], 0).astype(np.float32)
    np.testing.assert_allclose(result["y"][1], np.maximum(middle.astype(np.float64) @ w[1], 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(result["y"][0], np.zeros((4, 8, 16)))


def test_tokens_come_back_from_their_experts(program):
    """Each token gets its own expert's answer, whichever rank it came from."""
    rng = np.random.default_rng(5)
    tokens, gate = rng.standard_normal((4, 8, 16)).astype(np.float32), rng.random((4, 8, 1)).astype(np.float32)
    up, down = rng.standard_normal((4, 16, 32)).astype(np.float32), rng.standard_normal((4, 32, 16)).astype(np.float32)
    slot = np.stack([rng.permutation(16)[:8] for _ in range(4)]).astype(np.int32)
    given = {"tokens": tokens, "slot": slot, "gate": gate, "up": up, "down": down}
    result = Machine("golden").run(program("expert_parallel"), given)
    for rank in range(4):
        for token in range(8):
            expert = slot[rank, token] // 4
            inner = tokens[rank, token].astype(np.float64) @ up[expert]
            answer = (inner / (1 + np.exp(-inner))) @ down[expert] * gate[rank, token]
            np.testing.assert_allclose(result["y"][rank, token], answer, rtol=1e-4, atol=1e-4)


def ring(world: int) -> str:
    """The ring's text for another number of ranks."""
    text = (PROGRAMS / "ring_allreduce.dla").read_text(encoding="utf-8")
    pairs = [[rank, (rank + 1) % world] for rank in range(world)]
    text = text.replace("[[0, 1], [1, 2], [2, 3], [3, 0]]", str(pairs)).replace(".world 4", f".world {world}")
    return text.replace("f32[4, 16]", f"f32[{world}, 16]").replace("s0, 3", f"s0, {world - 1}").replace(
        ", 4\n", f", {world}\n")  # fmt: skip


@pytest.mark.parametrize("world", range(1, 9))
def test_a_ring_of_permutes_is_an_allreduce(world):
    """Of integers to the bit; of others but for rounding, which depends on the order; on every rank the same bits."""
    rng = np.random.default_rng(world)
    whole = rng.integers(-1000, 1000, (world, world, 16)).astype(np.float32)
    for x in (whole, rng.standard_normal((world, world, 16)).astype(np.float32)):
        result = Machine("golden").run(assemble(ring(world)), {"x": x if world > 1 else x[0]})
        by_hand, at_once = result["sum"].reshape(world, -1), result["at_once"].reshape(world, -1)
        assert_alike(by_hand)
        assert_alike(at_once)
        np.testing.assert_array_equal(at_once[0], x.astype(np.float64).sum(axis=0).astype(np.float32).ravel())
        bound = (world + 4) * 2.0**-23 * np.abs(x).sum(axis=0).ravel()
        assert np.all(np.abs(by_hand[0] - at_once[0]) <= (0 if x is whole else bound))
