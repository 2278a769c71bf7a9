"""Products of f32, exact and in tf32: every tile shape, layout of operands and way of loading them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device.layout import PATH_CONV, PATH_GEMM
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import tilings
from dla.emulator.device.paths.tilings import Tile
from dla.isa.descriptor import Segment
from dla.isa.program import Program
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.references import compare

GEMM = """
.input a : f32[{m}, {k}]
.input at : f32[{k}, {m}]
.input b : f32[{k}, {n}]
.input bt : f32[{n}, {k}]
.input wide : f32[{m}, {k2}]
.output nn : f32[{m}, {n}]
.output nt : f32[{m}, {n}]
.output tn : f32[{m}, {n}]
.output tt : f32[{m}, {n}]
.output strided : f32[{m}, {n}]
.output unaligned : f32[{m}, {n}]
main:
    GEMM nn, a, b math={math}
    GEMM nt, a, bt.T math={math} alpha=0.5
    GEMM tn, at.T, b math={math}
    GEMM tt, at.T, bt.T math={math}
    GEMM strided, wide[:, :{k2}:2][:, :{k}], b math={math}
    GEMM unaligned, wide[:, 1:{k1}], bt.T math={math}
    HALT
"""
CONV = """
.input x : f32[3, {size}, {size}, {channels}]
.input w : f32[{outputs}, 3, 3, {channels}]
.output same : f32[3, {size}, {size}, {outputs}]
.output one : f32[3, {size}, {size}, {outputs}]
main:
    CONV same, x, w pads=[1, 1, 1, 1] math={math}
    CONV one, x, w[:, 1:2, 1:2, :] math={math}
    HALT
"""
SIZES = [
    (1, 10, 64), (33, 65, 130), (128, 128, 64), (130, 257, 77), (7, 5, 0), (1100, 1030, 68), (2000, 1500, 36),
    (1100, 1028, 100), (1536, 1280, 512),
]  # fmt: skip
"""Rows, columns and depth. The last four are large enough for the larger tiles on a GPU; two of them are aligned."""
FEW_BLOCKS = [(1, 10, 64), (33, 65, 130), (130, 90, 77), (7, 5, 0), (384, 128, 212), (250, 390, 133)]
"""The same for a device of three blocks: the last ones take the large tiles, through all stages of their pipelines."""
IMAGES = [(9, 3, 16), (14, 64, 70), (60, 8, 136)]
"""Height and width, channels, outputs."""
FEW_BLOCKS_IMAGES = [(5, 3, 16), (9, 20, 70), (11, 7, 128), (9, 40, 72)]
MATH = pytest.mark.parametrize("math", ["exact", "tf32"])
WAY_FEW = 1
"""The handler's way of few results (kernel/gemm_shape.cuh)."""
BUILDS = pytest.mark.parametrize("hopper", [False, True], ids=["portable", "hopper"])
ON_CPU = cpu_machine.needs_compiler


def check(text: str, load: Callable[[Program], Any]) -> None:
    """Within the bounds of the rows, and the same bits the second time."""
    program = assemble(text)
    rng = np.random.default_rng(1)
    inputs = program.in_segment(Segment.INPUT)
    given = {t.name: rng.standard_normal(t.descriptor.bounds).astype(t.descriptor.dtype.numpy) for t in inputs}
    session = load(program)
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    again = session.run(given)
    assert all(result.outputs[name].tobytes() == again.outputs[name].tobytes() for name in result.outputs)


def products(m: int, n: int, k: int, math: str) -> str:
    """Every layout of the operands, and some that are neither aligned nor contiguous."""
    return GEMM.format(m=m, n=n, k=k, k1=k + 1, k2=2 * k + 2, math=math)


@pytest.mark.gpu
@MATH
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_stay_within_their_bounds(m: int, n: int, k: int, math: str) -> None:
    """On a GPU, whichever operand lies across."""
    check(products(m, n, k, math), DeviceMachine().load)


@pytest.mark.gpu
@MATH
@pytest.mark.parametrize(("size", "channels", "outputs"), IMAGES)
def test_convolutions_stay_within_their_bounds(size: int, channels: int, outputs: int, math: str) -> None:
    """On a GPU, with windows that reach over the edges, and with a single tap."""
    check(CONV.format(size=size, channels=channels, outputs=outputs, math=math), DeviceMachine().load)


@ON_CPU
@BUILDS
@MATH
@pytest.mark.parametrize(("m", "n", "k"), FEW_BLOCKS)
def test_products_on_the_cpu(m: int, n: int, k: int, math: str, hopper: bool) -> None:
    """The kernel's own code where there is no GPU."""
    check(products(m, n, k, math), partial(cpu_machine.CpuSession, hopper=hopper))


@ON_CPU
@BUILDS
@MATH
@pytest.mark.parametrize(("size", "channels", "outputs"), FEW_BLOCKS_IMAGES)
def test_convolutions_on_the_cpu(size: int, channels: int, outputs: int, math: str, hopper: bool) -> None:
    """The same for convolutions."""
    text = CONV.format(size=size, channels=channels, outputs=outputs, math=math)
    check(text, partial(cpu_machine.CpuSession, hopper=hopper))


@ON_CPU
@pytest.mark.parametrize(("m", "n", "k"), [(132, 260, 100), (20, 132, 36)])
def test_products_as_they_are_through_the_ring(monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int) -> None:
    """Aligned ones take that path wherever it is thought quicker than the handler: here always."""
    monkeypatch.setattr(tilings, "HANDLER_TILES", ((Tile(32, 32), 10**6),))
    paths = []

    def load(program: Program) -> cpu_machine.CpuSession:
        session = cpu_machine.CpuSession(program, hopper=True)
        paths.extend(s.path for s in session.plan.schedules)
        return session

    check(products(m, n, k, "exact"), load)
    assert paths.count(PATH_GEMM) == 4
    check(CONV.format(size=9, channels=40, outputs=70, math="exact"), load)
    assert paths.count(PATH_CONV) == 1
    assert paths.count(PATH_GEMM) == 5


class Few:
    """A program of random products of few results: every layout, batches, epilogues, sizes around those of tiles."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors: list[str] = []
        self.code: list[str] = []

    def pick(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def tensor(self, kind: str, dims: Sequence[int], dtype: str = "f32") -> str:
        name = f"t{len(self.tensors)}"
        self.tensors.append(f".{kind} {name} : {dtype}[{', '.join(map(str, dims))}]")
        return name

    def operand(self, batch: tuple[int, ...], rows: int, columns: int) -> str:
        """Packed either way, with gaps, or not aligned."""
        every = ":, " * len(batch)
        match self.pick(*range(3 if batch else 5)):
            case 0:
                return self.tensor("input", (*batch, rows, columns))
            case 1:
                return self.tensor("input", (*batch, rows + 1, columns)) + f"[{every}:{rows}, :]"
            case 2:
                return self.tensor("input", (*batch, rows, columns + 3)) + f"[{every}:, 1:{columns + 1}]"
            case 3:
                return self.tensor("input", (rows, 2 * columns + 1)) + f"[:, ::2][:, :{columns}]"
        return self.tensor("input", (columns, rows)) + ".T"

    def step(self, name: str, m: int, n: int) -> str:
        """Of the epilogue."""
        if name == "act":
            return f"act={self.pick('relu', 'gelu', 'leaky_relu')}"
        if name == "clamp":
            return "clamp=[-0.5, 2]"
        return f"{name}={self.tensor('input', self.pick((n,), (m, 1), (m, n)), self.pick('f32', 'bf16'))}"

    def product(self) -> None:
        glu, batch = self.rng.random() < 0.15, self.pick((), (), (2,), (2, 3))
        m = self.pick(1, 3, 8) if batch else self.pick(1, 2, 7, 8, 9, 17, 32, 65)
        n = self.pick(1, 4, 5, 10) if batch or m > 17 else self.pick(1, 4, 8, 10, 31, 32, 33)
        k = self.pick(0, 1, 4, 7, 31, 64, 100, 784)
        out = self.tensor("output", (*batch, m, n + 2), self.pick("f32", "f32", "f16", "bf16"))
        self.code.append(f"FILL {out}, 2")
        out += f"[{':, ' * len(batch)}:, {self.pick(f':{n}', f'1:{n + 1}')}]"
        a, b = self.operand(batch, m, k), self.operand(self.pick(batch, ()), k, 2 * n if glu else n)
        more = [f"alpha={self.pick(1, 0.5)}"]
        if glu:
            more.append(f"unit={self.pick('silu', 'relu')}")
        elif self.rng.random() < 0.3:
            more.append(f"c={self.tensor('input', self.pick((m, n), (n,)))} beta=-0.5")
        steps = self.rng.permutation(("bias", "act", "residual", "gate", "clamp"))[: self.rng.integers(4)]
        more += [self.step(name, m, n) for name in steps]
        self.code.append(f"GEMM{'.glu' if glu else ''} {out}, {a}, {b} {' '.join(more)}")

    def text(self, count: int) -> str:
        for _ in range(count):
            self.product()
        return "\n".join([*self.tensors, "main:", *self.code, "HALT", ""])


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4))
def test_products_of_few_results(seed: int) -> None:
    """On a GPU, whose blocks are enough for each of them to go the way of few results."""
    check(Few(seed).text(60), DeviceMachine().load)


@ON_CPU
@BUILDS
@pytest.mark.parametrize("seed", range(2))
def test_products_of_few_results_on_the_cpu(monkeypatch: pytest.MonkeyPatch, seed: int, hopper: bool) -> None:
    """Where there is a block for each tile of a few rows: every one of them goes that way."""
    monkeypatch.setattr(cpu_machine, "BLOCKS", 10)
    ways: list[int] = []

    def load(program: Program) -> cpu_machine.CpuSession:
        session = cpu_machine.CpuSession(program, hopper=hopper, checked=hopper)
        ways.extend(way for mnemonic, way in session.ways() if mnemonic == "GEMM")
        return session

    check(Few(seed).text(20), load)
    assert ways == [WAY_FEW] * 20
