"""A decode step of a model of the shape of Llama-3.2-1B, many of them in one launch, and loading programs."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

import dla
from dla.compiler.models.decoder import DecoderConfig, decoder
from dla.compiler.models.resnet import ResNetConfig, resnet
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.program import Program
from speed.bench import Bench, Ours
from speed.check import Check, beside_native
from speed.networks import COMPILED, MadeUp, Tensors
from speed.row import Bar, Case, Row, Work

LLAMA = DecoderConfig(
    vocabulary=128256, width=2048, layers=16, heads=32, kv_heads=8, hidden=8192, context=1024, chunk=1,
    theta=500000.0, tied=True, dtype=DType.BF16,
)  # fmt: skip
PAST = 512
LOADS = 5


def torch_step(c: DecoderConfig, past: int) -> Callable[[Tensors, Tensors, torch.Tensor], torch.Tensor]:
    """One token in torch, as (weights, cache, ids [batch, 1]) -> logits; writes its keys and values at `past`."""
    depth = c.width // c.heads

    def turned(w: Tensors, x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        cos, sin = w["cos"], w["sin"]
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def attention(w: Tensors, cache: Tensors, x: torch.Tensor, at: str, layer: int) -> torch.Tensor:
        qkv = x @ w[f"{at}.self_attn.qkv"]
        heads = qkv.reshape(c.batch, 1, c.heads + 2 * c.kv_heads, depth).transpose(1, 2)
        q, k, v = heads.split((c.heads, c.kv_heads, c.kv_heads), 1)
        held = []
        for part, new in (("key", turned(w, k)), ("value", v)):
            cache[f"layers.{layer}.{part}"][:, :, past : past + 1] = new
            held.append(cache[f"layers.{layer}.{part}"][:, :, : past + 1])
        y = F.scaled_dot_product_attention(turned(w, q), *held, enable_gqa=True)
        return y.transpose(1, 2).reshape(x.shape) @ w[f"{at}.self_attn.o_proj.weight"]

    def run(w: Tensors, cache: Tensors, ids: torch.Tensor) -> torch.Tensor:
        x = w["model.embed_tokens.table"][ids]
        for layer in range(c.layers):
            at = f"model.layers.{layer}"
            y = F.rms_norm(x, (c.width,), w[f"{at}.input_layernorm.gain"], c.eps)
            x = x + attention(w, cache, y, at, layer)
            y = F.rms_norm(x, (c.width,), w[f"{at}.post_attention_layernorm.gain"], c.eps)
            gate, up = (y @ w[f"{at}.mlp.gate_up"]).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ w[f"{at}.mlp.down_proj.weight"]
        x = F.rms_norm(x, (c.width,), w["model.norm.gain"], c.eps)
        return x @ w["model.embed_tokens.table"].T

    return run


def _joined(c: DecoderConfig, w: dict[str, torch.Tensor], past: int) -> None:
    """Make of the weights what torch's step takes: products of the same input in one, and the turn at `past`."""
    for layer in range(c.layers):
        at = f"model.layers.{layer}"
        w[f"{at}.self_attn.qkv"] = torch.cat([w.pop(f"{at}.self_attn.{n}_proj.weight") for n in "qkv"], -1)
        w[f"{at}.mlp.gate_up"] = torch.cat([w.pop(f"{at}.mlp.{n}_proj.weight") for n in ("gate", "up")], -1)
    depth = c.width // c.heads
    angles = past * c.theta ** (-np.arange(0, depth, 2) / depth)
    table = w["model.embed_tokens.table"]
    w |= {f.__name__: torch.from_numpy(f(angles)).to(table) for f in (np.cos, np.sin)}


def step_case(bench: Bench, c: DecoderConfig, past: int) -> Case:
    """One token after `past` others, in one launch."""
    made = MadeUp()
    program = dla.compile_model(decoder(c, made.weights)).program
    w = {name: bench.on_device(array) for name, array in made.arrays.items()}
    _joined(c, w, past)
    cache = {t.name: bench.normal(*t.descriptor.bounds) for t in program.in_segment(Segment.STATE)}
    ids = (bench.normal(c.batch, 1, dtype=torch.float32).abs() * 1e4).long() % c.vocabulary
    ours = bench.ours(program, {"ids": ids.int()}, {"past": past}, cache)
    native = torch_step(c, past)

    def check() -> Check:
        """The state that a run changes is what every run writes alike, so reruns are the same."""
        wide, held = ({name: tensor.float() for name, tensor in part.items()} for part in (w, cache))
        torch.backends.cuda.matmul.allow_tf32 = False
        return beside_native(bench, ours, "logits", native(w, cache, ids), native(wide, held, ids))

    def step(w: Tensors, cache: Tensors, ids: torch.Tensor) -> torch.Tensor:
        return native(w, cache, ids).argmax(-1)

    return Case(Work(ours, bench.compiled(step, w, cache, ids)), check)


def load_case(bench: Bench, program: Program, inputs: Tensors, dims: dict[str, int], output: str) -> Case:
    """From a program to a session that can run: verified, planned, and with its weights on the device already."""
    ours: Ours = bench.ours(program, inputs, dims)

    def wall() -> float:
        began = time.perf_counter()
        bench.machine.load(program)
        return time.perf_counter() - began

    def check() -> Check:
        ours()
        first = ours.output(output).clone()
        return beside_native(bench, bench.ours(program, inputs, dims), output, first, first)

    return Case(Work(ours), check, wall=wall)


def load_resnet(bench: Bench) -> Case:
    """ResNet-50 for one image."""
    program = dla.compile_model(resnet(ResNetConfig(batch=1, dtype=DType.BF16), MadeUp().weights)).program
    return load_case(bench, program, {"images": bench.normal(1, 224, 224, 3)}, {}, "logits")


def load_llama(bench: Bench) -> Case:
    """The decode step."""
    program = dla.compile_model(decoder(LLAMA, MadeUp().weights)).program
    ids = torch.full((1, 1), 7, dtype=torch.int32, device=bench.device)
    return load_case(bench, program, {"ids": ids}, {"past": PAST}, "logits")


ROWS = [
    Row("decode", "Llama-3.2-1B shape decode b1 KV 512", lambda bench: step_case(bench, LLAMA, PAST),
        (Bar("", 680, 600), Bar(COMPILED, 1.7)), compiled=True),
    Row("decode", "program load, ResNet-50", load_resnet, (Bar("", 200, 50),), unit="ms"),
    Row("decode", "program load, Llama-1B plan", load_llama, (Bar("", 200, 50),), unit="ms"),
]  # fmt: skip
