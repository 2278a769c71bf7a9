"""Every way of every hot path on a GPU, whichever the plan would choose: small, so that `make sanitize` can watch.

Tests of the paths try ways on the emulated device, and on a GPU what the plan chooses there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import build, layout, plan
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Target, tilings
from dla.emulator.device.paths.choices import Measured, fields_of
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.emulator.device.session import DeviceSession
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.program import Program
from dla.tests.emulator.device import cpu_machine, test_paths_conv, test_paths_flash, test_paths_gemm, test_paths_pixels
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.references import compare
from dla.tests.emulator.device.test_exchange import chain, text
from dla.tests.emulator.device.test_on_cpu import IN_BOXES
from dla.tests.emulator.device.test_paths_fusion import CHAIN
from dla.tests.emulator.device.test_paths_low import LOW
from dla.tests.emulator.device.test_paths_tall import LAYERS

BLOCKS = 132
SANITIZED_TIMEOUT = 120.0
"""Seconds: what watches every access takes hundreds of times as long."""
LARGEST = tilings.TILES[0]
ANY_TILES = (*tilings.SCRATCH_TILES, tilings.LINE_TILE)
SPLIT = (Choice(Tile(128, 128), 2), Choice(Tile(64, 64), 2))
SHARED = (
    Choice(tilings.LINE_TILE, 1, "a"), Choice(Tile(128, 128), 1, "b"), Choice(Tile(64, 128), 1, "b"),
    Choice(Tile(128, 64), 1, "a"),
)  # fmt: skip
TOGETHER = tuple(Choice(tile, 2, "depth") for tile in tilings.TOGETHER_TILES)
IN_PAIRS = (Choice(LARGEST, 1, "b"), Choice(LARGEST, 1, "a"))
WINDOWS = (Choice(Tile(64, 64), 1), Choice(Tile(64, 64), 3), Choice(Tile(128, 64), 2), Choice(Tile(128, 128), 1))

ROWS = """
.input x : bf16[{rows}, {columns}]
.input gain : bf16[{columns}]
.input i : i32[9]
.output relu : bf16[{rows}, {columns}]
.output gelu : bf16[{rows}, {columns}]
.output soft : bf16[{rows}, {columns}]
.output layer : bf16[{rows}, {columns}]
.output rms : bf16[{rows}, {columns}]
.output turned : bf16[{columns}, {rows}]
.output folded : bf16[{rows}]
.output picked : bf16[9, {columns}]
.output added : bf16[{rows}, {columns}]
main:
    ACT.relu relu, x
    ACT.gelu gelu, x
    SOFTMAX soft, x axis=-1
    NORM.layer layer, x, gain, gain
    NORM.rms rms, x, gain
    COPY turned, x.T
    REDUCE.sum folded, x axes=[1]
    GATHER picked, x, i axis=0
    EW.add added, relu, rms
    HALT
"""
"""Where warps share a row, racecheck sees races behind teams with more rows than others: "uneven" (docs/machine.md)."""
POOLED = """
.input x : bf16[2, 30, 34, 72]
.output y : bf16[2, 15, 17, 72]
main:
    POOL.max y, x window=[3, 3] strides=[2, 2] pads=[1, 1, 1, 1]
    HALT
"""


@dataclass(frozen=True)
class Way:
    """A program, the paths that its plan has to have, and the way that products take where it is offered."""

    program: Callable[[], Program]
    paths: tuple[int, ...]
    choice: Choice | None = None

    def measured(self, _key: str) -> Measured | None:
        """As if `choice` had been measured to be the quickest: what the plan asks of `Choices`."""
        return Measured(fields_of(self.choice), 0.0) if self.choice else None

    def is_taken(self, made: plan.Plan) -> bool:
        """Whether the plan does as it should."""
        taken = [s.decision.choice for s in made.schedules if s.decision]
        return set(self.paths) <= {s.path for s in made.schedules} and (not self.choice or self.choice in taken)


def _boxes() -> Program:
    sizes: Mapping[str, Any] = {"depth": 328, "weights": "328, 520", "turned": "", "epilogue": " bias=bias act=gelu"}
    return assemble(IN_BOXES.format(dtype="bf16", **sizes))


def _low(depth: int) -> Program:
    return assemble(LOW.replace(": T[", ": bf16[").replace("K", str(depth)))


def _tall(outputs: int) -> Program:
    sizes: Mapping[str, Any] = {"channels": 72, "outputs": outputs, "epilogue": " bias=bias act=relu"}
    return assemble(LAYERS.format(dtype="bf16", **sizes))


def _normalised() -> Program:
    made = CHAIN.format(dtype="bf16", m=2, n=64, k=2048, n8=64, half=32, even=64)
    return assemble(made.replace("bias=b2", "bias=w[:, 0]").replace("residual=c2", "residual=v[0]"))


def _attention(name: str) -> Program:
    attributes, types, _ = test_paths_flash.CASES[name]
    return test_paths_flash.attention(attributes, **types)


def _few_channels(way: str) -> Program:
    return test_paths_conv.batch(way, DType.BF16, 4, plain=True).program()


def _shown(choice: Choice) -> str:
    parts = (f"{choice.tile.rows}x{choice.tile.columns}", f"in {choice.splits}" * (choice.splits > 1), choice.shared)
    return " ".join(filter(None, parts))


def _of(*tiles: Tile) -> tuple[Choice, ...]:
    return tuple(Choice(tile, 1) for tile in tiles)


def _each(
    name: str, program: Callable[[], Program], choices: tuple[Choice, ...], path: int = layout.PATH_GEMM
) -> dict[str, Way]:
    """A way for each choice."""
    return {f"{name} {_shown(choice)}": Way(program, (path,), choice) for choice in choices}


def _listed(path: int, **programs: Callable[[], Program]) -> dict[str, Way]:
    """A way for each program, whatever it chooses on its path."""
    return {name.replace("_", " "): Way(program, (path,)) for name, program in programs.items()}


on_cpu = cpu_machine.needs_compiler
FLOATS = test_paths_gemm.product("f32[1024, 256]", "f32[256, 1024]", "f32[1024, 1024]")
WAYS: dict[str, Way] = {
    **_each("GEMM", lambda: test_paths_gemm.program("bf16"), (*_of(*ANY_TILES), *SHARED)),
    **_each("GEMM f16", lambda: test_paths_gemm.program("f16"), _of(Tile(64, 64), tilings.LINE_TILE)),
    **_each("GEMM boxes", _boxes, (*_of(LARGEST, tilings.HIGHER_TILE), *IN_PAIRS)),
    **_each("GEMM low", lambda: _low(200), _of(*tilings.LOW_TILES)),
    **_each("GEMM deep", lambda: _low(512), (*SPLIT, *TOGETHER)),
    **_each("GEMM tf32", lambda: test_paths_gemm.program("tf32"), _of(*tilings.TURNED_TILES[1:])),
    **_each("GEMM f32", lambda: assemble(FLOATS), _of(*tilings.EXACT_TILES)),
    **_listed(
        layout.PATH_STREAM,
        streamed=lambda: assemble(text(chain(3, " bias=c act=relu"), 1, 1024)),
        streamed_packed=lambda: assemble(text(chain(3, ".T"), 2, 2048)),
        streamed_any=lambda: assemble(text(chain(2, ".T") + chain(2), 7, 520)),
        streamed_norm=_normalised,
    ),
    **_each("CONV", lambda: assemble(test_paths_conv.CUT), (*WINDOWS, *TOGETHER), layout.PATH_CONV),
    **_each("CONV tall", lambda: _tall(136), _of(*tilings.TALL_TILES), layout.PATH_CONV),
    **_each("CONV tall", lambda: _tall(104), _of(tilings.FEW_OUTPUTS_TILE), layout.PATH_CONV),
    **_listed(layout.PATH_PIXELS, CONV_of_images=test_paths_pixels.program_of),
    **_listed(
        layout.PATH_FLASH,
        ATTENTION=lambda: _attention("causal"),
        ATTENTION_wide=lambda: _attention("wide"),
        ATTENTION_wide_causal=lambda: _attention("wide causal"),
        ATTENTION_halves=lambda: _attention("halves"),
    ),
    **_listed(
        layout.PATH_GENERIC,
        CONV_narrow=lambda: _few_channels("narrow"),
        CONV_depthwise=lambda: _few_channels("depthwise"),
        ATTENTION_of_a_token=lambda: _attention("a token"),
        ATTENTION_of_tokens=lambda: _attention("five tokens"),
        ATTENTION_in_rows=lambda: _attention("one tile"),
        ATTENTION_in_wide_rows=lambda: _attention("wide rows"),
        ATTENTION_in_narrow_rows=lambda: _attention("narrow rows"),
        rows_of_1000=lambda: assemble(ROWS.format(rows=300, columns=1000)),
        rows_of_8192=lambda: assemble(ROWS.format(rows=4 * BLOCKS, columns=8192)),
        uneven_rows_of_8192=lambda: assemble(ROWS.format(rows=300, columns=8192)),
        POOL=lambda: assemble(POOLED),
    ),
}


def drawn(program: Program) -> dict[str, Any]:
    """Inputs, the same every time; indices are valid for anything with nine rows."""
    rng = np.random.default_rng(zlib.crc32(program.name.encode()))
    found = {}
    for tensor in program.in_segment(Segment.INPUT):
        d = tensor.descriptor
        found[tensor.name] = (
            values(rng, d.bounds, d.dtype) if d.dtype.is_float else rng.integers(0, 9, d.bounds).astype(d.dtype.numpy)
        )
    return found


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_plan_takes_the_way(way):
    """On an H200: what is no longer offered would not be tried."""
    made = plan.build(way.program(), {s: s.value << 40 for s in Segment}, Target(BLOCKS, hopper=True), way)
    assert way.is_taken(made)


@on_cpu
@pytest.mark.parametrize("columns", [1000, 8192])
def test_held_rows_without_all_operands_stay_inside(columns):
    """NORM.rms has no bias: the checked build must not take for an access what stands in for it."""
    program = assemble(ROWS.format(rows=9, columns=columns))
    given = drawn(program)
    result = CpuSession(program, hopper=True, checked=True).run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []


@pytest.fixture
def exact_allocations() -> Iterator[None]:
    """Each buffer has an allocation of its own, so that what goes past its end is not somebody else's memory."""
    cupy = build.import_cupy()
    pooled = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(None)
    yield
    cupy.cuda.set_allocator(pooled)


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.usefixtures("exact_allocations")
@pytest.mark.parametrize("checked", [False, True], ids=["fast", "checked"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_on_a_gpu(way, checked):
    """Within the rows' bounds, and the same bits again."""
    program = way.program()
    kernel = build.kernel(checked=checked, architecture=None, only=None, progress=print)
    machine = DeviceMachine(checked=checked, timeout=SANITIZED_TIMEOUT)
    session = DeviceSession(machine, kernel, program, way)
    assert way.is_taken(session.plan) or kernel.blocks != BLOCKS
    given = drawn(program)
    dims = {dim.name: dim.bound for dim in program.dims}
    first, second = session.run(given, dims), session.run(given, dims)
    assert [c for c in compare(program, given, first, dims) if not c.ok] == []
    assert all(first.outputs[name].tobytes() == second.outputs[name].tobytes() for name in first.outputs)
