"""A decode step of a model of the shape of Llama-3.2-1B, many of them in one launch, and loading programs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

import dla
from dla.compiler.models.decoder import DecoderConfig, decoder, generator
from dla.compiler.models.resnet import ResNetConfig, resnet
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.program import Program
from speed.bench import Bench, Ours
from speed.check import OF_NATIVE, Check, beside_native, identical
from speed.networks import MadeUp, Tensors
from speed.row import COMPILED, Bar, Case, Row, Work

LLAMA = DecoderConfig(
    vocabulary=128256, width=2048, layers=16, heads=32, kv_heads=8, hidden=8192, context=1024, chunk=1,
    theta=500000.0, tied=True, dtype=DType.BF16,
)  # fmt: skip
PAST, COUNT = 512, 128
LAUNCHES = "a launch per token"

Step = Callable[[Tensors, list[Tensors], torch.Tensor, int], torch.Tensor]


def torch_step(c: DecoderConfig) -> Step:
    """One token in torch, as (weights, cache, ids [batch, 1], past) -> logits; keys and values go into the cache."""
    depth = c.width // c.heads

    def turned(w: Tensors, x: torch.Tensor, past: int) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        cos, sin = w["cos"][past], w["sin"][past]
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def attention(w: Tensors, cache: Tensors, x: torch.Tensor, at: str, past: int) -> torch.Tensor:
        heads = (x @ w[f"{at}.qkv"]).reshape(c.batch, 1, c.heads + 2 * c.kv_heads, depth).transpose(1, 2)
        q, k, v = heads.split((c.heads, c.kv_heads, c.kv_heads), 1)
        cache["key"][:, :, past : past + 1], cache["value"][:, :, past : past + 1] = turned(w, k, past), v
        held = [cache[part][:, :, : past + 1] for part in ("key", "value")]
        y = F.scaled_dot_product_attention(turned(w, q, past), *held, enable_gqa=True)
        return y.transpose(1, 2).reshape(x.shape) @ w[f"{at}.self_attn.o_proj.weight"]

    def run(w: Tensors, cache: list[Tensors], ids: torch.Tensor, past: int) -> torch.Tensor:
        x = w["model.embed_tokens.table"][ids]
        for layer in range(c.layers):
            at = f"model.layers.{layer}"
            y = F.rms_norm(x, (c.width,), w[f"{at}.input_layernorm.gain"], c.eps)
            x = x + attention(w, cache[layer], y, at, past)
            y = F.rms_norm(x, (c.width,), w[f"{at}.post_attention_layernorm.gain"], c.eps)
            gate, up = (y @ w[f"{at}.gate_up"]).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ w[f"{at}.mlp.down_proj.weight"]
        x = F.rms_norm(x, (c.width,), w["model.norm.gain"], c.eps)
        return x @ w["model.embed_tokens.table"].T

    return run


def torch_weights(bench: Bench, c: DecoderConfig, made: MadeUp) -> dict[str, torch.Tensor]:
    """The weights as torch's step takes them: products of one input joined, and the turn of each position."""
    w = {name: bench.on_device(array) for name, array in made.arrays.items()}
    for at in (f"model.layers.{layer}" for layer in range(c.layers)):
        w[f"{at}.qkv"] = torch.cat([w.pop(f"{at}.self_attn.{n}_proj.weight") for n in "qkv"], -1)
        w[f"{at}.gate_up"] = torch.cat([w.pop(f"{at}.mlp.{n}_proj.weight") for n in ("gate", "up")], -1)
    depth = c.width // c.heads
    angles = np.arange(c.context)[:, None] * c.theta ** (-np.arange(0, depth, 2) / depth)
    table = w["model.embed_tokens.table"]
    return w | {f.__name__: torch.from_numpy(f(angles)).to(table) for f in (np.cos, np.sin)}


def torch_cache(c: DecoderConfig, state: Tensors) -> list[Tensors]:
    """Keys and values [batch, kv_heads, context, depth] from the program's state, whose rows are values, then keys."""
    own = c.kv_heads * c.width // c.heads

    def heads(rows: torch.Tensor) -> torch.Tensor:
        return rows[:, : c.context].unflatten(-1, (c.kv_heads, -1)).transpose(1, 2).contiguous()

    layers = [state[f"layers.{layer}.cache"] for layer in range(c.layers)]
    return [{"value": heads(rows[..., :own]), "key": heads(rows[..., own:])} for rows in layers]


def _wide(w: Tensors) -> dict[str, torch.Tensor]:
    torch.backends.cuda.matmul.allow_tf32 = False
    return {name: tensor.float() for name, tensor in w.items()}


def _first(bench: Bench, c: DecoderConfig) -> torch.Tensor:
    return (bench.normal(c.batch, 1, dtype=torch.float32).abs() * 1e4).int() % c.vocabulary


def _state(bench: Bench, program: Program) -> dict[str, torch.Tensor]:
    return {t.name: bench.normal(*t.descriptor.bounds) for t in program.in_segment(Segment.STATE)}


@functools.lru_cache(maxsize=1)
def _step(c: DecoderConfig) -> tuple[Program, MadeUp]:
    """One token's program and its weights: gigabytes that several rows share."""
    made = MadeUp()
    return dla.compile_model(decoder(c, made.weights)).program, made


def step_case(bench: Bench, c: DecoderConfig, past: int) -> Case:
    """One token after `past` others, in one launch."""
    program, made = _step(c)
    w, state, ids = torch_weights(bench, c, made), _state(bench, program), _first(bench, c)
    cache, native = torch_cache(c, state), torch_step(c)
    ours = bench.ours(program, {"ids": ids}, {"past": past}, state)

    def check() -> Check:
        """A run changes state alike each time, so reruns are the same."""
        exact = native(_wide(w), [_wide(layer) for layer in cache], ids, past)
        return beside_native(ours, "logits", native(w, cache, ids, past), exact)

    def step(w: Tensors, cache: list[Tensors], ids: torch.Tensor) -> torch.Tensor:
        return native(w, cache, ids, past).argmax(-1)

    return Case(Work(ours, bench.compiled(step, w, cache, ids)), check)


def generate_case(bench: Bench, c: DecoderConfig, past: int, count: int) -> Case:
    """`count` tokens in one launch, beside as many launches of the step, with as much in the cache as on average."""
    one, made = _step(c)
    program = dla.compile_model(generator(c, made.weights, count=count)).program
    state, ids = _state(bench, program), _first(bench, c)
    ours = bench.ours(program, {"ids": ids}, {"past": past, "count": count}, state)
    step = bench.ours(one, {"ids": ids}, {"past": past + count // 2}, _state(bench, one))

    def steps() -> None:
        for _ in range(count):
            step()

    def check() -> Check:
        """What was written, given to torch token by token: how far below the likeliest one each token lies there."""
        same = identical(ours, "tokens")
        written = ours.output("tokens").to(ids)
        w, cache, native = torch_weights(bench, c, made), torch_cache(c, state), torch_step(c)
        wide, held = _wide(w), [_wide(layer) for layer in cache]
        below, off, given = 0.0, 0.0, ids
        for turn in range(count):
            exact = native(wide, held, given, past + turn)[:, -1]
            off = max(off, float((native(w, cache, given, past + turn)[:, -1] - exact).abs().max()))
            given = written[:, turn : turn + 1]
            below = max(below, float((exact.max(-1, keepdim=True).values - exact.gather(1, given.long())).max()))
        return Check(below / (2 * off), OF_NATIVE, same)

    return Case(Work(ours, {LAUNCHES: steps}), check)


def load_case(bench: Bench, program: Program, inputs: Tensors, dims: dict[str, int], output: str) -> Case:
    """From a program to a session that can run: verified, planned, and with its weights on the device already."""
    ours: Ours = bench.ours(program, inputs, dims)

    def wall() -> float:
        began = time.perf_counter()
        bench.machine.load(program)
        return time.perf_counter() - began

    def check() -> Check:
        """What a second session computes, with the weights of the first one."""
        ours()
        ours.check()
        first = ours.output(output).clone()
        return beside_native(bench.ours(program, inputs, dims), output, first, first)

    return Case(Work(ours), check, wall=wall)


def load_resnet(bench: Bench) -> Case:
    """ResNet-50 for one image."""
    program = dla.compile_model(resnet(ResNetConfig(batch=1, dtype=DType.BF16), MadeUp().weights)).program
    return load_case(bench, program, {"images": bench.normal(1, 224, 224, 3)}, {}, "logits")


def load_llama(bench: Bench) -> Case:
    """The decode step."""
    program, _ = _step(LLAMA)
    return load_case(bench, program, {"ids": _first(bench, LLAMA)}, {"past": PAST}, "logits")


ROWS = [
    Row("decode", f"Llama-3.2-1B shape decode b1 KV {PAST}", lambda bench: step_case(bench, LLAMA, PAST),
        (Bar("", 680, 600), Bar(COMPILED, 1.7)), compiled=True),
    Row("decode", f"the same, {COUNT} tokens in one launch", lambda bench: generate_case(bench, LLAMA, PAST, COUNT),
        (Bar(LAUNCHES, 0.97),)),
    Row("decode", "program load, ResNet-50", load_resnet, (Bar("", 200, 50),), unit="ms"),
    Row("decode", "program load, Llama-1B plan", load_llama, (Bar("", 200, 50),), unit="ms"),
]  # fmt: skip
