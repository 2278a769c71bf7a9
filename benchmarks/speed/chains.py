"""Chains of small dependent instructions: what the machine itself costs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import dla
from dla.compiler.models.perceptron import PerceptronConfig, perceptron
from dla.isa.program import Program
from speed.bench import Bench, to_numpy
from speed.check import Check, beside_native
from speed.networks import MadeUp
from speed.row import COMPILED, Bar, Case, Row, Work

GRAPH = "CUDA graph"
GEMV_COUNT, GEMV_WIDTH = 32, 2048
TINY_COUNT = 256
WIDTHS = (784, 1024, 1024, 1024, 1024, 10)


def gemv_chain(width: int, length: int, distinct: int, folder: Path) -> Program:
    """[1, width] @ [width, width], `length` times: x -> y; with w [distinct, width, width] of w.npy in `folder`."""
    names = ["x", *("ab"[i % 2] for i in range(length - 1)), "y"]
    body = "\n".join(f"    GEMM {names[i + 1]}, {names[i]}, w[{i % distinct}]" for i in range(length))
    text = f""".program gemv_chain
.input x : bf16[1, {width}]
.const w : bf16[{distinct}, {width}, {width}] from "w.npy"
.scratch a : bf16[1, {width}]
.scratch b : bf16[1, {width}]
.output y : bf16[1, {width}]
main:
{body}
    HALT
"""
    return dla.assemble(text, folder=folder)


def gemv_case(bench: Bench, width: int, count: int) -> Case:
    """A chain with as many weights as products, beside a CUDA graph."""
    x = bench.normal(1, width)
    w = bench.normal(2 * count, width, width, scale=1 / math.sqrt(width))

    def native(x: torch.Tensor, w: torch.Tensor, length: int) -> torch.Tensor:
        for i in range(length):
            x = x @ w[i]
        return x

    def work(length: int) -> Work:
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder) / "w.npy", to_numpy(w))
            ours = bench.ours(gemv_chain(width, length, 2 * count, Path(folder)), {"x": x})
        return Work(ours, {GRAPH: bench.graph(lambda: native(x, w, length))})

    once = work(count)

    def check() -> Check:
        return beside_native(once.ours, "y", native(x, w, count), native(x.double(), w.double(), count))

    return Case(once, check, work(2 * count), count)


def tiny_chain(length: int) -> Program:
    """X + 1 + 1 ... on f32[64], `length` times."""
    names = ["x", *("ab"[i % 2] for i in range(length - 1)), "y"]
    body = "\n".join(f"    EW.add {names[i + 1]}, {names[i]}, 1" for i in range(length))
    return dla.assemble(f""".program tiny_chain
.input x : f32[64]
.scratch a : f32[64]
.scratch b : f32[64]
.output y : f32[64]
main:
{body}
    HALT
""")


def tiny_case(bench: Bench, count: int) -> Case:
    """Additions of 64 numbers, beside a CUDA graph."""
    x = bench.normal(64, dtype=torch.float32)

    def native(x: torch.Tensor, length: int) -> torch.Tensor:
        for _ in range(length):
            x = x + 1
        return x

    def work(length: int) -> Work:
        return Work(bench.ours(tiny_chain(length), {"x": x}), {GRAPH: bench.graph(lambda: native(x, length))})

    once = work(count)
    return Case(once, lambda: beside_native(once.ours, "y", native(x, count), native(x.double(), count)),
                work(2 * count), count)  # fmt: skip


def mlp_case(bench: Bench, widths: Sequence[int], batch: int) -> Case:
    """A perceptron with relu between its layers, in one launch, beside the same in torch."""
    made = MadeUp()
    config = PerceptronConfig(tuple(widths), batch=batch, dtype=dla.DType.BF16)
    program = dla.compile_model(perceptron(config, made.weights)).program
    w = {name: bench.on_device(np.asarray(array)) for name, array in made.arrays.items()}
    x = bench.normal(batch, widths[0])

    def native(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        for layer in range(1, len(widths)):
            x = torch.addmm(w[f"fc{layer}.bias"], x, w[f"fc{layer}.weight"])
            x = torch.relu(x) if layer < len(widths) - 1 else x
        return x

    ours = bench.ours(program, {"x": x})

    def check() -> Check:
        exact = native({name: tensor.double() for name, tensor in w.items()}, x.double())
        return beside_native(ours, "logits", native(w, x), exact)

    return Case(Work(ours, bench.compiled(native, w, x)), check)


ROWS = [
    Row("chains", "GEMV chain [1,2048]x[2048,2048] dep", lambda bench: gemv_case(bench, GEMV_WIDTH, GEMV_COUNT),
        (Bar(GRAPH, 1.9, 2.4),)),
    Row("chains", "tiny dependent instruction", lambda bench: tiny_case(bench, TINY_COUNT), (Bar("", 1.5, 0.9),)),
    *(Row("chains", f"MLP 784-1024x4-10 b{batch}", lambda bench, batch=batch: mlp_case(bench, WIDTHS, batch),
          (Bar(COMPILED, must, aim),), compiled=True)
      for batch, must, aim in ((1, 3.0, 4.0), (64, 1.5, 2.0), (1024, 1.0, 1.3))),
]  # fmt: skip
