"""The three digit networks: held-out accuracy, and agreement with NumPy forward passes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

PROGRAMS = Path(__file__).parents[2] / "programs"
Weights = dict[str, np.ndarray]

erf = np.vectorize(math.erf)


def softmax(x: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0)


def mlp(w: Weights, x: np.ndarray) -> np.ndarray:
    """Logits f64[n, 10] of pixels f64[n, 8, 8] in 0..1."""
    h = relu(x.reshape(-1, 64) @ w["w1"] + w["b1"])
    return relu(h @ w["w2"] + w["b2"]) @ w["w3"] + w["b3"]


def conv3x3(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Convolution that keeps the size of x [n, H, W, C]; weight [O, 3, 3, C]."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("nhwcij,oijc->nhwo", windows, weight, optimize=True)


def cnn(w: Weights, x: np.ndarray) -> np.ndarray:
    """Logits f64[n, 10] of pixels f64[n, 8, 8] in 0..1."""
    s = relu(conv3x3(x[..., None], w["conv1_w"]) + w["conv1_b"])
    t = relu(conv3x3(s, w["conv2_w"]) + w["conv2_b"])
    h = relu(conv3x3(t, w["conv3_w"]) + w["conv3_b"] + s)
    pooled = h.reshape(-1, 4, 2, 4, 2, 32).max(axis=(2, 4))
    u = (conv3x3(pooled, w["conv4_w"]) - w["bn4_mean"]) / np.sqrt(w["bn4_var"] + 1e-5)
    return relu(u * w["bn4_gain"] + w["bn4_bias"]).mean(axis=(1, 2)) @ w["fc_w"] + w["fc_b"]


def layer_norm(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    """Layer norm over the last axis, with the gain and bias called `name`."""
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * w[f"{name}_gain"] + w[f"{name}_bias"]


def attention(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    """Four heads of 16, one after the other, over x [n, 16, 64]."""
    q, k, v = np.split(x @ w[f"{name}_qkv_w"] + w[f"{name}_qkv_b"], 3, axis=-1)
    heads = []
    for h in range(4):
        own = slice(16 * h, 16 * h + 16)
        heads.append(softmax(q[..., own] @ k[..., own].swapaxes(1, 2) / 4) @ v[..., own])
    return np.concatenate(heads, axis=-1) @ w[f"{name}_proj_w"] + w[f"{name}_proj_b"]


def transformer(w: Weights, x: np.ndarray) -> np.ndarray:
    """Logits f64[n, 10] of pixels f64[n, 8, 8] in 0..1."""
    corners = [x[:, i::2, j::2].reshape(-1, 16) for i in (0, 1) for j in (0, 1)]
    x = np.stack(corners, axis=-1) @ w["embed_w"] + w["embed_b"] + w["pos"]
    for name in ("l0", "l1"):
        x = x + attention(w, name, layer_norm(w, f"{name}_ln1", x))
        hidden = layer_norm(w, f"{name}_ln2", x) @ w[f"{name}_fc1_w"] + w[f"{name}_fc1_b"]
        x = x + hidden / 2 * (1 + erf(hidden / math.sqrt(2))) @ w[f"{name}_fc2_w"] + w[f"{name}_fc2_b"]
    return layer_norm(w, "ln", x).mean(axis=1) @ w["head_w"] + w["head_b"]


NETWORKS = {"digits_mlp": (mlp, 0.96), "digits_cnn": (cnn, 0.98), "digits_transformer": (transformer, 0.97)}


@pytest.fixture(scope="module")
def digits() -> Weights:
    """Images u8[n, 8, 8] and labels i32[n] of both splits."""
    return load_file(PROGRAMS / "data" / "digits.safetensors")


@pytest.mark.parametrize("name", NETWORKS)
def test_held_out_images_are_read_as_well_as_required(run, digits, name):
    """At least 96, 98 and 97 % of 450 images, each with the probabilities of a NumPy forward pass in f64."""
    forward, required = NETWORKS[name]
    images, labels = digits["test_images"], digits["test_labels"]
    out = run(name, images=images)
    weights = {key: value.astype(np.float64) for key, value in load_file(PROGRAMS / f"{name}.safetensors").items()}
    exact = softmax(forward(weights, images / 16.0))
    assert out["p"].dtype == np.float32
    np.testing.assert_allclose(out["p"], exact, rtol=1e-3, atol=1e-5)
    assert out["digit"].dtype == np.int32
    np.testing.assert_array_equal(out["digit"], exact.argmax(axis=1))
    assert np.mean(out["digit"] == labels) >= required


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [0, 1, 7])
def test_an_image_is_read_alike_in_every_batch(run, digits, name, batch):
    """The first images alone give what they give among others, and no images give no answers."""
    images = digits["test_images"][:10]
    few, more = run(name, images=images[:batch]), run(name, images=images)
    assert few["p"].shape == (batch, 10)
    np.testing.assert_allclose(few["p"], more["p"][:batch], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(few["digit"], more["digit"][:batch])
