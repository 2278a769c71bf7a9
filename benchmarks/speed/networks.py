"""Whole networks in bf16 with made-up weights, beside the same architecture in torch."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

import dla
from dla.compiler.graph import Graph
from dla.compiler.models.attention import Heads, self_attention
from dla.compiler.models.layers import Layers
from dla.compiler.models.resnet import ResNetConfig, resnet
from dla.compiler.models.weights import Spelling, Weights
from dla.isa.dtypes import Array, DType
from speed.bench import Bench
from speed.check import Check, beside_native
from speed.row import COMPILED, Bar, Case, Row, Work

Tensors = Mapping[str, torch.Tensor]


class MadeUp:
    """bf16 weights that cost next to nothing to make: cut from one pool of normal numbers. `arrays` collects them.

    Products' weights are [in, out], convolutions' [out, height, width, in].
    """

    POOL = 2**22 + 3  # odd, so that rows of a table are cut at places of their own

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self._pool = np.random.default_rng(0).standard_normal(self.POOL, np.float32)
        self.weights = Weights(self._find, lambda: list(self.arrays), "the made-up weights", Spelling(out_first=False))

    def _find(self, name: str, part: str, shape: tuple[int, ...]) -> Array:
        if name not in self.arrays:
            first, count = zlib.crc32(name.encode()) % self.POOL, math.prod(shape)
            pool = np.concatenate((self._pool[first : first + count], self._pool[: max(0, first + count - self.POOL)]))
            if part in ("gain", "var"):
                pool = 1 + 0.1 * np.tanh(pool)
            elif part != "table":
                terms = 100 if len(shape) < 2 else math.prod(shape[1:]) if len(shape) == 4 else shape[0]
                pool = pool / np.float32(math.sqrt(terms))
            self.arrays[name] = np.resize(pool.astype(ml_dtypes.bfloat16), shape)
        return self.arrays[name]


@dataclass(frozen=True)
class Transformer:
    """BERT's blocks (Devlin et al. 2018: normalise after adding) or, if `causal`, GPT-2's (before it, and logits)."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    hidden: int
    batch: int
    length: int
    causal: bool

    @property
    def act(self) -> str:
        return "gelu_tanh" if self.causal else "gelu"


def transformer(c: Transformer, weights: Weights) -> Graph:
    """Ids i32 [batch, length] -> y bf16: states [batch, length, width], or logits [batch, length, vocabulary]."""
    m = Layers("transformer", weights, DType.BF16)
    ids = m.input("ids", DType.I32, (c.batch, c.length))
    heads = Heads(c.heads, c.width // c.heads, c.heads)
    x = m.add(m.embedding(ids, c.vocabulary, c.width, "words"), m.table("positions", c.length, c.width))
    x = x if c.causal else m.layer_norm(x, "norm")
    for layer in range(c.layers):
        with m.scope(str(layer)):
            if c.causal:
                x = m.add(x, self_attention(m, m.layer_norm(x, "norm1"), heads, "qkvo", causal=True))
                x = m.add(x, m.mlp(m.layer_norm(x, "norm2"), c.hidden, act=c.act))
            else:
                x = m.layer_norm(m.add(x, self_attention(m, x, heads, "qkvo")), "norm1")
                x = m.layer_norm(m.add(x, m.mlp(x, c.hidden, act=c.act)), "norm2")
    m.output("y", m.matmul(m.layer_norm(x, "norm"), m.swap(m.table("words", c.vocabulary, c.width))) if c.causal else x)
    return m.finish()


def torch_transformer(c: Transformer) -> Callable[[Tensors, torch.Tensor], torch.Tensor]:
    """The same in torch, as (weights, ids) -> y; queries, keys and values come of one product, as they do anywhere."""

    def norm(w: Tensors, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (c.width,), w[f"{name}.gain"], w[f"{name}.shift"])

    def linear(w: Tensors, x: torch.Tensor, name: str) -> torch.Tensor:
        y = torch.addmm(w[f"{name}.bias"], x.reshape(-1, x.shape[-1]), w[f"{name}.weight"])
        return y.reshape(*x.shape[:-1], -1)

    def attention(w: Tensors, x: torch.Tensor, name: str) -> torch.Tensor:
        qkv = linear(w, x, f"{name}.qkv").reshape(c.batch, c.length, 3, c.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=c.causal)
        return linear(w, y.transpose(1, 2).reshape(x.shape), f"{name}.o")

    def mlp(w: Tensors, x: torch.Tensor, name: str) -> torch.Tensor:
        y = F.gelu(linear(w, x, f"{name}.fc1"), approximate="tanh" if c.causal else "none")
        return linear(w, y, f"{name}.fc2")

    def run(w: Tensors, ids: torch.Tensor) -> torch.Tensor:
        x = w["words.table"][ids] + w["positions.table"]
        x = x if c.causal else norm(w, x, "norm")
        for layer in map(str, range(c.layers)):
            if c.causal:
                x = x + attention(w, norm(w, x, f"{layer}.norm1"), layer)
                x = x + mlp(w, norm(w, x, f"{layer}.norm2"), layer)
            else:
                x = norm(w, x + attention(w, x, layer), f"{layer}.norm1")
                x = norm(w, x + mlp(w, x, layer), f"{layer}.norm2")
        return norm(w, x, "norm") @ w["words.table"].T if c.causal else x

    return run


def transformer_case(bench: Bench, c: Transformer) -> Case:
    """One pass in one launch."""
    made = MadeUp()
    program = dla.compile_model(transformer(c, made.weights)).program
    w = {name: bench.on_device(array) for name, array in made.arrays.items()}
    for layer in map(str, range(c.layers)):
        for part in ("weight", "bias"):
            w[f"{layer}.qkv.{part}"] = torch.cat([w.pop(f"{layer}.{name}.{part}") for name in "qkv"], -1)
    ids = (bench.normal(c.batch, c.length, dtype=torch.float32).abs() * 1e4).long() % c.vocabulary
    return _case(bench, program, "y", {"ids": ids.int()}, torch_transformer(c), w, ids)


def torch_resnet(config: ResNetConfig) -> Callable[[Tensors, torch.Tensor], torch.Tensor]:
    """ResNet in torch, as (weights, images [batch, channels, size, size]) -> logits; batch norms folded beforehand."""

    def conv(w: Tensors, x: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
        kernel = w[f"{name}.weight"]
        return F.conv2d(x, kernel, w[f"{name}.bias"], stride=stride, padding=kernel.shape[-1] // 2)

    def run(w: Tensors, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(torch.relu(conv(w, x, "conv1", 2)), 3, 2, 1)
        for stage, depth in enumerate(config.depths):
            for number in range(depth):
                at, stride = f"layer{stage + 1}.{number}", 2 if stage and not number else 1
                y = torch.relu(conv(w, x, f"{at}.conv1"))
                y = torch.relu(conv(w, y, f"{at}.conv2", stride))
                y = conv(w, y, f"{at}.conv3")
                short = x if number else conv(w, x, f"{at}.downsample.0", stride)
                x = torch.relu(y + short)
        return torch.addmm(w["fc.bias"], x.mean((2, 3)), w["fc.weight"])

    return run


def folded(w: Tensors, eps: float = 1e-5) -> dict[str, torch.Tensor]:
    """ResNet's weights with each batch norm in the convolution before it: [out, in, k, k] channels last, and bias."""
    found = {name: tensor for name, tensor in w.items() if name.startswith("fc.")}
    for name, tensor in w.items():
        layer = name.removesuffix(".weight")
        if tensor.ndim == 4:
            norm = layer.replace("downsample.0", "downsample.1").replace("conv", "bn")
            gain, shift, mean, var = (w[f"{norm}.{part}"].float() for part in ("gain", "shift", "mean", "var"))
            scale = gain / torch.sqrt(var + eps)
            kernel = (tensor.float() * scale[:, None, None, None]).to(tensor.dtype)
            found[f"{layer}.weight"] = kernel.permute(0, 3, 1, 2)
            found[f"{layer}.bias"] = (shift - mean * scale).to(tensor.dtype)
    return found


def resnet_case(bench: Bench, batch: int, config: ResNetConfig | None = None) -> Case:
    """ResNet-50 in one launch."""
    torch.backends.cudnn.benchmark = True
    config = config or ResNetConfig(batch=batch, dtype=DType.BF16)
    made = MadeUp()
    program = dla.compile_model(resnet(config, made.weights)).program
    w = folded({name: bench.on_device(array) for name, array in made.arrays.items()})
    images = bench.normal(batch, config.size, config.size, config.channels)
    return _case(bench, program, "logits", {"images": images}, torch_resnet(config), w, images.permute(0, 3, 1, 2))


def _case(
    bench: Bench, program: dla.Program, output: str, inputs: Tensors,
    native: Callable[[Tensors, torch.Tensor], torch.Tensor], w: Tensors, given: torch.Tensor,
) -> Case:  # fmt: skip
    """`program` beside `native(w, given)`; exact is the latter in f32."""
    ours = bench.ours(program, inputs)

    def check() -> Check:
        wide = {name: tensor.float() for name, tensor in w.items()}
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        exact = native(wide, given.float() if given.is_floating_point() else given)
        return beside_native(ours, output, native(w, given), exact)

    return Case(Work(ours, bench.compiled(native, w, given)), check)


MINILM = Transformer(30522, 384, 6, 12, 1536, 1, 128, causal=False)
GPT2_B1 = Transformer(50257, 768, 12, 12, 3072, 1, 128, causal=True)
GPT2_B8 = Transformer(50257, 768, 12, 12, 3072, 8, 512, causal=True)
ROWS = [
    *(Row("networks", name, lambda bench, c=c: transformer_case(bench, c), (Bar(COMPILED, must, aim),), compiled=True)
      for name, c, must, aim in (("MiniLM shape b1 s128", MINILM, 1.5, 2.2),
                                 ("GPT-2-small shape b1 s128", GPT2_B1, 1.5, 2.2),
                                 ("GPT-2-small shape b8 s512", GPT2_B8, 0.9, 1.15))),
    *(Row("networks", f"ResNet-50 b{batch}", lambda bench, batch=batch: resnet_case(bench, batch),
          (Bar(COMPILED, must, aim),), compiled=True)
      for batch, must, aim in ((1, 1.2, 2.0), (32, 0.8, 1.15))),
]  # fmt: skip
