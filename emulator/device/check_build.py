"""Compiles the machine without a GPU, for CI: `python -m dla.emulator.device.check_build`.

Every architecture and build must compile without warnings; and the fast one without losses of speed that the compiler
names, and without registers spilled to local memory, but for a word or two. On Hopper its roles must get their shares
of the registers. The traced build and the one for ranks, whose text is that one's but for a few lines, are compiled as
far as PTX.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dla.emulator.device import source
from dla.emulator.device.cubin import located
from dla.emulator.device.elf import Elf
from dla.emulator.device.gpu import HOPPER
from dla.isa.errors import BackendError

ARCHITECTURES = ("sm_80", "sm_90a")
MAY_SPILL = 12
"""Bytes that a function may keep in local memory. What brings divergent lanes together again has a register of its own
kind; over a call it needs another place, and the assembler finds none in the loops over works and over tiles (sm_80:
8 bytes, sm_90a: 12). HopperStream spills two words.
"""
SET_REGISTERS = 0x9C8
"""Low 12 bits of the instruction that changes how many registers a warp has (USETMAXREG), as nvdisasm -hex shows it.
The number is in bits 32 to 39."""
ROLE_REGISTERS = {"sm_90a": {72, 216}}
"""What it must set, by architecture: CONTROL_REGISTERS and WORKER_REGISTERS of config.cuh."""


class Nvrtc:
    """The few calls of NVRTC that a build needs, from the nvidia-cuda-nvrtc package (or the system's library)."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(_library_path())

    @property
    def version(self) -> tuple[int, int]:
        """Major, minor."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self.lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return major.value, minor.value

    def compile(self, text: str, options: tuple[str, ...]) -> tuple[bytes, str]:
        """(cubin, log) of `text`; PTX where the target is virtual. Raises BackendError with its messages."""
        program = ctypes.c_void_p()
        self._check(self.lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"machine.cu", 0, None, None))
        encoded = [option.encode() for option in options]
        status = self.lib.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        size = ctypes.c_size_t()
        self._check(self.lib.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        self._check(self.lib.nvrtcGetProgramLog(program, log))
        if status:
            raise BackendError(f"the machine does not compile:\n{log.value.decode()}")
        kind = "PTX" if any("-arch=compute" in option for option in options) else "CUBIN"
        self._check(getattr(self.lib, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
        result = ctypes.create_string_buffer(size.value)
        self._check(getattr(self.lib, f"nvrtcGet{kind}")(program, result))
        self._check(self.lib.nvrtcDestroyProgram(ctypes.byref(program)))
        return result.raw, log.value.decode()

    def _check(self, status: int) -> None:
        if status:
            raise BackendError(f"NVRTC failed with status {status}")


def _library_path() -> str:
    """The NVRTC library: as a Python package, else whatever the loader finds."""
    for folder in map(Path, sys.path):
        for package in ("cuda_nvrtc", "cu13"):
            found = sorted((folder / "nvidia" / package / "lib").glob("libnvrtc.so.*"))
            if found:
                return str(found[0])
    return "libnvrtc.so"


def build(
    nvrtc: Nvrtc,
    architecture: str,
    *,
    checked: bool = False,
    traced: bool = False,
    ranked: bool = False,
    only: frozenset[str] | None = None,
) -> tuple[bytes, list[str], str]:
    """(cubin, problems, resource summary) of one build."""
    # The assembler takes most of the time.
    target = architecture.replace("sm_", "compute_") if traced or ranked else architecture
    options = source.options(checked=checked, traced=traced, ranked=ranked, nvrtc=nvrtc.version)
    flags = (*options, f"-arch={target}", "-ftz=true", "--ptxas-options=-v")
    cubin, log = nvrtc.compile(source.source(only), flags)
    is_fast = not (checked or traced or ranked)
    # C7504 to C7515: registers that stay with their role, products that wait for each other: "info" in the log.
    named = r"warning|\(C75\d\d\)" if is_fast else "warning"
    problems = [line for line in log.splitlines() if re.search(named, line)]
    if is_fast:
        problems += _spills(log)
        expected = ROLE_REGISTERS.get(architecture, set())
        found = registers_set(cubin)
        if found != expected:
            problems.append(f"the roles set their registers to {sorted(found)}, and should to {sorted(expected)}")
    if target == HOPPER:
        problems += _unlocated(cubin)
    registers = max(map(int, re.findall(r"Used (\d+) registers", log)), default=0)
    name = architecture + " checked" * checked + " traced" * traced + " ranked" * ranked
    return cubin, problems, f"{name}: {len(cubin):,} bytes, {registers} registers"


def _spills(log: str) -> list[str]:
    """A line for each function that spills more than it may."""
    found = re.findall(
        r"Function properties for (\S+)\s+ptxas\s+\.\s+\d+ bytes stack frame, (\d+) bytes spill stores", log
    )
    return [f"{name} spills {size} bytes, and may spill {MAY_SPILL}" for name, size in found if int(size) > MAY_SPILL]


def _unlocated(cubin: bytes) -> list[str]:
    """A line where the binary cannot be told where it lies."""
    try:
        located(cubin)
    except (KeyError, ValueError) as error:
        return [f"nothing in the binary can hold the kernel's address: {error}"]
    return []


def registers_set(cubin: bytes) -> set[int]:
    """The numbers that the kernel sets its warps' registers to."""
    code = np.frombuffer(Elf(cubin).contents(f".text.{source.KERNEL_NAME}"), "<u8")[::2]  # instructions have 128 bits
    found = code[code & 0xFFF == SET_REGISTERS]
    return {int(word) for word in found >> 32 & 0xFF}


def main() -> int:
    """Build everything, as many at once as there are processors; print a line for each build and each problem."""
    nvrtc = Nvrtc()
    kinds: tuple[dict[str, bool], ...] = ({}, {"checked": True}, {"traced": True}, {"ranked": True})
    builds = [(architecture, kind) for kind in kinds for architecture in ARCHITECTURES]
    failed = False
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _, problems, summary in pool.map(lambda b: build(nvrtc, b[0], **b[1]), builds):
            print(summary, flush=True)
            for problem in problems:
                print(f"  {problem}")
            failed |= bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
