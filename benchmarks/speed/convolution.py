"""CONV: the distinct layers of ResNet-50 (He et al. 2015, with the stride on the 3x3, as torchvision has it)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

import dla
from dla.isa.program import Program
from speed.bench import Bench
from speed.check import Check, within_bound
from speed.row import Bar, Case, Row, Summary, Work

CUDNN = "cuDNN autotuned"
CHAIN = 8


@dataclass(frozen=True)
class Layer:
    """A square convolution of [n, size, size, inputs]."""

    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1

    @property
    def out_size(self) -> int:
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def text(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        return f"{self.inputs}->{self.outputs}@{self.size} {self.kernel}x{self.kernel}{stride}"

    @property
    def attributes(self) -> str:
        return f"strides=[{self.stride}, {self.stride}] pads=[{', '.join([str(self.kernel // 2)] * 4)}]"

    def x_elements(self, n: int) -> int:
        return n * self.size**2 * self.inputs

    def y_elements(self, n: int) -> int:
        return n * self.out_size**2 * self.outputs


def layers() -> list[Layer]:
    """ResNet-50's, each once: the stem, then by stage what its blocks and its shortcut have."""
    found = [Layer(224, 3, 64, 7, 2)]
    size, inputs = 56, 64
    for stage, width in enumerate((64, 128, 256, 512)):
        stride = 2 if stage else 1
        after = size // stride
        found += [
            Layer(size, inputs, width, 1), Layer(size, width, width, 3, stride), Layer(after, width, 4 * width, 1),
            Layer(size, inputs, 4 * width, 1, stride), Layer(after, 4 * width, width, 1), Layer(after, width, width, 3),
        ]  # fmt: skip
        size, inputs = after, 4 * width
    return list(dict.fromkeys(found))


def single(layer: Layer, n: int) -> Program:
    """One CONV: x, w -> y."""
    s, p = layer.size, layer.out_size
    return dla.assemble(f""".program conv
.input x : bf16[{n}, {s}, {s}, {layer.inputs}]
.input w : bf16[{layer.outputs}, {layer.kernel}, {layer.kernel}, {layer.inputs}]
.output y : bf16[{n}, {p}, {p}, {layer.outputs}]
main:
    CONV y, x, w {layer.attributes}
    HALT
""")


def chain(layer: Layer, n: int, length: int) -> Program:
    """`length` (even) CONVs with one weight, each of which reads memory that the one before wrote: x, w -> y.

    Input and output differ in size, so two flat tensors take turns, and what the smaller one leaves of the larger
    one's elements stays as it was.
    """
    inputs, outputs = layer.x_elements(n), layer.y_elements(n)
    flat, s, p = max(inputs, outputs), layer.size, layer.out_size
    lines = [
        f"    CONV {after}[:{outputs}].reshape({n}, {p}, {p}, {layer.outputs}), "
        f"{before}[:{inputs}].reshape({n}, {s}, {s}, {layer.inputs}), w {layer.attributes}"
        for before, after in ([("a", "b"), ("b", "a")] * length)[:length]
    ]
    return dla.assemble(f""".program conv_chain
.input x : bf16[{inputs}]
.input w : bf16[{layer.outputs}, {layer.kernel}, {layer.kernel}, {layer.inputs}]
.scratch a : bf16[{flat}]
.scratch b : bf16[{flat}]
.output y : bf16[{outputs}]
main:
    FILL a, 0.5
    FILL b, 0.5
    COPY a[:{inputs}], x
""" + "\n".join(lines) + f"\n    COPY y, a[:{outputs}]\n    HALT\n")  # fmt: skip


def _tensors(bench: Bench, layer: Layer, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = bench.normal(n, layer.size, layer.size, layer.inputs)
    shape = (layer.outputs, layer.kernel, layer.kernel, layer.inputs)
    return x, bench.normal(*shape, scale=1 / math.sqrt(layer.kernel**2 * layer.inputs))


def _native(layer: Layer, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Channels last, as both tensors lie: [n, size, size, inputs] -> [n, outputs, out_size, out_size]."""
    return F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), stride=layer.stride, padding=layer.kernel // 2)


def _check(bench: Bench, layer: Layer, x: torch.Tensor, w: torch.Tensor) -> Check:
    """One CONV of at most two samples: what each instruction of a chain does, too."""
    few = x[:2]
    program = single(layer, few.shape[0])
    ours = bench.ours(program, {"x": few, "w": w})
    ours()
    sample = {"x": few[-1:], "w": w, "got": ours.output("y")[-1:]}
    return within_bound(ours, "y", program.instructions[0], [sample])


def single_case(bench: Bench, layer: Layer, n: int) -> Case:
    """One layer in one launch, beside one call."""
    torch.backends.cudnn.benchmark = True
    x, w = _tensors(bench, layer, n)
    ours = bench.ours(single(layer, n), {"x": x, "w": w})

    def check() -> Check:
        ours()
        sample = {"x": x[-1:], "w": w, "got": ours.output("y")[-1:]}
        return within_bound(ours, "y", single(layer, n).instructions[0], [sample])

    return Case(Work(ours, {CUDNN: lambda: _native(layer, x, w)}), check)


def chain_case(bench: Bench, layer: Layer, n: int) -> Case:
    """A chain in a program, beside CUDA graphs of as many calls (a graph from one stream is a chain by itself)."""
    torch.backends.cudnn.benchmark = True
    x, w = _tensors(bench, layer, n)

    def native(length: int) -> None:
        for _ in range(length):
            _native(layer, x, w)

    def work(length: int) -> Work:
        graph = bench.graph(lambda: native(length))
        return Work(bench.ours(chain(layer, n, length), {"x": x.reshape(-1), "w": w}), {CUDNN: graph})

    return Case(work(CHAIN), lambda: _check(bench, layer, x, w), work(2 * CHAIN), CHAIN)


ROWS = [
    *(Row("convolution", f"CONV n=32 {layer.text}", lambda bench, layer=layer: single_case(bench, layer, 32))
      for layer in layers()),
    *(Row("convolution", f"CONV n=1 dep {layer.text}", lambda bench, layer=layer: chain_case(bench, layer, 1))
      for layer in layers()),
]  # fmt: skip
SUMMARIES = [
    Summary("convolution", "CONV bf16, ResNet-50 layers n=32, geometric mean", "CONV n=32 ", (Bar(CUDNN, 0.8, 1.05),)),
    Summary("convolution", "CONV bf16, ResNet-50 layers n=1 dep, geometric mean", "CONV n=1 ", (Bar(CUDNN, 1.5, 3.0),)),
]
