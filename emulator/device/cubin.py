"""The machine's binary: compiled by NVRTC, told where it lies itself, and kept in the cache folder.

On Hopper, a launch has the machine's own code brought to the L2 cache (`prefetch_code` in waiting.cuh), so it has to
know where that lies. CUDA C++ does not say: to device code, a kernel's address is a number that launches it from there.
So `dla_code` begins as a pointer to something else, and here the kernel takes the place of that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dla.emulator.device import source
from dla.emulator.device.elf import Elf
from dla.emulator.device.gpu import HOPPER
from dla.isa.atomic import replacing
from dla.isa.errors import BackendError, InputError
from dla.isa.folders import alone, cache_folder

CODE_NAME = "dla_code"
_DIGITS = 20


def built(cupy: Any, text: str, options: Sequence[str]) -> Path:
    """The file with the binary of `text`; with PTX for the driver to assemble, where the architecture is a virtual one.

    Raises BackendError where it does not compile, and InputError where the cache folder refuses it.
    """
    virtual = any(option.startswith("-arch=compute_") for option in options)
    about = "\0".join((text, *options, str(cupy.cuda.nvrtc.getVersion())))
    name = hashlib.sha256(about.encode()).hexdigest()[:_DIGITS]
    path = cache_folder() / f"machine-{name}.{'ptx' if virtual else 'cubin'}"
    if not _is_whole(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make '{path.parent}': {error.strerror}", hint="set DLA_CACHE") from error
        with alone(path.with_name(f".{path.name}.lock")):  # of processes that begin at the same time, one compiles
            if not _is_whole(path):
                compiled = _compiled(cupy.cuda.nvrtc, text, options, virtual=virtual)
                if f"-arch={HOPPER}" in options:
                    compiled = located(compiled)
                with replacing(path) as (file,):
                    file.write(compiled)
    return path


def _is_whole(path: Path) -> bool:
    """Whether the file is there, and nothing of it is missing: sections are listed at a binary's end."""
    if not path.exists() or path.suffix == ".ptx":
        return path.exists()
    try:
        Elf(path.read_bytes())
    except ValueError:
        return False
    return True


def located(cubin: bytes) -> bytes:
    """The binary whose `dla_code` holds the kernel's address."""
    return Elf(cubin).pointing(CODE_NAME, source.KERNEL_NAME)


def code_bytes(cubin: bytes) -> int:
    """The length of the kernel's code, with all functions that it calls."""
    return len(Elf(cubin).contents(f".text.{source.KERNEL_NAME}"))


def _compiled(nvrtc: Any, text: str, options: Sequence[str], *, virtual: bool) -> bytes:
    """What NVRTC makes of `text`. Denormal results of f32 are zero, as in what CuPy compiles."""
    program = nvrtc.createProgram(text, "machine.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*options, "-ftz=true"))
        found = nvrtc.getPTX(program) if virtual else nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        raise BackendError(f"the machine does not compile: {error}\n{nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)
    return bytes(found).rstrip(b"\0") if virtual else bytes(found)
