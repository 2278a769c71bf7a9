"""Builds of the machine on a GPU: compiled once, or found in the cache folder, and loaded through CuPy."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.emulator.device import cubin, source
from dla.emulator.device.gpu import HOPPER, architecture_for
from dla.emulator.device.layout import BLOCK_THREADS, LAUNCH, MOST_RANKS, PAIR
from dla.emulator.device.paths import Target
from dla.isa.errors import BackendError

COMPILED: dict[tuple[int, str, bool, bool, bool, frozenset[str] | None], Kernel] = {}
"""Builds of this process, on which every program runs, by (device, architecture, checked, traced, ranked, rows)."""


@dataclass(frozen=True)
class Kernel:
    """A compiled build of the machine, ready to launch on one device."""

    function: Any  # cupy.cuda.Function
    prepare: Any  # cupy.cuda.Function: runs once for each program
    shared_bytes: int
    blocks: int  # one for each multiprocessor, all of them at the same time
    architecture: str
    code: int = 0  # address of its own code,
    code_bytes: int = 0  # and its length; 0: not known
    ranked: bool = False  # it runs several ranks

    @property
    def target(self) -> Target:
        """What plans for this build are made for."""
        return Target(self.blocks, hopper=self.architecture == HOPPER)

    def parameter(self, records: Sequence[Any]) -> Any:
        """What a launch is given, from the LAUNCH records of the ranks that it runs, or of the only one."""
        if not self.ranked:
            return records[0]
        launches = np.zeros((), np.dtype([("of", LAUNCH.dtype, (MOST_RANKS,))]))
        for row, record in enumerate(records):
            launches["of"][row] = record
        return launches


def import_cupy() -> Any:
    """CuPy. Raises BackendError, saying how to get it, where it or a GPU is missing."""
    try:
        import cupy
    except ImportError as error:
        raise BackendError(
            "the gpu backend needs CuPy, which is not installed",
            hint="pip install 'cupy-cuda12x[ctk]' (or 13x), or use the golden machine, which needs no GPU",
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(f"the gpu backend finds no GPU: {error}", hint="run `dla doctor`") from error
    if count == 0:
        raise BackendError("the gpu backend finds no GPU", hint="run `dla doctor`")
    return cupy


def native_architecture(cupy: Any) -> str:
    """The architecture to compile for. Raises BackendError where the GPU is too old."""
    capability = str(cupy.cuda.Device().compute_capability)
    if int(capability) < 80:
        raise BackendError(f"the GPU has compute capability {capability}, and the machine needs 80 (Ampere) or later")
    return architecture_for(int(capability))


def kernel(
    *, architecture: str | None, only: frozenset[str] | None, progress: Callable[[str], None], checked: bool = False,
    traced: bool = False, ranked: bool = False,
) -> Kernel:  # fmt: skip
    """The build for the current device, compiled if it is not in the cache folder. Raises BackendError, InputError.

    `progress` is told what is happening once it has taken a second.
    """
    cupy = import_cupy()
    target = architecture or native_architecture(cupy)
    device = cupy.cuda.Device().id
    key = device, target, checked, traced, ranked, only
    found = COMPILED.get(key)
    if found:
        return found
    told = threading.Timer(1.0, progress, [f"compiling the machine for {target}: takes minutes, once per machine"])
    version = cupy.cuda.nvrtc.getVersion()
    options = (*source.options(checked=checked, traced=traced, ranked=ranked, nvrtc=version), f"-arch={target}")
    told.start()
    try:
        path = cubin.built(cupy, source.source(only), options)
        module = cupy.RawModule(path=str(path))
        function = module.get_function(source.KERNEL_NAME)
        prepare = module.get_function(source.PREPARE_NAME)
    finally:
        told.cancel()
    shared_bytes = int(np.frombuffer(_read_global(cupy, module, "dla_shared_bytes", 4), np.uint32)[0])
    limit = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    if shared_bytes > limit:
        raise BackendError(f"the machine needs {shared_bytes} bytes of shared memory per block, the GPU has {limit}")
    function.max_dynamic_shared_size_bytes = prepare.max_dynamic_shared_size_bytes = shared_bytes
    blocks = cupy.cuda.Device().attributes["MultiProcessorCount"]
    code = code_bytes = 0
    if target == HOPPER:
        blocks = min(blocks, PAIR * _resident_pairs(function.kernel.ptr, blocks, shared_bytes))
        code = int(np.frombuffer(_read_global(cupy, module, cubin.CODE_NAME, 8), np.uint64)[0])
        code_bytes = cubin.code_bytes(path.read_bytes())
    COMPILED[key] = Kernel(function, prepare, shared_bytes, blocks, target, code, code_bytes, ranked)
    return COMPILED[key]


def _read_global(cupy: Any, module: Any, name: str, size: int) -> bytes:
    pointer = module.get_global(name)
    host = np.empty(size, np.uint8)
    cupy.cuda.runtime.memcpy(host.ctypes.data, pointer.ptr, size, cupy.cuda.runtime.memcpyDeviceToHost)
    return host.tobytes()


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of the CUDA driver API."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("attribute_count", ctypes.c_uint),
    )  # fmt: skip


def _resident_pairs(function: int, blocks: int, shared_bytes: int) -> int:
    """Pairs of blocks of `function` that run at the same time; what waits for others must not be one of the rest."""
    config = _LaunchConfig((blocks - blocks % PAIR, 1, 1), (BLOCK_THREADS, 1, 1), shared_bytes, None, None, 0)
    pairs = ctypes.c_int()
    status = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters(
        ctypes.byref(pairs), ctypes.c_void_p(function), ctypes.byref(config)
    )
    if status or pairs.value == 0:
        raise BackendError(
            f"the GPU does not run the machine's pairs of blocks (status {status})", hint="run `dla doctor`"
        )
    return pairs.value
