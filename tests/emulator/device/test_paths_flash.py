"""ATTENTION of 16-bit floats: where keys are split over blocks, and that the results are right."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.compare import compare
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Context, Schedule, Target, schedule
from dla.emulator.result import Result
from dla.isa.descriptor import Segment
from dla.isa.program import Program
from dla.isa.reach import Reach
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession

BASES = {segment: segment.value << 40 for segment in Segment}
ONLY = frozenset({"ATTENTION"})


def attention(attributes: str = "", **tensors: str) -> Program:
    """One ATTENTION over tensors of the given types; q, k, v are inputs, the rest outputs unless `mask`."""
    segments = {"q": "input", "k": "input", "v": "input", "mask": "input"}
    declared = "\n".join(f".{segments.get(name, 'output')} {name} : {text}" for name, text in tensors.items())
    optional = " ".join(f"{name}={name}" for name in ("mask", "lse") if name in tensors)
    return assemble(f".program a\n{declared}\nmain:\n    ATTENTION y, q, k, v {optional} {attributes}\n    HALT\n")


def scheduled(program: Program, *, hopper: bool = True) -> tuple[Schedule, Context]:
    """The schedule of the first instruction, and the context with its tables."""
    context = Context(Target(132, hopper=hopper), BASES, Reach(program))
    return schedule(program.instructions[0], context), context


# ---- the plan ----


@pytest.mark.parametrize(
    ("queries", "keys", "splits"), [(1, 512, True), (16, 512, True), (1, 64, False), (17, 512, False)]
)
@pytest.mark.parametrize("hopper", [False, True])
def test_few_queries_get_room_for_partial_results(queries, keys, splits, hopper):
    """Where keys may be split over blocks, the detail names the number of partial results and where they are."""
    q, k = f"bf16[1, 8, {queries}, 64]", f"bf16[1, 2, {keys}, 64]"
    found, context = scheduled(attention(y=q, q=q, k=k, v=k), hopper=hopper)
    assert (context.workspace_bytes > 132 * 16 * 128 * 4) is splits
    assert found.detail[:1] == ((132,) if splits else found.detail[:1])


# ---- the machine ----


def tensors(program: Program, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random numbers for the inputs; `sizes` of their dynamic dims, by name."""
    given = {}
    for t in program.in_segment(Segment.INPUT):
        names = {s.register: s.name for s in program.dims}
        shape = tuple(sizes[names[d.register]] if hasattr(d, "register") else d for d in t.descriptor.dims)
        drawn = rng.normal(size=shape) if t.descriptor.dtype.is_float else rng.integers(0, 2, shape)
        given[t.name] = drawn.astype(t.descriptor.dtype.numpy)
    return given


def kv(
    dtype: str, batch: object, heads: int, key_heads: int, queries: object, keys: object, depth: int, width: int = 0
) -> dict[str, str]:
    """Types of q, k, v, y and lse."""
    width = width or depth
    return {
        "y": f"{dtype}[{batch}, {heads}, {queries}, {width}]", "q": f"{dtype}[{batch}, {heads}, {queries}, {depth}]",
        "k": f"{dtype}[{batch}, {key_heads}, {keys}, {depth}]", "v": f"{dtype}[{batch}, {key_heads}, {keys}, {width}]",
        "lse": f"f32[{batch}, {heads}, {queries}]",
    }  # fmt: skip


CASES = {
    "one tile": ("", kv("bf16", 1, 2, 2, 128, 128, 64), {}),
    "blocks": ("", kv("bf16", 2, 3, 3, 300, 517, 64), {}),
    "wide": ("", kv("bf16", 2, 3, 3, 300, 517, 128), {}),
    "half": ("causal", kv("f16", 1, 4, 2, 333, 333, 64), {}),
    "wide half": ("causal", kv("f16", 1, 4, 2, 333, 333, 128), {}),
    "causal": ("causal", kv("bf16", 2, 6, 2, 700, 700, 64), {}),
    "wide causal": ("causal", kv("bf16", 2, 6, 2, 700, 700, 128), {}),
    "many": ("causal", kv("bf16", 4, 32, 8, 200, 200, 64), {}),
    "paired": ("causal", kv("bf16", 4, 32, 32, 300, 640, 128), {}),
    "columns": ("", kv("bf16", 1, 2, 2, 200, 200, 40, 72), {}),
    "window": ("causal window=100", kv("bf16", 1, 4, 1, 500, 500, 128), {}),
    "window only": ("window=50", kv("bf16", 1, 4, 1, 300, 300, 64), {}),
    "softcap": ("softcap=2 scale=0.3", kv("bf16", 1, 2, 2, 260, 260, 64), {}),
    "wide softcap": ("softcap=2 causal", kv("bf16", 1, 2, 2, 260, 260, 128), {}),
    "more queries": ("causal", kv("bf16", 1, 2, 2, 400, 150, 64), {}),
    "ahead": ("causal position=-200", kv("bf16", 1, 2, 2, 300, 300, 128), {}),
    "dynamic": ("causal", kv("bf16", "b <= 3", 4, 2, "s <= 400", "t <= 900", 64), {"b": 2, "s": 177, "t": 411}),
    "wide dynamic": ("", kv("bf16", "b <= 3", 4, 2, "s <= 400", "t <= 900", 128), {"b": 1, "s": 129, "t": 130}),
    "a token": ("causal", kv("bf16", 1, 32, 8, 1, 700, 64), {}),
    "a wide token": ("causal", kv("bf16", 1, 32, 8, 1, 700, 128), {}),
    "half a token": ("", kv("f16", 2, 8, 1, 1, 333, 128), {}),
    "tokens": ("causal", kv("bf16", 1, 32, 8, 16, 1000, 64), {}),
    "five tokens": ("causal window=300", kv("bf16", 2, 12, 4, 5, 1000, 128), {}),
    "token softcap": ("softcap=3", kv("bf16", 1, 4, 4, 3, 513, 96), {}),
    "deep token": ("", kv("bf16", 1, 4, 4, 1, 600, 256, 200), {}),
    "a token of a cache": ("causal", kv("bf16", "b <= 2", 8, 2, "s <= 8", "t <= 3000", 64),
                           {"b": 2, "s": 3, "t": 2099}),
    "masked token": ("", kv("bf16", 1, 8, 2, 2, 400, 64) | {"mask": "bool[2, 400]"}, {}),
}  # fmt: skip


@pytest.mark.skipif(cpu_machine.COMPILER is None, reason="no g++, which compiles the kernel for the CPU")
@pytest.mark.parametrize(
    ("name", "hopper"), [("half a token", False), ("token softcap", False), ("masked token", False)]
)
def test_results_on_the_emulated_device(name, hopper):
    """Without a GPU: small cases with static shapes, whatever order warps and copies come in."""
    attributes, types, sizes = CASES[name]
    program = attention(attributes, **types)
    given = tensors(program, sizes, np.random.default_rng(7))
    outputs = CpuSession(program, hopper=False, seed=1).run(given).outputs
    result = Result(outputs, {}, {}, "cpu", 0.0)
    assert [c for c in compare(program, given, result) if not c.ok] == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(CASES))
def test_results_are_within_the_bound(name):
    """Every output within its row's bound, and the same bits in a second run."""
    attributes, types, sizes = CASES[name]
    program = attention(attributes, **types)
    given = tensors(program, sizes, np.random.default_rng(7))
    session = DeviceMachine(only=ONLY).load(program)
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    again = session.run(given)
    assert all(result[n].tobytes() == again[n].tobytes() for n in result.outputs)
