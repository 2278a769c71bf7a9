"""Compiles the machine without a GPU, for CI: `python -m dla.emulator.device.check_build`.

Every architecture and build must compile without warnings and losses of speed that the compiler names; and, but for the
checked build, which is for debugging, without registers spilled to local memory, but for a few.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dla.emulator.device import source
from dla.isa.errors import BackendError

ARCHITECTURES = ("sm_80", "sm_90a")
MAY_SPILL = 128
"""Bytes that a function may keep in local memory: NORM's rows take 116, with the role loop's registers around them."""
ROLES_MAY_SPILL = 256
"""The same for the kernel itself, into which the hot paths are inlined: numbers of a work or a tile, outside of the
loops over the depth."""


class Nvrtc:
    """The few calls of NVRTC that a build needs, from the nvidia-cuda-nvrtc package (or the system's library)."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(_library_path())

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
    nvrtc: Nvrtc, architecture: str, *, checked: bool, only: frozenset[str] | None = None
) -> tuple[bytes, list[str], str]:
    """(cubin, problems, resource summary) of one build."""
    # The checked build is for debugging: that its code is right is enough, and the assembler takes most of the time.
    target = architecture.replace("sm_", "compute_") if checked else architecture
    flags = (*source.options(checked=checked), f"-arch={target}", "-ftz=true", "--ptxas-options=-v")
    cubin, log = nvrtc.compile(source.source(only), flags)
    # C7508 to C7515: registers that stay with their role, products that wait for each other: "info" in the log.
    problems = [line for line in log.splitlines() if "warning" in line or re.search(r"\(C75\d\d\)", line)]
    if not checked:
        problems += _spills(log)
    registers = max(map(int, re.findall(r"Used (\d+) registers", log)), default=0)
    name = architecture + " checked" * checked
    return cubin, problems, f"{name}: {len(cubin):,} bytes, {registers} registers"


def _spills(log: str) -> list[str]:
    """A line for each function that keeps more in local memory than it may."""
    found = re.findall(
        r"Function properties for (\S+)\s+ptxas\s+\.\s+\d+ bytes stack frame, (\d+) bytes spill stores", log
    )
    allowed = {source.KERNEL_NAME: ROLES_MAY_SPILL}
    return [
        f"{name} spills {size} bytes, and may spill {allowed.get(name, MAY_SPILL)}"
        for name, size in found
        if int(size) > allowed.get(name, MAY_SPILL)
    ]


def main() -> int:
    """Build everything, as many at once as there are processors; print a line for each build and each problem."""
    nvrtc = Nvrtc()
    builds = [(architecture, checked) for checked in (False, True) for architecture in ARCHITECTURES]
    failed = False
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _, problems, summary in pool.map(lambda b: build(nvrtc, b[0], checked=b[1]), builds):
            print(summary, flush=True)
            for problem in problems:
                print(f"  {problem}")
            failed |= bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
