"""GPUs that read and write each other's memory: which can, and letting them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

from dla.emulator.device.paths import Transport
from dla.isa.errors import BackendError, InputError

_ALREADY_ENABLED = 704
"""cudaErrorPeerAccessAlreadyEnabled (CUDA Runtime API)."""


def transport_between(cupy: Any, gpus: Sequence[int]) -> Transport:
    """How ranks on `gpus` send to each other, by what connects these. Raises InputError where one is not there."""
    count = cupy.cuda.runtime.getDeviceCount()
    for gpu in gpus:
        if not 0 <= gpu < count:
            raise InputError(f"there is no GPU {gpu}", hint=f"there are {count}, counted from 0")
    pairs = permutations(set(gpus), 2)
    return "peer" if all(cupy.cuda.runtime.deviceCanAccessPeer(*pair) for pair in pairs) else "nccl"


def let_reach_each_other(cupy: Any, gpus: Sequence[int]) -> None:
    """Let each of `gpus` read and write the memory of all others. Raises BackendError where one may not."""
    runtime = cupy.cuda.runtime
    for gpu, other in permutations(gpus, 2):
        if not runtime.deviceCanAccessPeer(gpu, other):
            raise BackendError(f"GPU {gpu} cannot reach the memory of GPU {other}",
                               hint='leave the transport out, or make it "nccl"')  # fmt: skip
        with cupy.cuda.Device(gpu):
            try:
                runtime.deviceEnablePeerAccess(other)
            except runtime.CUDARuntimeError as error:
                if error.status != _ALREADY_ENABLED:
                    raise BackendError(
                        f"GPU {gpu} does not get access to the memory of GPU {other}: {error}"
                    ) from error
