"""ATTENTION: prefill by itself, and sweeps over the length of prompts and of what one token looks back on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from torch.nn.attention import SDPBackend, sdpa_kernel

import dla
from dla.isa.program import Program
from speed.bench import Bench
from speed.check import Check, within_bound
from speed.row import CLIFF, FASTEST, Action, Bar, Case, Row, Summary, Work, sizes

SAMPLED = 256
"""Queries of one head, at the beginning and at the end, that are compared with f64 on the host."""
FA2, CUDNN = "FlashAttention 2", "cuDNN"
BACKENDS = {FA2: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True)
class Shape:
    """[batch, heads, length, depth] for queries, keys and values alike.

    With `queries`, there are so many of them; with `shared`, so many heads have one head of keys and values in common.
    """

    batch: int
    heads: int
    length: int
    depth: int
    causal: bool
    queries: int | None = None
    shared: int = 1

    @property
    def dims(self) -> tuple[int, ...]:
        """Of the queries."""
        return self.batch, self.heads, self.queries or self.length, self.depth

    @property
    def held(self) -> tuple[int, ...]:
        """Of keys and values."""
        return self.batch, self.heads // self.shared, self.length, self.depth

    @property
    def text(self) -> str:
        b, h, s, d = self.dims
        return f"b{b} h{h} s{s} d{d} {'causal' if self.causal else 'full'}"


def chain(shape: Shape, length: int) -> Program:
    """`length` ATTENTIONs over the same keys and values; the result of each is the next one's queries: q, k, v -> y."""
    causal = " causal" if shape.causal else ""
    names = ["q", *("ab"[i % 2] for i in range(length - 1)), "y"]
    lines = [f"    ATTENTION {out}, {given}, k, v{causal}" for given, out in pairwise(names)]
    dims, held = list(shape.dims), list(shape.held)
    declared = "\n".join(f".{segment} {name} : bf16{held if name in 'kv' else dims}" for segment, name in
                         (("input", "q"), ("input", "k"), ("input", "v"), ("scratch", "a"), ("scratch", "b"),
                          ("output", "y")))  # fmt: skip
    return dla.assemble(f".program attention\n{declared}\nmain:\n" + "\n".join(lines) + "\n    HALT\n")


def _backend(name: str, shape: Shape) -> Callable[..., torch.Tensor]:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=shape.shared > 1)

    return attend


def _runs(name: str, shape: Shape, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the backend takes the shape: cuDNN takes no single query."""
    try:
        _backend(name, shape)(q, k, v)
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        return False
    return True


def case(bench: Bench, shape: Shape, count: int | None = None) -> Case:
    """One ATTENTION in one launch, beside one call; or chains of `count` and twice as many beside CUDA graphs."""
    q, k, v = (bench.normal(*dims) for dims in (shape.dims, shape.held, shape.held))
    backends = [name for name in BACKENDS if bench.device == "cuda" and _runs(name, shape, q, k, v)]

    def native(name: str, length: int) -> None:
        attend, y = _backend(name, shape), q
        for _ in range(length):
            y = attend(y, k, v)

    def work(length: int, wrap: Callable[[Action], Action]) -> Work:
        ours = bench.ours(chain(shape, length), {"q": q, "k": k, "v": v})
        return Work(ours, {name: wrap(lambda name=name: native(name, length)) for name in backends})

    def check() -> Check:
        program = chain(shape, 1)
        one = bench.ours(program, {"q": q, "k": k, "v": v})
        one()
        got, few = one.output("y"), min(SAMPLED, shape.dims[2])
        head = (slice(-1, None), slice(-1, None))
        last = {"q": q[head][:, :, -few:], "k": k[head], "v": v[head], "got": got[head][:, :, -few:]}
        # Seen causally, the first queries see the first keys only.
        first = {"q": q[head][:, :, :few], "k": k[head][:, :, :few], "v": v[head][:, :, :few],
                 "got": got[head][:, :, :few]}  # fmt: skip
        samples = [last, first] if shape.causal else [last]
        return within_bound(one, "y", program.instructions[0], samples)

    if count is None:
        return Case(work(1, lambda action: action), check)
    return Case(work(count, bench.graph), check, work(2 * count, bench.graph), count)


BARS = (Bar(FA2, 1.4, 1.8), Bar(CUDNN, 0.8, 1.0))
SHAPES = (Shape(4, 16, 4096, 128, False), Shape(4, 16, 4096, 128, True), Shape(4, 32, 4096, 64, True))
SWEEP_MOST = 32768
PREFILL_TITLE = "ATTENTION bf16 b1 h16 d128 causal by length, dependent; native: best of SDPA"
DECODE_TITLE = "ATTENTION bf16 b1, 1 query, h32 kv8 d128 by keys, dependent; native: best of SDPA"


def _sweep(name: str, title: str, shape: Callable[[int], Shape]) -> list[Row]:
    """A row for each size. Short ones take longer chains, because their times are near what events resolve."""

    def row(size: int) -> Row:
        count = 8 if size <= 2048 else 2
        return Row("sweep", f"{name}{size}", lambda bench: case(bench, shape(size), count), sweep=(title, size))

    return [row(size) for size in sizes(SWEEP_MOST)]


ROWS = [
    *(Row("attention", f"ATTENTION {shape.text}", lambda bench, shape=shape: case(bench, shape), BARS)
      for shape in SHAPES),
    *_sweep("ATTENTION s=", PREFILL_TITLE, lambda length: Shape(1, 16, length, 128, True)),
    *_sweep("ATTENTION keys=", DECODE_TITLE, lambda keys: Shape(1, 32, keys, 128, False, queries=1, shared=4)),
]  # fmt: skip
SUMMARIES = [
    Summary("sweep", f"ATTENTION {what}, {sized} 1 to {SWEEP_MOST}, the worst", prefix,
            (Bar(FASTEST, round(1 / CLIFF, 2)),), worst=True)
    for what, sized, prefix in (("b1 h16 d128 causal", "length", "ATTENTION s="),
                                ("b1 h32 kv8 d128, 1 query", "keys", "ATTENTION keys="))
]  # fmt: skip
