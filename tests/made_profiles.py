"""Profiles without a machine: synthetic runs of real programs, in the sizes that reports meet.

A run is simple: every multiprocessor has one block, each instruction waits for all before it, and some blocks take
longer than others. So times, waits and the critical path are known, and the same for every test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dla.assembler import assemble
from dla.emulator.trace import SPAN, Trace
from dla.isa.cost import bytes_moved, flops
from dla.isa.dtypes import Array
from dla.isa.program import Program
from dla.isa.verifier import verify
from dla.profiler.profile import Ceilings, Figures, Native, Profile, Step, Whole

HOSTILE = "<script>alert(1)</script></style>\x1b[31m\u202e\"'&amp;${x}"
"""What a file may put where a name or a text is expected."""
CEILINGS = Ceilings(4.1e12, {"bf16": 790e12, "f32": 51e12})
DEVICE = {"name": "NVIDIA H200", "driver": "580.159.04", "clock": "1980 MHz", "torch": "2.11.0", "commit": "ba394f2"}
_HEAD = """.program {name}
.input x : bf16[{n}, {n}]
.const w : bf16[{n}, {n}] = 0.5
.scratch a : bf16[{n}, {n}]
.scratch b : bf16[{n}, {n}]
.scratch c : bf16[{n}, {n}]
.output y : bf16[{n}, {n}]
main:
"""
_LAUNCH = 4_000  # nanoseconds before the first block, and half as many behind the last


def program(name: str, body: Sequence[str], size: int = 256) -> Program:
    """`body` between declarations of x, w, a, b, c and y: square matrices."""
    made = assemble(_HEAD.format(name=name, n=size) + "\n".join(f"    {line}" for line in [*body, "HALT"]) + "\n")
    verify(made)
    return made


def chain(count: int = 6, blocks: int = 8) -> Profile:
    """Products, one after the other."""
    steps = [f"GEMM {'ab'[i % 2]}, {'ab'[1 - i % 2] if i else 'x'}, w act=relu" for i in range(count - 1)]
    made = program("chain", [*steps, f"EW.add y, {'ab'[count % 2]}, x"])
    return profile(made, range(count), blocks)


def loop(trips: int = 5, blocks: int = 4) -> Profile:
    """A loop around two instructions: indices 2 and 3, executed `trips` times."""
    body = ["COPY a, x", f"LOOP s1, {trips}", "    GEMM b, a, w", "    EW.add a, b, x", "ENDLOOP", "COPY y, a"]
    return profile(program("loop", body), [0, *[2, 3] * trips, 5], blocks)


def resnet(count: int = 200, blocks: int = 132) -> Profile:
    """As many instructions as a ResNet-50 that fuses little has, on as many multiprocessors as an H200 has."""
    kinds = ("GEMM b, a, w act=relu", "EW.add c, b, a", "GEMM a, c, w", "ACT.gelu b, a", "COPY a, b")
    body = ["COPY a, x", *(kinds[i % len(kinds)] for i in range(count - 2)), "EW.add y, a, a"]
    made = program("resnet", body, 1024)
    return replace(profile(made, range(count), blocks), wholes=(
        Whole("PyTorch, eager", 2.4e-3, 0.9, True),
        Whole("PyTorch, CUDA graph", 1.1e-3, 1.2, True),
        Whole("torch.compile", None, None, None, "not installed"),
    ))  # fmt: skip


def long(count: int, blocks: int) -> Profile:
    """`count` instructions of a loop, as spans enough to be slow: what exporting is measured with."""
    trips = (count - 2) // 2
    body = ["COPY a, x", f"LOOP s1, {trips}", "    GEMM b, a, w", "    EW.add a, b, x", "ENDLOOP", "COPY y, a"]
    return profile(program("long", body), [0, *[2, 3] * trips, 5], blocks)


def hostile() -> Profile:
    """A chain in which every text that a file or a library brings along is hostile."""
    found = chain()
    figures = tuple(
        replace(f, text=f"{f.text} {HOSTILE}", name=f.name + HOSTILE, location=f"{HOSTILE}.dla:{f.index}",
                way=HOSTILE, why_no_native=HOSTILE,
                native=replace(f.native, kernel=HOSTILE) if f.native else None)
        for f in found.figures
    )  # fmt: skip
    bare = replace(found.program, name=HOSTILE, tensors=tuple(replace(t, name=HOSTILE) for t in found.program.tensors))
    return replace(
        found, program=bare, figures=figures, device={HOSTILE: HOSTILE, "name": HOSTILE}, dims={HOSTILE: 3},
        wholes=(Whole(HOSTILE, 1e-3, 1.0, False, HOSTILE),), trap=HOSTILE,
    )  # fmt: skip


def nothing() -> Profile:
    """A program that trapped before its first block did anything: no spans, no steps, no times."""
    found = chain()
    figures = tuple(replace(f, calls=0, time=0.0, spent=(0.0,) * 4, working=0.0, waiting=0.0) for f in found.figures)
    return replace(found, figures=figures, critical=(), runs=(), wall=0.0, traced=0.0,
                   trace=Trace(np.empty(0, SPAN), (), 0), trap="instruction 0 (GEMM): nothing works")  # fmt: skip


def profile(made: Program, executed: Sequence[int], blocks: int) -> Profile:
    """A profile of `made`, of which the instructions `executed` ran, in this order, on so many blocks."""
    spans = _spans(made, np.array(executed), blocks)
    end = int(spans["signalled"].max())
    critical = _critical(spans, end)
    wall = (critical[-1].end - critical[0].begin) * 1e-9
    return Profile(
        program=made, machine="gpu", device=DEVICE, dims={"batch": 32}, wall=wall, traced=wall * 1.03,
        runs=(wall, wall * 1.1, wall * 0.99), overhead=6e-6, launch=3e-6,
        figures=tuple(_figures(made, spans, critical, index) for index in range(len(made.instructions))),
        critical=critical, ceilings=CEILINGS, trace=Trace(spans.reshape(-1), tuple(range(blocks)), end),
        segments={segment.text: size for segment, size in made.segment_bytes.items()},
    )  # fmt: skip


def _spans(made: Program, executed: Array, blocks: int) -> Array:
    """SPAN[blocks, executed]."""
    random = np.random.default_rng(7)
    count = len(executed)
    products = np.array([i.row.mnemonic == "GEMM" for i in made.instructions])[executed]
    took = (np.where(products, 9_000, 2_500) * random.uniform(0.8, 1.0, (blocks, count))).astype(np.int64)
    lasted = took.max(axis=0)
    starts = np.concatenate([[0], np.cumsum(lasted + 700)[:-1]])
    spans = np.zeros((blocks, count), SPAN)
    spans["order"] = np.arange(count)
    spans["instruction"] = executed
    spans["block"] = np.arange(blocks)[:, None]
    spans["tiles"] = random.integers(1, 4, (blocks, count))
    spans["ready"] = starts
    spans["loaded"] = starts + took // 5
    spans["done"] = starts + took
    spans["signalled"] = spans["done"] + 150
    spans["began"][:, 1:] = spans["done"][:, :-1] + 160
    return spans


def _critical(spans: Array, end: int) -> tuple[Step, ...]:
    """The launch, the last block of every instruction, and the end."""
    last = spans["done"].argmax(axis=0)
    steps, begin = [Step(-_LAUNCH, 0, None, 0, 0)], 0
    for order, block in enumerate(last):
        span = spans[block, order]
        done = int(span["signalled"])
        steps.append(Step(begin, done, int(span["instruction"]), int(block), order))
        begin = done
    return (*steps, Step(begin, end + _LAUNCH // 2, None, 0, len(last)))


def _figures(made: Program, spans: Array, critical: Sequence[Step], index: int) -> Figures:
    instruction = made.instructions[index]
    mine = spans[:, spans["instruction"][0] == index]
    calls = mine.shape[1]
    time = sum(step.end - step.begin for step in critical if step.instruction == index) * 1e-9
    lasted = (mine["done"].max(axis=0) - mine["began"].min(axis=0)) * 1e-9 if calls else np.zeros(1)
    waited = (mine["ready"] - mine["began"]).clip(0).sum() * 1e-9 / len(spans)
    work, moved = flops(instruction), bytes_moved(instruction)
    native = index % 3 != 2 and bool(calls)
    return Figures(
        index=index, name=instruction.name, text=f"{instruction.name} {'abcxy'[index % 5]}, w",
        location=f"made.dla:{made.debug.lines[index]}" if made.debug else None, calls=calls, time=time,
        spent=(float(lasted.sum()), float(lasted.mean()), float(lasted.min()), float(lasted.max())),
        working=float((mine["done"] - np.maximum(mine["began"], mine["ready"])).sum() * 1e-9 / len(spans)),
        waiting=float(waited), flops=work, bytes=moved,
        roof=max(work / CEILINGS.flops["bf16"], moved / CEILINGS.bytes_per_second),
        way="gemm 128x128x64, 2 splits" if instruction.row.mnemonic == "GEMM" else "generic",
        native=Native("torch.nn.functional.linear (cuBLAS)", 7.3e-6, 6.1e-6, index % 4 != 1, 0.31) if native else None,
        why_no_native="" if native else "no single kernel does this",
    )  # fmt: skip
