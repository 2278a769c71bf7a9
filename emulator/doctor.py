"""What this computer offers to the machines, what is missing, and how to get it."""

from __future__ import annotations

import enum
import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dla.isa.errors import BackendError
from dla.isa.folders import cache_folder

MIN_COMPUTE_CAPABILITY = (8, 0)
CUDA13_DRIVER = 580
"""First driver that runs CUDA 13 programs (CUDA Toolkit release notes, table of driver versions)."""
_CORE = ("numpy", "ml_dtypes", "lark", "click", "rich", "safetensors")
_OPTIONAL = {
    "onnx": ("compiles .onnx models", "pip install 'dla[onnx]'"),
    "onnxruntime": ("runs them as they are, to compare with", "pip install onnxruntime"),
    "mpi4py": ("runs ranks as processes, on one host or many: mpirun dla run", "pip install 'dla[mpi]'"),
    "torch": ("has the native kernels that `dla profile` compares with", "pip install 'dla[native]'"),
}
_CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")


class Level(enum.Enum):
    """How much a finding matters."""

    OK = "ok"
    MISSING = "missing"  # something does not work without it
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, what is there, and what to do if it is missing."""

    subject: str
    value: str
    level: Level = Level.OK
    remedy: str | None = None


def examine() -> list[Finding]:
    """Look at everything. Never fails: what cannot be examined is a finding."""
    return [*_python(), *_gpu()]


def _python() -> Iterator[Finding]:
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    for name in _CORE:
        version = _version(name)
        if version is None:
            yield Finding(name, "not installed", Level.MISSING, f"pip install {name}")
        else:
            yield Finding(name, version)
    for name, (use, remedy) in _OPTIONAL.items():
        version = _version(name)
        if version is None:
            yield Finding(name, f"not installed; it {use}", Level.INFO, remedy)
        else:
            yield Finding(name, version)
    yield from _mpi()
    yield Finding("golden machine", "works everywhere")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver_version() -> str | None:
    """Version of the NVIDIA driver, as the kernel module tells it; None where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return _version_in(text) or "unknown"


def _version_in(text: str) -> str | None:
    """The driver's version in /proc/driver/nvidia/version, which may also name the architecture ("x86_64")."""
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", text)
    return found.group(1) if found else None


def _gpu() -> Iterator[Finding]:
    driver = driver_version()
    if driver is None:
        yield Finding(
            "NVIDIA driver", "none found", Level.MISSING, "the gpu backend needs an NVIDIA GPU with its driver"
        )
    else:
        yield Finding("NVIDIA driver", driver)
    try:
        import cupy
    except ImportError as error:
        major = int(driver.split(".")[0]) if driver and driver[0].isdigit() else CUDA13_DRIVER
        package = "cupy-cuda13x" if major >= CUDA13_DRIVER else "cupy-cuda12x"
        broken = any(_version(name) for name in _CUPY)
        value = f"cannot be imported: {error}" if broken else "not installed"
        yield Finding("CuPy", value, Level.MISSING, f"pip install '{package}[ctk]'")
        return
    yield Finding("CuPy", str(cupy.__version__))
    yield from _nvrtc(cupy)
    yield _nccl()
    yield from _devices(cupy)


def _nvrtc(cupy: Any) -> Iterator[Finding]:
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
        yield Finding("NVRTC", f"{major}.{minor}")
    except (ImportError, RuntimeError, AttributeError) as error:
        yield Finding("NVRTC", f"does not load: {error}", Level.MISSING, "pip install 'cupy-cuda12x[ctk]' brings it")
    yield Finding("kernel cache", str(cache_folder()), Level.INFO)


def _nccl() -> Finding:
    """What ranks need on GPUs that do not reach each other's memory, or in several processes."""
    from dla.emulator.device import nccl  # needs NumPy, as CuPy does

    try:
        return Finding("NCCL", nccl.version())
    except BackendError as error:
        return Finding("NCCL", error.message, Level.INFO, error.hint)


def _mpi() -> Iterator[Finding]:
    """What ranks in several processes need, beside mpi4py, whose finding is another one."""
    if _version("mpi4py") is None or _version("numpy") is None:
        return
    from dla.emulator import mpi  # needs both

    try:
        yield Finding("MPI", mpi.library())
    except BackendError as error:
        yield Finding("MPI", error.message, Level.INFO, error.hint)


def _devices(cupy: Any) -> Iterator[Finding]:
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        yield Finding("GPU", f"none: {error}", Level.MISSING, "the gpu backend needs an NVIDIA GPU; golden needs none")
        return
    if count == 0:
        yield Finding("GPU", "none", Level.MISSING, "the gpu backend needs an NVIDIA GPU; golden needs none")
    for index in range(count):
        facts = runtime.getDeviceProperties(index)
        capability = (facts["major"], facts["minor"])
        name = facts["name"].decode(errors="replace")
        value = (
            f"{name}, sm_{capability[0]}{capability[1]}, {facts['multiProcessorCount']} SMs, "
            f"{facts['totalGlobalMem'] / 2**30:.0f} GiB"
        )
        if capability < MIN_COMPUTE_CAPABILITY:
            yield Finding(f"GPU {index}", value, Level.MISSING, "the machine needs sm_80 (Ampere) or later")
        else:
            yield Finding(f"GPU {index}", value)
    yield from _peers(runtime, count)


def _peers(runtime: Any, count: int) -> Iterator[Finding]:
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    if not pairs:
        yield Finding("peer access", "one GPU or none: not needed", Level.INFO)
        return
    missing = [f"{a}-{b}" for a, b in pairs if not runtime.deviceCanAccessPeer(a, b)]
    if missing:
        yield Finding("peer access", f"not between {', '.join(missing)}: ranks there use NCCL", Level.INFO)
    else:
        yield Finding("peer access", f"between all {count} GPUs")
