"""The network that recites a rhyme: what it writes, and what a plain NumPy model of it writes without a cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

RHYME = (
    "Twinkle, twinkle, little star,\nHow I wonder what you are!\n"
    "Up above the world so high,\nLike a diamond in the sky.\n"
)
LENGTH = 160  # of what a run writes
WEIGHTS = load_file(Path(__file__).parents[2] / "programs" / "generate.safetensors")


def letters(text: str) -> np.ndarray:
    """The bytes of `text`."""
    return np.frombuffer(text.encode(), np.uint8)


def likeliest(ids: np.ndarray) -> int:
    """The token after `ids` [S]: Llama, with one layer, in f64."""
    w = {name: array.astype(np.float64) for name, array in WEIGHTS.items()}
    count = len(ids)

    def normed(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * gain

    def turned(x: np.ndarray) -> np.ndarray:
        pairs = x[..., :8] + 1j * x[..., 8:]
        pairs = pairs * np.exp(1j * np.arange(count)[:, None] * 10000.0 ** (-np.arange(8) / 8))
        return np.concatenate([pairs.real, pairs.imag], -1)

    x = w["table"][ids]
    heads = (normed(x, w["gain1"]) @ w["vkq"]).reshape(count, 8, 16).transpose(1, 0, 2)
    v, k, q = np.repeat(heads[:2], 2, 0), np.repeat(turned(heads[2:4]), 2, 0), turned(heads[4:])
    scores = np.where(np.tri(count, dtype=bool), q @ k.transpose(0, 2, 1) / 4, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    attended = (shares / shares.sum(-1, keepdims=True)) @ v
    x = x + attended.transpose(1, 0, 2).reshape(count, 64) @ w["o"]
    gate_up = normed(x, w["gain2"]) @ w["gate_up"]
    gate, up = gate_up[:, 0::2], gate_up[:, 1::2]
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w["down"]
    return int(np.argmax(normed(x, w["gain3"])[-1] @ w["table"].T))


@pytest.mark.parametrize("prompt", ["Twinkle, ", "Up above", "Like a di", RHYME[50:114]])
def test_it_goes_on_with_the_rhyme(run, prompt):
    """From wherever the prompt leaves off, and from the beginning again at the end."""
    at = RHYME.index(prompt) + len(prompt)
    assert bytes(run("generate", prompt=letters(prompt))["text"]).decode() == (3 * RHYME)[at : at + LENGTH]


@pytest.mark.parametrize("prompt", ["H", "Twinkle, twinkle, diamond", "Shall I compare thee"])
def test_it_writes_what_the_model_says(run, prompt):
    """Also where it has not learned what follows: the likeliest letter after all before it, read anew each time."""
    text = list(letters(prompt))
    for _ in range(40):
        text.append(likeliest(np.array(text)))
    np.testing.assert_array_equal(run("generate", prompt=letters(prompt))["text"][:40], text[len(prompt) :])
