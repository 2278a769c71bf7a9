"""GEMM: large ones by themselves, small ones as dependent instructions of a running program, and a sweep over M."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

import dla
from dla.isa.program import Program
from speed.bench import Bench
from speed.check import Check, beside_native, within_bound
from speed.row import CLIFF, FASTEST, Action, Bar, Case, Row, Summary, Work, sizes

SAMPLED_ROWS = 64
"""Rows of a large product that are compared with f64 on the host."""
ADDMM, LT, CUBLAS, GRAPH = "addmm + gelu", "cublasLt fused", "cuBLAS", "CUDA graph"


@dataclass(frozen=True)
class Product:
    """[m, k] @ [k, n], with gelu(... + bias) after it where `fused`. `dtype` is a dla type; tf32 is f32 with math=tf32.

    As a chain, [m, k] @ [k, n] and [m, n] @ [n, k] take turns.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    fused: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        return {"bf16": torch.bfloat16, "f16": torch.float16}.get(self.dtype, torch.float32)

    @property
    def text(self) -> str:
        return f"({self.m},{self.n},{self.k})" if len({self.m, self.n, self.k}) > 1 else f"{self.m}^3"

    @property
    def options(self) -> str:
        """Attributes of the instruction."""
        return " math=tf32" if self.dtype == "tf32" else ""

    @property
    def stored(self) -> str:
        return "f32" if self.dtype == "tf32" else self.dtype


def single(p: Product) -> Program:
    """One GEMM: a, b (and bias) -> y."""
    bias, epilogue = (f".input bias : {p.stored}[{p.n}]\n", " bias=bias act=gelu_tanh") if p.fused else ("", "")
    return dla.assemble(f""".program gemm
.input a : {p.stored}[{p.m}, {p.k}]
.input b : {p.stored}[{p.k}, {p.n}]
{bias}.output y : {p.stored}[{p.m}, {p.n}]
main:
    GEMM y, a, b{epilogue}{p.options}
    HALT
""")


def chain(p: Product, length: int, distinct: int) -> Program:
    """`length` (even) GEMMs, each on the result of the one before, with weights that `distinct` pairs hold: x -> y."""
    lines = []
    for i in range(length):
        weight = f"{'v' if i % 2 else 'w'}[{i // 2 % distinct}]"
        out, given = ("h", "x" if i == 0 else "g") if i % 2 == 0 else ("y" if i == length - 1 else "g", "h")
        epilogue = f" bias={'c' if i % 2 else 'b'} act=gelu_tanh" if p.fused else ""
        lines.append(f"    GEMM {out}, {given}, {weight}{epilogue}{p.options}")
    biases = f".input b : {p.stored}[{p.n}]\n.input c : {p.stored}[{p.k}]\n" if p.fused else ""
    return dla.assemble(f""".program gemm_chain
.input x : {p.stored}[{p.m}, {p.k}]
.input w : {p.stored}[{distinct}, {p.k}, {p.n}]
.input v : {p.stored}[{distinct}, {p.n}, {p.k}]
{biases}.scratch h : {p.stored}[{p.m}, {p.n}]
.scratch g : {p.stored}[{p.m}, {p.k}]
.output y : {p.stored}[{p.m}, {p.k}]
main:
""" + "\n".join(lines) + "\n    HALT\n")  # fmt: skip


def single_case(bench: Bench, p: Product) -> Case:
    """One product in one launch, beside one call."""
    torch.backends.cuda.matmul.allow_tf32 = p.dtype == "tf32"
    a = bench.normal(p.m, p.k, dtype=p.torch_dtype)
    b = bench.normal(p.k, p.n, scale=1 / math.sqrt(p.k), dtype=p.torch_dtype)
    bias = bench.normal(p.n, dtype=p.torch_dtype)
    program = single(p)
    ours = bench.ours(program, {"a": a, "b": b} | ({"bias": bias} if p.fused else {}))
    natives: dict[str, Action] = {CUBLAS: lambda: torch.mm(a, b)}
    if p.fused:
        natives = {
            ADDMM: lambda: F.gelu(torch.addmm(bias, a, b), approximate="tanh"),
            LT: lambda: torch._addmm_activation(bias, a, b, use_gelu=True),
        }

    def check() -> Check:
        ours()
        rows = torch.randperm(p.m)[:SAMPLED_ROWS].to(a.device)
        sample = {"a": a[rows], "b": b, "got": ours.output("y")[rows]} | ({"bias": bias} if p.fused else {})
        return within_bound(ours, "y", program.instructions[0], [sample])

    return Case(Work(ours, natives), check)


def chain_case(bench: Bench, p: Product, count: int, distinct: int) -> Case:
    """`count` products in a program, and twice as many, beside CUDA graphs of as many calls."""
    torch.backends.cuda.matmul.allow_tf32 = p.dtype == "tf32"
    scale = 1.5 if p.fused else 1.0  # gelu makes numbers smaller
    x = bench.normal(p.m, p.k, dtype=p.torch_dtype)
    w = bench.normal(distinct, p.k, p.n, scale=scale / math.sqrt(p.k), dtype=p.torch_dtype)
    v = bench.normal(distinct, p.n, p.k, scale=scale / math.sqrt(p.n), dtype=p.torch_dtype)
    inputs = {"x": x, "w": w, "v": v}
    if p.fused:
        inputs |= {"b": bench.normal(p.n, scale=0.1, dtype=p.torch_dtype),
                   "c": bench.normal(p.k, scale=0.1, dtype=p.torch_dtype)}  # fmt: skip

    def native(step: str, given: Mapping[str, torch.Tensor], length: int) -> torch.Tensor:
        y = given["x"]
        for i in range(length):
            weight, bias = given["v" if i % 2 else "w"][i // 2 % distinct], given.get("c" if i % 2 else "b")
            if step == CUBLAS:
                y = torch.mm(y, weight)
            elif step == LT:
                y = torch._addmm_activation(bias, y, weight, use_gelu=True)
            else:
                y = F.gelu(torch.addmm(bias, y, weight), approximate="tanh")
        return y

    steps = (ADDMM, LT) if p.fused else (CUBLAS,)

    def work(length: int) -> Work:
        graphs = {step: bench.graph(lambda step=step: native(step, inputs, length)) for step in steps}
        return Work(bench.ours(chain(p, length, distinct), inputs), graphs)

    once, twice = work(count), work(2 * count)

    def check() -> Check:
        exact = native(steps[0], {name: tensor.double() for name, tensor in inputs.items()}, count)
        return beside_native(once.ours, "y", native(steps[0], inputs, count), exact)

    return Case(once, check, twice, count)


LARGE = (Product(8192, 8192, 8192), Product(4096, 4096, 4096), Product(4096, 11008, 4096))
SMALL = (
    # product, bar against cuBLAS, instructions in a chain, pairs of weights
    (Product(2048, 2048, 2048), 1.0, 8, 8),
    (Product(1024, 1024, 1024), 0.9, 16, 16),
    (Product(512, 512, 512), 0.95, 32, 32),
    (Product(128, 4096, 4096), 0.88, 16, 8),
    (Product(512, 3072, 768), 0.85, 16, 16),
)
SWEEP_MOST = 8192
SWEEP_TITLE = "GEMM bf16 (M,4096,4096) by M, dependent; native: cuBLAS"


def _rows() -> list[Row]:
    rows = []
    for dtype in ("bf16", "f16"):
        for shape in LARGE:
            p = replace(shape, dtype=dtype)
            name = f"GEMM {dtype} {p.text}"
            rows.append(Row("matrix", name, lambda bench, p=p: single_case(bench, p), (Bar(CUBLAS, 0.98, 1.02),)))
    for p, must, count, distinct in SMALL:
        rows.append(Row("matrix", f"GEMM {p.dtype} {p.text} dep",
                        lambda bench, p=p, c=count, d=distinct: chain_case(bench, p, c, d),
                        (Bar(CUBLAS, must, 1.05),)))  # fmt: skip
    fused = (Bar(ADDMM, 1.05, 1.3), Bar(LT, 0.92, 1.05))
    for shape in LARGE:
        p = replace(shape, fused=True)
        rows.append(Row("matrix", f"GEMM + bias + gelu {p.text}", lambda bench, p=p: single_case(bench, p), fused))
    for shape, _, count, distinct in SMALL:
        p = replace(shape, fused=True)
        rows.append(Row("matrix", f"GEMM + bias + gelu {p.text} dep",
                        lambda bench, p=p, c=count, d=distinct: chain_case(bench, p, c, d), fused))  # fmt: skip
    for dtype, must in (("tf32", 0.85), ("f32", 0.8)):
        p = Product(4096, 4096, 4096, dtype)
        rows.append(Row("matrix", f"GEMM {dtype} {p.text}", lambda bench, p=p: single_case(bench, p),
                        (Bar(CUBLAS, must, 1.0),)))  # fmt: skip
    for m in sizes(SWEEP_MOST):
        p = Product(m, 4096, 4096)  # two pairs of weights: twice the second-level cache
        rows.append(Row("sweep", f"GEMM bf16 M={m}", lambda bench, p=p: chain_case(bench, p, 4, 2),
                        sweep=(SWEEP_TITLE, m)))  # fmt: skip
    return rows


ROWS = _rows()
SUMMARIES = [Summary("sweep", f"GEMM bf16 (M,4096,4096), M = 1 to {SWEEP_MOST}, the worst", "GEMM bf16 M=",
                     (Bar(FASTEST, round(1 / CLIFF, 2)),), worst=True)]  # fmt: skip
