"""Which GPU there is, asked of the driver itself: no CuPy, no context, a few milliseconds."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76
"""CU_DEVICE_ATTRIBUTE_... of the CUDA Driver API."""
_NAME_BYTES = 256
HOPPER = "sm_90a"


@dataclass(frozen=True)
class Gpu:
    """A device, as far as plans and what was measured depend on it."""

    name: str
    multiprocessors: int
    capability: int  # 90 for 9.0
    driver: int  # the CUDA version that the driver offers: 13000 for 13.0

    @property
    def architecture(self) -> str:
        """What `architecture_for` says."""
        return architecture_for(self.capability)


def architecture_for(capability: int) -> str:
    """The architecture to compile for: with Hopper's own instructions where the GPU has them."""
    return HOPPER if capability == 90 else f"sm_{capability}"


H200 = Gpu("NVIDIA H200", 132, 90, 0)
"""What plans are shown for where there is no GPU."""


def present(device: int = 0) -> Gpu | None:
    """Device number `device` of this process; None where it, or the driver, is absent."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    handle, name, version = ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_int()
    values = [ctypes.c_int() for _ in range(3)]
    calls: list[Callable[[], int]] = [
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGet(ctypes.byref(handle), device),
        lambda: driver.cuDeviceGetName(name, _NAME_BYTES, handle),
        lambda: driver.cuDriverGetVersion(ctypes.byref(version)),
        *(
            lambda value=value, attribute=attribute: driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
            for value, attribute in zip(values, (_MULTIPROCESSORS, _MAJOR, _MINOR), strict=True)
        ),
    ]
    if any(call() != 0 for call in calls):
        return None
    multiprocessors, major, minor = (value.value for value in values)
    return Gpu(name.value.decode(), multiprocessors, 10 * major + minor, version.value)
