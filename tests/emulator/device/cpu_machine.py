"""The device machine without a GPU: the kernel's own source, compiled by g++, with fibers for threads.

What CUDA gives the kernel (threads, warps, barriers, shared memory) is in on_cpu/cuda.h; what the machine asks of the
hardware by inline assembly (ptx.cuh, copy_engine.cuh, wgmma.cuh) is written out there. Asynchronous copies land late
and in a random order, warps take turns in a random order: what misses a wait gives wrong results here, too. An access
at an address that is no multiple of its size, which a GPU does not forgive, ends the run. Speed is not the point.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dla.emulator.binding import bind, bind_state
from dla.emulator.device import plan, source, tracing
from dla.emulator.device.generate import TRAP_CODES
from dla.emulator.device.laid_out import laid_out, transpose
from dla.emulator.device.layout import (
    COUNTER_WORDS,
    COUNTERS,
    FIRST_TILE_BYTES,
    FIRST_WORK_BYTES,
    IMAGE_HEADER,
    LAUNCH,
    PROBE,
    REPORT,
    TRACE_BLOCK,
    TRACE_SPAN,
    TURN_AT,
)
from dla.emulator.device.paths import Choices, Target
from dla.emulator.device.paths.tensor_map import ALIGNMENT, AnyMap, Im2colMap
from dla.emulator.device.specialise import Sizes, Specialiser
from dla.emulator.trace import Trace
from dla.isa import weights
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.errors import Trap
from dla.isa.program import Program

COMPILER = shutil.which("g++") if platform.machine() == "x86_64" else None  # switching fibers is assembly
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no g++, which compiles the kernel for the CPU")
"""For tests on the emulated device."""
BLOCKS = 4  # two pairs
_FOLDER = Path(__file__).parent / "on_cpu"
_OPTIONS = (
    "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing", "-mfma", "-mf16c", "-w",
    "-fsanitize=alignment", "-fno-sanitize-recover=alignment",
)  # fmt: skip
_LIBRARIES = ("-nodefaultlibs", "-lstdc++", "-lm", "-lgcc_s", "-lc")
"""All but libubsan: cuda.h says what follows an access that is not aligned."""
_SPARE = 4096
_CATEGORIES = {code: name for name, code in TRAP_CODES.items()}
_MAP = np.dtype(
    [
        ("address", "<u8"), ("dims", "<u8", 5), ("strides", "<u8", 5), ("box", "<u4", 5), ("rank", "<u4"),
        ("item", "<u4"), ("swizzle", "<u4"), ("im2col", "<u4"), ("lower", "<i4", 3), ("upper", "<i4", 3),
        ("traversal", "<u4", 5), ("pixels", "<u4"), ("channels", "<u4"),
    ],
    align=True,
)  # fmt: skip
"""HostMap of on_cpu/copy_engine.cuh: what stands for a CUtensorMap."""


@cache
def library(*, hopper: bool, watched: bool = False, ranked: bool = False) -> ctypes.CDLL:
    """The kernel for the CPU, compiled once for all processes. `hopper`: has hot paths; `watched`: checked, traced."""
    text = _text(hopper=hopper, watched=watched, ranked=ranked)
    options = ("-Og" if watched or ranked else "-O2", *_OPTIONS)  # half the time to compile, and fewer tests
    key = hashlib.sha256("\n".join([*options, *_LIBRARIES, text]).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"dla-on-cpu-{key}"
    folder.mkdir(exist_ok=True)
    built = folder / "machine.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            (folder / "machine.cpp").write_text(text)
            command = [str(COMPILER), *options, "machine.cpp", "-o", "unfinished.so", *_LIBRARIES]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:4000]
            (folder / "unfinished.so").rename(built)
    return ctypes.CDLL(str(built))


def _text(*, hopper: bool, watched: bool, ranked: bool) -> str:
    """One C++ text: CUDA's language, the kernel with its assembly replaced, and the scheduler."""
    replaced = {path.name: path.read_text() for path in _FOLDER.glob("*.cuh")}
    with source.replacing(replaced):
        kernel = source.source.__wrapped__()
    kernel = kernel.replace("extern __shared__ __align__(1024) char shared_memory[];", "")
    macros = ["#define __CUDA_ARCH__ 900"]
    macros += ["#define __CUDA_ARCH_FEAT_SM90_ALL 1"] * hopper + ["#define DLA_RANKS 1"] * ranked
    macros += ["#define DLA_CHECKED 1", "#define DLA_TRACED 1"] * watched  # two builds on a GPU
    parts = [(_FOLDER / "cuda.h").read_text(), *macros, kernel, (_FOLDER / "scheduler.cpp").read_text()]
    return "\n".join(parts)


@dataclass
class _LoadedPlan:
    """A plan, and what launches of it leave for one another."""

    plan: plan.Plan
    tables: dict[str, Array]
    launches: int = 0  # since its counters were zero


class CpuSession:
    """A program on the emulated device, with the methods of a DeviceSession that the tests use."""

    def __init__(
        self, program: Program, *, hopper: bool, checked: bool = False, traced: bool = False, seed: int = 0,
        choices: Choices | None = None,
    ) -> None:  # fmt: skip
        self.program = program
        self.seed = seed
        self.timeout_ns = 10**9
        self.expected_base = 0
        self._library = library(hopper=hopper, watched=checked or traced)
        self._kept: list[Array] = []
        self._segments = {s: self._room(program.segment_bytes.get(s, 0) + _SPARE) for s in Segment}
        self._hopper, self._choices = hopper, choices
        for block in weights.blocks(program):
            data = np.ascontiguousarray(block.data).reshape(-1).view(np.uint8)
            self._segments[Segment.CONST][block.offset : block.offset + data.size] = data
        laid = laid_out(program, hopper=hopper)
        transpose(self._segments[Segment.CONST], laid.matrices)
        self._launch = np.zeros((), LAUNCH.dtype)
        self._abort = np.zeros(1, np.uint32)
        self._report = np.zeros(1, REPORT.dtype)
        self._registers = np.zeros(32, np.int64)
        self._specialiser = Specialiser(laid.program)
        self._plans: dict[Sizes, _LoadedPlan] = {}
        self._use(self._specialiser.largest)

    def _use(self, sizes: Sizes) -> None:
        """Let the next launches follow the plan for `sizes`."""
        if sizes in self._plans:
            if self._plans[sizes] is not self._loaded:
                self._enter(self._plans[sizes])
            return
        bases = {segment: memory.ctypes.data for segment, memory in self._segments.items()}
        target = Target(BLOCKS, hopper=self._hopper)
        made = plan.build(self._specialiser.program(sizes), bases, target, self._choices)
        maps = self._room(max(1, len(made.maps)) * 128)
        for index, tensor_map in enumerate(made.maps):
            maps[index * 128 : index * 128 + 8].view(np.uint64)[0] = self._copied(encoded(tensor_map)).ctypes.data
        tables = {
            "images": self._copied(made.images), "image_places": self._copied(made.image_places),
            "maps": maps, "workspace": self._room(made.workspace_bytes + 16),
            "first": self._room(FIRST_WORK_BYTES + BLOCKS * FIRST_TILE_BYTES),
            "counters": np.zeros(COUNTER_WORDS, np.uint32), "exchange": self._room(2 * made.exchange_bytes + 16),
            "abort": self._abort, "report": self._report, "probes": np.zeros(max(1, len(made.probes)), PROBE.dtype),
            "initial_registers": self._registers,
        }  # fmt: skip
        tables["exchange"][:] = 0xFF
        self._plans[sizes] = _LoadedPlan(made, tables)
        self._enter(self._plans[sizes])
        assert self._library.run_prepare(ctypes.c_void_p(self._launch.ctypes.data), BLOCKS, 1) == 0

    def _enter(self, loaded: _LoadedPlan) -> None:
        self._loaded, self.plan, launch = loaded, loaded.plan, self._launch
        for name, table in loaded.tables.items():
            launch[name] = table.ctypes.data
        launch["exchange_bytes"] = self.plan.exchange_bytes
        launch["instructions"], launch["world"] = len(self.plan.executed.instructions), 1
        launch["first_pieces"], launch["pairs"] = self.plan.first_pieces, self.plan.pairs
        launch["first_work"] = self.plan.first_work

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite the named state tensors."""
        for name, array in bind_state(self.program, values).items():
            self._write(name, array)

    def headers(self) -> list[Any]:
        """Of each instruction, the header of its image, with what dla_prepare has filled in."""
        size, begins = IMAGE_HEADER.dtype.itemsize, self.plan.image_places[: len(self.plan.executed.instructions), 0]
        images = self._loaded.tables["images"]
        return [images[int(begin) * 16 :][:size].view(IMAGE_HEADER.dtype)[0] for begin in begins]

    def details(self) -> list[tuple[str, Array]]:
        """Of each instruction with operands, its mnemonic and what its handler kept of it when the plan was made."""
        pairs = zip(self.headers(), self.plan.executed.instructions, strict=True)
        return [(each.row.mnemonic, header["detail"]) for header, each in pairs if each.row.operands]

    def ways(self) -> list[tuple[str, int]]:
        """Of each instruction with operands, its mnemonic and the way that its handler chose: the last that it kept."""
        return [(mnemonic, int(detail[-1])) for mnemonic, detail in self.details()]

    def tables(self) -> Mapping[str, Array]:
        """What the next launch is given, by the names of LAUNCH."""
        return self._loaded.tables

    def misplace(self, table: str, by: int) -> None:
        """Let the next launch look for `table`, a pointer of LAUNCH, so many bytes further on."""
        self._launch[table] = int(self._launch[table]) + by

    def trace(self, inputs: Mapping[str, Any], room: int = 64) -> tuple[Any, Trace]:
        """One launch of the traced build: what it gives, or the Trap, and its trace."""
        table = self._room(tracing.table_bytes(BLOCKS, room))
        self._launch["trace"], self._launch["trace_room"] = table.ctypes.data, room
        try:
            result = self.run(inputs)
        except Trap as trap:
            result = trap
        self._launch["trace"] = 0
        end = BLOCKS * TRACE_BLOCK.dtype.itemsize
        heads, spans = table[:end].view(TRACE_BLOCK.dtype), table[end:].view(TRACE_SPAN.dtype).reshape(BLOCKS, room)
        noted = [of_block[: min(room, head["works"])] for of_block, head in zip(spans, heads, strict=True)]
        return result, tracing.trace(heads, noted, self.plan.origins)

    def run(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Any:
        """One launch; outputs and state at their bounds. Raises Trap."""
        bound = bind(self.program, inputs, dims)
        for name, array in bound.arrays.items():
            self._write(name, array)
        self._registers[:] = 0
        for symbol in self.program.dims:
            self._registers[symbol.register] = bound.dims[symbol.name]
        self._use(self._specialiser.sizes(bound.dims))
        self._launch["expected_base"], self._launch["timeout_ns"] = self.expected_base, self.timeout_ns
        status = self._library.run_machine(ctypes.c_void_p(self._launch.ctypes.data), BLOCKS, 1, self.seed)
        assert status == 0, "the emulated device says above what is wrong"
        self._loaded.launches += 1
        turn, counters = self._loaded.launches % 2, self._loaded.tables["counters"]
        assert not counters[turn * COUNTERS : (turn + 1) * COUNTERS].any(), "zero when their turn comes"
        assert counters[TURN_AT] == turn * BLOCKS, "every block has ended its turn"
        report = self._report[0].copy()
        self._report[:] = np.zeros(1, REPORT.dtype)
        self._abort[:] = 0
        if report["claimed"]:
            raise Trap(
                _CATEGORIES[int(report["category"])], "on the CPU",
                instruction=self.plan.origins[int(report["instruction"])],
            )  # fmt: skip
        read = {s: {t.name: self._read(t.name) for t in self.program.in_segment(s)} for s in Segment}
        return SimpleNamespace(outputs=read[Segment.OUTPUT], state=read[Segment.STATE])

    def _write(self, name: str, array: Any) -> None:
        descriptor = self.program.by_name[name].descriptor
        self._tensor(name)[tuple(slice(0, n) for n in array.shape)] = np.asarray(array)
        assert len(array.shape) == descriptor.rank

    def _read(self, name: str) -> Array:
        return self._tensor(name).copy()

    def _tensor(self, name: str) -> Array:
        d = self.program.by_name[name].descriptor
        size = int(np.prod(d.bounds)) * d.dtype.itemsize
        return self._segments[d.segment][d.offset : d.offset + size].view(d.dtype.numpy).reshape(d.bounds)

    def _room(self, size: int) -> Array:
        """Zeroed bytes at an address that is a multiple of 1024."""
        memory = np.zeros(size + 1024, np.uint8)
        self._kept.append(memory)
        start = -memory.ctypes.data % 1024
        return memory[start : start + size]

    def _copied(self, table: Array) -> Array:
        data = np.ascontiguousarray(table).reshape(-1).view(np.uint8)
        room = self._room(data.size + 16)
        room[: data.size] = data
        return room


def encoded(tensor_map: AnyMap) -> Array:
    """A HostMap: what the emulated device takes for the tensor map."""
    record, rank = np.zeros(1, _MAP), len(tensor_map.dims)
    entry = record[0]
    item = tensor_map.dtype.itemsize
    in_bytes = (tensor_map.address, *tensor_map.strides, tensor_map.box[0] * item)
    assert not any(n % ALIGNMENT for n in in_bytes), f"the driver refuses {tensor_map}"
    entry["address"], entry["rank"], entry["item"] = tensor_map.address, rank, item
    entry["dims"][:rank], entry["strides"][:rank] = tensor_map.dims, (item, *tensor_map.strides)[:rank]
    if isinstance(tensor_map, Im2colMap):
        entry["im2col"], entry["swizzle"] = 1, 128
        entry["lower"][:2], entry["upper"][:2] = tensor_map.lower, tensor_map.upper
        entry["traversal"][1:3] = tensor_map.step
        entry["channels"], entry["pixels"] = tensor_map.box
    else:
        entry["box"][:rank], entry["swizzle"] = tensor_map.box, tensor_map.swizzle
    return record
